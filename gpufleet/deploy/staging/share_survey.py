"""Looking at a directory on the hosts before it is copied or used: who sees it, and whether it stands still."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from gpufleet.clock import Clock
from gpufleet.deploy.staging import share
from gpufleet.deploy.staging.hub import SourceMissing
from gpufleet.deploy.staging.model import Listing, Source
from gpufleet.deploy.staging.settled import SourceMoving, refuse_unfinished
from gpufleet.errors import ErrorRow, FleetError, HostUnreachable, PreflightFailed
from gpufleet.names import HostName
from gpufleet.remote.fanout import fanout
from gpufleet.remote.result import Lost
from gpufleet.remote.transport import Transport

STILL = ("wait until nobody writes there, and plan again",)


@dataclass(frozen=True, slots=True)
class Seen:
    """One listing, and the hosts that see it."""

    listing: Listing
    hosts: frozenset[HostName]


def seen_by(
    source: Source,
    hosts: Sequence[HostName],
    *,
    everywhere: bool,
    transport: Transport,
    clock: Clock,
    forks: int,
) -> Seen:
    """The directory as the hosts see it, all of them alike. Nothing is written.

    `everywhere`: every host must see it, because it is used where it is.

    Raises:
        SourceMissing: no host sees it. SourceMoving: it changes. PreflightFailed: hosts see different ones, or a host
            that must see it does not. HostUnreachable: a host did not answer.
    """

    def look(host: HostName) -> share.Shown:
        with closing(transport.open(host)) as session:
            answer = session.run(share.look(source.place))
        if isinstance(answer, Lost):
            raise HostUnreachable(f"{source.place} was not seen: {answer.reason}", where=host)
        shown = share.read(answer.stdout, source)
        if shown is None:
            raise PreflightFailed(
                f"{source.place} could not be listed",
                where=host,
                hints=(answer.stderr.strip()[:200] or "a file there has a name that cannot be staged",),
            )
        return shown

    answers = fanout(hosts, look, forks=forks)
    for answer in answers.values():
        if isinstance(answer, FleetError):
            raise answer
    shown = {host: answer for host, answer in answers.items() if isinstance(answer, share.Shown)}
    seeing = {host: one for host, one in shown.items() if one.state == "there"}
    _check_seen(source, shown, seeing, everywhere=everywhere)
    first = next(iter(seeing))
    _check_still(source, seeing, lambda: look(first), clock)
    return Seen(share.listing(source, seeing[first]), frozenset(seeing))


def _check_seen(
    source: Source,
    shown: dict[HostName, share.Shown],
    seeing: dict[HostName, share.Shown],
    *,
    everywhere: bool,
) -> None:
    blind = [host for host in shown if host not in seeing]
    if not seeing:
        raise SourceMissing(
            f"no host sees {source.place}: it is {share.trouble(shown[blind[0]].state)} on {blind[0]}",
            where=source.shown,
            hints=(
                share.remedy("hung")
                if shown[blind[0]].state == "hung"
                else "mount it there, or correct the path; a directory of this machine is `file:///PATH`",
            ),
        )
    if blind and everywhere:
        raise PreflightFailed(
            f"{source.place} is to be used where it is, and {len(blind)} host(s) do not see it",
            where=", ".join(blind),
            rows=tuple(
                ErrorRow(
                    host,
                    f"{source.place} is {share.trouble(shown[host].state)}",
                    share.remedy("hung")
                    if shown[host].state == "hung"
                    else "mount it there, or let it be copied: without `in_place`",
                    "store-unseen",
                )
                for host in blind
            ),
        )


def _check_still(
    source: Source, seeing: dict[HostName, share.Shown], look_again: Callable[[], share.Shown], clock: Clock
) -> None:
    first = next(iter(seeing))
    refuse_unfinished((one.path for one in seeing[first].files), source.shown)
    clock.sleep(share.PAUSE)
    again = look_again()
    moved = again.state != "there" or share.moving(seeing[first], again)
    if moved:
        what = moved if isinstance(moved, str) else source.place
        raise SourceMoving(f"{what} changes while it is looked at", where=source.shown, hints=STILL)
    for host, one in seeing.items():
        if odd := share.moving(seeing[first], one):
            raise SourceMoving(
                f"{odd} is not the same on {first} and {host}: it is written to, or they mount different directories",
                where=source.shown,
                hints=STILL,
            )
