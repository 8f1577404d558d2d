"""What goes around a change of one GPU, as steps: before it who holds the GPU stops, after it everything is back.

    first                                 last
    1 guard of the runtime's files        4 modules loaded again
    2 services stopped                    5 device files and CDI brought up to date
    3 modules unloaded                    6 services started again
                                          7 the layout kept for the next boot, where one was kept

Containers of the change stop before 2 and start after 5. Undone in the opposite order, every step gives back what its
counterpart took: services and modules that ran run again, and the files are written last, when the former slices are
back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.change.model import Step
from gpufleet.hosts.model import BootGpu, BootLayout, BootSlice, HolderFacts, Known
from gpufleet.hosts.probes import boot_layout
from gpufleet.mig import boot_unit, runtime_files, services
from gpufleet.mig.boot_unit import BootFiles
from gpufleet.mig.holders import Holders
from gpufleet.mig.model import Placed
from gpufleet.names import GpuUuid, HostName, StepId


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """One GPU of one host.

    Attributes:
        tail: tells the steps of several GPUs of one host apart.
        create: where a CDI specification is begun when there is none; empty for nowhere (`runtime_files.PLACE`).
    """

    host: HostName
    holders: Holders
    seen: HolderFacts
    tail: str = ""
    create: str = ""

    def first(self, after: frozenset[StepId] = frozenset()) -> tuple[Step, ...]:
        """Before the first change of the GPU, one after the other."""
        steps = [runtime_files.guard_step(self.host, create=self.create, tail=self.tail, after=after)]
        if self.holders.stop:
            steps.append(
                services.stop_step(self.host, self.holders.stop, tail=self.tail, after=_behind(steps))
            )
        if self.holders.unload:
            steps.append(
                services.unload_step(
                    self.host, self.holders.unload, self._modeset, tail=self.tail, after=_behind(steps)
                )
            )
        return tuple(steps)

    def last(self, after: frozenset[StepId], *, uuids: Sequence[str] = ()) -> tuple[Step, ...]:
        """After the last change of the GPU, one after the other; `uuids` of slices that must be there then."""
        steps: list[Step] = []
        if self.holders.unload:
            steps.append(
                services.load_step(self.host, self.holders.unload, self._modeset, tail=self.tail, after=after)
            )
        steps.append(
            runtime_files.refresh_step(
                self.host,
                uuids=uuids,
                create=self.create,
                tail=self.tail,
                after=_behind(steps) or after,
            )
        )
        if self.holders.stop:
            steps.append(
                services.start_step(self.host, self.holders.stop, tail=self.tail, after=_behind(steps))
            )
        return tuple(steps)

    @property
    def _modeset(self) -> str:
        """How `nvidia_drm` was loaded; empty when that is not known, and the system's own options count."""
        return ("Y" if self.seen.modeset.value else "N") if isinstance(self.seen.modeset, Known) else ""


def kept_layout(kept: BootLayout, uuid: GpuUuid, slices: Sequence[Placed]) -> BootLayout:
    """What a boot has to bring back when this GPU holds these slices from now on.

    A GPU that nobody asked to keep is left to itself. UUIDs are not known before the slices are made, and left open.
    """
    if kept.of(uuid) is None:
        return kept
    made = tuple(BootSlice(profile=one.profile, start=one.start, size=one.size) for one in sorted(slices))
    others = tuple(one for one in kept.gpus if one.uuid != uuid)
    return BootLayout((*others, BootGpu(uuid, made)) if made else others, kept.cdi)


def keep_step(
    host: HostName,
    before: BootFiles,
    layout: BootLayout,
    *,
    tail: str = "",
    after: frozenset[StepId] = frozenset(),
) -> Step:
    """Write the layout for the next boot; `before` is what `boot_unit.look` shows, and what an undo writes back."""
    files = boot_unit.files_for(boot_layout.render(layout.gpus, layout.cdi))
    return boot_unit.persist_step(host, before, files, tail=tail, after=after)


def _behind(steps: Sequence[Step]) -> frozenset[StepId]:
    return frozenset({steps[-1].id}) if steps else frozenset()
