"""Single rules of the change machine that a property could pass by."""

from __future__ import annotations

import pytest

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
    TRIES,
    IllegalEvent,
    Look,
    Publish,
    Run,
    State,
    Undo,
    conclude,
    decide,
    evolve,
    opened,
)
from gpufleet.change.table import REOPENED, TRANSITIONS, Phase, RunPhase
from gpufleet.names import StepId
from tests.kit.change_plans import plan, step

ONE = StepId("a1")


def after(state: State, *happened: Event) -> State:
    for event in happened:
        state = evolve(state, event)
    return state


def began(name: str = "a1", act: Act = Act.DO) -> Event:
    return Intended(step=StepId(name), act=act)


def ended(result: Result, name: str = "a1", act: Act = Act.DO, reason: str = "") -> Event:
    return Ended(step=StepId(name), act=act, result=result, reason=reason)


def seen(found: Found, name: str = "a1", act: Act = Act.DO) -> Event:
    return Observed(step=StepId(name), act=act, found=found)


LOST_TO_NOTHING = (began(), ended(Result.LOST), seen(Found.NOT_DONE))


def test_an_answer_lost_again_and_again_ends_as_a_failure():
    state = opened(plan(step("a1", "a")))
    for _ in range(TRIES - 1):
        state = after(state, *LOST_TO_NOTHING)
        assert decide(state, 9) == (Run(step=ONE),)
    state = after(state, *LOST_TO_NOTHING)
    assert state.phase is RunPhase.UNDOING
    assert decide(state, 9) == (Undo(step=ONE),)


def test_an_undo_whose_answer_is_lost_again_and_again_is_given_up():
    state = after(opened(plan(step("a1", "a"))), began(), ended(Result.FAILED))
    lost = (began(act=Act.UNDO), ended(Result.LOST, act=Act.UNDO), seen(Found.NOT_DONE, act=Act.UNDO))
    for _ in range(TRIES):
        assert decide(state, 9) == (Undo(step=ONE),)
        state = after(state, *lost)
    assert conclude(state) is Ending.STUCK


def test_tries_count_anew_in_another_process():
    state = after(opened(plan(step("a1", "a"))), *(LOST_TO_NOTHING * (TRIES - 1)))
    state = after(state, Reopened(goal=Goal.RESUME), *(LOST_TO_NOTHING * (TRIES - 1)))
    assert decide(state, 9) == (Run(step=ONE),)


def test_published_is_past_the_point_of_no_return():
    state = after(opened(plan(step("a1", "a"))), began(), ended(Result.SUCCEEDED), Publishing())
    with pytest.raises(IllegalEvent):
        evolve(state, Reopened(goal=Goal.UNDO))
    state = evolve(state, Reopened(goal=Goal.RESUME))
    assert decide(state, 9) == (Publish(),)
    assert evolve(state, Settled(ending=Ending.COMMITTED)).phase is RunPhase.COMMITTED


def test_nothing_is_published_before_everything_is_done():
    state = after(opened(plan(step("a1", "a"), step("a2", "a"))), began(), ended(Result.SUCCEEDED))
    with pytest.raises(IllegalEvent):
        evolve(state, Publishing())
    with pytest.raises(IllegalEvent):
        evolve(state, Settled(ending=Ending.COMMITTED))


def test_the_first_cause_is_kept():
    the_plan = plan(step("a1", "a"), step("b1", "b"))
    state = after(opened(the_plan), began("a1"), began("b1"))
    state = after(
        state, ended(Result.FAILED, "b1", reason="no memory"), ended(Result.FAILED, "a1", reason="called off")
    )
    assert state.cause is not None
    assert (state.cause.step, state.cause.reason) == ("b1", "no memory")


def test_a_step_in_doubt_holds_everything_else_back():
    the_plan = plan(step("a1", "a"), step("b1", "b"))
    state = after(opened(the_plan), began("a1"), ended(Result.LOST))
    assert decide(state, 9) == (Look(step=ONE, act=Act.DO),)
    resumed = after(opened(the_plan), began("a1"), Reopened(goal=Goal.RESUME), seen(Found.UNKNOWN))
    assert decide(resumed, 9) == ()
    assert conclude(resumed) is Ending.IN_DOUBT
    again = evolve(resumed, Reopened(goal=Goal.RESUME))
    assert decide(again, 9) == (Look(step=ONE, act=Act.DO),)
    assert decide(evolve(again, Turned(reason="asked")), 9) == (Undo(step=ONE),)


def test_what_was_touched_once_is_undone_although_the_last_try_was_never_sent():
    state = after(opened(plan(step("a1", "a"))), *LOST_TO_NOTHING, began(), ended(Result.NOT_SENT))
    assert state.phase_of(ONE) is Phase.FAILED
    assert decide(state, 9) == (Undo(step=ONE),)
    crashed = after(
        opened(plan(step("a1", "a"))), began(), Reopened(goal=Goal.RESUME), seen(Found.NOT_DONE), began(),
        ended(Result.NOT_SENT),
    )  # fmt: skip
    assert decide(crashed, 9) == (Undo(step=ONE),)
    fresh = after(opened(plan(step("a1", "a"))), began(), ended(Result.NOT_SENT))
    assert conclude(fresh) is Ending.UNDONE


def test_what_is_not_in_the_table_is_illegal():
    the_plan = plan(step("a1", "a"))
    for event in (ended(Result.SUCCEEDED), seen(Found.DONE), began(act=Act.UNDO), began("zz")):
        with pytest.raises(IllegalEvent):
            evolve(opened(the_plan), event)
    turned = evolve(opened(the_plan), Turned(reason="asked"))
    with pytest.raises(IllegalEvent):
        evolve(turned, began())
    with pytest.raises(IllegalEvent):
        evolve(evolve(turned, Settled(ending=Ending.UNDONE)), Reopened(goal=Goal.RESUME))


def test_every_phase_can_be_reached_and_left():
    reached = set(TRANSITIONS.values()) | set(REOPENED.values()) | {Phase.PENDING}
    assert reached == set(Phase)
    resting = {Phase.UNTOUCHED, Phase.UNDONE}
    assert {phase for phase, _sign in TRANSITIONS} | set(REOPENED) | resting == set(Phase)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((step("a1", "a", "a2"), step("a2", "a", "a1")), "wait for each other"),
        ((step("a1", "a", "zz"),), "not in the plan"),
        ((step("a1", "a"), step("a1", "b")), "same id"),
    ],
)
def test_a_plan_that_could_never_end_is_refused(steps, words):
    with pytest.raises(ValueError, match=words):
        opened(plan(*steps))


def test_a_plan_without_steps_commits():
    assert decide(opened(plan()), 1) == (Publish(),)
