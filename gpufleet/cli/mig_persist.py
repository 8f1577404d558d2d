"""`mig persist`: what a boot brings back, compared with what is there, and written as one change."""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.cli import wiring
from gpufleet.cli.console import Answer, confirm, note
from gpufleet.cli.settings import current
from gpufleet.deploy.persist import Persisting, carry_out_persist, prepare_persist
from gpufleet.deploy.tools import Tools
from gpufleet.errors import ExitCode, Interrupted, UsageError
from gpufleet.hosts.boot_drift import BootDrift, Standing
from gpufleet.hosts.model import BootLayout
from gpufleet.inventory.model import Host
from gpufleet.mig.choose import Asked, parse
from gpufleet.names import GpuUuid

COMMAND = "mig persist"


def compare(word: str) -> Answer:
    """What is kept against what is there: exit 3 when they differ."""
    with wiring.fleet_tools(current()) as tools:
        host, asked = _named(tools, word)
        seen = prepare_persist(tools, host, asked, remove=False, overwrite=True, command=COMMAND)
    return Answer(
        command=COMMAND,
        outcome="changes" if seen.changes else "no_change",
        exit=ExitCode.CHANGES if seen.changes else ExitCode.OK,
        fields=seen.fields(),
        text="\n".join([*_lines(seen), *_outdated(seen)]),
    )


def keep(word: str, *, remove: bool, overwrite: bool, dry_run: bool) -> Answer:
    """Write it, or show what would be written."""
    with wiring.fleet_tools(current()) as tools:
        host, asked = _named(tools, word)
        flags = " --remove" if remove else ""
        prepared = prepare_persist(
            tools, host, asked, remove=remove, overwrite=overwrite, command=f"{COMMAND} {word}{flags}"
        )
        for line in prepared.notes:
            note(line)
        text = "\n".join(_change(prepared))
        if dry_run or not prepared.changes:
            outcome = "changes" if prepared.changes else "no_change"
            return Answer(command=COMMAND, outcome=outcome, fields=prepared.fields(), text=text)
        note(text)
        if not confirm(f"Write this on {host.name}?"):
            raise Interrupted("not confirmed; nothing was changed")
        done = carry_out_persist(tools, prepared)
    told = "a boot brings these slices back" if prepared.after.gpus else "a boot brings no slices back"
    return Answer(
        command=COMMAND,
        outcome=done.outcome,
        fields={**prepared.fields(), "run": done.run, "hosts": list(done.hosts)},
        text=f"{host.name}: {told}",
    )


def _named(tools: Tools, word: str) -> tuple[Host, Asked]:
    asked = parse(word)
    found = wiring.select(tools.inventory, (asked.host,))
    if len(found) != 1:
        raise UsageError(
            f"{word!r} names {len(found)} hosts; slices are kept on one",
            hints=("name one host of `gpufleet hosts list`",),
        )
    return found[0], asked


def _lines(seen: Persisting) -> list[str]:
    return [f"{seen.host}:{one.gpu.index}  {_line(one)}" for one in seen.drifts]


def _line(one: BootDrift) -> str:
    match one.standing:
        case Standing.SAME:
            return "as a boot brings it back"
        case Standing.NOTHING:
            return "no slices, and none to bring back"
        case _:
            return one.text()


def _outdated(seen: Persisting) -> list[str]:
    """Slices alone do not tell when the unit is missing, or is another gpufleet's."""
    same = all(one.standing in {Standing.SAME, Standing.NOTHING} for one in seen.drifts)
    return (
        [f"{seen.host}  the files of the boot unit are not those of this gpufleet"]
        if seen.changes and same
        else []
    )


def _change(prepared: Persisting) -> list[str]:
    if not prepared.changes:
        return [f"{prepared.host}: nothing to do", *_lines(prepared)]
    lines = [f"{prepared.host}: what a boot brings back"]
    for one in prepared.drifts:
        before, after = (_slices(layout, one.gpu.uuid) for layout in (prepared.before, prepared.after))
        lines.append(f"  GPU {one.gpu.index}  now {', '.join(before) or 'nothing'}")
        lines.append(f"         then {', '.join(after) or 'nothing'}")
    return lines


def _slices(layout: BootLayout, uuid: GpuUuid) -> Sequence[str]:
    entry = layout.of(uuid)
    return [f"{one.profile}:{one.start}" for one in entry.slices] if entry is not None else ()
