"""The smallest slots that hold a replica, on the host that has the fewest replicas of the pool.

Never places fewer than any other algorithm would: a replica takes `devices` slots of one host, all usable slots
of a host are alike to it, so a host holds `usable // devices` whatever is taken first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gpufleet.deploy.placement.api import Demand, Placed, Placement, Slot, TooFew
from gpufleet.names import HostName


def place(demand: Demand, slots: Sequence[Slot]) -> Placement | TooFew:
    """See `api.Placer`."""
    free: dict[HostName, list[Slot]] = defaultdict(list)
    for slot in sorted(slots, key=_smallest_first):
        if demand.takes(slot):
            free[slot.host].append(slot)
    fits = sum(len(usable) // demand.devices for usable in free.values())
    if fits < demand.replicas:
        return TooFew(fits)
    count = {host: demand.present.get(host, 0) for host in free}
    placed: list[Placed] = []
    while len(placed) < demand.replicas:
        host = min(
            (name for name in free if len(free[name]) >= demand.devices), key=lambda name: (count[name], name)
        )
        placed.append(Placed(host, tuple(free[host][: demand.devices])))
        free[host] = free[host][demand.devices :]
        count[host] += 1
    return tuple(sorted(placed, key=lambda item: (item.host, _smallest_first(item.slots[0]))))


def _smallest_first(slot: Slot) -> tuple[int, int, int, str]:
    return (slot.memory_mib or 0, slot.index, slot.start, slot.device)
