"""What a change of layout means for one GPU: mode, reset, containers, and the commands in their order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.hosts.model import ContainerFact
from gpufleet.mig import commands
from gpufleet.mig.commands import Target
from gpufleet.mig.holders import Reach, Touched, is_monitor
from gpufleet.mig.plan import LayoutChange
from gpufleet.mig.seen import SeenGpu

_AMPERE = re.compile(r"\b(?:A100|A30|A800)\b", re.IGNORECASE)
_LATER = re.compile(r"\b(?:G?H\d{2,3}|H800|G?B\d{3}|RTX PRO|Thor)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The consequences of a change.

    Attributes:
        mode_change: MIG is turned on first, or off at the end, which ends everything on the GPU.
        off: it is turned off.
        needs_reset: the mode changes only with a reset of the GPU (Ampere; MIG user guide, "Enable MIG mode");
            None for a GPU of a generation that is not known.
        containers: names of those that lose their slice, or the GPU when its mode changes.
        resting: names of stopped containers that were made for a slice that goes: they could not be started again.
        processes: pids on slices that go, whoever started them.
        lines: argument lists, one object each, in the order in which they would run.
    """

    mode_change: bool
    needs_reset: bool | None
    containers: tuple[str, ...]
    processes: tuple[int, ...]
    lines: tuple[tuple[str, ...], ...]
    resting: tuple[str, ...] = ()
    off: bool = False


def outlook(seen: SeenGpu, change: LayoutChange, *, off: bool = False) -> Outlook:
    """What carrying out `change` on this GPU would take; `off`: MIG is switched off when its slices are gone."""
    target = Target(seen.gpu.uuid)
    gone = [one for one in seen.slices if one.placed in change.destroy]
    off = off and seen.on
    mode_change = off or (not seen.on and change.changes)
    lines: list[tuple[str, ...]] = [commands.mode(target, on=True)] if mode_change and not off else []
    for one in gone:
        lines += [commands.destroy_compute_instance(target, one.gi, ci) for ci in one.cis]
        lines.append(commands.destroy_gpu_instance(target, one.gi))
    lines += [commands.create(target, placed) for placed in change.create]
    lines += [commands.mode(target, on=False)] if off else []
    containers = {name for one in gone for name in one.containers} | set(seen.whole if mode_change else ())
    resting = {name for one in gone for name in one.resting} | set(seen.resting if mode_change else ())
    return Outlook(
        mode_change=mode_change,
        needs_reset=_resets(seen.gpu.name) if mode_change else False,
        containers=tuple(sorted(containers)),
        processes=tuple(sorted({pid for one in gone for pid in one.processes})),
        lines=tuple(lines),
        resting=tuple(sorted(resting)),
        off=off,
    )


def touched(
    seen: SeenGpu, change: LayoutChange, ahead: Outlook, containers: Sequence[ContainerFact]
) -> Touched:
    """What of the GPU goes; `containers` are all of the host."""
    if ahead.mode_change:
        # Of a generation that nobody knows the worse is expected.
        reach = Reach.MODE if ahead.needs_reset is False else Reach.RESET
    else:
        reach = Reach.INSTANCES
    return Touched(
        gpu=seen.gpu,
        reach=reach,
        gis=frozenset(one.gi for one in seen.slices if one.placed in change.destroy),
        containers=tuple(one for one in containers if one.name in ahead.containers and not is_monitor(one)),
    )


def _resets(name: str) -> bool | None:
    if _AMPERE.search(name):
        return True
    return False if _LATER.search(name) else None
