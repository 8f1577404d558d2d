"""Steps of a run that happen on the operator's machine and not on a host: shifting routes, waiting, watching.

Such a step has the host `model.HERE`. Its commands carry no words for a shell but the name of an act and its data
(`Command.argv`), as a check carries the name of a predicate: another process, or another machine, that takes the
run up looks the name up in its own registry. Everything else is as with any step: it is journaled before it acts,
looked at when its outcome is not known, undone in the mirrored order. There is no lease and no fence here; a run
has one process at a time on this machine, and the leases of its hosts keep other machines away.

An act is idempotent, answers as a command does (`Exit`) and never raises for what can go wrong in the world. One
that waits asks `called_off` at least once a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gpufleet.clock import Clock
from gpufleet.errors import FleetError
from gpufleet.names import HostName
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit, Lost, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What an act may use beside its data.

    Attributes:
        ask: runs a look on a host; never one that changes it.
        called_off: whether the run has turned back and nobody wants the answer any more.
        progress: told each text that shows movement.
    """

    ask: Callable[[HostName, Command], Outcome]
    clock: Clock
    called_off: Callable[[], bool]
    progress: Callable[[str], None]


HereAct: TypeAlias = Callable[[Errand, tuple[str, ...]], Exit]
HereActs: TypeAlias = Mapping[str, HereAct]


def perform(command: Command, acts: HereActs, errand: Errand) -> Outcome:
    """Run the act that a command names; `Lost` without effect when this gpufleet has none of that name."""
    name, *words = (part if isinstance(part, str) else part.reveal() for part in command.argv)
    act = acts.get(name)
    if act is None:
        return Lost(reason=f"this gpufleet has no act named {name}", sent=False)
    try:
        return act(errand, tuple(words))
    except FleetError as error:
        return Exit(code=1, stderr=str(error))
    except OSError as error:
        return Exit(code=1, stderr=(error.strerror or str(error)).lower())
