"""The default policy: the least work, in tokens."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.proxy.decide.balance.api import RequestKey
from gpufleet.proxy.decide.balance.cache_aware import CacheAware
from gpufleet.proxy.decide.load import PENDING_WEIGHT, REQUEST_TOKENS
from gpufleet.proxy.wire.prompt import BLOCK_TOKENS
from tests.kit.policy_kit import views

DICE = random.Random(0)


def chain(*parts: object) -> list[int]:
    keys, key = [], 0
    for part in parts:
        key = hash((key, part))
        keys.append(key)
    return keys


def key_of(*parts: object, tail: int = 100) -> RequestKey:
    return RequestKey(blocks=chain(*parts), tokens=len(parts) * BLOCK_TOKENS + tail)


def first(policy, members, key):
    return policy.rank(members, key, DICE)[0]


def test_a_cold_request_goes_to_the_idle_member_and_not_to_the_smallest_cache():
    """Case 09: A has a small cache and a queue, B a large cache and nothing to do."""
    policy = CacheAware()
    a, b = members = tuple(views(2))
    policy.sent(a.id, key_of("little"), None)
    for number in range(200):
        policy.sent(b.id, key_of("much", number), None)
    for _ in range(60):
        a.load.take(500)
    assert first(policy, members, key_of("cold")) == b.id


def test_a_warm_request_leaves_its_member_only_for_a_queue_that_is_worth_it():
    policy = CacheAware()
    a, b = members = tuple(views(2))
    warm = key_of(*range(40))  # 10,240 tokens and a tail
    policy.sent(a.id, warm, None)
    a.load.take(30_000)
    assert first(policy, members, warm) == a.id
    a.load.take(20_000)
    assert first(policy, members, warm) == b.id


@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_shared_system_prompt_is_no_monopoly(count):
    """Case 25: every request begins with the same 512 tokens, members are idle, requests come one at a time."""
    policy, members = CacheAware(), tuple(views(count))
    got: Counter[str] = Counter()
    rounds = 50 * count
    for number in range(rounds):
        key = key_of("system", "prompt", f"user {number}", tail=10)
        who = first(policy, members, key)
        policy.sent(who, key, None)
        got[who] += 1
    assert max(got.values()) <= 1.5 * rounds / count, got
    assert (
        sum(
            policy.index.depths(chain("system", "prompt"))[-1][1] & policy.index.bit(view.id) > 0
            for view in members
        )
        == count
    )


def test_short_questions_behind_a_system_prompt_are_no_monopoly_either():
    """The questions fill no block of their own."""
    policy, members = CacheAware(), tuple(views(2))
    got: Counter[str] = Counter()
    for _ in range(100):
        key = key_of("system", "prompt", tail=40)
        who = first(policy, members, key)
        policy.sent(who, key, None)
        got[who] += 1
    assert max(got.values()) <= 75, got


def test_a_conversation_stays_where_it_began_among_idle_members():
    policy, members = CacheAware(), tuple(views(4))
    words = [f"turn {number}" for number in range(30)]
    homes = set()
    for turn in range(1, 31):
        key = key_of("system", *words[:turn])
        who = first(policy, members, key)
        policy.sent(who, key, None)
        homes.add(who)
    assert len(homes) == 1


@given(st.data())
def test_the_first_is_the_least_work_by_the_formula(data):
    policy = CacheAware()
    members = tuple(views(data.draw(st.integers(1, 6))))
    prompts = st.lists(st.integers(0, 1), min_size=1, max_size=6)
    known: dict[str, set[int]] = {view.id: set() for view in members}
    for _ in range(data.draw(st.integers(0, 10))):
        view = data.draw(st.sampled_from(members))
        blocks = chain(*data.draw(prompts))
        policy.sent(view.id, RequestKey(blocks=blocks, tokens=0), None)
        known[view.id].update(blocks)
        view.load.take(data.draw(st.integers(0, 20_000)))
    key = key_of(*data.draw(prompts), tail=data.draw(st.integers(0, 200)))
    depth = max((sum(block in known[view.id] for block in key.blocks) for view in members), default=0)
    common = policy.index.common(key.blocks, depth)
    for view in members:
        assert view.load.burden == PENDING_WEIGHT * view.load.pending + REQUEST_TOKENS * view.load.running
    worth = 1 + min(view.load.burden for view in members) / 6000

    def cost(view):
        had = max(common, sum(block in known[view.id] for block in key.blocks))
        return view.load.burden + worth * (key.tokens - had * BLOCK_TOKENS)

    order = list(policy.rank(members, key, DICE))
    by_id = {view.id: view for view in members}
    costs = [cost(by_id[id_]) for id_ in order]
    assert costs == pytest.approx(sorted(costs))
    explained = policy.explain(members, key)
    assert [explained[id_] for id_ in order] == pytest.approx(costs)


def test_what_a_member_reads_is_told_without_what_it_has():
    policy = CacheAware()
    assert policy.sent("a", key_of(1, 2, tail=30), None) == 542
    assert policy.sent("a", key_of(1, 2, 3, tail=30), None) == 286
    assert policy.sent("b", key_of(1, 2, 3, tail=30), None) == 798


def test_a_slower_member_is_given_less():
    """Two of four read a third as fast; what they are asked for follows, though nobody said so."""
    policy, members = CacheAware(), tuple(views(4))
    pace = {view.id: (1 / 5000 if number < 2 else 1 / 15_000) for number, view in enumerate(members)}
    got: Counter[str] = Counter()
    shares = []
    for number in range(2000):
        key = key_of(*(f"{number} {part}" for part in range(8)))
        who = first(policy, members, key)
        view = next(view for view in members if view.id == who)
        ahead = view.load.pending
        own = policy.sent(who, key, None)
        shares.append((view, view.load.take(own), ahead + own))
        if len(shares) > 12:
            done, share, tokens = shares.pop(0)
            policy.answered(done.id, tokens, tokens * pace[done.id])
            share.end()
        got[who] += number >= 1000
    slow, fast = (sum(got[view.id] for view in members[part]) for part in (slice(2), slice(2, 4)))
    assert 1.5 * slow < fast, got


def test_equal_members_are_not_told_apart_by_chance():
    policy, members, dice = CacheAware(), tuple(views(4)), random.Random(3)
    for number in range(2000):
        view = members[number % 4]
        policy.answered(view.id, 4000, 0.25 * (0.7 + 0.6 * dice.random()))
    assert not policy._slowness


def test_a_member_that_was_gone_has_nothing_in_its_cache():
    policy, members = CacheAware(), tuple(views(2))
    key = key_of(1, 2, 3, 4)
    policy.sent("gpu-0/0", key, None)
    assert first(policy, members, key) == "gpu-0/0"
    policy.forget("gpu-0/0")
    assert policy.explain(members, key) == {"gpu-0/0": key.tokens, "gpu-1/0": key.tokens}


def test_an_order_holds_whoever_may_be_asked_when_its_second_is_wanted():
    policy, everybody = CacheAware(), tuple(views(3))
    order = policy.rank(everybody, key_of(1, 2), DICE)
    policy.rank(everybody[:1], key_of(3), DICE)
    assert sorted(order) == [view.id for view in everybody]


def test_members_that_may_be_asked_can_change_between_any_two_requests():
    policy, everybody = CacheAware(), tuple(views(3))
    key = key_of(1, 2, 3, 4)
    policy.sent("gpu-1/0", key, None)
    assert first(policy, everybody, key) == "gpu-1/0"
    assert first(policy, (everybody[0], everybody[2]), key) != "gpu-1/0"
    assert first(policy, everybody, key) == "gpu-1/0"
    assert list(policy.rank((), key, DICE)) == []
