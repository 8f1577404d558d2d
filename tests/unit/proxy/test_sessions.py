"""Sessions by header, and pins that hold and break."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.proxy.decide.balance.pins import GAP, Pins
from gpufleet.proxy.decide.balance.policies import POLICIES
from gpufleet.proxy.wire.session import NAMES, session_of
from tests.kit.policy_kit import KEY, View, views


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("before", [b"", b"Accept: */*\r\n"])
def test_every_name_in_use_is_read(name, before):
    lines = before + name.title() + b":  abc \r\nX-Other: x\r\n"
    assert session_of(lines, "t") == "1:tabc"


def test_tenants_cannot_name_each_others_sessions():
    lines = b"x-session-id: abc\r\n"
    assert session_of(lines, "one") != session_of(lines, "two")
    assert session_of(b"x-session-id: bc\r\n", "a") != session_of(b"x-session-id: c\r\n", "ab")


def test_the_first_name_wins_and_an_empty_one_is_none():
    lines = b"x-model-affinity: m\r\nx-session-id: \r\nx-litellm-session-id: l\r\n"
    assert session_of(lines, "") == "0:l"
    assert session_of(b"x-session-id:\r\n", "") == ""
    assert session_of(b"accept: session\r\nx-session-idle: 4\r\n", "") == ""


def test_equality_is_exact_whatever_the_length():
    found = {session_of(b"x-session-id: " + b"s" * size + b"\r\n", "t") for size in range(1, 400, 7)}
    assert len(found) == len(range(1, 400, 7))
    assert max(map(len, found)) <= 210
    assert session_of(b"x-session-id: Abc\r\n", "") != session_of(b"x-session-id: abc\r\n", "")


def rank(pins, session, members, policy):
    by_id = {view.id: view for view in members}
    return pins.rank(session, members, by_id, lambda: policy.rank(members, KEY, random.Random(0)))


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_session_stays_whatever_the_policy(name):
    pins, policy, members = Pins(), POLICIES[name](), tuple(views(4))
    homes = {session: rank(pins, session, members, policy)[0] for session in "abcdefgh"}
    for _ in range(5):
        for session, home in homes.items():
            order = rank(pins, session, members, policy)
            assert order[0] == home
            assert sorted(order) == [view.id for view in members]


def test_it_leaves_a_member_that_is_too_far_behind_and_stays_with_the_next():
    pins, policy, members = Pins(), POLICIES["cache-aware"](), tuple(views(2))
    home = next(view for view in members if view.id == rank(pins, "s", members, policy)[0])
    other = next(view for view in members if view is not home)
    share = home.load.take(int(GAP * 4) - 1000)
    assert rank(pins, "s", members, policy)[0] == home.id
    home.load.take(2000)
    assert rank(pins, "s", members, policy)[0] == other.id
    share.end()
    assert rank(pins, "s", members, policy)[0] == other.id  # no way back by itself


def test_it_leaves_a_member_that_may_not_be_asked():
    pins, policy, members = Pins(), POLICIES["round-robin"](), tuple(views(3))
    home = rank(pins, "s", members, policy)[0]
    left = tuple(view for view in members if view.id != home)
    by_id = {view.id: view for view in members}  # it is in the pool still, and down
    order = pins.rank("s", left, by_id, lambda: policy.rank(left, KEY, random.Random(0)))
    assert home not in order
    assert rank(pins, "s", members, policy)[0] == order[0]


def test_nobody_to_ask_pins_nothing():
    pins = Pins()
    assert list(pins.rank("s", (), {}, tuple)) == []
    assert len(pins) == 0


@given(st.lists(st.integers(0, 30), max_size=80))
def test_pins_are_bounded_and_the_latest_stay(sessions):
    pins, policy, members = Pins(most=10), POLICIES["round-robin"](), (View(id="a"), View(id="b"))
    for session in sessions:
        rank(pins, str(session), members, policy)
    assert len(pins) == min(10, len(set(sessions)))
