"""The smallest slots that hold a replica, and among equals the host that has the fewest replicas of the pool.

Size counts where the demand names a memory: the least that is enough is taken first, wherever it lies, so that large
slots stay free for what needs them. Where it names whole GPUs or a profile, all that match are equal.
Never places fewer than any other algorithm would: see `lots`.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence

from gpufleet.deploy.placement.api import Demand, Placed, Placement, Slot, TooFew
from gpufleet.deploy.placement.lots import cut, sorted_by_place
from gpufleet.names import HostName


def place(demand: Demand, slots: Sequence[Slot]) -> Placement | TooFew:
    """See `api.Placer`."""
    lots = cut(demand, slots)
    if len(lots) < demand.replicas:
        return TooFew(len(lots))
    count = defaultdict(int, demand.present)
    placed: list[Placed] = []
    sizes: dict[int, dict[HostName, list[Placed]]] = defaultdict(lambda: defaultdict(list))
    for lot in lots:
        sizes[_size(demand, lot)][lot.host].append(lot)
    for _, of_size in sorted(sizes.items()):
        placed += _evenly(of_size, demand.replicas - len(placed), count)
    return sorted_by_place(placed)


def _size(demand: Demand, lot: Placed) -> int:
    return 0 if demand.memory_mib is None else sum(slot.memory_mib or 0 for slot in lot.slots)


def _evenly(lots: dict[HostName, list[Placed]], wanted: int, count: dict[HostName, int]) -> list[Placed]:
    """Up to `wanted` lots of one size, each from the host that has the fewest; `count` is kept."""
    waiting = [(count[host], host) for host in lots]
    heapq.heapify(waiting)
    taken: list[Placed] = []
    while waiting and len(taken) < wanted:
        _, host = heapq.heappop(waiting)
        taken.append(lots[host].pop(0))
        count[host] += 1
        if lots[host]:
            heapq.heappush(waiting, (count[host], host))
    return taken
