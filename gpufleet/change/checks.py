"""Asking a check until it says yes, says no for good, or nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpufleet.change.model import CannotTell, Check, Fails, Holds, Predicates, Verdict, Waits
from gpufleet.clock import Clock
from gpufleet.remote.command import Command
from gpufleet.remote.result import Lost, Outcome

UNSEEN_FOR = 60.0
"""Seconds that a host may give no answer, in the middle of a wait, before it counts as out of sight."""

_SLICE = 1.0
"""Longest sleep in one piece, so that a wait can be called off."""


class Asker:
    """Judges looks by named predicates.

    Args:
        ask: runs a look on the check's host.
        called_off: whether nobody wants the answer any more.
        progress: told each text that shows movement.
    """

    def __init__(
        self,
        *,
        ask: Callable[[Command], Outcome],
        predicates: Predicates,
        clock: Clock,
        called_off: Callable[[], bool] = lambda: False,
        progress: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._ask = ask
        self._predicates = predicates
        self._clock = clock
        self._called_off = called_off
        self._progress = progress

    def once(self, check: Check) -> Verdict:
        """One look, judged; an answer that did not come is CannotTell."""
        outcome = self._ask(check.look)
        if isinstance(outcome, Lost):
            return CannotTell(outcome.reason)
        predicate = self._predicates.get(check.expect)
        if predicate is None:
            return CannotTell(f"this gpufleet has no check named {check.expect}")
        return predicate(outcome, check.data)

    def until(self, check: Check) -> Verdict:
        """Look again until it holds, fails, stalls, or time is up; then a wait has become Fails."""
        started = moved = seen = self._clock.monotonic()
        last = ""
        while True:
            verdict = self.once(check)
            now = self._clock.monotonic()
            match verdict:
                case Holds() | Fails():
                    return verdict
                case CannotTell():
                    if check.wished and now - started >= check.within:
                        return Holds(unmet=verdict.reason)
                    if not check.wished and now - seen >= min(UNSEEN_FOR, check.within):
                        return verdict
                case Waits(progress=progress, reason=reason, hint=hint):
                    seen = now
                    if progress and progress != last:
                        last, moved = progress, now
                        self._progress(reason or progress)
                    over = _overdue(check, reason or progress, now - started, now - moved)
                    if over is not None:
                        return replace(over, hint=hint)
            if self._called_off():
                return Fails("the wait was called off because the run turned back")
            self._pause(check.every)

    def _pause(self, seconds: float) -> None:
        end = self._clock.monotonic() + seconds
        while not self._called_off() and (rest := end - self._clock.monotonic()) > 0:
            self._clock.sleep(min(rest, _SLICE))


def _overdue(check: Check, reason: str, waited: float, still: float) -> Holds | Fails | None:
    tail = f": {reason}" if reason else ""
    if check.wished and (waited >= check.within or (check.stall and still >= check.stall)):
        return Holds(unmet=f"{reason or 'not there'}, after {waited:.0f} s")
    if waited >= check.within:
        return Fails(f"not there after {check.within:.0f} s{tail}" if check.within else reason or "not there")
    if check.stall and still >= check.stall:
        return Fails(f"no progress for {check.stall:.0f} s{tail}")
    return None


def at_once(check: Check) -> Check:
    """The same look without the wait."""
    return replace(check, within=0.0, stall=0.0)
