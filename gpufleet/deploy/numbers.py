"""Numbers and ports of new replicas: free ones of their host, and none that the route table still needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from gpufleet.deploy.placement.api import Placement
from gpufleet.deploy.placement.slots import free_ports
from gpufleet.deploy.replicas import New, Present
from gpufleet.errors import Unplaceable
from gpufleet.hosts.model import HostFacts, Unknown
from gpufleet.inventory.model import Host
from gpufleet.names import HostName, ReplicaId


def numbered(
    placement: Placement,
    keep: Sequence[Present],
    heirs: Sequence[Sequence[Present]],
    facts: Mapping[HostName, HostFacts],
    declared: Mapping[HostName, Host],
    *,
    reserved: Sequence[ReplicaId] = (),
) -> tuple[New, ...]:
    """A number and a port for each new replica: the smallest free ones of its host.

    Args:
        placement: where they go.
        keep: replicas whose numbers are not free.
        heirs: for each new replica the old ones whose place it takes; it takes the number of the first too.
        facts: for the free ports.
        declared: for the range of ports.
        reserved: members that are not started here, whose numbers are not free either.
    """
    numbers: dict[HostName, set[int]] = defaultdict(set)
    for one in keep:
        numbers[one.host].add(one.number)
    for replica in reserved:
        host_name, _, number_text = replica.rpartition("/")
        numbers[HostName(host_name)].add(int(number_text))
    given: set[ReplicaId] = set()
    ports: dict[HostName, list[int]] = {}
    start: list[New] = []
    for placed, before in zip(placement, heirs, strict=True):
        inherited = [one.number for one in before if one.replica not in given]
        number = (
            inherited[0] if inherited else next(n for n in range(10_000) if n not in numbers[placed.host])
        )
        numbers[placed.host].add(number)
        replica = ReplicaId(f"{placed.host}/{number}")
        given.add(replica)
        port = _port(ports, placed.host, facts[placed.host], declared[placed.host])
        start.append(New(replica=replica, placed=placed, port=port))
    return tuple(start)


def _port(ports: dict[HostName, list[int]], name: HostName, facts: HostFacts, host: Host) -> int:
    if name not in ports:
        found = free_ports(facts, host.ports.first, host.ports.last)
        ports[name] = [] if isinstance(found, Unknown) else list(found)
    if not ports[name]:
        raise Unplaceable(
            f"{name} has not enough free ports from {host.ports.first} to {host.ports.last}",
            where=host.declared_at,
            hints=("widen the host's `ports`",),
        )
    return ports[name].pop(0)
