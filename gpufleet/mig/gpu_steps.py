"""The steps that change the layout of one GPU, one slice a step, each with the undo that brings the exact place back.

    remember -> mode on -> destroy, one by one -> create, one by one -> mode off -> look at the layout as a whole

The first does nothing and is undone last: then the whole former layout is brought back and looked at, slices that the
change keeps among it, since a host that is booted in between loses all of them.

They are strictly one after the other, so that an undo makes room before it makes slices. The mode is switched only
while there are no slices: on before any is made, off when all are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpufleet.change.model import Step
from gpufleet.mig import instances
from gpufleet.mig.commands import Target
from gpufleet.mig.model import Placed
from gpufleet.mig.plan import LayoutChange
from gpufleet.names import HostName, StepId


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuChange:
    """What is to become of one GPU.

    Attributes:
        bare: slices that are there without a compute instance: they stay, or come back, without one.
        switch_on: MIG is off and is switched on first.
        switch_off: nothing is created, and MIG is switched off at the end.
        resets: a pending mode is made effective by a reset of this GPU.
    """

    host: HostName
    target: Target
    change: LayoutChange
    bare: frozenset[Placed] = frozenset()
    switch_on: bool = False
    switch_off: bool = False
    resets: bool = False

    @property
    def tail(self) -> str:
        """Tells the steps of several GPUs of one host apart."""
        return f"-{self.target.uuid.removeprefix('GPU-')[:8]}"

    def steps(self, after: frozenset[StepId]) -> tuple[Step, ...]:
        """All of them, in their order; the last one knows the whole layout."""
        made = [self._remember(), *([self._mode(on=True)] if self.switch_on else [])]
        made += [self._destroy(one) for one in self.change.destroy]
        made += [self._create(one) for one in self.change.create]
        made += [self._mode(on=False)] if self.switch_off else []
        made.append(self._whole())
        return tuple(_chained(made, after))

    def _remember(self) -> Step:
        former = (*self.change.keep, *self.change.destroy)
        on = not self.switch_on
        back = instances.restore(self.target, former, self.bare, on=on, reset=self.resets)
        return Step(
            id=StepId(f"layout-before-{self.host}{self.tail}"),
            host=self.host,
            title="remember the layout for the way back",
            do=(),
            undo=(back,),
            verify=instances.exactly(self.target, former, self.bare, on=on),
            absent=instances.exactly(self.target, former, self.bare, on=on),
            phase="look",
        )

    def _mode(self, *, on: bool) -> Step:
        target, resets = self.target, self.resets
        return Step(
            id=StepId(f"mode-{self.host}{self.tail}"),
            host=self.host,
            title=f"switch MIG {'on' if on else 'off'}" + (", with a reset of this GPU" if resets else ""),
            do=(instances.mode(target, on=on, reset=resets),),
            undo=(instances.mode(target, on=not on, reset=resets, insist=True),),
            verify=instances.in_mode(target, on=on),
            absent=instances.in_mode(target, on=not on),
            phase="mode",
        )

    def _destroy(self, slice_: Placed) -> Step:
        compute = slice_ not in self.bare
        return Step(
            id=StepId(f"destroy-{self.host}{self.tail}-{_word(slice_)}"),
            host=self.host,
            title=f"destroy {slice_}",
            do=(instances.destroy(self.target, slice_),),
            undo=(instances.create(self.target, slice_, compute=compute, insist=True),),
            verify=instances.gone(self.target, slice_),
            absent=instances.there(self.target, slice_, compute=compute),
            phase="destroy",
        )

    def _create(self, slice_: Placed) -> Step:
        return Step(
            id=StepId(f"create-{self.host}{self.tail}-{_word(slice_)}"),
            host=self.host,
            title=f"create {slice_}",
            do=(instances.create(self.target, slice_),),
            undo=(instances.destroy(self.target, slice_, insist=True),),
            verify=instances.there(self.target, slice_),
            absent=instances.gone(self.target, slice_),
            phase="create",
        )

    def _whole(self) -> Step:
        slices = (*self.change.keep, *self.change.create)
        return Step(
            id=StepId(f"layout-{self.host}{self.tail}"),
            host=self.host,
            title=f"look at the whole layout: {', '.join(map(str, sorted(slices))) or 'no slices'}",
            do=(),
            undo=(),
            verify=instances.exactly(self.target, slices, self.bare, on=not self.switch_off),
            phase="look",
        )


def _chained(steps: Sequence[Step], after: frozenset[StepId]) -> list[Step]:
    """Each after the one before it."""
    chain: list[Step] = []
    for one in steps:
        chain.append(replace(one, after=frozenset({chain[-1].id}) if chain else after))
    return chain


def _word(slice_: Placed) -> str:
    return f"{slice_.profile}-{slice_.start}"
