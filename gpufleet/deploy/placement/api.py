"""The seam for placement algorithms: free slots and a demand in, a placement or the nearest that fits out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from gpufleet.names import GpuUuid, HostName


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A free GPU, or a free slice of one.

    Attributes:
        gpu: UUID of the whole GPU.
        device: what the runtime is told: the GPU's UUID, or the slice's.
        index: the GPU's index on its host; orders slots, names nothing.
        profile: MIG profile, empty for a whole GPU.
        start: where a slice starts on its GPU.
        memory_mib: memory of the GPU or slice; None when it could not be read.
    """

    host: HostName
    gpu: GpuUuid
    device: str
    index: int
    profile: str = ""
    start: int = 0
    memory_mib: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Replicas and what each needs.

    Attributes:
        devices: slots of one host that a replica takes.
        profile: MIG profile; None asks for whole GPUs, unless `memory_mib` is given.
        memory_mib: memory that a slot must have; then slices count too.
        present: replicas of the same pool that stay, by host; new ones go where there are few.
    """

    replicas: int
    devices: int = 1
    profile: str | None = None
    memory_mib: int | None = None
    present: Mapping[HostName, int] = field(default_factory=dict)

    def takes(self, slot: Slot) -> bool:
        """Whether a replica can use this slot."""
        if self.memory_mib is not None:
            return slot.memory_mib is not None and slot.memory_mib >= self.memory_mib
        return slot.profile == (self.profile or "")


@dataclass(frozen=True, slots=True)
class Placed:
    """One replica and its slots, all on one host."""

    host: HostName
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class TooFew:
    """There is no room for all; this many would fit."""

    fits: int


Placement: TypeAlias = tuple[Placed, ...]


class Placer(Protocol):
    """Pure, total and deterministic; the order of `slots` means nothing."""

    def __call__(self, demand: Demand, slots: Sequence[Slot]) -> Placement | TooFew:
        """Slots for every replica, no slot twice; or how many would fit."""
        ...


def placers() -> Mapping[str, Placer]:
    """Algorithms by name."""
    from gpufleet.deploy.placement.best_fit import place  # noqa: PLC0415  # the algorithm imports this seam

    return {"best-fit": place}
