"""What stands on the hosts, asked by plain ssh and never through gpufleet: the judge of every fault case."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic, sleep

from tests.real.fleet import Fleet
from tests.real.machine import Failed

FORMAT = "{{.ID}}\t{{.Names}}\t{{.Image}}\t{{.State}}\t{{.Ports}}"
"""Identity, name, image, state and open ports: what differs when a container was replaced, renamed, stopped or lost."""

Snapshot = dict[str, tuple[str, ...]]


def look(fleet: Fleet, names: Iterable[str] | None = None) -> Snapshot:
    """Every container of every host, running or not."""
    found: Snapshot = {}
    for name in names if names is not None else fleet.hosts:
        listed = fleet.ssh(name, f"docker ps -a --no-trunc --format '{FORMAT}'")
        found[name] = tuple(sorted(listed.splitlines()))
    return found


def difference(before: Snapshot, after: Snapshot) -> list[str]:
    """One line for every container that is there and should not be, or should be and is not."""
    lines = []
    for name, containers in before.items():
        lines += [f"{name}: lost     {line}" for line in containers if line not in after.get(name, ())]
        lines += [f"{name}: left over {line}" for line in after.get(name, ()) if line not in containers]
    return lines


def settled_as(fleet: Fleet, before: Snapshot, *, within: float = 20) -> list[str]:
    """The difference that remains after the engines had time to bring restarted containers back."""
    begun = monotonic()
    lines = ["nobody looked"]
    while lines and monotonic() - begun < within:
        try:
            lines = difference(before, look(fleet, before))
        except Failed as problem:
            lines = [str(problem)]
        if lines:
            sleep(0.2)
    return lines
