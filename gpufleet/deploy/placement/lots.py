"""Free slots cut into lots: what one replica takes. All algorithms choose among the same lots.

All replicas of a demand are alike, and so are the usable slots of one island of a host. An island with `n` of them
therefore holds `n // devices` replicas whichever are taken first, and a GPU with room `r` holds `r // share`. So
cutting everything into lots first loses nothing: no way of choosing finds room for more replicas than there are
lots, and an algorithm decides only which lots are taken, never how many there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice

from gpufleet.deploy.placement.api import Demand, Placed, Placement, Slot
from gpufleet.names import HostName


def cut(demand: Demand, slots: Iterable[Slot]) -> tuple[Placed, ...]:
    """Every lot, the least of each host first: the smallest slots, those that others share, small islands."""
    islands: dict[tuple[HostName, str], list[Slot]] = defaultdict(list)
    for slot in sorted(slots, key=smallest_first):
        if demand.takes(slot):
            islands[slot.host, slot.island].append(slot)
    lots: list[Placed] = []
    over: dict[HostName, list[Slot]] = defaultdict(list)
    for (host, _), usable in sorted(islands.items(), key=lambda item: (item[0][0], len(item[1]), item[0][1])):
        whole = len(usable) - len(usable) % demand.devices
        for lot in _packed(usable[:whole], demand.devices):
            lots += [Placed(host, lot, demand.share)] * _times(demand, lot)
        over[host] += usable[whole:]
    if demand.across:
        for host, rest in over.items():
            whole = len(rest) - len(rest) % demand.devices
            lots += [Placed(host, lot, demand.share) for lot in _packed(rest[:whole], demand.devices)]
    return tuple(lots)


def _packed(slots: Sequence[Slot], size: int) -> Iterable[tuple[Slot, ...]]:
    rest = iter(slots)
    return iter(lambda: tuple(islice(rest, size)), ())


def _times(demand: Demand, lot: Sequence[Slot]) -> int:
    """How many replicas one lot holds: several where they take shares of it."""
    return min(slot.room // demand.share for slot in lot)


def smallest_first(slot: Slot) -> tuple[int, int, int, int, str]:
    """The order of the slots of a host: what others share already, then by size and place."""
    return (slot.room, slot.memory_mib or 0, slot.index, slot.start, slot.device)


def sorted_by_place(placed: Iterable[Placed]) -> Placement:
    """In the order in which replicas are numbered."""
    return tuple(sorted(placed, key=lambda one: (one.host, smallest_first(one.slots[0]))))
