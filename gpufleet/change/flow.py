"""A change from plan to answer: open the journal, take the leases, apply, settle, give back.

    run_change(plan, tools, on_commit=..., run=..., recheck=...) -> Change
    take_up(run, tools, goal, resolve=..., on_commit=...) -> Change

Both return only for a committed run (or, with goal UNDO, an undone one) and raise otherwise: RolledBack,
RollbackIncomplete, InDoubt, LeaseHeld, HostUnreachable, PreflightFailed. The errors carry `run`, `rows` and
`fields["hosts"]`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import TypeAlias, TypeVar

from gpufleet.change.acts import Hands
from gpufleet.change.apply import Interpreter, Outcome
from gpufleet.change.events import Begun, Ending, Goal, Observer, Reopened, harmless, silent
from gpufleet.change.here import HereActs
from gpufleet.change.leases.lease import HEARTBEAT, KEPT_RUNS, Holder
from gpufleet.change.leases.lease_keeper import Audit, LeaseKeeper, show
from gpufleet.change.machine import IllegalEvent, State, evolve, opened
from gpufleet.change.model import Plan, Predicates
from gpufleet.change.reach import Reach
from gpufleet.change.records import journal_file
from gpufleet.change.records.document import Resolve, plan_record, refuse_unfollowed, secrets_of
from gpufleet.change.records.journal import Opened, Opening, body_of, opening, replay
from gpufleet.change.records.journal_file import JournalFile
from gpufleet.change.records.mirror import Mirror
from gpufleet.change.rows import HostRow, host_rows, unmet_rows
from gpufleet.change.table import Phase, RunPhase
from gpufleet.clock import Clock
from gpufleet.errors import FleetError, InDoubt, LeaseHeld, Refused, RollbackIncomplete, RolledBack
from gpufleet.names import HostName, RunId
from gpufleet.remote.transport import Transport

OnCommit: TypeAlias = Callable[[RunId, Mapping[str, str]], None]
"""Makes a commit known: gets the run and the plan's context. Repeating it must be harmless; Refused undoes the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a change needs of the world.

    Attributes:
        operator: `user@machine pid N`, for leases and journals.
        forks: acts in flight at once.
        acts: what steps on this machine may name (`change.here`).
        lock_wait: seconds to try again for while others hold a lease.
        waits: told each time that one does.
    """

    transport: Transport
    clock: Clock
    predicates: Predicates
    state_dir: Path
    operator: str
    observer: Observer = silent
    forks: int = 32
    heartbeat: float = HEARTBEAT
    acts: HereActs = field(default_factory=dict)
    lock_wait: float = 0.0
    waits: Callable[[LeaseHeld], None] = lambda _held: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A run that came to a good end. `unreleased`: hosts whose lease must expire by itself."""

    run: RunId
    ending: Ending
    rows: tuple[HostRow, ...]
    context: Mapping[str, str]
    unreleased: tuple[HostName, ...] = ()

    def fields(self) -> dict[str, object]:
        """For JSON: `run` and `hosts`."""
        return {"run": self.run, "hosts": [row.fields() for row in self.rows]}


def run_change(
    plan: Plan,
    tools: Tools,
    *,
    on_commit: OnCommit,
    run: RunId | None = None,
    recheck: Callable[[], None] | None = None,
) -> Change:
    """Carry out a plan, whole or not at all.

    Args:
        plan: every secret in it has a reference.
        tools: what the change needs of the world.
        on_commit: called when every step is done, before the run is marked as committed.
        run: the id that the plan's labels carry; made here when absent (`journal_file.new_run_id`).
        recheck: called under the leases, before the first act; may raise StalePlan.
    """
    run = run or journal_file.new_run_id(tools.clock)
    seat = journal_file.seat(tools.state_dir)
    first = Opened(run, tools.operator, seat, tuple(plan.hosts), plan_record(plan))
    state = opened(plan)
    with journal_file.create(tools.state_dir, run, tools.clock, first) as file:
        reach = Reach(tools.transport, tools.clock)
        try:
            keeper = _keeper(tools, reach, run, seat, plan)
            try:
                _patiently(tools, lambda: keeper.take(plan.hosts, file.records[0]))
                _check_again(recheck, keeper)
            except BaseException:
                file.discard()
                raise
            return _drive(state, _Site(tools, file, reach, keeper, Mirror(plan), on_commit))
        finally:
            reach.close()


ASK_AGAIN = 5.0
"""Seconds between two tries for leases that others hold."""


def _patiently(tools: Tools, take: Callable[[], None]) -> None:
    """Try until it works or the patience ends. A try that failed holds nothing, so two who wait cannot block each other."""
    end = tools.clock.monotonic() + tools.lock_wait
    while True:
        try:
            return take()
        except LeaseHeld as held:
            left = end - tools.clock.monotonic()
            if left <= 0:
                raise
            tools.waits(held)
            tools.clock.sleep(min(ASK_AGAIN, left))


def _check_again(recheck: Callable[[], None] | None, keeper: LeaseKeeper) -> None:
    """Whether the facts still stand, now that nobody else can change them."""
    if recheck is None:
        return
    try:
        recheck()
    except BaseException:
        keeper.release(ending="", rest=lambda _host: b"")
        raise


def take_up(run: RunId, tools: Tools, goal: Goal, *, resolve: Resolve, on_commit: OnCommit) -> Change:
    """Finish an interrupted or stuck run of this machine: go on with it, or undo it.

    A run that is over already is only tidied: its process may have died before it gave the leases back.

    Raises:
        UsageError: no such run.
        Refused: it ended the other way, or it has begun to publish and can only be resumed.
        SecretUnresolved: what is still to be done needs a secret that cannot be found any more.
    """
    with journal_file.reopen(tools.state_dir, run, tools.clock) as file:
        head = opening(file.records, resolve)
        before = replay(file.records, head.plan)
        reach = Reach(tools.transport, tools.clock)
        try:
            keeper = _keeper(tools, reach, run, journal_file.seat(tools.state_dir), head.plan)
            if before.phase in _OVER:
                return _tidied(before, goal, reach, keeper, file)
            if goal is Goal.RESUME:
                refuse_unfollowed(head.plan, lambda step: before.phase_of(step) is Phase.DONE)
            reopened = Reopened(goal=goal)
            try:
                state = evolve(before, reopened)
            except IllegalEvent as error:
                hints = (f"gpufleet change resume {run}",) if goal is Goal.UNDO else ()
                raise Refused(str(error), where=f"run {run}", hints=hints) from error
            again = tuple(file.records)
            _patiently(tools, lambda: keeper.take(head.hosts, file.records[0], again=again))
            mirror = Mirror(head.plan)
            mirror.add(file.append(body_of(reopened)))
            unseen = _missing(head, state, keeper)
            if unseen:
                keeper.release(ending="", rest=mirror.rest)
                raise unseen
            return _drive(state, _Site(tools, file, reach, keeper, mirror, on_commit, goal))
        finally:
            reach.close()


_OVER = {RunPhase.COMMITTED: Goal.RESUME, RunPhase.UNDONE: Goal.UNDO}
"""The ways in which a run is over, and the wish that each of them fulfils."""


def _tidied(state: State, goal: Goal, reach: Reach, keeper: LeaseKeeper, file: JournalFile) -> Change:
    """Give back what a run that is over still holds."""
    ours = frozenset(host for host in state.plan.hosts if _holds(reach, host, keeper.run))
    if ours:
        keeper.take(ours, file.records[0], again=tuple(file.records), tidy=True)
        keeper.release(ending=state.phase.value, rest=lambda _host: b"")
    if _OVER[state.phase] is not goal:
        raise Refused(f"the run is {state.phase} and over", where=f"run {keeper.run}", run=keeper.run)
    rows = host_rows(state, {})
    return Change(run=keeper.run, ending=Ending(state.phase.value), rows=rows, context=state.plan.context)


def _holds(reach: Reach, host: HostName, run: RunId) -> bool:
    """Whether the host's lease is of this run; one that cannot be asked keeps it until it expires."""
    try:
        answer = show(reach, host)
    except FleetError:
        return False
    return answer.holder is not None and answer.holder.run == run


@dataclass(frozen=True, slots=True)
class _Site:
    """Where a run is driven. `goal` is None for a fresh run."""

    tools: Tools
    file: JournalFile
    reach: Reach
    keeper: LeaseKeeper
    mirror: Mirror
    on_commit: OnCommit
    goal: Goal | None = None


def _missing(head: Opening, state: State, keeper: LeaseKeeper) -> InDoubt | None:
    """A resume that cannot reach a host with unfinished steps starts nothing at all."""
    unfinished = {step.host for step in head.plan.steps if state.phase_of(step.id) is not Phase.DONE}
    away = tuple(host for host in head.hosts if host in unfinished and host not in keeper.grants)
    if not away or state.phase is not RunPhase.APPLYING:
        return None
    return InDoubt(
        f"not reached: {', '.join(away)}; nothing was started",
        where=f"run {head.run}",
        hints=_ways_out(head.run),
        run=head.run,
    )


def _drive(state: State, site: _Site) -> Change:
    """Interpret the run to its rest, give the leases back, and say how it ended."""
    plan, tools, keeper, mirror = state.plan, site.tools, site.keeper, site.mirror
    observer = harmless(tools.observer)
    hands = Hands(
        reach=site.reach,
        grants=keeper.grants,
        mirror=mirror,
        predicates=tools.predicates,
        clock=tools.clock,
        secrets=secrets_of(plan),
        turned=Event(),
        progress=lambda progress: observer(state.steps[progress.step], progress),
        acts=tools.acts,
    )
    interpreter = Interpreter(
        state=state,
        journal=site.file,
        mirror=mirror,
        hands=hands,
        observer=observer,
        publish=lambda: site.on_commit(keeper.run, plan.context),
        forks=tools.forks,
    )
    done = frozenset(step.id for step in plan.steps if state.phase_of(step.id) is Phase.DONE)
    observer(None, Begun(steps=tuple(plan.steps), done=done))
    try:
        outcome = interpreter.run()
    finally:
        keeper.stop()
    if outcome.ending is Ending.IN_DOUBT:
        # The leases stay: until they expire, and then as an open run, they keep others off these hosts.
        raise _in_doubt(keeper.run, outcome)
    final = outcome.ending in {Ending.COMMITTED, Ending.UNDONE}
    with contextlib.suppress(OSError):  # what could not be removed is removed after the next run
        journal_file.prune(tools.state_dir, KEPT_RUNS)
    unreleased = keeper.release(ending=outcome.ending.value if final else "", rest=mirror.rest)
    return _answer(keeper.run, outcome, unreleased, site.goal)


def _answer(run: RunId, outcome: Outcome, unreleased: tuple[HostName, ...], goal: Goal | None) -> Change:
    if outcome.ending is Ending.COMMITTED or (outcome.ending is Ending.UNDONE and goal is Goal.UNDO):
        return Change(
            run=run,
            ending=outcome.ending,
            rows=outcome.rows,
            context=outcome.state.plan.context,
            unreleased=unreleased,
        )
    if outcome.ending is Ending.UNDONE:
        late = unmet_rows(outcome.state)
        tail = f", but {len(late)} thing(s) put back are not ready yet" if late else ""
        summary = f"{_cause(outcome)}; every host is as it was before{tail}"
        hints = tuple(dict.fromkeys(row.hint for row in late if row.hint))
        raise _told(RolledBack(summary, run=run, hints=hints), outcome)
    summary = f"{_cause(outcome)}; not everything could be undone"
    hints = (f"once the hosts answer again: gpufleet change undo {run}", f"gpufleet change show {run}")
    raise _told(RollbackIncomplete(summary, hints=hints, run=run), outcome)


def _in_doubt(run: RunId, outcome: Outcome) -> InDoubt:
    reason = str(outcome.stopped) if outcome.stopped else "a host with an unfinished step gave no answer"
    if outcome.state.phase is RunPhase.PUBLISHING:
        reason = f"every host is done, but publishing failed: {reason}"
        hints: tuple[str, ...] = (f"gpufleet change resume {run}",)
    else:
        hints = _ways_out(run)
    return _told(InDoubt(f"stopped in doubt: {reason}", hints=hints, run=run), outcome)


def _ways_out(run: RunId) -> tuple[str, ...]:
    return (f"gpufleet change resume {run}", f"gpufleet change undo {run}")


def _cause(outcome: Outcome) -> str:
    cause = outcome.state.cause
    if cause is None:
        return "the run turned back"
    step = outcome.state.steps.get(cause.step) if cause.step else None
    reason = cause.reason or "no reason was given"
    return f"{step.host}: {step.title}: {reason}" if step else reason


Failure = TypeVar("Failure", bound=FleetError)


def _told(error: Failure, outcome: Outcome) -> Failure:
    """The same error with its rows, and with the hint of the first cause before the general ones."""
    cause = outcome.state.cause
    if cause is not None and cause.hint:
        error.hints = (cause.hint, *error.hints)
    error.rows = tuple(row.error_row() for row in outcome.rows if row.status not in {"done", "untouched"})
    error.fields = {"hosts": [row.fields() for row in outcome.rows]}
    error.__cause__ = outcome.stopped
    return error


def _keeper(tools: Tools, reach: Reach, run: RunId, seat: str, plan: Plan) -> LeaseKeeper:
    return LeaseKeeper(
        reach=reach,
        holder=Holder(who=tools.operator, run=run, operation=plan.title, seat=seat),
        run=run,
        audit=Audit(tools.state_dir, tools.clock),
        died_here=partial(journal_file.died_here, tools.state_dir),
        heartbeat=tools.heartbeat,
        forks=tools.forks,
    )
