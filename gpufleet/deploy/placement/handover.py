"""Which running containers must stop for which new replica, so that no more stop together than must."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpufleet.deploy.placement.api import Placed, Placement
from gpufleet.deploy.placement.slots import find, holds
from gpufleet.hosts.model import ContainerFact, GpuFact, HostFacts, Known
from gpufleet.names import HostName


def in_the_way(
    facts: Iterable[HostFacts], placement: Placement, releasing: frozenset[str], idle: frozenset[str]
) -> tuple[frozenset[str], ...]:
    """For each placed replica the containers (full ids, of those in `releasing`) that it takes the place of.

    Replicas take the room of a device in their order: first what is free already, then what one more container after
    the other gives back. One that uses what an earlier one left over of a container stands with that container too.
    """
    seen = {host.host: host for host in facts}
    devices: dict[tuple[HostName, str], _Device] = {}
    found: list[frozenset[str]] = []
    for placed in placement:
        held: set[str] = set()
        for slot in placed.slots:
            key = (placed.host, slot.device)
            if key not in devices:
                devices[key] = _Device(seen[placed.host], slot.device, releasing, idle)
            held |= devices[key].give(placed)
        found.append(frozenset(held))
    return tuple(found)


class _Device:
    """The room of one GPU or slice while it is handed over."""

    def __init__(self, host: HostFacts, device: str, releasing: frozenset[str], idle: frozenset[str]) -> None:
        self._host, self._device, self._idle = host, device, idle
        self._holders = [one.id for one in _holders(host).get(device, ()) if one.id in releasing]
        self._released: list[str] = []
        self._given = 0
        self._free = self._room()

    def _room(self) -> int:
        room = find((self._host,), frozenset(self._released), self._idle)
        return next((slot.room for slot in room.free if slot.device == self._device), 0)

    def give(self, placed: Placed) -> frozenset[str]:
        """Room for one more; the containers that it comes from."""
        if self._free - self._given >= placed.share:
            self._given += placed.share
            return frozenset()
        room = self._room()
        held = set(self._released) if room > self._given else set()
        while room - self._given < placed.share and self._holders:
            held.add(self._holders[0])
            self._released.append(self._holders.pop(0))
            room = self._room()
        self._given += placed.share
        return frozenset(held)


def _holders(host: HostFacts) -> Mapping[str, list[ContainerFact]]:
    """The containers of each device, by the UUID that the runtime is told."""
    found: dict[str, list[ContainerFact]] = defaultdict(list)
    containers = host.containers.value if isinstance(host.containers, Known) else ()
    gpus: tuple[GpuFact, ...] = host.gpus.value if isinstance(host.gpus, Known) else ()
    for gpu in gpus:
        instances = gpu.mig.instances.value if isinstance(gpu.mig.instances, Known) else ()
        for container in containers:
            if holds(container, gpu):
                found[gpu.uuid].append(container)
            for instance in instances:
                if holds(container, gpu, instance):
                    found[instance.uuid].append(container)
    return found
