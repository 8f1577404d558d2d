"""A change as it goes, on standard error: a line an event for a few hosts, a line of counts for many."""

from __future__ import annotations

import getpass
import os
import socket
import threading
from collections import Counter
from typing import TYPE_CHECKING

from gpufleet.cli.console import note, paint

if TYPE_CHECKING:
    from gpufleet.change.events import Told
    from gpufleet.change.model import Step
    from gpufleet.clock import Clock
    from gpufleet.errors import LeaseHeld
    from gpufleet.names import StepId

FEW = 12
"""Hosts whose events are told one by one; of more, only what goes wrong is."""

EVERY = 10.0
"""Seconds between two lines of counts."""

SHOWN = 3
"""Kinds of waiting that one line names."""


def operator() -> str:
    """Who holds a lease, for those who find it held: `user@machine pid N`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} pid {os.getpid()}"


class Narrator:
    """Observer of changes. Safe to call from several threads.

    Args:
        clock: for the time between two lines of counts.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._begin((), frozenset())

    def __call__(self, step: Step | None, event: Told) -> None:
        """Tell it, at once or in the next line of counts."""
        from gpufleet.change.events import Begun

        with self._lock:
            if isinstance(event, Begun):
                self._begin(event.steps, event.done)
            elif self._many:
                self._count(step, event)
            else:
                tell(step, event)

    def _begin(self, steps: tuple[Step, ...], done: frozenset[StepId]) -> None:
        self._many = len({step.host for step in steps}) > FEW
        self._wanted = Counter(step.phase or "step" for step in steps)
        self._done = Counter(step.phase or "step" for step in steps if step.id in done)
        self._undone: Counter[str] = Counter()
        self._waits: dict[str, str] = {}
        self._started = self._said = self._clock.monotonic()

    def _count(self, step: Step | None, event: Told) -> None:
        from gpufleet.change.events import Act, Ended, Progress, Result

        match event:
            case Ended(act=act, result=Result.SUCCEEDED) if step is not None:
                phase = step.phase or "step"
                self._waits.pop(step.id, None)
                counter = self._done if act is Act.DO else self._undone
                counter[phase] += 1
                self._summary(now=act is Act.DO and counter[phase] == self._wanted[phase])
            case Progress(text=text) if step is not None:
                self._waits[step.id] = _kind(text)
                self._summary()
            case _:
                if isinstance(event, Ended) and step is not None:
                    self._waits.pop(step.id, None)
                tell(step, event)

    def _summary(self, *, now: bool = False) -> None:
        """One line of counts; not more often than `EVERY` seconds, unless a phase is complete."""
        moment = self._clock.monotonic()
        if not now and moment - self._said < EVERY:
            return
        self._said = moment
        minutes, seconds = divmod(int(moment - self._started), 60)
        begun = [phase for phase in self._wanted if self._done[phase]]
        parts = [f"{phase} {self._done[phase]}/{self._wanted[phase]}" for phase in begun]
        if self._undone:
            parts.append(f"undone {sum(self._undone.values())}")
        kinds = Counter(self._waits.values()).most_common()
        parts += [f"{count} wait: {kind}" for kind, count in kinds[:SHOWN]]
        rest = sum(count for _kind, count in kinds[SHOWN:])
        parts += [f"{rest} wait otherwise"] if rest else []
        note(f"{minutes}:{seconds:02}  {', '.join(parts)}")


def waits(held: LeaseHeld) -> None:
    """Somebody else holds a lease, and we wait for it."""
    for row in held.rows:
        note(f"waiting: {row.where}: {row.message}")


def tell(step: Step | None, event: Told) -> None:
    """One event as one line: what begins is not told, what ended is."""
    from gpufleet.change.events import Act, Ended, Observed, Progress, Result, Settled, Turned

    match event:
        case Ended(act=act, result=result, reason=reason) if step is not None:
            undoing = act is Act.UNDO
            if result is Result.SUCCEEDED:
                word = paint("undone" if undoing else "done", "yellow" if undoing else "green")
            else:
                word = paint(f"{'undo ' if undoing else ''}{result.value.replace('_', ' ')}", "red")
            note(f"{step.host}: {step.title}: {word}{f': {_first_line(reason)}' if reason else ''}")
        case Observed(found=found) if step is not None:
            note(f"{step.host}: {step.title}: looked, {found.value.replace('_', ' ')}")
        case Progress(text=text) if step is not None:
            note(f"{step.host}: {step.title}: {_first_line(text)}")
        case Turned(reason=reason):
            note(f"turning back: {_first_line(reason)}")
        case Settled(ending=ending):
            note(f"run {ending.value.replace('_', ' ')}")
        case _:
            pass


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else ""


def _kind(text: str) -> str:
    """What is waited for, without the line of a log that shows it."""
    return _first_line(text).partition("; the log's last line")[0][:60]
