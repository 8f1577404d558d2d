"""Plans as values: they can be printed, stored, replayed and undone by another process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from gpufleet.names import HostName, StepId
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit

HERE = HostName("this machine")
"""The host of a step that happens where the operator sits (`change.here`); no host can have a space in its name."""


@dataclass(frozen=True, slots=True)
class Holds:
    """Yes: what was asked for is there.

    `unmet`: what was only wished for and did not come, with what to do about it in `hint`; empty when all is there.
    """

    unmet: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Fails:
    """No, and waiting will not help: the first real cause and the operator's fix."""

    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Waits:
    """Not yet. `progress` is any text that changes while something moves; a stall is measured by it.

    `hint` is what to do when the wait ends without what was waited for.
    """

    progress: str = ""
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class CannotTell:
    """We could not look."""

    reason: str


Verdict: TypeAlias = Holds | Fails | Waits | CannotTell
Predicate: TypeAlias = Callable[[Exit, tuple[str, ...]], Verdict]
Predicates: TypeAlias = Mapping[str, Predicate]
"""Named predicates: a plan carries a name and its data, so that another process can judge the same look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A look at a host and what it must show.

    Attributes:
        look: reads, never changes.
        expect: name of a predicate.
        data: its arguments.
        within: seconds to keep asking in all; 0 asks once.
        stall: seconds without progress after which waiting ends; 0 means only `within` counts.
        every: seconds between two looks.
        wished: when time is up the wait is over and the step goes on: what was waited for was only wished for.
    """

    look: Command
    expect: str
    data: tuple[str, ...] = ()
    within: float = 0.0
    stall: float = 0.0
    every: float = 2.0
    wished: bool = False


@dataclass(frozen=True, slots=True)
class Irreversible:
    """A step without an undo: it must be harmless, or come last."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change on one host.

    `do` and `undo` are idempotent: each command may run again after a loss. `verify` looks and does not trust.
    `absent` tells that nothing of the step is left, and is what makes an undo believed.
    """

    id: StepId
    host: HostName
    title: str
    do: tuple[Command, ...]
    undo: tuple[Command, ...] | Irreversible
    verify: Check
    absent: Check | None = None
    after: frozenset[StepId] = frozenset()
    phase: str = ""
    """For people and JSON: pull, stop, start, gate, remove..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Steps with their order.

    Attributes:
        title: what it is for, one line.
        command: the command that made it, for `change list`.
        fingerprint: hash of the facts it rests on; a plan whose facts moved is stale.
        context: plain text values that the use case needs to finish a resumed run (pool name, endpoints...).
    """

    title: str
    command: str
    steps: tuple[Step, ...]
    fingerprint: str = ""
    context: Mapping[str, str] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[HostName, ...]:
        """Every touched host, sorted: the order in which leases are taken. This machine is none of them."""
        return tuple(sorted({step.host for step in self.steps} - {HERE}))


def refuse_cycles(plan: Plan) -> None:
    """Take steps away whose needs are gone until none is left; what cannot be taken is a cycle.

    Raises:
        ValueError: there is one.
    """
    waiting = {step.id: set(step.after) for step in plan.steps}
    while waiting:
        free = {step for step, needs in waiting.items() if not needs}
        if not free:
            raise ValueError(f"steps wait for each other: {', '.join(sorted(waiting))}")
        waiting = {step: needs - free for step, needs in waiting.items() if step not in free}
