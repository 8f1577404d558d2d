"""The change machine: which act may happen next, and what each event makes of a run.

Theory of operation
===================

A run is a plan and the list of events that happened to it. `evolve` folds one event into the state, `decide`
names every act that may begin now, `conclude` says whether the run has come to rest and how. Nothing here does
I/O: the interpreter in `apply` asks `decide`, journals the intent, acts, journals the outcome and evolves. A crash
therefore leaves at most *intended, outcome unknown*, and the journal replays to exactly the state that the dead
process had.

Three answers. A lost answer puts a step in doubt (UNKNOWN, after a crash INTERRUPTED). While a step is in doubt
nothing new starts; the host is looked at. *Done* makes it DONE. *Not done* makes it PARTIAL: the step has been
touched, may run again (`do` is idempotent) and must be undone if the run turns back. *Could not look* is neither:

- in a live run the step is UNSEEN and the run turns back, so that every other host is as before;
- in a resumed run the step is DOUBTFUL and the run rests in doubt: nothing was started, nothing undone.

Turning back. A run turns to UNDOING when a step fails, is UNSEEN, or somebody asks. Every step that may have
touched its host is undone, also one in doubt: undo is idempotent, and `absent` makes it believed. A step that was
never sent (PENDING, UNTOUCHED) has nothing to undo. The order is the mirror of the way forward: a step is undone
only when each step that needs it is undone or never touched anything. One exception keeps a dead host from holding
its neighbours: a dependent *on another host* whose undo was tried and given up no longer blocks. A dependent on this
machine (`model.HERE`) blocks until it is undone: what still gets requests is not taken away.

The point of no return. When all steps are DONE the run publishes. From `Publishing` on, undoing is illegal;
publishing is idempotent and is repeated by a resume.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import TypeAlias

from gpufleet.change.events import (
    Act,
    Ended,
    Ending,
    Event,
    Goal,
    Intended,
    Observed,
    Publishing,
    Reopened,
    Settled,
    Turned,
)
from gpufleet.change.model import HERE, Irreversible, Plan, Step, refuse_cycles
from gpufleet.change.table import (
    GIVEN_UP,
    IN_DOUBT,
    IN_FLIGHT,
    NOTHING_LEFT,
    REOPENED,
    TRANSITIONS,
    TURNS_BACK,
    UNDOABLE,
    Phase,
    RunPhase,
)
from gpufleet.names import StepId

TRIES = 3
"""How often one process starts an act whose answer keeps getting lost."""


class IllegalEvent(ValueError):
    """An event that cannot happen in this state: a journal that was altered, or a defect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One step's place in the table.

    Attributes:
        phase: see `table.TRANSITIONS`.
        tries: acts begun by this process; a reopened run counts anew.
        touched: a command of `do` may have reached the host at some time.
        reason: why it is there, for people.
        hint: what the operator can do.
        unmet: it was undone, and what its undo waited for did not come: `reason` says what.
    """

    phase: Phase = Phase.PENDING
    tries: int = 0
    touched: bool = False
    reason: str = ""
    hint: str = ""
    unmet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The first thing that went wrong: what a person wants to read."""

    reason: str
    hint: str = ""
    step: StepId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A run, whole. Build it with `opened(plan)`."""

    plan: Plan
    phase: RunPhase = RunPhase.APPLYING
    statuses: Mapping[StepId, Status]
    cause: Cause | None = None
    steps: Mapping[StepId, Step] = field(compare=False)
    dependents: Mapping[StepId, frozenset[StepId]] = field(compare=False)

    def phase_of(self, step: StepId) -> Phase:
        """Where this step is."""
        return self.statuses[step].phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Begin `do` of this step."""

    step: StepId


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """Begin `undo` of this step."""

    step: StepId


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Look at the host whether this act is done there."""

    step: StepId
    act: Act


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Everything is there: commit. Repeating it is harmless."""


Effect: TypeAlias = Run | Undo | Look | Publish


def opened(plan: Plan) -> State:
    """The state before the first event. Raises ValueError for a plan that could never end."""
    steps = {step.id: step for step in plan.steps}
    if len(steps) != len(plan.steps):
        raise ValueError("two steps of the plan have the same id")
    dependents: dict[StepId, set[StepId]] = {step: set() for step in steps}
    for step in plan.steps:
        for needed in step.after:
            if needed not in steps:
                raise ValueError(f"step {step.id} comes after {needed}, which is not in the plan")
            dependents[needed].add(step.id)
    refuse_cycles(plan)
    return State(
        plan=plan,
        statuses=MappingProxyType({step: Status() for step in steps}),
        steps=MappingProxyType(steps),
        dependents=MappingProxyType({step: frozenset(others) for step, others in dependents.items()}),
    )


def evolve(state: State, event: Event) -> State:
    """The state after `event`. Raises IllegalEvent for one that cannot happen here."""
    match event:
        case Intended() | Ended() | Observed():
            return _step_event(state, event)
        case Turned(reason=reason):
            if state.phase not in {RunPhase.APPLYING, RunPhase.PUBLISHING, RunPhase.UNDOING}:
                raise IllegalEvent(f"a run that is {state.phase} cannot turn back")
            return replace(state, phase=RunPhase.UNDOING, cause=state.cause or Cause(reason=reason))
        case Reopened(goal=goal):
            return _reopen(state, goal)
        case Publishing():
            if state.phase not in {RunPhase.APPLYING, RunPhase.PUBLISHING} or not _all_done(state):
                raise IllegalEvent("a run publishes when every step is done, not before")
            return replace(state, phase=RunPhase.PUBLISHING)
        case Settled(ending=ending):
            return _settle(state, ending)


def _step_event(state: State, event: Intended | Ended | Observed) -> State:
    status = state.statuses.get(event.step)
    if status is None:
        raise IllegalEvent(f"no step {event.step} in the plan")
    phase = TRANSITIONS.get((status.phase, (event.act, _word(event))))
    expected = {RunPhase.UNDOING} if event.act is Act.UNDO else {RunPhase.APPLYING, RunPhase.UNDOING}
    if phase is None or state.phase not in expected:
        raise IllegalEvent(f"step {event.step} is {status.phase} in a run that is {state.phase}: {event}")
    if isinstance(event, Intended):
        if event.act is Act.DO and state.phase is not RunPhase.APPLYING:
            raise IllegalEvent(f"step {event.step} starts in a run that is {state.phase}")
        again = (status.phase, event.act) in {(Phase.PARTIAL, Act.DO), (Phase.UNDO_PARTIAL, Act.UNDO)}
        changed = replace(status, phase=phase, tries=status.tries + 1 if again else 1)
    else:
        changed = _informed(status, _bounded(status, phase), event)
    statuses = MappingProxyType({**state.statuses, event.step: changed})
    return _turn_if_needed(replace(state, statuses=statuses), event.step)


def _informed(status: Status, phase: Phase, event: Ended | Observed) -> Status:
    """The status after an act ended or was looked at; an earlier reason is kept until the step is done."""
    if phase is Phase.UNTOUCHED and status.touched:
        phase = Phase.FAILED
    reason = event.reason or ("" if phase is Phase.DONE else status.reason)
    hint = (event.hint if isinstance(event, Ended) else "") if event.reason else status.hint
    return replace(
        status,
        phase=phase,
        touched=status.touched or phase is not Phase.UNTOUCHED,
        reason=reason,
        hint=hint,
        unmet=phase is Phase.UNDONE and isinstance(event, Ended) and bool(event.reason),
    )


def _word(event: Intended | Ended | Observed) -> str:
    match event:
        case Intended():
            return "intended"
        case Ended(result=result):
            return result.value
        case Observed(found=found):
            return f"found {found}"


def _bounded(status: Status, phase: Phase) -> Phase:
    """An act whose answer was lost `TRIES` times has failed; a crash is no such answer."""
    if status.tries >= TRIES and status.phase is Phase.UNKNOWN and phase is Phase.PARTIAL:
        return Phase.FAILED
    if status.tries >= TRIES and phase is Phase.UNDO_PARTIAL:
        return Phase.UNDO_FAILED
    return phase


def _turn_if_needed(state: State, step: StepId) -> State:
    status = state.statuses[step]
    if status.phase not in TURNS_BACK:
        return state
    cause = state.cause or Cause(reason=status.reason, hint=status.hint, step=step)
    return replace(state, phase=RunPhase.UNDOING, cause=cause)


def _reopen(state: State, goal: Goal) -> State:
    if state.phase in {RunPhase.COMMITTED, RunPhase.UNDONE}:
        raise IllegalEvent(f"a run that is {state.phase} is over")
    if state.phase is RunPhase.PUBLISHING and goal is Goal.UNDO:
        raise IllegalEvent("a run that has begun to publish is finished, not undone")
    statuses = {
        step: replace(status, phase=REOPENED.get(status.phase, status.phase), tries=0)
        for step, status in state.statuses.items()
    }
    back = goal is Goal.UNDO or state.phase is RunPhase.STUCK
    return replace(
        state,
        phase=RunPhase.UNDOING if back else state.phase,
        statuses=MappingProxyType(statuses),
        cause=state.cause or (Cause(reason="undone on request") if back else None),
    )


def _settle(state: State, ending: Ending) -> State:
    committed = ending is Ending.COMMITTED and state.phase is RunPhase.PUBLISHING
    if not committed and (ending is Ending.IN_DOUBT or conclude(state) is not ending):
        raise IllegalEvent(f"a run that is {state.phase} did not end {ending}")
    return replace(state, phase=RunPhase(ending.value))


def decide(state: State, limit: int) -> tuple[Effect, ...]:
    """Every act that may begin now, looks first, at most `limit` together with the acts in flight.

    The state does not know of looks under way: one is named again until it is observed, or, once the run turned
    back, no longer named. The interpreter knows which it began, and counts them.
    """
    if state.phase is RunPhase.PUBLISHING:
        return (Publish(),)
    room = limit - sum(status.phase in IN_FLIGHT for status in state.statuses.values())
    if room <= 0:
        return ()
    match state.phase:
        case RunPhase.APPLYING:
            return _forward(state, room)
        case RunPhase.UNDOING:
            return _backward(state)[:room]
        case _:
            return ()


def _forward(state: State, room: int) -> tuple[Effect, ...]:
    """At most `room` acts. A run comes by here after every event, a fleet's with its thousands: one look at a step."""
    done: set[StepId] = set()
    waiting: list[StepId] = []
    doubtful = False
    unseen: list[StepId] = []
    for step, status in state.statuses.items():
        phase = status.phase
        if phase is Phase.DONE:
            done.add(step)
        elif phase is Phase.PENDING or phase is Phase.PARTIAL:
            waiting.append(step)
        elif phase in IN_DOUBT:
            doubtful = True
            if phase is not Phase.DOUBTFUL:
                unseen.append(step)
    if len(done) == len(state.statuses):
        return (Publish(),)
    if doubtful:
        return tuple(Look(step=step, act=Act.DO) for step in unseen[:room])
    return tuple(Run(step=step) for step in islice(_ready(state, waiting, done), room))


def _ready(state: State, waiting: Iterable[StepId], done: AbstractSet[StepId]) -> Iterator[StepId]:
    """Those that need nothing more. Hosts of a fleet wait for the same steps: each set is compared once."""
    met: dict[frozenset[StepId], bool] = {}
    for step in waiting:
        after = state.steps[step].after
        if after not in met:
            met[after] = after <= done
        if met[after]:
            yield step


def _backward(state: State) -> tuple[Effect, ...]:
    looks = tuple(
        Look(step=step.id, act=Act.UNDO)
        for step in state.plan.steps
        if state.phase_of(step.id) is Phase.UNDO_UNKNOWN
    )
    gone = {step for step, status in state.statuses.items() if status.phase in NOTHING_LEFT}
    lost = _lost(state)
    undos = tuple(
        Undo(step=step.id)
        for step in reversed(state.plan.steps)
        if state.phase_of(step.id) in UNDOABLE
        and all(_lets_go(state, lost, step, dependent) for dependent in state.dependents[step.id] - gone)
    )
    return looks + undos


def _lost(state: State) -> frozenset[StepId]:
    """Steps that this process cannot undo any more: given up, or kept by such a step of their own host."""
    lost = {step for step, status in state.statuses.items() if status.phase in GIVEN_UP}
    grown = True
    while grown:
        more = {
            needed
            for step in lost
            for needed in state.steps[step].after
            if state.phase_of(needed) in UNDOABLE
            and state.steps[step].host in {state.steps[needed].host, HERE}
        }
        grown = not more <= lost
        lost |= more
    return frozenset(lost)


def _lets_go(state: State, lost: frozenset[StepId], step: Step, dependent: StepId) -> bool:
    """Whether `dependent`, of which something is left, no longer stands in the way of undoing `step`."""
    return dependent in lost and state.steps[dependent].host not in {step.host, HERE}


def conclude(state: State) -> Ending | None:
    """How the run came to rest, or None while something is in flight or to be begun."""
    if state.phase in {RunPhase.COMMITTED, RunPhase.UNDONE, RunPhase.STUCK}:
        return Ending(state.phase.value)
    if any(status.phase in IN_FLIGHT for status in state.statuses.values()) or decide(
        state, len(state.steps) + 1
    ):
        return None
    if state.phase is RunPhase.APPLYING:
        return Ending.IN_DOUBT
    left = any(status.phase not in NOTHING_LEFT for status in state.statuses.values())
    return Ending.STUCK if left else Ending.UNDONE


def leftovers(state: State) -> tuple[Step, ...]:
    """Steps of which something is, or may be, on their host."""
    return tuple(step for step in state.plan.steps if state.phase_of(step.id) not in NOTHING_LEFT)


def needs_host(step: Step, effect: Effect) -> bool:
    """Whether the act sends anything: undoing an irreversible step does not."""
    return not (isinstance(effect, Undo) and isinstance(step.undo, Irreversible))


def _all_done(state: State) -> bool:
    return all(status.phase is Phase.DONE for status in state.statuses.values())
