"""Small plans over folders: each step puts one file into its host's home, and its undo takes it away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpufleet.change.model import (
    CannotTell,
    Check,
    Fails,
    Holds,
    Irreversible,
    Plan,
    Predicates,
    Step,
    Verdict,
    Waits,
)
from gpufleet.names import HostName, StepId
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit

DO = 'mkdir -p "$HOME/things" && printf "%s" "$2" >"$HOME/things/$1"'
UNDO = 'rm -f "$HOME/things/$1"'
LOOK = 'if [ -f "$HOME/things/$1" ]; then echo there; else echo gone; fi'


def said(answer: Exit, words: tuple[str, ...]) -> Verdict:
    """What the look printed is what was wanted; anything strange is no answer."""
    text = answer.stdout.strip()
    if text == words[0]:
        return Holds()
    if text == "broken":
        return Fails("the engine exited with code 1", hint="give it more memory")
    if text in {"there", "gone"}:
        return Waits(reason=f"it is {text}")
    return CannotTell(f"the host said {text!r}")


PREDICATES: Predicates = {"said": said}


def look(name: str, word: str, **changes: Any) -> Check:
    command = Command(script=LOOK, argv=(name,), mutates=False)
    return Check(look=command, expect="said", data=(word,), **changes)


def step(name: str, host: str, *after: str, lasting: bool = False, **changes: object) -> Step:
    fields: dict[str, object] = {
        "id": StepId(name),
        "host": HostName(host),
        "title": f"put {name}",
        "do": (Command(script=DO, argv=(name, "x"), mutates=True),),
        "undo": Irreversible("harmless") if lasting else (Command(script=UNDO, argv=(name,), mutates=True),),
        "verify": look(name, "there"),
        "absent": look(name, "gone"),
        "after": frozenset(StepId(item) for item in after),
        "phase": "put",
    }
    return Step(**{**fields, **changes})  # type: ignore[arg-type]  # a test's keyword arguments


def plan(*steps: Step, context: Mapping[str, str] | None = None) -> Plan:
    return Plan(
        title="test change", command="gpufleet test", steps=steps, context=context or {"pool": "chat"}
    )
