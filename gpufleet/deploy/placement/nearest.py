"""What a pool could have instead when it does not fit, and what stands in its way, host by host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpufleet.deploy.placement.api import UNKNOWN_ISLAND, WHOLE, Demand, Slot
from gpufleet.deploy.placement.lots import cut
from gpufleet.deploy.placement.slots import HOLDING, Room, Taken, comes_back, find, holds
from gpufleet.hosts.model import ContainerFact, HostFacts, Known
from gpufleet.names import HostName

MANY = 5
"""Alternatives of one kind that are told; the rest would bury them."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Something near to what was asked that would do.

    Attributes:
        kind: `fewer-replicas`, `fewer-gpus`, `across`, `less-memory`, `smaller-share`, `other-slice`,
            `stop-container`, `uncut` or `other-host`.
        text: one line for people, with the option to use.
        fields: the same for programs.
    """

    kind: str
    text: str
    fields: Mapping[str, object] = field(default_factory=dict)

    def row(self) -> dict[str, object]:
        """As JSON has it."""
        return {"kind": self.kind, "text": self.text, **self.fields}


def wanted(demand: Demand) -> str:
    """What one replica needs, in words."""
    if demand.profile:
        return f"a {demand.profile} slice"
    if demand.memory_mib is not None:
        return f"{demand.memory_mib / 1024:g} GiB"
    if demand.share < WHOLE:
        return f"{demand.share} % of a GPU"
    if demand.devices == 1:
        return "a GPU"
    return f"{demand.devices} GPUs of one host"


def fewer(fits: int) -> Alternative:
    """The replicas that fit."""
    if not fits:
        return Alternative("fewer-replicas", "nothing of this kind is free on these hosts", {"replicas": 0})
    return Alternative("fewer-replicas", f"{fits} would fit: --replicas {fits}", {"replicas": fits})


def smaller(demand: Demand, slots: Sequence[Slot]) -> tuple[Alternative, ...]:
    """All replicas, each with less: what is the most that each could have."""

    def fits(**changes: int | bool | str | None) -> bool:
        return len(cut(replace(demand, **changes), slots)) >= demand.replicas  # type: ignore[arg-type]  # fields of Demand

    if demand.memory_mib is not None:
        free = sorted((slot.memory_mib or 0 for slot in slots if slot.room == WHOLE), reverse=True)
        if len(free) < demand.replicas or not free[demand.replicas - 1]:
            return ()
        gib = free[demand.replicas - 1] * 10 // 1024 / 10
        return (
            Alternative(
                "less-memory", f"{gib:g} GiB each would fit: slice.memory_gib: {gib:g}", {"memory_gib": gib}
            ),
        )
    if demand.share < WHOLE:
        return tuple(
            Alternative(
                "smaller-share",
                f"{share} % each would fit: slice.share: {share / 100:g}",
                {"share": share / 100},
            )
            for share in range(demand.share - 1, 0, -1)
            if fits(share=share)
        )[:1]
    found: list[Alternative] = []
    if demand.devices > 1:
        if not demand.across and fits(across=True):
            found.append(
                Alternative(
                    "across", "it fits over PCIe, across NVLink islands: slice.across: true", {"across": True}
                )
            )
        less = next((count for count in range(demand.devices - 1, 0, -1) if fits(devices=count)), 0)
        if less:
            found.append(
                Alternative("fewer-gpus", f"{less} GPU(s) each would fit: slice.gpus: {less}", {"gpus": less})
            )
    elif demand.profile is not None and fits(profile=None):
        found.append(Alternative("other-slice", "whole GPUs would fit: slice.gpus: 1", {"gpus": 1}))
    for profile in () if demand.devices > 1 else _profiles(slots):
        if profile != demand.profile and fits(profile=profile):
            text = f"{profile} slices would fit: slice.mig: {profile}"
            found.append(Alternative("other-slice", text, {"mig": profile}))
    return tuple(found[:MANY])


def _profiles(slots: Iterable[Slot]) -> tuple[str, ...]:
    """Profiles of free slices, those with the most memory first."""
    sizes = {slot.profile: slot.memory_mib or 0 for slot in slots if slot.profile}
    return tuple(sorted(sizes, key=lambda profile: (-sizes[profile], profile)))


def in_the_way(demand: Demand, facts: Iterable[HostFacts]) -> tuple[Alternative, ...]:
    """Single containers whose end would make room for a replica, those that make the most room first."""
    found: list[tuple[int, Alternative]] = []
    for host in facts:
        for container in _holders(host):
            touched = _touched(host, container) if demand.devices == 1 else host
            before = len(cut(demand, find((touched,)).free))
            gain = len(cut(demand, find((touched,), frozenset({container.id})).free)) - before
            if gain > 0:
                found.append((gain, _to_stop(host.host, container, gain)))
    found.sort(key=lambda item: (-item[0], item[1].text))
    return tuple(alternative for _, alternative in found[:MANY])


def _touched(host: HostFacts, container: ContainerFact) -> HostFacts:
    """The host with the GPUs alone that a container was given: nothing else changes when it ends."""
    gpus = host.gpus.value if isinstance(host.gpus, Known) else ()
    return replace(host, gpus=Known(tuple(gpu for gpu in gpus if holds(container, gpu))))


def _holders(host: HostFacts) -> tuple[ContainerFact, ...]:
    containers = host.containers.value if isinstance(host.containers, Known) else ()
    return tuple(one for one in containers if one.devices and (one.state in HOLDING or comes_back(one)))


def _to_stop(host: HostName, container: ContainerFact, gain: int) -> Alternative:
    pool = container.labels.get("gpufleet.pool", "")
    whose = f"of pool {pool}" if pool else "which gpufleet did not start"
    return Alternative(
        "stop-container",
        f"{host}: without container {container.name}, {whose}, {gain} more would fit",
        {"host": host, "container": container.name, "pool": pool or None, "replicas": gain},
    )


def uncut(demand: Demand, room: Room) -> tuple[Alternative, ...]:
    """Where a slice is wanted: free GPUs that are whole, as all are after a boot that nothing brings slices back from."""
    if demand.profile is None:
        return ()
    whole = sorted({(slot.host, slot.index) for slot in room.free if not slot.profile and slot.room == WHOLE})
    return tuple(
        Alternative(
            "uncut",
            f"GPU {index} of {host} is not cut: `gpufleet mig plan {host}:{index} --add {demand.profile}` tells how; "
            "a boot loses slices, unless `gpufleet mig persist` keeps them",
            {"host": host, "gpu": index},
        )
        for host, index in whole[:MANY]
    )


def elsewhere(demand: Demand, facts: Iterable[HostFacts]) -> tuple[Alternative, ...]:
    """Hosts that were not selected and have room."""
    found: list[tuple[int, HostName]] = []
    for host in facts:
        number = len(cut(demand, find((host,)).free))
        if number:
            found.append((number, host.host))
    return tuple(
        Alternative(
            "other-host",
            f"{host} was not selected and has room for {number}",
            {"host": host, "replicas": number},
        )
        for number, host in sorted(found, key=lambda item: (-item[0], item[1]))[:MANY]
    )


def reasons(demand: Demand, room: Room) -> dict[HostName, list[str]]:
    """Of each host why it has no more room: what is taken there, and what is free and not enough."""
    found: dict[HostName, list[str]] = defaultdict(list)
    for one in room.taken:
        found[one.host].append(_reason(one))
    used = {(lot.host, slot.device) for lot in cut(demand, room.free) for slot in lot.slots}
    free: dict[HostName, list[Slot]] = defaultdict(list)
    for slot in room.free:
        if (slot.host, slot.device) not in used:
            free[slot.host].append(slot)
    for host, slots in free.items():
        found[host].append(f"free and not enough: {_left(demand, slots)}")
    return dict(sorted(found.items()))


def _reason(taken: Taken) -> str:
    return f"{taken.what}: {taken.reason}"


def _left(demand: Demand, slots: Sequence[Slot]) -> str:
    """Free slots in words, with the island where that is what parts them."""
    islands = {slot.island for slot in slots}
    parted = demand.devices > 1 and len(islands - {UNKNOWN_ISLAND}) > 1
    words = []
    for slot in sorted(slots, key=lambda one: (one.index, one.start)):
        what = f"{slot.profile} of GPU {slot.index}" if slot.profile else f"GPU {slot.index}"
        if slot.room < WHOLE:
            what = f"{slot.room} % of {what}"
        if demand.memory_mib is not None:
            what += (
                f" ({'unknown memory' if slot.memory_mib is None else f'{slot.memory_mib / 1024:.1f} GiB'})"
            )
        words.append(what + (f" ({slot.island})" if parted else ""))
    return ", ".join(words)
