"""Who copies from whom, so that N hosts do not cost N reads of the source.

A host that has the weights may give them to `fan_out` others; a few *roots* read the source when nobody has them yet.
Everybody else copies from a host that is done before. With F copies at a time from each giver the depth is the
logarithm of N to the base F+1 at best; the plan here is a plain breadth-first tree, which is within one level of that,
because givers serve their copies at the same time and not one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gpufleet.names import HostName

FAN_OUT = 4
"""Copies that one giver serves: two of them fill a 10 GbE link from one NVMe disk, the rest is for slower takers."""

ROOTS = 1
"""Hosts that read the source at once when none has the weights."""


@dataclass(slots=True)
class _Giver:
    """A host that gives, and to how many more."""

    host: HostName
    room: int


def parents(
    having: Sequence[HostName],
    lacking: Sequence[HostName],
    *,
    fan_out: int = FAN_OUT,
    roots: int = ROOTS,
    givers: int | None = None,
) -> Mapping[HostName, HostName | None]:
    """For each host that lacks the weights the host it copies from, or None: from the source.

    Args:
        having: hosts that have them whole and can give.
        lacking: hosts that want them, in the order in which they are served.
        fan_out: copies a giver serves at most; at least 1.
        roots: hosts that read the source; more do only when no giver has room left.
        givers: how many of `lacking`, from the first, may give in their turn; None for all.
    """
    if fan_out < 1 or roots < 1:
        raise ValueError("a tree needs at least one root and one copy a giver")
    found: dict[HostName, HostName | None] = {}
    free = deque(_Giver(host, fan_out) for host in having)
    able = set(lacking if givers is None else lacking[:givers])
    waiting = deque(host for host in dict.fromkeys(lacking) if host not in set(having))
    for _ in range(0 if having else min(roots, len(waiting))):
        host = waiting.popleft()
        found[host] = None
        if host in able:
            free.append(_Giver(host, fan_out))
    while waiting:
        host = waiting.popleft()
        found[host] = free[0].host if free else None
        if free:
            free[0].room -= 1
            if not free[0].room:
                free.popleft()
        if host in able:
            free.append(_Giver(host, fan_out))
    return MappingProxyType(found)
