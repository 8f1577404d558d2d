"""Replicas of runs that are not over, and leases of others: what a deploy must not publish over.

A deploy that starts something takes the leases of the hosts it touches. One that starts nothing touches none, and
still says who serves; so it looks at what the hosts told of leases and open runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from gpufleet.deploy.replicas import LABEL, Present
from gpufleet.errors import ErrorRow, FactUnknown, LeaseHeld
from gpufleet.hosts.model import HostFacts, Known, Unknown
from gpufleet.names import HostName


def of_open_runs(
    present: Sequence[Present], facts: Mapping[HostName, HostFacts], over: Collection[str]
) -> dict[str, list[Present]]:
    """Replicas that a run started which its host does not know to be over, by run; `over`: runs known to be."""
    found: dict[str, list[Present]] = {}
    for one in present:
        runs = facts[one.host].open_runs if one.host in facts else Known(())
        run = one.container.labels.get(f"{LABEL}.run", "")
        if isinstance(runs, Known) and run in runs.value and run not in over:
            found.setdefault(run, []).append(one)
    return found


def refuse(open_runs: Mapping[str, Sequence[Present]]) -> None:
    """Raises LeaseHeld when replicas that would stay belong to a run that is open."""
    rows = tuple(
        ErrorRow(one.host, f"{one.replica} was started by run {run}, which is not over")
        for run, members in open_runs.items()
        for one in members
    )
    if rows:
        run = next(iter(open_runs))
        raise LeaseHeld(
            "replicas of this pool belong to a run that is not over; nothing was changed",
            rows=rows,
            hints=(
                f"gpufleet change resume {run}",
                f"gpufleet change undo {run}",
                "wait, when somebody is at work on it",
            ),
        )


def refuse_leases(
    hosts: Collection[HostName], facts: Mapping[HostName, HostFacts], died_here: Callable[[str], bool]
) -> None:
    """Raises LeaseHeld when somebody changes one of these hosts, and FactUnknown when that could not be read.

    `died_here`: whether a run is one of this machine whose process is gone.
    """
    for host in sorted(hosts):
        if host in facts and isinstance(unread := facts[host].lease, Unknown):
            raise FactUnknown(
                f"whether somebody changes it is not known: {unread.reason}",
                where=host,
                hints=(f"look with `gpufleet hosts check {host}`",),
            )
    held = {
        host: lease.value
        for host in sorted(hosts)
        if host in facts and isinstance(lease := facts[host].lease, Known) and lease.value
    }
    if held:
        host = next(iter(held))
        run = held[host].rpartition(" ")[2]
        if died_here(run):
            raise LeaseHeld(
                "a lease is held by a run of this machine whose process is gone; nothing was changed",
                where=host,
                rows=tuple(ErrorRow(name, f"held: {words}") for name, words in held.items()),
                hints=(f"gpufleet change resume {run}", f"gpufleet change undo {run}"),
            )
        raise LeaseHeld(
            "a lease is held by another run; nothing was changed",
            where=host,
            rows=tuple(ErrorRow(name, f"held: {words}") for name, words in held.items()),
            hints=(
                "`gpufleet change list` says whether the run is one of this machine's",
                "wait until it is over",
            ),
        )
