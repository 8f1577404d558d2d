"""MIG for people: a picture of a GPU's memory slots, and a change of its layout in lines."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpufleet.hosts.boot_drift import BootDrift
    from gpufleet.mig.model import Placed
    from gpufleet.mig.outlook import Outlook
    from gpufleet.mig.plan import LayoutChange
    from gpufleet.mig.seen import SeenGpu

CELL = 10


def picture(slots: int, slices: Sequence[Placed]) -> str:
    """One cell a memory slot; a slice spans its own, free ones are dots."""
    cells: list[str] = []
    at = 0
    for one in sorted(slices):
        cells += ["." * (CELL - 1)] * (one.start - at)
        cells.append(one.profile[: CELL * one.size - 1].center(CELL * one.size - 1, "-"))
        at = one.start + one.size
    cells += ["." * (CELL - 1)] * (slots - at)
    return f"|{'|'.join(cells)}|"


def shown(host: str, seen: SeenGpu, boot: BootDrift | None = None) -> str:
    """One GPU: its mode, the picture, who sits on each slice, and what a boot would make of it."""
    mode = "MIG on" if seen.on else "MIG off"
    if seen.on != seen.pending:
        mode += f", {'on' if seen.pending else 'off'} after a reset"
    lines = [f"{host}:{seen.gpu.index}  {seen.gpu.name}  {seen.gpu.uuid}  {mode}"]
    lines.append(f"  {picture(seen.geometry.slots, seen.placed)}")
    for one in seen.slices:
        users = [*one.containers, *(f"pid {pid}" for pid in one.processes)]
        users += [f"{name} (stopped)" for name in one.resting]
        what = ", ".join(users) if users else "nobody"
        if not one.uuids:
            what = "no compute instance: it takes room and serves nobody"
        lines.append(f"  {one.placed!s:<16} GPU instance {one.gi:<3} {what}")
    lines += [f"  the whole GPU: {name}" for name in seen.whole]
    lines += [f"  the whole GPU: {name} (stopped)" for name in seen.resting]
    if boot is not None and (text := boot.text()):
        lines.append(f"  {text}")
    return "\n".join(lines)


def change(
    title: str, slots: int, before: Sequence[Placed], planned: LayoutChange, outlook: Outlook | None
) -> str:
    """What becomes of each slice, before and after, and what that takes."""
    after = (*planned.keep, *planned.create)
    lines = [title, f"  now    {picture(slots, before)}", f"  after  {picture(slots, after)}"]
    for word, slices in (("keep", planned.keep), ("destroy", planned.destroy), ("create", planned.create)):
        if slices:
            lines.append(f"  {word:<8}{', '.join(str(one) for one in slices)}")
    moves = ", ".join(f"{one} to {goal.start}" for one, goal in planned.moved)
    if moves:
        lines.append(f"  it does not fit beside what is there; this move makes room: {moves}")
    if not planned.changes:
        lines.append("  nothing to do")
    if outlook is None:
        return "\n".join(lines)
    if outlook.mode_change:
        reset = {
            True: ", which takes a reset of this GPU",
            False: "",
            None: ", perhaps with a reset of this GPU",
        }
        word = "off" if outlook.off else "on"
        lines.append(f"  MIG is turned {word}{reset[outlook.needs_reset]}; everything on the GPU ends")
    if outlook.containers:
        lines.append(f"  stops   {', '.join(outlook.containers)}")
    if outlook.resting:
        lines.append(f"  cannot be started again: {', '.join(outlook.resting)} (stopped, made for what goes)")
    if outlook.processes:
        lines.append(f"  on slices that go: pid {', '.join(str(pid) for pid in outlook.processes)}")
    lines += [f"  $ {shlex.join(words)}" for words in outlook.lines]
    return "\n".join(lines)
