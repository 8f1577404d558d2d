"""The four policies: what each promises, and what all of them must keep."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.pools.model import ALGORITHMS
from gpufleet.proxy.decide.balance.policies import POLICIES
from tests.kit.policy_kit import KEY, View, shares, views

EVERY = pytest.mark.parametrize("name", sorted(POLICIES))
member_lists = st.lists(
    st.builds(
        View,
        id=st.integers(0, 9).map(lambda number: f"gpu-{number}/0"),
        running=st.integers(0, 5),
        weight=st.integers(0, 4),
    ),
    max_size=8,
    unique_by=lambda view: view.id,
)


def test_every_algorithm_of_a_pool_definition_is_a_policy():
    assert set(POLICIES) == set(ALGORITHMS)


@EVERY
@given(steps=st.lists(member_lists, max_size=12), seed=st.integers(0, 1000))
def test_the_answer_holds_members_once_and_only_those_given(name, steps, seed):
    policy, dice = POLICIES[name](), random.Random(seed)
    for members in steps:
        order = policy.rank(members, KEY, dice)
        ids = [view.id for view in members]
        assert len(set(order)) == len(order)
        assert set(order) <= set(ids)
        takes = {view.id for view in members if view.weight} if name == "weighted-static" else set(ids)
        assert set(order) == takes


@EVERY
@given(steps=st.lists(member_lists, max_size=8), seed=st.integers(0, 1000))
def test_the_same_dice_give_the_same_answers(name, steps, seed):
    def answers():
        policy, dice = POLICIES[name](), random.Random(seed)
        return [list(policy.rank(members, KEY, dice)) for members in steps]

    assert answers() == answers()


@EVERY
def test_one_member_is_the_answer(name):
    policy = POLICIES[name]()
    for _ in range(3):
        assert list(policy.rank(views(1), KEY, random.Random(1))) == ["gpu-0/0"]


@EVERY
@pytest.mark.parametrize("count", [2, 3, 7])
def test_even_load_gives_even_shares(name, count):
    got = shares(POLICIES[name](), views(count), 420 * count)
    bound = 80 if name == "random" else 0
    assert len(got) == count
    assert all(abs(share - 420) <= bound for share in got.values()), got


@given(st.data())
def test_round_robin_neither_skips_nor_repeats_while_members_come_and_go(data):
    policy = POLICIES["round-robin"]()
    everyone = views(5)
    waits = dict.fromkeys((view.id for view in everyone), 0)
    for _ in range(30):
        present = data.draw(st.lists(st.sampled_from(everyone), min_size=1, unique_by=lambda view: view.id))
        present.sort(key=lambda view: view.id)
        first = policy.rank(present, KEY, random.Random(0))[0]
        longest = max(waits[view.id] for view in present)
        assert waits[first] == longest  # nobody who was present waited longer than the one who got the turn
        for view in everyone:
            waits[view.id] += 1
        waits[first] = 0


def test_round_robin_goes_on_after_a_member_left():
    policy = POLICIES["round-robin"]()
    three = views(3)
    assert policy.rank(three, KEY, random.Random(0))[0] == "gpu-0/0"
    assert policy.rank(three, KEY, random.Random(0))[0] == "gpu-1/0"
    assert policy.rank([three[0], three[2]], KEY, random.Random(0))[0] == "gpu-2/0"
    assert policy.rank(three, KEY, random.Random(0))[0] == "gpu-0/0"


@given(members=member_lists.filter(bool))
def test_least_busy_asks_in_the_order_of_requests_in_flight(members):
    order = POLICIES["least-busy"]().rank(members, KEY, random.Random(0))
    running = {view.id: view.running for view in members}
    assert [running[id_] for id_ in order] == sorted(running.values())


def test_least_busy_takes_turns_among_equals():
    policy = POLICIES["least-busy"]()
    members = [View(id="a", running=3), View(id="b", running=1), View(id="c", running=1)]
    assert [policy.rank(members, KEY, random.Random(0))[0] for _ in range(4)] == ["b", "c", "b", "c"]


def test_weights_five_one_one_are_spread_evenly():
    policy = POLICIES["weighted-static"]()
    members = [View(id="a", weight=5), View(id="b", weight=1), View(id="c", weight=1)]
    picks = "".join(policy.rank(members, KEY, random.Random(0))[0] for _ in range(14))
    assert picks == "aabacaa" * 2


@given(weights=st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any))
def test_weights_are_exact_over_one_cycle(weights):
    members = [View(id=f"m{number}", weight=weight) for number, weight in enumerate(weights)]
    got = shares(POLICIES["weighted-static"](), members, sum(weights))
    assert [got[view.id] for view in members] == weights


def test_nobody_takes_it_when_no_weight_is_left():
    assert not POLICIES["weighted-static"]().rank(views(3, weight=0), KEY, random.Random(0))


@EVERY
def test_memory_stays_bounded_when_members_are_replaced_for_ever(name):
    policy = POLICIES[name]()
    for generation in range(2000):
        policy.rank([View(id=f"{generation}-{number}") for number in range(4)], KEY, random.Random(0))
    kept = [len(getattr(policy, slot)) for slot in dir(policy) if isinstance(getattr(policy, slot), dict)]
    assert all(size <= 32 for size in kept), kept
