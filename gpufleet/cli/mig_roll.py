"""`mig reconfigure --pool`: the GPUs of a pool, one after the other."""

from __future__ import annotations

from gpufleet.cli import mig_recut, wiring
from gpufleet.cli.console import Answer, confirm, note
from gpufleet.cli.settings import current
from gpufleet.deploy.recut.flow import RecutWish
from gpufleet.deploy.recut.rolling import Rolling, carry_out_rolling, prepare_rolling
from gpufleet.errors import ExitCode, Interrupted
from gpufleet.names import PoolName


def roll(pool: str, wish: RecutWish, minimum: int | None, *, dry_run: bool, check: bool) -> Answer:
    """Plan all of them, ask once, and go from one to the next."""
    what = f"--add {wish.add}" if wish.add else f"--layout {wish.layout}"
    command = f"{mig_recut.COMMAND} --pool {pool} {what}"
    with wiring.fleet_tools(current()) as tools:
        rolling = prepare_rolling(tools, PoolName(pool), wish, minimum=minimum, command=command)
        if dry_run or check or not rolling.changes:
            return Answer(
                command=mig_recut.COMMAND,
                outcome="changes" if rolling.changes else "no_change",
                exit=ExitCode.CHANGES if check and rolling.changes else ExitCode.OK,
                fields=_fields(rolling),
                text=_text(rolling),
            )
        note(_text(rolling))
        if not confirm(f"Recut the GPUs of pool {pool}, one by one?"):
            raise Interrupted("not confirmed; nothing was changed")
        done = carry_out_rolling(tools, rolling, lambda recut: note(f"{recut.name}: begins"))
    rows = [{**mig_recut.fields(recut), "outcome": each.outcome, "run": each.run} for recut, each in done]
    lines = [mig_recut.told(recut, each, mig_recut.COMMAND).text for recut, each in done]
    return Answer(
        command=mig_recut.COMMAND,
        outcome="committed",
        fields={**_fields(rolling), "gpus": rows, "hosts": [row for _, each in done for row in each.hosts]},
        text="\n".join(lines),
    )


def _fields(rolling: Rolling) -> dict[str, object]:
    return {
        "pool": rolling.pool,
        "serving": rolling.serving,
        "minimum": rolling.minimum,
        "gpus": [mig_recut.fields(one) for one in rolling.recuts],
    }


def _text(rolling: Rolling) -> str:
    head = (
        f"pool {rolling.pool}: {len(rolling.recuts)} GPU(s), one after the other; {rolling.serving} member(s) serve, "
        f"{rolling.minimum} at any time"
    )
    return "\n".join([head, *(mig_recut.text(one) for one in rolling.recuts)])
