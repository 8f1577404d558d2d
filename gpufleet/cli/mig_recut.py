"""`mig reconfigure`: what becomes of each slice and each container, asked for once and done as one change."""

from __future__ import annotations

from pathlib import Path

from gpufleet.cli import mig_holders, mig_look, mig_text, wiring
from gpufleet.cli.console import Answer, confirm, note
from gpufleet.cli.settings import current
from gpufleet.deploy.recut.flow import RecutWish, carry_out_recut, prepare_recut, recut_of, wanted_of
from gpufleet.deploy.recut.look import look_at
from gpufleet.deploy.recut.model import Recut
from gpufleet.deploy.tools import Done, Tools
from gpufleet.errors import ExitCode, Interrupted, UsageError
from gpufleet.inventory.model import Host
from gpufleet.mig.choose import Asked, parse

COMMAND = "mig reconfigure"


def reconfigure(word: str, wish: RecutWish, file: Path | None, *, dry_run: bool, check: bool) -> Answer:
    """Plan, ask, carry out."""
    with wiring.fleet_tools(current()) as tools:
        host, asked = named(tools, word)
        recut = _prepared(tools, host, asked, wish, file, word)
        return confirmed(tools, recut, COMMAND, dry_run=dry_run, check=check)


def confirmed(tools: Tools, recut: Recut, command: str, *, dry_run: bool, check: bool) -> Answer:
    """Show the plan, ask, carry it out."""
    if dry_run or check or not recut.plan.steps:
        outcome = "changes" if recut.plan.steps else "no_change"
        code = ExitCode.CHANGES if check and recut.plan.steps else ExitCode.OK
        return Answer(command=command, outcome=outcome, exit=code, fields=fields(recut), text=text(recut))
    note(text(recut))
    if not confirm(f"Recut {recut.name}?"):
        raise Interrupted("not confirmed; nothing was changed")
    return told(recut, carry_out_recut(tools, recut), command)


def _prepared(tools: Tools, host: Host, asked: Asked, wish: RecutWish, file: Path | None, word: str) -> Recut:
    what = f"--add {wish.add}" if wish.add else f"--layout {wish.layout}"
    command = f"{COMMAND} {word} {what}"
    if file is None:
        return prepare_recut(tools, host, asked, wish, command=command)
    look = look_at(tools, host, asked)
    gpu = look.seen.gpu
    layout = mig_look.from_file(file, wish.layout, index=gpu.index, name=gpu.name)
    return recut_of(tools, look, wanted_of(look, layout, ""), wish, command=f"{command} --file {file}")


def named(tools: Tools, word: str) -> tuple[Host, Asked]:
    """The host and the GPU that a word names."""
    asked = parse(word)
    found = wiring.select(tools.inventory, (asked.host,))
    if len(found) != 1:
        raise UsageError(
            f"{word!r} names {len(found)} hosts; one GPU is changed at a time",
            hints=("name one of `gpufleet hosts list` and its GPU, for example gpu-01:0",),
        )
    return found[0], asked


def fields(recut: Recut) -> dict[str, object]:
    """What becomes of the GPU and of its containers, in JSON."""
    gpu = recut.look.seen.gpu
    return {
        "host": recut.look.host.name,
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        **mig_look.parts(recut.change),
        "mode_change": recut.ahead.mode_change,
        "needs_reset": recut.ahead.needs_reset,
        "moves": [
            {
                "replica": one.new.replica,
                "pool": one.launch.pool.name,
                "container": one.present.container.name,
                "from": str(one.old),
                "to": str(one.home),
            }
            for one in recut.moves
        ],
        "homeless": [
            {"container": one.present.container.name, "running": one.up, "reason": one.reason}
            for one in recut.homeless
        ],
        "revived": [one.container for one, _ in recut.revived],
        **mig_holders.fields(recut.holders),
        "commands": [list(words) for words in recut.ahead.lines],
    }


def text(recut: Recut) -> str:
    """The same for people."""
    seen = recut.look.seen
    title = f"{recut.name}  {seen.gpu.name}  {seen.gpu.uuid}"
    lines = [mig_text.change(title, seen.geometry.slots, seen.placed, recut.change, recut.ahead)]
    lines += [
        f"  moves   {one.new.replica} of {one.launch.pool.name}: {one.old} to {one.home}, made anew"
        for one in recut.moves
    ]
    lines += [
        f"  {'stops for good' if one.up else 'cannot be started again'}: {one.present.container.name}, {one.reason}"
        for one in recut.homeless
    ]
    lines += [f"  starts  {one.container} again on {one.slice}" for one, _ in recut.revived]
    return "\n".join([*lines, *mig_holders.lines(recut.holders)])


def told(recut: Recut, done: Done, command: str) -> Answer:
    """What was done."""
    slices = ", ".join(str(one) for one in sorted((*recut.change.keep, *recut.change.create))) or "no slices"
    lines = [f"{recut.name}: {slices}"]
    lines += [f"  {one.new.replica} of {one.launch.pool.name} is on {one.home}" for one in recut.moves]
    lines += [f"  {one.present.container.name} is stopped" for one in recut.homeless if one.up]
    lines += [f"  {one.container} runs again on {one.slice}" for one, _ in recut.revived]
    lines += [f"  left: {row.message}: {row.hint}" for row in done.leftovers]
    return Answer(
        command=command,
        outcome=done.outcome,
        fields={**fields(recut), **done.fields()},
        text="\n".join(lines),
    )
