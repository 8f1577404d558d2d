"""Which running containers must stop for which new replica, so that no more stop together than must."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

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
    places: dict[HostName, Mapping[str, _Place]] = {}
    devices: dict[tuple[HostName, str], _Device] = {}
    found: list[frozenset[str]] = []
    for placed in placement:
        held: set[str] = set()
        for slot in placed.slots:
            key = (placed.host, slot.device)
            if placed.host not in places:
                places[placed.host] = _places(seen[placed.host])
            if key not in devices:
                devices[key] = _Device(places[placed.host][slot.device], slot.device, releasing, idle)
            held |= devices[key].give(placed)
        found.append(frozenset(held))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Place:
    """One GPU, or a slice of it: its host with this GPU alone, and the containers that were given the device."""

    host: HostFacts
    holders: tuple[ContainerFact, ...]


class _Device:
    """The room of one GPU or slice while it is handed over."""

    def __init__(self, place: _Place, device: str, releasing: frozenset[str], idle: frozenset[str]) -> None:
        self._host, self._device, self._idle = place.host, device, idle
        self._holders = [one.id for one in place.holders if one.id in releasing]
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


def _places(host: HostFacts) -> Mapping[str, _Place]:
    """What matters for each device of a host, by the UUID that the runtime is told."""
    found: dict[str, _Place] = {}
    containers = host.containers.value if isinstance(host.containers, Known) else ()
    gpus: tuple[GpuFact, ...] = host.gpus.value if isinstance(host.gpus, Known) else ()
    for gpu in gpus:
        alone = replace(host, gpus=Known((gpu,)))
        found[gpu.uuid] = _Place(alone, tuple(one for one in containers if holds(one, gpu)))
        instances = gpu.mig.instances.value if isinstance(gpu.mig.instances, Known) else ()
        for instance in instances:
            held = tuple(one for one in containers if holds(one, gpu, instance))
            found[instance.uuid] = _Place(alone, held)
    return found
