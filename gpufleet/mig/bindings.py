"""Containers whose slice is gone, or is another one by now.

A container is given a slice by UUID, and UUIDs follow GPU instance ids: after a change of layout the same UUID may name
a slice of another profile (captured lists of one H100 show `1g.10gb` and later `1g.10gb+me` under one UUID). So for
containers that gpufleet made, profile and place are compared, too; their label says them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpufleet.hosts.model import ContainerFact, Fact, GpuFact, Known, MigInstance, Unknown

SLICE_LABEL = "gpufleet.slice"
"""GPU UUID, profile and start, of containers that gpufleet started on a slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbound:
    """A container that does not have the slice it was made for; `state` is the runtime's word."""

    container: str
    state: str
    device: str
    reason: str


def unbound(gpus: Sequence[GpuFact], containers: Fact[Sequence[ContainerFact]]) -> Iterator[Unbound]:
    """All of one host; nothing is said where slices or containers could not be read."""
    if isinstance(containers, Unknown):
        return
    slices: dict[str, tuple[GpuFact, MigInstance]] = {}
    for gpu in gpus:
        if isinstance(gpu.mig.instances, Unknown):
            return
        slices |= {one.uuid: (gpu, one) for one in gpu.mig.instances.value}
    for container in containers.value:
        for device in container.devices:
            if device.startswith("MIG-"):
                reason = _reason(container, slices.get(device))
                if reason:
                    yield Unbound(
                        container=container.name, state=container.state, device=device, reason=reason
                    )


def _reason(container: ContainerFact, found: tuple[GpuFact, MigInstance] | None) -> str:
    """Why this is not the slice that the container was made for; empty when it is."""
    if found is None:
        return "is not there"
    words = container.labels.get(SLICE_LABEL, "").split()
    gpu, one = found
    if len(words) != 3 or isinstance(one.start, Unknown):
        return ""
    now = (gpu.uuid, one.profile, str(one.start.value) if isinstance(one.start, Known) else "")
    if tuple(words) == now:
        return ""
    return f"is {one.profile}:{now[2]} now and was {words[1]}:{words[2]}"
