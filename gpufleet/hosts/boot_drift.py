"""What a boot has to bring back against what is there: the same, lost, or different. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from gpufleet.hosts.model import BootGpu, BootLayout, Fact, GpuFact, HostFacts, Known, Unknown


class Standing(Enum):
    """How the slices of a GPU compare with those that a boot brings back."""

    SAME = "same"
    LOST = "lost"
    """None is there: the host booted, or the GPU was reset, and nothing brought them back."""
    DIFFERS = "differs"
    NOT_KEPT = "not_kept"
    """There are slices, and the next boot loses them."""
    NOTHING = "nothing"
    """No slices, and none to bring back."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class BootDrift:
    """One GPU.

    Attributes:
        missing: slices that a boot brings back and that are not there, as `3g.40gb:4`.
        extra: slices that are there and that a boot does not bring back.
        renamed: slices that have another UUID than when the layout was kept: who is pinned to it does not start.
        reason: why it is not known.
    """

    gpu: GpuFact
    standing: Standing
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()
    reason: str = ""

    @property
    def drifted(self) -> bool:
        """Whether what was kept is not what is there."""
        return self.standing in {Standing.LOST, Standing.DIFFERS}

    def text(self) -> str:
        """One line for people; empty where there is nothing to say."""
        match self.standing:
            case Standing.LOST:
                return f"the slices that a boot brings back are not there: {', '.join(self.missing)}"
            case Standing.DIFFERS:
                parts = [f"lacks {', '.join(self.missing)}"] if self.missing else []
                parts += [f"has {', '.join(self.extra)} besides"] if self.extra else []
                parts += [f"{', '.join(self.renamed)} has another UUID"] if self.renamed else []
                return f"differs from what a boot brings back: {'; '.join(parts)}"
            case Standing.NOT_KEPT:
                return f"the next boot loses {', '.join(self.extra)}"
            case Standing.UNKNOWN:
                return f"what a boot brings back is not known: {self.reason}"
            case _:
                return ""


def drifts(facts: HostFacts) -> Iterator[BootDrift]:
    """Every GPU of a host that can be cut."""
    if isinstance(facts.gpus, Unknown):
        return
    for gpu in facts.gpus.value:
        if gpu.mig.capable != Known(False):
            yield drift(gpu, facts.boot_layout)


def drift(gpu: GpuFact, kept: Fact[BootLayout]) -> BootDrift:
    """One GPU against what its host brings back at boot."""
    for fact in (kept, gpu.mig.gpu_instances):
        if isinstance(fact, Unknown):
            return BootDrift(gpu=gpu, standing=Standing.UNKNOWN, reason=fact.reason)
    wanted = kept.value.of(gpu.uuid) if isinstance(kept, Known) else None
    seen = _seen(gpu)
    there = set(seen)
    if wanted is None:
        standing = Standing.NOT_KEPT if there else Standing.NOTHING
        return BootDrift(gpu=gpu, standing=standing, extra=_names(there))
    asked = {(one.start, one.size, one.profile) for one in wanted.slices}
    renamed = _names(
        (one.start, one.size, one.profile)
        for one in wanted.slices
        if one.uuid and seen.get((one.start, one.size, one.profile), one.uuid) not in {one.uuid, ""}
    )
    return BootDrift(
        gpu=gpu,
        standing=_standing(wanted, there, asked, renamed),
        missing=_names(asked - there),
        extra=_names(there - asked),
        renamed=renamed,
    )


def _standing(
    wanted: BootGpu,
    there: set[tuple[int, int, str]],
    asked: set[tuple[int, int, str]],
    renamed: tuple[str, ...],
) -> Standing:
    if there == asked and not renamed:
        return Standing.SAME
    return Standing.LOST if wanted.slices and not there else Standing.DIFFERS


def _seen(gpu: GpuFact) -> dict[tuple[int, int, str], str]:
    """Slices by place and profile, each with its UUID; empty text for one whose UUID is not known."""
    if isinstance(gpu.mig.gpu_instances, Unknown):
        return {}
    slices = gpu.mig.instances.value if isinstance(gpu.mig.instances, Known) else ()
    uuids: dict[int, str] = {}
    for one in slices:
        if isinstance(one.gi, Known):
            uuids.setdefault(one.gi.value, one.uuid)
    return {(one.start, one.size, one.profile): uuids.get(one.gi, "") for one in gpu.mig.gpu_instances.value}


def _names(places: Iterator[tuple[int, int, str]] | set[tuple[int, int, str]]) -> tuple[str, ...]:
    return tuple(f"{profile}:{start}" for start, _, profile in sorted(places))
