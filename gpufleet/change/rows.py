"""What became of each host: the rows of a run's answer, for people, JSON and errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpufleet.change.machine import State, leftovers
from gpufleet.change.model import HERE, Step
from gpufleet.change.table import Phase
from gpufleet.errors import ErrorRow
from gpufleet.names import HostName

_IN_DOUBT = frozenset(
    {Phase.RUNNING, Phase.UNKNOWN, Phase.INTERRUPTED, Phase.DOUBTFUL, Phase.UNDOING, Phase.UNDO_UNKNOWN}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """One host.

    Attributes:
        status: `done`, `undone`, `untouched`, `left` (something is there that should not be), `in_doubt`, `open`.
        phase: the phase of the step that decided the status, as the plan names it.
        reason: the first real cause on this host, scrubbed.
        left: titles of the steps of which something is, or may be, there.
    """

    host: HostName
    status: str
    phase: str = ""
    reason: str = ""
    hint: str = ""
    duration_s: float | None = None
    left: tuple[str, ...] = ()

    def fields(self) -> dict[str, object]:
        """As JSON has it."""
        found: dict[str, object] = {
            "host": self.host,
            "status": self.status,
            "phase": self.phase,
            "reason": self.reason,
            "hint": self.hint,
            "duration_s": self.duration_s,
        }
        if self.left:
            found["left"] = list(self.left)
        return found

    def error_row(self) -> ErrorRow:
        """As an error has it."""
        left = f"left: {', '.join(self.left)}" if self.left and self.status == "left" else ""
        parts = [part for part in (self.phase, self.reason, left) if part]
        message = ": ".join(part for part in (self.status, "; ".join(parts)) if part)
        return ErrorRow(where=self.host, message=message, hint=self.hint)


def host_rows(state: State, durations: Mapping[HostName, float]) -> tuple[HostRow, ...]:
    """One row a host, in name order. `durations`: seconds from a host's first act to its last.

    This machine has a row only when something of its steps may be left, or when one of them was the cause.
    """
    rows = tuple(_row(state, host, durations.get(host)) for host in state.plan.hosts)
    if not any(step.host == HERE for step in state.plan.steps):
        return rows
    here = _row(state, HERE, durations.get(HERE))
    cause = state.cause.step if state.cause else None
    told = here.status in {"left", "in_doubt"} or (cause is not None and state.steps[cause].host == HERE)
    return (*rows, *([here] if told else []), *unmet_rows(state))


def unmet_rows(state: State) -> tuple[HostRow, ...]:
    """What was put back and is not yet as it was: one row for each, beside those of the hosts."""
    return tuple(
        HostRow(host=step.host, status="undone", phase=step.phase, reason=status.reason, hint=status.hint)
        for step in state.plan.steps
        if (status := state.statuses[step.id]).unmet
    )


def _row(state: State, host: HostName, duration: float | None) -> HostRow:
    steps = [step for step in state.plan.steps if step.host == host]
    phases = {state.phase_of(step.id) for step in steps}
    left = tuple(step.title for step in leftovers(state) if step.host == host)
    told = _telling(state, steps)
    status = state.statuses[told.id] if told else None
    if phases <= {Phase.DONE}:
        word = "done"
    elif phases & _IN_DOUBT:
        word = "in_doubt"
    elif phases <= {Phase.PENDING, Phase.UNTOUCHED}:
        word = "untouched"
    elif phases <= {Phase.PENDING, Phase.UNTOUCHED, Phase.UNDONE}:
        word = "undone"
    else:
        word = "left" if state.cause else "open"
    return HostRow(
        host=host,
        status=word,
        phase=told.phase if told else "",
        reason=status.reason if status else "",
        hint=status.hint if status else "",
        duration_s=None if duration is None else round(duration, 3),
        left=left if word in {"left", "in_doubt"} else (),
    )


def _telling(state: State, steps: list[Step]) -> Step | None:
    """The step that a person should read about: the run's cause, else the first that has a reason."""
    cause = state.cause.step if state.cause else None
    for step in steps:
        if step.id == cause:
            return step
    return next((step for step in steps if state.statuses[step.id].reason), None)
