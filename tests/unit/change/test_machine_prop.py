"""The change machine against a world that loses answers, kills hosts and crashes the process at any record."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.change.events import (
    Act,
    Ended,
    Ending,
    Event,
    Found,
    Goal,
    Intended,
    Observed,
    Publishing,
    Reopened,
    Result,
    Settled,
    Turned,
)
from gpufleet.change.machine import (
    Look,
    Publish,
    Run,
    State,
    Undo,
    conclude,
    decide,
    evolve,
    leftovers,
    opened,
)
from gpufleet.change.model import HERE, Check, Irreversible, Plan, Step
from gpufleet.change.table import Phase, RunPhase
from gpufleet.names import HostName, StepId
from gpufleet.remote.command import Command

LOOK = Check(look=Command(argv=("true",), mutates=False), expect="exit-zero")
ACT = (Command(argv=("true",), mutates=True),)
SURELY_THERE = {Phase.DONE}
SURELY_NOT_THERE = {Phase.PENDING, Phase.UNTOUCHED, Phase.UNDONE}


class Crash(BaseException):
    """kill -9."""


@dataclass
class Flight:
    """An act under way; `landed` once its effect, if it has one, took place."""

    effect: Run | Undo | Look
    landed: bool = False


@dataclass
class World:
    """The hosts as they are, and the dice that decide what goes wrong."""

    plan: Plan
    dice: random.Random
    trouble: float
    revival: float
    there: set[StepId] = field(default_factory=set)
    scraps: set[StepId] = field(default_factory=set)
    dead: set[HostName] = field(default_factory=set)
    undo_broken: set[StepId] = field(default_factory=set)
    given_up: set[StepId] = field(default_factory=set)
    published: bool = False

    def __post_init__(self):
        self.steps = {step.id: step for step in self.plan.steps}

    def tick(self):
        for host in self.plan.hosts:
            if host in self.dead:
                if self.dice.random() < self.revival:
                    self.dead.discard(host)
            elif self.dice.random() < self.trouble / 20:
                self.dead.add(host)

    def answer(self, flight: Flight) -> Event:
        effect = flight.effect
        step = self.steps[effect.step]
        if isinstance(effect, Look):
            return self._seen(effect, step)
        act = Act.DO if isinstance(effect, Run) else Act.UNDO
        if act is Act.UNDO and isinstance(step.undo, Irreversible):
            return Ended(step=step.id, act=act, result=Result.SUCCEEDED)
        if step.host in self.dead and not flight.landed:
            result = self.dice.choice([Result.LOST, Result.NOT_SENT])
            return Ended(step=step.id, act=act, result=result, reason="host is gone")
        if not flight.landed and self.dice.random() < self.trouble:
            result = self.dice.choice([Result.LOST, Result.FAILED, Result.NOT_SENT])
            if act is Act.DO and result is not Result.NOT_SENT:
                self.leave_scraps(step.id)
            return Ended(step=step.id, act=act, result=result, reason="refused")
        if act is Act.UNDO and step.id in self.undo_broken:
            return Ended(step=step.id, act=act, result=Result.FAILED, reason="will not go")
        self.land(flight)
        if step.host in self.dead or self.dice.random() < self.trouble:
            result = Result.LOST if act is Act.UNDO else self.dice.choice([Result.LOST, Result.FAILED])
            return Ended(step=step.id, act=act, result=result, reason="after the effect")
        return Ended(step=step.id, act=act, result=Result.SUCCEEDED)

    def power_cut(self, flights: list[Flight]):
        """What was in flight takes effect, or half of it does, or nothing."""
        for flight in flights:
            if self.steps[flight.effect.step].host in self.dead or flight.landed:
                continue
            if self.dice.random() < 0.5:
                self.land(flight)
            elif isinstance(flight.effect, Run):
                self.leave_scraps(flight.effect.step)

    def leave_scraps(self, step: StepId):
        """The first of several commands ran, so that a look says no and yet something is there."""
        if self.dice.random() < 0.5 and step not in self.there:
            self.scraps.add(step)

    def land(self, flight: Flight):
        flight.landed = True
        if not isinstance(flight.effect, Look):
            self.scraps.discard(flight.effect.step)
        if isinstance(flight.effect, Run):
            self.there.add(flight.effect.step)
        elif isinstance(flight.effect, Undo) and not isinstance(
            self.steps[flight.effect.step].undo, Irreversible
        ):
            self.there.discard(flight.effect.step)

    def _seen(self, effect: Look, step: Step) -> Event:
        if step.host in self.dead:
            return Observed(step=step.id, act=effect.act, found=Found.UNKNOWN, reason="host is gone")
        there = step.id in self.there if effect.act is Act.DO else step.id in self.there | self.scraps
        done = there is (effect.act is Act.DO)
        return Observed(step=step.id, act=effect.act, found=Found.DONE if done else Found.NOT_DONE)

    def begin(self, effect: Run | Undo | Look):
        """The order on the way forward, and its mirror on the way back."""
        if isinstance(effect, Run):
            assert self.steps[effect.step].after <= self.there
        if isinstance(effect, Undo):
            host = self.steps[effect.step].host
            lost = self.lost()
            for other in self.plan.steps:
                needs_it = effect.step in other.after and not isinstance(other.undo, Irreversible)
                if needs_it and other.id in self.there:
                    assert other.id in lost
                    assert other.host not in {host, HERE}

    def lost(self) -> set[StepId]:
        """What nobody can undo any more: what was given up, and what that holds on its own host."""
        lost = set(self.given_up)
        while True:
            held = {
                step.id
                for step in self.plan.steps
                for other in self.plan.steps
                if other.id in lost and step.id in other.after and other.host in {step.host, HERE}
            }
            if held <= lost:
                return lost
            lost |= held


@dataclass
class Process:
    """One interpreter: dies at record `crash_at`, keeps what it wrote."""

    world: World
    state: State
    journal: list[Event]
    crash_at: int
    flights: list[Flight] = field(default_factory=list)
    blind: set[StepId] = field(default_factory=set)

    def record(self, event: Event):
        if len(self.journal) == self.crash_at:
            self.world.power_cut(self.flights)
            raise Crash
        self.journal.append(event)
        self.state = evolve(self.state, event)
        if isinstance(event, Observed) and event.act is Act.DO and event.found is Found.UNKNOWN:
            self.blind.add(event.step)
        if isinstance(event, Ended | Observed) and self.state.phase_of(event.step) in {
            Phase.UNDO_FAILED,
            Phase.UNDO_UNSEEN,
        }:
            self.world.given_up.add(event.step)
        self.agrees_with_the_world()

    def agrees_with_the_world(self):
        """Unknown is neither: what the state is sure of, is so."""
        for step, status in self.state.statuses.items():
            reversible = not isinstance(self.world.steps[step].undo, Irreversible)
            assert status.phase not in SURELY_THERE or step in self.world.there
            something = step in self.world.there | self.world.scraps
            assert status.phase not in SURELY_NOT_THERE or not something or not reversible

    def run(self, limit: int) -> Ending:
        dice = self.world.dice
        for _ in range(100 * len(self.state.steps) + 100):
            self.world.tick()
            flying = {flight.effect.step for flight in self.flights}
            decided = decide(self.state, limit)
            effects: list[Run | Undo | Look] = [
                item for item in decided if not isinstance(item, Publish) and item.step not in flying
            ]
            if any(isinstance(item, Publish) for item in decided):
                assert not self.flights
                self.record(Publishing())
                self.world.published = True
                self.record(Settled(ending=Ending.COMMITTED))
                return Ending.COMMITTED
            if effects and len(self.flights) < limit and (not self.flights or dice.random() < 0.6):
                self.begin(dice.choice(effects))
            elif self.flights:
                self.finish(self.flights[dice.randrange(len(self.flights))])
            else:
                return self.settle()
            assert len(self.flights) <= limit
        raise AssertionError("the run never comes to rest")

    def begin(self, effect: Run | Undo | Look):
        if isinstance(effect, Run):
            assert not self.blind, "something starts although nobody knows how a step stands"
        if not isinstance(effect, Look):
            self.record(Intended(step=effect.step, act=Act.DO if isinstance(effect, Run) else Act.UNDO))
        self.world.begin(effect)
        self.flights.append(Flight(effect))

    def finish(self, flight: Flight):
        event = self.world.answer(flight)
        before = self.state.phase
        self.record(event)
        self.flights.remove(flight)
        if before is RunPhase.APPLYING and self.state.phase is RunPhase.UNDOING:
            self.record(Turned(reason="as the interpreter says it"))

    def settle(self) -> Ending:
        ending = conclude(self.state)
        assert ending is not None, "nothing to do, nothing in flight, and not at rest: a deadlock"
        if ending is not Ending.IN_DOUBT:
            self.record(Settled(ending=ending))
        return ending


def replay(plan: Plan, journal: list[Event]) -> State:
    state = opened(plan)
    for event in journal:
        state = evolve(state, event)
    return state


def check_ending(world: World, state: State, ending: Ending):
    lasting = {step.id for step in world.plan.steps if isinstance(step.undo, Irreversible)}
    everything = {step.id for step in world.plan.steps}
    match ending:
        case Ending.COMMITTED:
            assert world.there == everything
            assert not world.scraps
            assert world.published
        case Ending.UNDONE:
            assert world.there | world.scraps <= lasting
            assert not world.published
        case Ending.STUCK:
            left = leftovers(state)
            assert left
            assert (world.there | world.scraps) - lasting <= {step.id for step in left}
            assert all(is_excused(state, step) for step in left), "undone elsewhere although one host is away"
        case Ending.IN_DOUBT:
            assert any(status.phase is Phase.DOUBTFUL for status in state.statuses.values())
            assert not world.published


def is_excused(state: State, step: Step) -> bool:
    """Left because its own undo was given up, or because something that needs it stays for that reason."""
    if state.phase_of(step.id) in {Phase.UNDO_FAILED, Phase.UNDO_UNSEEN}:
        return True
    stays = [other for other in leftovers(state) if other.id in state.dependents[step.id]]
    return any(
        is_excused(state, other)
        for other in stays
        if other.host in {step.host, HERE} or not given_up(state, other)
    )


def given_up(state: State, step: Step) -> bool:
    return state.phase_of(step.id) in {Phase.UNDO_FAILED, Phase.UNDO_UNSEEN}


@st.composite
def plans(draw):
    hosts = draw(st.integers(1, 3))
    steps: list[Step] = []
    for number in range(draw(st.integers(1, 7))):
        after = (
            draw(st.frozensets(st.sampled_from([step.id for step in steps]), max_size=3))
            if steps
            else frozenset()
        )
        lasting = draw(st.integers(0, 9)) == 0 and not after
        steps.append(
            Step(
                id=StepId(f"s{number}"),
                # The operator's machine never dies apart from the process, and holds no lease.
                host=HERE
                if number and draw(st.integers(0, 3)) == 0
                else HostName(f"h{draw(st.integers(0, hosts - 1))}"),
                title="",
                do=ACT,
                undo=Irreversible("harmless") if lasting else ACT,
                verify=LOOK,
                absent=LOOK,
                after=after,
            )
        )
    return Plan(title="", command="", steps=tuple(steps))


def finish_somehow(world: World, plan: Plan, journal: list[Event], goals: list[Goal], limit: int) -> None:
    """Take the run up again and again until it is over; the last times every host is back."""
    for number, wanted in enumerate([*goals, Goal.UNDO]):
        if number == len(goals) or world.dice.random() < 0.3:
            world.dead.clear()
            world.undo_broken.clear()
            world.revival = 1.0
        elif world.dice.random() < 0.4:
            world.dead.add(world.dice.choice(plan.hosts))
        state = replay(plan, journal)
        if state.phase in {RunPhase.COMMITTED, RunPhase.UNDONE}:
            break
        goal = Goal.RESUME if state.phase is RunPhase.PUBLISHING else wanted
        process = Process(world, state, journal, crash_at=-1)
        process.record(Reopened(goal=goal))
        started = set(world.there)
        ending = process.run(limit)
        assert replay(plan, journal) == process.state
        check_ending(world, process.state, ending)
        if ending is Ending.IN_DOUBT:
            assert world.there == started, "a run in doubt starts nothing and undoes nothing"
        if goal is Goal.UNDO:
            assert ending is not Ending.IN_DOUBT
    assert replay(plan, journal).phase in {RunPhase.COMMITTED, RunPhase.UNDONE}


pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

EACH_RECORD = settings(suppress_health_check=list(HealthCheck), deadline=None)
"""One example is some twenty crashes."""
PROFILE = EACH_RECORD.max_examples
# The heart of the tool gets more of CI's time than others.
FAST = settings(EACH_RECORD, max_examples=2000 if PROFILE == 500 else PROFILE)


@FAST
@given(
    plans(),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.1, 0.3]),
    st.sampled_from([0.0, 0.2]),
    st.integers(1, 4),
)
def test_a_run_settles_as_the_world_is(plan, seed, trouble, revival, limit):
    world = World(plan, random.Random(seed), trouble, revival)
    process = Process(world, opened(plan), [], crash_at=-1)
    ending = process.run(limit)
    assert replay(plan, process.journal) == process.state
    assert ending is not Ending.IN_DOUBT, "a live run always decides"
    if trouble == 0.0:
        assert ending is Ending.COMMITTED
    check_ending(world, process.state, ending)


@EACH_RECORD
@given(
    plans(),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.1, 0.3]),
    st.lists(st.sampled_from(Goal), max_size=3),
)
def test_a_crash_after_every_record_then_resume_or_undo(plan, seed, trouble, goals):
    crash_at = 0
    while True:
        world = World(plan, random.Random(seed), trouble, revival=0.1)
        world.undo_broken = {step.id for step in plan.steps if world.dice.random() < trouble / 4}
        process = Process(world, opened(plan), [], crash_at=crash_at)
        try:
            process.run(2)
        except Crash:
            assert replay(plan, process.journal) == process.state
        else:
            break
        if goals:
            for goal in goals[:-1]:
                state = replay(plan, process.journal)
                if state.phase in {RunPhase.COMMITTED, RunPhase.UNDONE, RunPhase.PUBLISHING}:
                    break
                second = Process(
                    world, state, process.journal, crash_at=len(process.journal) + 1 + crash_at % 3
                )
                try:
                    second.record(Reopened(goal=goal))
                    second.run(2)
                except Crash:
                    assert replay(plan, process.journal) == second.state
        world.trouble = 0.0
        finish_somehow(world, plan, process.journal, goals, 2)
        crash_at += 1


@FAST
@given(plans(), st.integers(0, 2**32), st.integers(0, 30))
def test_turning_back_at_any_moment_leaves_nothing(plan, seed, moment):
    world = World(plan, random.Random(seed), 0.0, 0.0)
    process = Process(world, opened(plan), [], crash_at=moment)
    try:
        process.run(3)
    except Crash:
        process.crash_at = -1
        if process.state.phase is RunPhase.APPLYING:
            process.record(Turned(reason="Ctrl-C"))
            ending = process.run(3)
            assert ending is Ending.UNDONE
            check_ending(world, process.state, ending)
