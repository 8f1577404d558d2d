"""The four policies: what each promises, and what all of them must keep."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.pools.model import ALGORITHMS
from gpufleet.proxy.decide.balance.policies import POLICIES
from tests.kit.policy_kit import KEY, View, shares, views

SOME = settings(max_examples=max(20, settings().max_examples // 5))
"""Each example is a long story of its own."""
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


@SOME
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


@given(steps=st.lists(st.integers(0, 4), max_size=40))
def test_round_robin_remembers_members_and_says_what_it_would_without(steps):
    """The same tuple asked again is answered from memory; a list is looked at each time."""
    remembering, looking = POLICIES["round-robin"](), POLICIES["round-robin"]()
    kinds = [tuple(kind) for kind in (views(3), views(5)[2:], views(1), (), views(4))]
    for step in steps:
        remembered = remembering.rank(kinds[step], KEY, random.Random(1))
        assert list(remembered) == list(looking.rank(list(kinds[step]), KEY, random.Random(1)))


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


@SOME
@given(st.data())
def test_between_two_turns_of_one_member_everybody_who_stayed_had_one(data):
    """No skip and no repeat, said of every two turns: members come, go and come back between any two requests."""
    policy = POLICIES["round-robin"]()
    everyone = views(6)
    turns: list[tuple[str, frozenset[str]]] = []
    for _ in range(40):
        present = data.draw(st.lists(st.sampled_from(everyone), min_size=1, unique_by=lambda view: view.id))
        turns.append((policy.rank(present, KEY, random.Random(0))[0], frozenset(view.id for view in present)))
    for second, (who, _) in enumerate(turns):
        first = next((index for index in range(second - 1, -1, -1) if turns[index][0] == who), None)
        if first is not None:
            stayed = frozenset.intersection(*(ids for _, ids in turns[first : second + 1]))
            between = {got for got, _ in turns[first:second]}
            assert stayed <= between, (turns[first : second + 1], stayed - between)


@pytest.mark.parametrize("count", [2, 5, 16])
def test_chance_is_uniform_by_chi_square(count):
    """The statistic of 1,000 draws a member stays under the 99.9 % point of chi-square; the dice are seeded."""
    bounds = {2: 10.83, 5: 18.47, 16: 37.70}
    for seed in range(5):
        got = shares(POLICIES["random"](), views(count), 1000 * count, seed)
        statistic = sum((got[view.id] - 1000) ** 2 / 1000 for view in views(count))
        assert statistic < bounds[count], (seed, got)
    assert shares(POLICIES["random"](), views(count), 500, 1) != shares(
        POLICIES["random"](), views(count), 500, 2
    )


def test_chance_draws_the_second_attempt_as_evenly_as_the_first():
    policy, dice, members = POLICIES["random"](), random.Random(7), views(4)
    pairs = [tuple(policy.rank(members, KEY, dice)[:2]) for _ in range(12_000)]
    statistic = sum((pairs.count(pair) - 1000) ** 2 / 1000 for pair in set(pairs))
    assert len(set(pairs)) == 12
    assert statistic < 31.26  # 99.9 % of chi-square with 11 degrees of freedom


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


def picks_of(policy, members, rounds):
    return [policy.rank(members, KEY, random.Random(0))[0] for _ in range(rounds)]


def test_weights_four_four_and_four_times_one_are_exact_over_each_twelve_and_interleaved():
    members = [View(id=f"m{number}", weight=weight) for number, weight in enumerate([4, 4, 1, 1, 1, 1])]
    picks = picks_of(POLICIES["weighted-static"](), members, 12 * 50)
    for start in range(len(picks) - 11):
        window = picks[start : start + 12]
        assert sum(who in {"m0", "m1"} for who in window) == 8
        assert [window.count(view.id) for view in members] == [4, 4, 1, 1, 1, 1]
    for heavy in ("m0", "m1"):
        turns = [index for index, who in enumerate(picks) if who == heavy]
        gaps = {after - before for before, after in itertools.pairwise(turns)}
        assert gaps <= {2, 3, 4}, gaps  # a quarter of the time each, never in one lump
    heavies = "".join("h" if who in {"m0", "m1"} else "l" for who in picks)
    assert "hhhhh" not in heavies
    assert "lll" not in heavies


@given(
    before=st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any),
    after=st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any),
    picks=st.integers(0, 12),
)
def test_changed_weights_are_exact_from_the_first_pick_on(before, after, picks):
    policy = POLICIES["weighted-static"]()
    old, new = ([View(id=f"m{n}", weight=w) for n, w in enumerate(weights)] for weights in (before, after))
    if before == after:
        picks = 0
    for _ in range(picks):
        policy.rank(old, KEY, random.Random(0))
    got = picks_of(policy, new, 2 * sum(after))
    for start in range(sum(after) + 1):
        window = got[start : start + sum(after)]
        assert [window.count(view.id) for view in new] == after


@SOME
@given(st.data())
def test_weights_stay_near_their_share_while_members_come_and_go(data):
    """Nobody who stayed all the time is more than one cycle away from its share."""
    policy = POLICIES["weighted-static"]()
    steady = [View(id="a", weight=3), View(id="b", weight=1)]
    others = [View(id=f"m{number}", weight=2) for number in range(3)]
    owed, got = {"a": 0.0, "b": 0.0}, {"a": 0, "b": 0}
    for _ in range(60):
        present = steady + data.draw(st.lists(st.sampled_from(others), unique_by=lambda view: view.id))
        who = policy.rank(present, KEY, random.Random(0))[0]
        total = sum(view.weight for view in present)
        for view in steady:
            owed[view.id] += view.weight / total
            got[view.id] += view.id == who
    assert all(abs(owed[id_] - got[id_]) <= 10 for id_ in owed), (owed, got)


def test_nobody_takes_it_when_no_weight_is_left():
    assert not POLICIES["weighted-static"]().rank(views(3, weight=0), KEY, random.Random(0))


@EVERY
def test_memory_stays_bounded_when_members_are_replaced_for_ever(name):
    policy = POLICIES[name]()
    for generation in range(2000):
        policy.rank([View(id=f"{generation}-{number}") for number in range(4)], KEY, random.Random(0))
    kept = [len(getattr(policy, slot)) for slot in dir(policy) if isinstance(getattr(policy, slot), dict)]
    assert all(size <= 32 for size in kept), kept
