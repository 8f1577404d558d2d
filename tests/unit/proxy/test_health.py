"""The health machine and the rule that never leaves out more than half of a pool on a guess."""

from __future__ import annotations

from dataclasses import dataclass

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
)

RULES = HealthRules()
PASSED, FAILED = Observation.PROBE_PASSED, Observation.PROBE_FAILED
REFUSED, ANSWERED = Observation.CONNECT_FAILED, Observation.ANSWERED


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


def test_three_refused_connections_eject_for_a_while():
    ejected = after(REFUSED, REFUSED, REFUSED)
    assert ejected.verdict is Verdict.EJECTED
    assert expire(ejected, ejected.until - 0.1).verdict is Verdict.EJECTED
    assert expire(ejected, ejected.until).verdict is Verdict.UP
    assert after(PASSED, start=ejected).verdict is Verdict.UP


def test_an_answer_forgives_refused_connections():
    assert after(REFUSED, REFUSED, ANSWERED, REFUSED, REFUSED).verdict is Verdict.UP


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


seats = st.lists(st.builds(Seat, verdict=st.sampled_from(list(Verdict)), draining=st.booleans()), max_size=8)


@given(seats)
def test_who_may_be_asked(members):
    chosen = eligible(members)
    takes = [member for member in members if not member.draining]
    ejected = [member for member in takes if member.verdict is Verdict.EJECTED]
    assert all(not member.draining and member.verdict is not Verdict.DOWN for member in chosen)
    assert [member for member in members if any(member is other for other in chosen)] == list(chosen)
    left_out = len([member for member in takes if member.verdict is not Verdict.DOWN]) - len(chosen)
    assert left_out * 2 <= len(takes)
    assert left_out in {0, len(ejected)}


def test_the_only_member_is_never_ejected():
    assert len(eligible([Seat(Verdict.EJECTED, draining=False)])) == 1
