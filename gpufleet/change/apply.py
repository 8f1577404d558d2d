"""The only interpreter of the change machine: ask what may begin, journal the intent, act, journal the outcome.

One thread, the caller's, decides and writes; each act runs in a thread of its own and hands back one event. So the
journal has one writer, the state needs no lock, and a crash leaves at most *intended, outcome unknown*.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeAlias

from gpufleet.change import events
from gpufleet.change.acts import Hands
from gpufleet.change.events import Act, Ended, Ending, Event, Intended, Observed, Observer, Publishing, Turned
from gpufleet.change.interrupts import counted
from gpufleet.change.machine import Look, Publish, Run, State, Undo, conclude, decide, evolve, needs_host
from gpufleet.change.records.document import JournalError
from gpufleet.change.records.journal import body_of, event_of
from gpufleet.change.records.journal_file import JournalFile
from gpufleet.change.records.mirror import Mirror
from gpufleet.change.rows import HostRow, host_rows
from gpufleet.change.table import RunPhase
from gpufleet.errors import FleetError, Interrupted, LeaseLost, Refused
from gpufleet.names import HostName, StepId

PRESSED = object()
"""What the queue carries for one Ctrl-C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the interpreter left the run. `stopped`: why it stopped before the run came to rest."""

    ending: Ending
    state: State
    rows: tuple[HostRow, ...]
    stopped: BaseException | None = None


Told: TypeAlias = tuple[StepId, Ended | Observed | BaseException]


class Interpreter:
    """Drives one run until it rests.

    Args:
        state: a fresh state, or one replayed and reopened.
        publish: what makes the commit known; it may be called again after a crash. Refused turns the run back.
        forks: acts in flight at once.
    """

    def __init__(
        self,
        *,
        state: State,
        journal: JournalFile,
        mirror: Mirror,
        hands: Hands,
        observer: Observer,
        publish: Callable[[], None],
        forks: int,
    ) -> None:
        self.state = state
        self._journal = journal
        self._mirror = mirror
        self._hands = hands
        self._observer = observer
        self._publish = publish
        self._forks = forks
        self._told: SimpleQueue[Told | object] = SimpleQueue()
        self._flying: set[StepId] = set()
        self._stopped: BaseException | None = None
        self._presses = 0
        self._first: dict[HostName, float] = {}
        self._last: dict[HostName, float] = {}

    def run(self) -> Outcome:
        """Until the run rests, is stopped by a second Ctrl-C, or cannot go on."""
        if self.state.phase is RunPhase.UNDOING:
            self._hands.turned.set()
        with counted(self.press):
            try:
                self._loop()
            except (JournalError, LeaseLost) as error:
                self._stop(error)
            self._await_flying()
            ending = self._settle()
        durations = {
            host: self._last[host] - first for host, first in self._first.items() if host in self._last
        }
        rows = host_rows(self.state, durations)
        return Outcome(ending=ending, state=self.state, rows=rows, stopped=self._stopped)

    def press(self) -> None:
        """One Ctrl-C. Safe to call from a signal's frame and from any thread."""
        self._told.put(PRESSED)

    def _loop(self) -> None:
        while self._stopped is None:
            for effect in decide(self.state, self._forks):
                if isinstance(effect, Publish):
                    self._commit()
                elif effect.step not in self._flying and len(self._flying) < self._forks:
                    self._begin(effect)
            if not self._flying:
                if conclude(self.state) is not None:
                    return
                continue
            self._hear(self._told.get())

    def _begin(self, effect: Run | Undo | Look) -> None:
        if not isinstance(effect, Look):
            self._record(Intended(step=effect.step, act=Act.DO if isinstance(effect, Run) else Act.UNDO))
        step = self.state.steps[effect.step]
        self._first.setdefault(step.host, self._hands.clock.monotonic())
        self._flying.add(step.id)
        if not needs_host(step, effect):
            self._told.put((step.id, self._hands.perform(effect, step)))
            return
        # Daemon threads: a second Ctrl-C ends the process although a host is still waited for.
        threading.Thread(target=self._act, args=(effect,), name=f"{step.host}:{step.id}", daemon=True).start()

    def _act(self, effect: Run | Undo | Look) -> None:
        step = self.state.steps[effect.step]
        try:
            told: Ended | Observed | BaseException = self._hands.perform(effect, step)
        except BaseException as error:  # noqa: BLE001  # handed to the deciding thread, which stops the run
            told = error
        self._told.put((step.id, told))

    def _hear(self, told: Told | object) -> None:
        if not isinstance(told, tuple):
            self._interrupt()
            return
        step, event = told
        self._flying.discard(step)
        self._last[self.state.steps[step].host] = self._hands.clock.monotonic()
        if isinstance(event, BaseException):
            self._stop(event)
            return
        before = self.state.phase
        self._record(event)
        if before is RunPhase.APPLYING and self.state.phase is RunPhase.UNDOING:
            self._turn(self.state.cause.reason if self.state.cause else "")

    def _turn(self, reason: str) -> None:
        self._hands.turned.set()
        self._record(Turned(reason=reason))

    def _interrupt(self) -> None:
        self._presses += 1
        if self._presses > 1:
            self._stop(Interrupted("stopped by a second interrupt"))
        elif self.state.phase is RunPhase.APPLYING:
            self._turn("interrupted by the operator")

    def _stop(self, error: BaseException) -> None:
        """Begin nothing more and believe nothing more: what is in flight is for a resume to look at."""
        self._stopped = self._stopped or error
        self._hands.turned.set()

    def _await_flying(self) -> None:
        """Wait for acts under way, so that this process changes nothing after it has answered."""
        while self._flying and self._presses < 2:
            told = self._told.get()
            if isinstance(told, tuple):
                self._flying.discard(told[0])
            else:
                self._presses += 1

    def _commit(self) -> None:
        self._record(Publishing())
        self._hands.announce(self._forks)
        try:
            self._publish()
        except Refused as error:
            self._turn(str(error))
        except (FleetError, OSError) as error:
            self._stop(error)
        else:
            self._record(events.Settled(ending=Ending.COMMITTED))

    def _settle(self) -> Ending:
        ending = conclude(self.state)
        if self._stopped is not None or ending is None or ending is Ending.IN_DOUBT:
            return Ending.IN_DOUBT
        if ending is not Ending.COMMITTED:
            try:
                self._record(events.Settled(ending=ending))
            except JournalError as error:
                self._stop(error)
        return ending

    def _record(self, event: Event) -> None:
        """Journal and sync, evolve, let the copies know, tell the observer: in this order."""
        record = self._journal.append(body_of(event, self._hands.secrets))
        kept = event_of(record.body) or event
        self.state = evolve(self.state, kept)
        self._mirror.add(record)
        step = self.state.steps[kept.step] if isinstance(kept, Intended | Ended | Observed) else None
        self._observer(step, kept)
