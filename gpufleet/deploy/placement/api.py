"""The seam for placement algorithms: free slots and a demand in, a placement or the nearest that fits out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from gpufleet.names import GpuUuid, HostName

WHOLE = 100
"""All of a GPU or slice, in percent."""

UNKNOWN_ISLAND = "unknown"
"""The island of GPUs of which the host did not say how they are linked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A GPU with room, or a free slice of one.

    Attributes:
        gpu: UUID of the whole GPU.
        device: what the runtime is told: the GPU's UUID, or the slice's.
        index: the GPU's index on its host; orders slots, names nothing.
        profile: MIG profile, empty for a whole GPU.
        start: where a slice starts on its GPU.
        memory_mib: memory of the GPU or slice; None when it could not be read.
        island: GPUs of one host with the same word are linked alike; `UNKNOWN_ISLAND` when the host did not say how.
        room: percent that no replica has; less than all on a GPU that replicas share.
    """

    host: HostName
    gpu: GpuUuid
    device: str
    index: int
    profile: str = ""
    start: int = 0
    memory_mib: int | None
    island: str = UNKNOWN_ISLAND
    room: int = WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Replicas and what each needs.

    Attributes:
        devices: slots of one host that a replica takes.
        profile: MIG profile; None asks for whole GPUs, unless `memory_mib` is given.
        memory_mib: memory that a slot must have; then slices count too.
        share: percent of one GPU that a replica takes; other shares may lie beside it.
        across: whether the GPUs of one replica may lie on several islands of their host.
        present: replicas of the same pool that stay, by host; new ones go where there are few.
        racks: where hosts stand; those that say nothing count as one rack, because nothing keeps them apart.
    """

    replicas: int
    devices: int = 1
    profile: str | None = None
    memory_mib: int | None = None
    share: int = WHOLE
    across: bool = False
    present: Mapping[HostName, int] = field(default_factory=dict)
    racks: Mapping[HostName, str] = field(default_factory=dict)

    def takes(self, slot: Slot) -> bool:
        """Whether a replica can use this slot."""
        if slot.room < self.share:
            return False
        if self.memory_mib is not None:
            return slot.memory_mib is not None and slot.memory_mib >= self.memory_mib
        return slot.profile == (self.profile or "")


@dataclass(frozen=True, slots=True)
class Placed:
    """One replica and its slots, all on one host; of each it takes `share` percent."""

    host: HostName
    slots: tuple[Slot, ...]
    share: int = WHOLE


@dataclass(frozen=True, slots=True)
class TooFew:
    """There is no room for all; this many would fit."""

    fits: int


Placement: TypeAlias = tuple[Placed, ...]


class Placer(Protocol):
    """Pure, total and deterministic; the order of `slots` means nothing."""

    def __call__(self, demand: Demand, slots: Sequence[Slot]) -> Placement | TooFew:
        """Slots for every replica, none given away twice; or how many would fit."""
        ...


def placers() -> Mapping[str, Placer]:
    """Algorithms by name."""
    from gpufleet.deploy.placement import best_fit, spread  # noqa: PLC0415  # the algorithms import this seam

    return {"best-fit": best_fit.place, "spread": spread.place}
