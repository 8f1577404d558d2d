"""As far apart as can be: the rack that has the fewest replicas of the pool, in it the host that has the fewest.

Filling the lowest first is the well-known max-min fair share: no rack could have more without taking from one that
has no more than it, and within each rack the same holds of its hosts. The smallest slots of the host are taken.
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
    free: dict[HostName, list[Placed]] = defaultdict(list)
    for lot in lots:
        free[lot.host].append(lot)
    in_rack: dict[str, int] = defaultdict(int)
    for host, number in demand.present.items():
        in_rack[demand.racks.get(host, "")] += number
    hosts: dict[str, list[tuple[int, HostName]]] = defaultdict(list)
    for host in free:
        heapq.heappush(hosts[demand.racks.get(host, "")], (demand.present.get(host, 0), host))
    racks = [(in_rack[rack], rack) for rack in hosts]
    heapq.heapify(racks)
    placed: list[Placed] = []
    while len(placed) < demand.replicas:
        filled, rack = heapq.heappop(racks)
        number, host = heapq.heappop(hosts[rack])
        placed.append(free[host].pop(0))
        if free[host]:
            heapq.heappush(hosts[rack], (number + 1, host))
        if hosts[rack]:
            heapq.heappush(racks, (filled + 1, rack))
    return sorted_by_place(placed)
