"""One act on one host: do a step, undo it, or look; in goes an effect, out comes the event that it became."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpufleet.change.checks import Asker, at_once
from gpufleet.change.events import Act, Ended, Found, Observed, Progress, Result
from gpufleet.change.here import Errand, HereActs, perform
from gpufleet.change.leases import fence
from gpufleet.change.leases.lease import Grant
from gpufleet.change.machine import Look, Run, Undo
from gpufleet.change.model import (
    HERE,
    CannotTell,
    Check,
    Fails,
    Holds,
    Irreversible,
    Predicates,
    Step,
    Verdict,
    Waits,
)
from gpufleet.change.reach import Reach
from gpufleet.change.records.mirror import Mirror
from gpufleet.clock import Clock
from gpufleet.errors import LeaseLost
from gpufleet.names import HostName, StepId
from gpufleet.redact import Secret, scrub
from gpufleet.remote.command import Command
from gpufleet.remote.fanout import fanout
from gpufleet.remote.result import Exit, Lost, Outcome

PUBLISH = StepId("publish")
"""What is busy while the copies are told that the run publishes."""

NO_LEASE = "the host was not reached when the run was taken up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """What an act works with. `turned` is set once the run goes back: waits on the way forward are called off."""

    reach: Reach
    grants: Mapping[HostName, Grant]
    mirror: Mirror
    predicates: Predicates
    clock: Clock
    secrets: tuple[Secret[str], ...]
    turned: threading.Event
    progress: Callable[[Progress], None]
    acts: HereActs = field(default_factory=dict)

    def perform(self, effect: Run | Undo | Look, step: Step) -> Ended | Observed:
        """Raises LeaseLost when the host's lease is no longer ours: then nothing was sent past the fence."""
        match effect:
            case Run():
                return self._run(step)
            case Undo():
                return self._undo(step)
            case Look(act=act):
                return self._look(step, act)

    def announce(self, forks: int) -> None:
        """Write that the run publishes into every copy that can be reached, before it does.

        So nobody undoes from a copy what was published, and a holder whose lease was taken over publishes nothing.

        Raises:
            LeaseLost: a host's lease is no longer ours.
        """
        for told in fanout(self.grants, self._announce_to, forks=forks).values():
            if isinstance(told, LeaseLost):
                raise told

    def _announce_to(self, host: HostName) -> None:
        nothing = Command(script=":", mutates=True)
        with self.mirror.carried(host) as lines:
            fenced = fence.guarded(nothing, self.grants[host], PUBLISH, copy=lines.text, anyway=True)
            outcome = self.reach.insist(host, fenced)
            if isinstance(outcome, Exit) and not outcome.sudo_refused and fence.refusal(outcome) is None:
                lines.delivered()
        self._fenced(host, outcome)

    def _run(self, step: Step) -> Ended:
        for number, command in enumerate(step.do):
            outcome = self._send(step, command, anyway=False)
            if isinstance(outcome, Lost):
                untouched = number == 0 and not outcome.sent
                result = Result.NOT_SENT if untouched else Result.LOST
                return self._ended(step, Act.DO, result, outcome.reason)
            if not outcome.ok:
                return self._refused(step, Act.DO, outcome)
        return self._judged(step, Act.DO, self._asker(step, waits=True).until(step.verify))

    def _undo(self, step: Step) -> Ended:
        if isinstance(step.undo, Irreversible):
            return self._ended(step, Act.UNDO, Result.SUCCEEDED)
        refused: Ended | None = None
        for command in step.undo:
            outcome = self._send(step, command, anyway=True)
            if isinstance(outcome, Lost):
                result = Result.LOST if outcome.sent else Result.NOT_SENT
                return self._ended(step, Act.UNDO, result, outcome.reason)
            if not outcome.ok:
                refused = self._refused(step, Act.UNDO, outcome)
                break
        if step.absent is None:
            return refused or self._ended(step, Act.UNDO, Result.SUCCEEDED)
        verdict = self._asker(step, waits=False).until(step.absent)
        if refused is not None and not isinstance(verdict, Holds):
            return refused
        return self._judged(step, Act.UNDO, verdict)

    def _look(self, step: Step, act: Act) -> Observed:
        check = step.verify if act is Act.DO else step.absent
        if check is None:
            return Observed(step=step.id, act=act, found=Found.NOT_DONE, reason="cannot be looked at")
        match self._quiet_look(step, check, act):
            case Holds():
                return Observed(step=step.id, act=act, found=Found.DONE)
            case Fails(reason=reason) | Waits(reason=reason):
                return Observed(step=step.id, act=act, found=Found.NOT_DONE, reason=self._clean(reason))
            case CannotTell(reason=reason):
                return Observed(step=step.id, act=act, found=Found.UNKNOWN, reason=self._clean(reason))

    def _quiet_look(self, step: Step, check: Check, act: Act) -> Verdict:
        """Look when no earlier command of the step is at work any more; one that is, is waited for to its deadline.

        A way forward that has turned back is not waited for: the undo waits by itself.
        """
        if step.host == HERE:
            return self._asker(step, waits=act is Act.DO).once(at_once(check))
        grant = self.grants.get(step.host)
        if grant is None:
            return CannotTell(NO_LEASE)

        undo = () if isinstance(step.undo, Irreversible) else step.undo
        deadline = self.clock.monotonic() + max(
            (command.timeout for command in (*step.do, *undo)), default=0.0
        )

        def ask(command: Command) -> Outcome:
            while True:
                outcome = self.reach.insist(step.host, fence.quiet(command, grant, step.id))
                busy = isinstance(outcome, Exit) and fence.refusal(outcome) == fence.BUSY
                late = self.clock.monotonic() >= deadline or (act is Act.DO and self.turned.is_set())
                if not busy or late:
                    return self._fenced(step.host, outcome)
                self.progress(Progress(step=step.id, text="its command is still at work there"))

        asker = Asker(ask=ask, predicates=self.predicates, clock=self.clock)
        return asker.once(at_once(check))

    def _asker(self, step: Step, *, waits: bool) -> Asker:
        return Asker(
            ask=lambda command: (
                self._here(step, command, waits=waits)
                if step.host == HERE
                else self.reach.insist(step.host, command)
            ),
            predicates=self.predicates,
            clock=self.clock,
            called_off=self.turned.is_set if waits else lambda: False,
            progress=lambda text: self.progress(Progress(step=step.id, text=self._clean(text))),
        )

    def _send(self, step: Step, command: Command, *, anyway: bool) -> Outcome:
        """One mutating command behind the fence, with what the host's copy of the journal lacks."""
        if step.host == HERE:
            return self._here(step, command, waits=not anyway)
        grant = self.grants.get(step.host)
        if grant is None:
            return Lost(reason=NO_LEASE, sent=False)
        with self.mirror.carried(step.host) as lines:
            fenced = fence.guarded(command, grant, step.id, copy=lines.text, anyway=anyway)
            outcome = self.reach.insist(step.host, fenced)
            if isinstance(outcome, Exit) and not outcome.sudo_refused and fence.refusal(outcome) is None:
                lines.delivered()
        return self._fenced(step.host, outcome)

    def _here(self, step: Step, command: Command, *, waits: bool) -> Outcome:
        """An act, or a look, on this machine."""
        errand = Errand(
            ask=self.reach.insist,
            clock=self.clock,
            called_off=self.turned.is_set if waits else lambda: False,
            progress=lambda text: self.progress(Progress(step=step.id, text=self._clean(text))),
        )
        return perform(command, self.acts, errand)

    @staticmethod
    def _fenced(host: HostName, outcome: Outcome) -> Outcome:
        if not isinstance(outcome, Exit):
            return outcome
        match fence.refusal(outcome):
            case fence.FENCED:
                raise LeaseLost("another operator took over the lease", where=host)
            case fence.BUSY:
                return Lost(reason="an earlier command of this step is still at work there", sent=True)
            case fence.NO_COPY:
                return Exit(code=1, stderr="the journal's copy cannot be written: is the disk full?")
            case _:
                return outcome

    def _judged(self, step: Step, act: Act, verdict: Verdict) -> Ended:
        match verdict:
            case Holds(unmet=unmet, hint=hint):
                # On the way forward a wait that was only wished for is over; on the way back it tells how things stand.
                told = (unmet, hint) if act is Act.UNDO else ()
                return self._ended(step, act, Result.SUCCEEDED, *told)
            case Fails(reason=reason, hint=hint):
                return self._ended(step, act, Result.FAILED, reason, hint)
            case Waits(reason=reason, hint=hint):
                return self._ended(step, act, Result.FAILED, reason or "not there", hint)
            case CannotTell(reason=reason):
                return self._ended(step, act, Result.LOST, reason)

    def _refused(self, step: Step, act: Act, answer: Exit) -> Ended:
        return self._ended(step, act, Result.FAILED, last_words(answer))

    def _ended(self, step: Step, act: Act, result: Result, reason: str = "", hint: str = "") -> Ended:
        return Ended(step=step.id, act=act, result=result, reason=self._clean(reason), hint=self._clean(hint))

    def _clean(self, text: str) -> str:
        return scrub(text, self.secrets)


def last_words(answer: Exit) -> str:
    """What a failed command said last, one line, with its exit status."""
    if answer.sudo_refused:
        return f"sudo refused: {answer.sudo_refused}"
    said = [line.strip() for line in (answer.stderr or answer.stdout).splitlines() if line.strip()]
    return f"{said[-1][:500]} (exit status {answer.code})" if said else f"exit status {answer.code}"
