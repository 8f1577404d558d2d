"""Which slice each container gets in place of the one that goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpufleet.mig.model import Geometry, Placed
from gpufleet.mig.plan import LayoutChange
from gpufleet.mig.seen import SeenGpu


def homes(
    seen: SeenGpu, change: LayoutChange, leaving: Sequence[tuple[str, Placed]], *, by_memory: bool
) -> Mapping[str, Placed]:
    """A new slice for each container, by its id; one that is left out has none.

    Slices of the same profile come first, at the same place where that is there again; then, with `by_memory`, the
    smallest that holds as much. Slices that stay and that nobody uses count, too: `leaving` are ids and slices that go.
    """
    free = [
        *change.create,
        *(one.placed for one in seen.slices if one.placed in change.keep and not one.busy),
    ]
    found: dict[str, Placed] = {}
    for container, old in sorted(leaving, key=lambda one: one[1]):
        same = [one for one in free if one.profile == old.profile]
        if same:
            found[container] = min(same, key=lambda one: (one.start != old.start, one.start))
            free.remove(found[container])
    if not by_memory:
        return found
    memory = {one.name: one.memory_gib for one in seen.geometry.profiles}
    waiting = [
        (need, old, container)
        for container, old in leaving
        if container not in found and (need := memory.get(old.profile)) is not None
    ]
    for need, _old, container in sorted(waiting):
        enough = [one for one in free if _holds(memory.get(one.profile), need)]
        if enough:
            found[container] = min(enough, key=lambda one: (memory[one.profile], one.size, one.start))
            free.remove(found[container])
    return found


def _holds(has: float | None, need: float) -> bool:
    return has is not None and has >= need


def memory_mib(geometry: Geometry, slice_: Placed) -> int | None:
    """Usable memory of a slice in MiB; None where the host does not tell."""
    profile = geometry.profile(slice_.profile)
    return None if profile is None or profile.memory_gib is None else int(profile.memory_gib * 1024)
