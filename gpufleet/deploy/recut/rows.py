"""What a failed recut is told with beside its reason: what nvidia-smi's words mean, and how the GPU is to be finished."""

from __future__ import annotations

from dataclasses import replace

from gpufleet.deploy.recut.model import Recut
from gpufleet.deploy.rows import fix_of
from gpufleet.errors import FleetError, RollbackIncomplete
from gpufleet.mig.messages import Said, Verb, judge

_VERBS = {
    "mode": (Verb.MODE, Verb.RESET),
    "create": (Verb.CREATE,),
    "destroy": (Verb.DESTROY_COMPUTE, Verb.DESTROY),
}


def explain(error: FleetError, recut: Recut) -> None:
    """Give rows of a failed change the next step, and one that is not undone the layout that was there before."""
    fields = error.fields.get("hosts") if hasattr(error.fields, "get") else None
    fixes: dict[str, str] = {}
    for row in fields if isinstance(fields, list) else ():
        fix = "" if row.get("hint") else advice(str(row.get("phase", "")), str(row.get("reason", "")))
        if fix:
            row["hint"] = fixes[str(row["host"])] = fix
    error.rows = tuple(
        replace(row, hint=fixes[row.where]) if row.where in fixes and not row.hint else row
        for row in error.rows
    )
    error.hints = tuple(dict.fromkeys((*fixes.values(), *error.hints)))
    if isinstance(error, RollbackIncomplete):
        before = ",".join(str(one) for one in sorted(recut.look.seen.placed)) or "none"
        error.hints = (*error.hints, f"or by hand: gpufleet mig reconfigure {recut.name} --layout {before}")


def advice(phase: str, reason: str) -> str:
    """What to do about what nvidia-smi said, or an engine; empty when nobody knows."""
    for verb in _VERBS.get(phase, ()):
        verdict = judge(verb, reason, 1)
        if verdict.said is Said.REFUSED:
            return verdict.advice
    return fix_of(reason)
