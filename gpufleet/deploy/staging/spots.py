"""Hosts that may give what they have: those whose runtime, address and a free port are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.placement.slots import free_ports
from gpufleet.deploy.replicas import bind_address, service_address
from gpufleet.deploy.staging.give import Spot
from gpufleet.hosts.model import HostFacts, Known, Unknown
from gpufleet.inventory.model import Connection, Host
from gpufleet.names import HostName


def spots_of(hosts: Sequence[Host], facts: Mapping[HostName, HostFacts]) -> dict[HostName, Spot]:
    """The last free port of each host's range: replicas take the first ones."""
    found: dict[HostName, Spot] = {}
    for host in hosts:
        seen = facts.get(host.name)
        if seen is None or host.connection is Connection.LOCAL or not isinstance(seen.runtime, Known):
            continue
        ports = free_ports(seen, host.ports.first, host.ports.last)
        if isinstance(ports, Unknown) or not ports:
            continue
        found[host.name] = Spot(
            dialect=Dialect.of(seen.runtime.value),
            bind=bind_address(host) or "",
            reached_at=service_address(host),
            port=ports[-1],
        )
    return found
