"""Looking at sources and hosts before weights are staged: what stands in the way is found before anything is touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from gpufleet.clock import Clock
from gpufleet.deploy.staging import ask, looks, share, stores
from gpufleet.deploy.staging.hub import SourceMissing
from gpufleet.deploy.staging.model import HostStore, Kind, Listing, Source
from gpufleet.deploy.staging.share_survey import seen_by
from gpufleet.deploy.staging.steps import Staging
from gpufleet.errors import ErrorRow, FleetError, HostUnreachable, PreflightFailed
from gpufleet.names import HostName
from gpufleet.remote.fanout import fanout
from gpufleet.remote.result import Lost
from gpufleet.remote.transport import Transport

DEFAULT_STORE = "~/.gpufleet/models"
"""Where weights are kept when nobody says; the home directory is the host's own."""

RESERVE_KIB = 1 << 20
"""Left free on a disk beside what is staged."""


def prepare(
    source: Source,
    hosts: Sequence[HostName],
    *,
    store: str,
    shared: bool,
    verify: bool,
    transport: Transport,
    clock: Clock,
    forks: int,
    warn: Callable[[str], None],
    in_place: bool = False,
    state_dir: Path | None = None,
) -> Staging:
    """Ask the source what there is and the hosts what they have. Nothing is written, here or there.

    `in_place`: a directory of the hosts is used where it is, and only watched. `state_dir` remembers checksums of
    files on this machine.

    Raises:
        SourceRefused, SourceGated, SourceMissing, SourceUnreachable, SourceMoving: of the source, with the fix.
        HostUnreachable, PreflightFailed: of hosts, a row each.
    """
    seeing: frozenset[HostName] | None = None
    if source.kind is Kind.DIRECTORY:
        seen = seen_by(source, hosts, everywhere=in_place, transport=transport, clock=clock, forks=forks)
        listing, seeing = seen.listing, seen.hosts
        _refuse_empty(listing)
        fetches = share.fetches(listing)
        if in_place:
            return _used_in_place(listing, hosts)
    else:
        with ask.asker() as questions:
            listing = ask.listing(source, questions, clock.now(), state_dir)
        fetches = ask.fetches(listing, clock.now())
    wanted = f"{(store or DEFAULT_STORE).rstrip('/')}/{listing.name}"
    found = _surveyed(wanted, hosts, transport, forks)
    staging = Staging(
        listing=listing,
        fetches=fetches,
        path=next(iter(found.values())).path,
        stores=found,
        shared=shared,
        verify=verify,
        seeing=seeing,
    )
    _preflight(staging, hosts)
    _tell(staging, hosts, warn)
    return staging


def _used_in_place(listing: Listing, hosts: Sequence[HostName]) -> Staging:
    path = listing.source.place
    there = {host: HostStore(path=path, state="complete") for host in hosts}
    return Staging(listing=listing, fetches=(), path=path, stores=there, in_place=True)


def _refuse_empty(listing: Listing) -> None:
    if not listing.files:
        raise SourceMissing(
            "there are no files to stage",
            where=listing.source.shown,
            hints=("check `include` and `exclude`",),
        )


def _surveyed(
    wanted: str, hosts: Sequence[HostName], transport: Transport, forks: int
) -> dict[HostName, HostStore]:
    def look(host: HostName) -> HostStore:
        with closing(transport.open(host)) as session:
            answer = session.run(stores.survey(wanted))
        if isinstance(answer, Lost):
            raise HostUnreachable(f"the store was not seen: {answer.reason}", where=host)
        found = looks.read_survey(answer.stdout)
        if found is None:
            raise PreflightFailed(
                "the store could not be looked at",
                where=host,
                hints=(answer.stderr.strip()[:200] or f"look at {wanted} there",),
            )
        return found

    answers = fanout(hosts, look, forks=forks)
    failed = {host: answer for host, answer in answers.items() if isinstance(answer, FleetError)}
    if len(failed) == 1:
        raise next(iter(failed.values()))
    if failed:
        rows = tuple(
            ErrorRow(host, error.summary, error.hints[0] if error.hints else "", error.code)
            for host, error in failed.items()
        )
        raise HostUnreachable(
            f"the stores of {len(failed)} of {len(hosts)} hosts were not seen; nothing was changed", rows=rows
        )
    return {host: answer for host, answer in answers.items() if isinstance(answer, HostStore)}


def _preflight(staging: Staging, hosts: Sequence[HostName]) -> None:
    rows = [row for host in staging.lacking(hosts) for row in _faults(staging, host)]
    paths = {one.path for one in staging.stores.values()}
    if len(paths) > 1:
        rows += [
            ErrorRow(host, f"its store is {one.path}", "set the store to one absolute path", "store-differs")
            for host, one in staging.stores.items()
        ]
    if rows:
        sick = tuple(dict.fromkeys(row.where for row in rows))
        raise PreflightFailed(
            f"{len(sick)} of {len(hosts)} hosts cannot take the weights; nothing was changed",
            where=", ".join(sick),
            rows=tuple(rows),
            hints=(
                "another place for weights: `store: /path` under the pool's `weights`, or `--store PATH`",
            ),
        )


def _faults(staging: Staging, host: HostName) -> list[ErrorRow]:
    store = staging.stores[host]
    found = []
    lacks = [name for name in store.lacks if name in _needed(staging.listing)]
    if lacks:
        found.append(
            ErrorRow(host, f"has no {' and no '.join(lacks)}", f"install {' '.join(lacks)}", "store-tools")
        )
    if store.state == "foreign":
        found.append(ErrorRow(host, f"{store.path} is there and not ours", "move it away", "store-foreign"))
    if not store.writable:
        found.append(
            ErrorRow(host, f"{store.path} cannot be made", "give the SSH user the store", "store-denied")
        )
    missing = staging.listing.size // 1024 - store.partial_kib + RESERVE_KIB
    if store.state != "complete" and store.free_kib is not None and missing > store.free_kib:
        found.append(
            ErrorRow(
                host,
                f"{store.path} needs {gib(missing)}, and {gib(store.free_kib)} are free",
                "free some, or choose another store",
                "store-full",
            )
        )
    return found


def _needed(listing: Listing) -> frozenset[str]:
    git = any(one.check.startswith("git:") for one in listing.files)
    curl = listing.source.kind in {Kind.HUB, Kind.S3}
    return frozenset({"sha256sum", "stat", *(["curl"] if curl else []), *(["sha1sum"] if git else [])})


def _tell(staging: Staging, hosts: Sequence[HostName], warn: Callable[[str], None]) -> None:
    listing = staging.listing
    lacking = staging.lacking(hosts)
    if listing.unchecked and lacking:
        warn(
            f"{listing.source.shown} tells no checksum of {listing.unchecked} of {len(listing.files)} files: "
            "only their sizes are compared"
        )
    for host in lacking:
        if staging.stores[host].free_kib is None:
            warn(f"{host}: the free space under {staging.path} is not known")
        if staging.stores[host].writer:
            warn(f"{host}: {staging.stores[host].writer} is writing there; it is waited for")


def gib(kib: int) -> str:
    """`12.3 GiB`, or MiB below one."""
    return f"{kib / (1 << 20):.1f} GiB" if kib >= 1 << 20 else f"{kib / 1024:.0f} MiB"


def rows(staging: Staging, hosts: Sequence[HostName]) -> list[Mapping[str, object]]:
    """One object a host, as JSON output carries them before anything is done."""
    lacking = set(staging.lacking(hosts))
    return [
        {
            "host": host,
            "status": "stages" if host in lacking else "unchanged",
            "path": staging.path,
            "state": staging.stores[host].state,
            "bytes": staging.listing.size,
        }
        for host in hosts
    ]
