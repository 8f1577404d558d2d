"""The health machine and the rule that never leaves out more than half of a pool on a guess."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.proxy.decide.health import (
    Health,
    HealthRules,
    Observation,
    Verdict,
    eligible,
    evolve,
    expire,
    share,
)

RULES = HealthRules()
PASSED, FAILED = Observation.PROBE_PASSED, Observation.PROBE_FAILED
REFUSED, ANSWERED = Observation.CONNECT_FAILED, Observation.ANSWERED
BROKEN, LATE, FROZEN = Observation.BROKEN, Observation.LATE, Observation.FROZEN


def after(*seen: Observation, start: Health | None = None) -> Health:
    state = start or Health()
    for moment, observation in enumerate(seen):
        state = evolve(state, observation, float(moment), RULES)
    return state


def test_a_member_that_nobody_looked_at_is_asked():
    assert Health().verdict is Verdict.UP
    assert not Health().probed


def test_three_failed_probes_take_a_member_down_and_two_good_ones_bring_it_back():
    assert after(FAILED, FAILED).verdict is Verdict.UP
    down = after(FAILED, FAILED, FAILED)
    assert down.verdict is Verdict.DOWN
    assert after(PASSED, start=down).verdict is Verdict.DOWN
    assert after(PASSED, PASSED, start=down).verdict is Verdict.UP
    assert after(PASSED, FAILED, PASSED, start=down).verdict is Verdict.DOWN


def test_a_good_probe_between_failures_starts_the_count_again():
    assert after(FAILED, FAILED, PASSED, FAILED, FAILED).verdict is Verdict.UP


def test_five_refused_connections_eject_until_a_probe_or_a_trial():
    assert after(*[REFUSED] * 4).verdict is Verdict.UP
    ejected = after(*[REFUSED] * 5)
    assert ejected.verdict is Verdict.EJECTED
    assert expire(ejected, ejected.until - 0.1, RULES).verdict is Verdict.EJECTED
    trial = expire(ejected, ejected.until, RULES)
    assert trial.verdict is Verdict.TRIAL
    for seen in (PASSED, ANSWERED, Observation.TRIAL_PASSED):
        assert after(seen, start=trial).verdict is Verdict.UP
    assert (
        after(PASSED, start=ejected).verdict is Verdict.UP
    )  # only connecting had failed, and now it does not


@pytest.mark.parametrize("seen", [*[[BROKEN] * 5], [LATE] * 3, [FROZEN], [REFUSED] * 4 + [BROKEN]])
def test_what_traffic_has_shown_a_probe_does_not_forgive(seen):
    ejected = after(*seen)
    assert ejected.verdict is Verdict.EJECTED
    assert after(PASSED, PASSED, ANSWERED, start=ejected).verdict is Verdict.EJECTED
    trial = expire(ejected, ejected.until, RULES)
    assert after(PASSED, start=trial).verdict is Verdict.TRIAL
    assert after(Observation.TRIAL_PASSED, start=trial).verdict is Verdict.UP


def test_each_ejection_in_a_row_lasts_twice_as_long():
    state, at = after(*[BROKEN] * 5), 4.0
    lengths = []
    for _ in range(6):
        lengths.append(state.until - at)
        at = state.until
        state = evolve(expire(state, at, RULES), Observation.TRIAL_FAILED, at, RULES)
    assert lengths == [30.0, 60.0, 120.0, 240.0, 300.0, 300.0]
    good = evolve(expire(state, state.until, RULES), Observation.TRIAL_PASSED, state.until, RULES)
    assert good.ejections > 0
    assert expire(good, state.until + 1000.0, RULES).ejections == 0


def test_half_of_ten_requests_within_the_window_eject():
    state, answered = Health(), 0
    for number in range(10):
        if number % 2:
            state = evolve(state, BROKEN, 1.0 + number, RULES, answered)
            assert (state.verdict is Verdict.EJECTED) is (number == 9)
        else:
            answered += 1
            state = evolve(state, ANSWERED, 1.0 + number, RULES, answered)
    spread = Health()
    for number in range(40):  # one in ten is no reason, however long it goes on
        answered += 9
        spread = evolve(spread, ANSWERED, 3.0 * number, RULES, answered)
        spread = evolve(spread, BROKEN, 3.0 * number, RULES, answered)
    assert spread.verdict is Verdict.UP


def test_one_that_comes_back_gets_little_at_first():
    back = after(PASSED, PASSED, start=after(FAILED, FAILED, FAILED))
    assert back.back_since == 1.0
    assert share(back, 1.0, RULES) == pytest.approx(0.1)
    assert share(back, 16.0, RULES) == pytest.approx(0.55)
    assert share(back, 31.0, RULES) == 1.0
    assert share(Health(), 0.0, RULES) == 1.0


def test_an_answer_forgives_refused_connections():
    assert after(*[REFUSED] * 4, ANSWERED, *[REFUSED] * 4).verdict is Verdict.UP


def test_answers_do_not_bring_back_what_probes_took_down():
    down = after(FAILED, FAILED, FAILED)
    assert after(ANSWERED, ANSWERED, ANSWERED, start=down).verdict is Verdict.DOWN


@given(st.lists(st.sampled_from(list(Observation)), max_size=40))
def test_down_needs_three_failed_probes_in_a_row_and_up_again_two_good_ones(seen):
    state, probes = Health(), [PASSED]
    for moment, observation in enumerate(seen):
        before = state.verdict
        state = evolve(state, observation, float(moment), RULES)
        if observation in {PASSED, FAILED}:
            probes.append(observation)
        if state.verdict is Verdict.DOWN and before is not Verdict.DOWN:
            assert probes[-3:] == [FAILED] * 3
        if before is Verdict.DOWN and state.verdict is not Verdict.DOWN:
            assert probes[-2:] == [PASSED] * 2


@dataclass
class Seat:
    verdict: Verdict
    draining: bool
    resting: bool = False


seats = st.lists(
    st.builds(Seat, verdict=st.sampled_from(list(Verdict)), draining=st.booleans(), resting=st.booleans()),
    max_size=8,
)


@given(seats)
def test_who_may_be_asked(members):
    chosen = eligible(members)
    takes = [member for member in members if not member.draining]
    ejected = [member for member in takes if member.verdict in {Verdict.EJECTED, Verdict.TRIAL}]
    resting = [member for member in takes if member.verdict is Verdict.UP and member.resting]
    assert all(not member.draining and member.verdict is not Verdict.DOWN for member in chosen)
    assert [member for member in members if any(member is other for other in chosen)] == list(chosen)
    left_out = len([member for member in takes if member.verdict is not Verdict.DOWN]) - len(chosen)
    assert left_out in {0, len(ejected), len(ejected) + len(resting)}
    assert len(ejected) * 2 <= len(takes) or all(one in chosen for one in ejected)
    assert chosen or all(member.verdict is Verdict.DOWN for member in takes)


def test_the_only_member_is_never_ejected():
    assert len(eligible([Seat(Verdict.EJECTED, draining=False)])) == 1
