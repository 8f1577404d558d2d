"""The prefix index against a plain model of it, its bounds, and the spreading of what many share."""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict
from collections.abc import Container
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.proxy.decide.prefix_index import RENT, UNKNOWN_TOKENS, PrefixIndex

BLOCK = 256
SOME = settings(max_examples=max(20, settings().max_examples // 5))
"""Each example is a long story of its own."""


def chain(*parts: object) -> list[int]:
    """Keys of blocks, each depending on all before it."""
    keys, key = [], 0
    for part in parts:
        key = hash((key, part))
        keys.append(key)
    return keys


prompts = st.lists(st.integers(0, 2), min_size=0, max_size=7).map(lambda parts: chain(*parts))


class Plain:
    """One list a member, walked from the start; nothing clever."""

    def __init__(self) -> None:
        self.lists: dict[str, OrderedDict[int, None]] = {}

    def enter(self, member: str, blocks: list[int], limit: int) -> int:
        recent = self.lists.setdefault(member, OrderedDict())
        had = self.depth(member, blocks)
        for key in reversed(blocks[:limit]):
            recent[key] = None
            recent.move_to_end(key)
        while len(recent) > limit:
            recent.popitem(last=False)
        return had

    def depth(self, member: str, blocks: list[int]) -> int:
        recent: Container[int] = self.lists.get(member, ())
        return next((place for place, key in enumerate(blocks) if key not in recent), len(blocks))


@SOME
@given(st.data())
def test_it_knows_what_a_plain_model_knows(data):
    index, plain = PrefixIndex(BLOCK), Plain()
    limits = {name: data.draw(st.integers(1, 12)) for name in "abc"}
    for _ in range(data.draw(st.integers(1, 25))):
        member, blocks = data.draw(st.sampled_from("abc")), data.draw(prompts)
        had = index.enter(member, blocks, limits[member] * BLOCK)
        assert had == plain.enter(member, blocks, limits[member])
        if data.draw(st.integers(0, 9)) == 0:
            gone = data.draw(st.sampled_from("abc"))
            index.forget(gone)
            plain.lists.pop(gone, None)
        asked = data.draw(prompts)
        steps = index.depths(asked)
        for name in "abc":
            found = max((depth for depth, mask in steps if mask & index.bit(name)), default=0)
            assert found == plain.depth(name, asked)
        assert all(
            low[0] < high[0] and high[1] & low[1] == high[1] for low, high in itertools.pairwise(steps)
        )
    assert index.entries == sum(map(len, plain.lists.values()))
    assert index.distinct == len({key for keys in plain.lists.values() for key in keys})


def test_a_prompt_that_was_used_lately_outlives_one_that_was_not():
    index = PrefixIndex(BLOCK)
    index.enter("a", chain("old", 1), 4 * BLOCK)
    index.enter("a", chain("new", 1), 4 * BLOCK)
    index.enter("a", chain("old", 1), 4 * BLOCK)
    index.enter("a", chain("third"), 4 * BLOCK)
    assert index.depths(chain("old", 1))[-1][0] == 2
    assert index.depths(chain("new", 1))[-1][0] == 1  # its end goes first


def test_a_smaller_cache_than_before_forgets_what_it_cannot_hold():
    index = PrefixIndex(BLOCK)
    index.enter("a", chain(*range(50)), None)
    assert index.entries == 50
    index.enter("a", chain("x"), 10 * BLOCK)
    assert index.entries == 10


def test_an_unknown_cache_is_not_taken_for_none():
    index = PrefixIndex(BLOCK)
    for number in range(3000):
        index.enter("a", chain(number), None)
    assert index.entries == UNKNOWN_TOKENS // BLOCK


def test_all_members_together_stay_inside_one_bound():
    index = PrefixIndex(BLOCK, largest=100)
    for number in range(2000):
        index.enter(f"m{number % 7}", chain(number, 1, 2), 10**9)
        assert index.entries <= 100


def test_members_that_are_replaced_for_ever_leave_nothing_behind():
    index = PrefixIndex(BLOCK)
    for generation in range(500):
        ids = [f"{generation}-{number}" for number in range(4)]
        index.keep(ids)
        for id_ in ids:
            index.enter(id_, chain("shared", id_), None)
    assert index.entries <= 2 * 32
    assert index.bit("another") < 1 << 40


def test_what_many_share_is_paid_for_before_it_counts_as_everywhere():
    index = PrefixIndex(BLOCK)
    system = ("system", *range(31))  # 8,192 tokens
    needed = 32 * BLOCK / RENT
    asked = 0
    while not index.common(chain(*system, "next"), 32):
        index.enter("a", chain(*system, f"user {asked}"), None)
        asked += 1
    assert needed <= asked <= needed + 1
    index.enter("b", chain(*system, "somebody"), None)  # reads it: paid for
    assert not index.common(chain(*system, "next"), 32)


def test_the_turns_of_a_conversation_keep_it_where_it_is():
    index = PrefixIndex(BLOCK)
    words = [f"turn {number}" for number in range(60)]
    for turn in range(2, 60, 2):
        index.enter("a", chain(*words[:turn]), None)
        assert index.common(chain(*words), turn) * BLOCK <= RENT  # each turn pays for another place


@SOME
@given(seed=st.integers(0, 2**32), spread=st.integers(2, 8))
def test_spreading_costs_no_more_than_the_rent(seed, spread):
    """Whoever goes elsewhere only where it counts as free reads at most the rent of all requests again."""
    dice, index = random.Random(seed), PrefixIndex(BLOCK)
    again = requests = 0
    for number in range(400):
        shared = tuple(f"{part} of {dice.randrange(3)}" for part in range(dice.randrange(1, 9)))
        blocks = chain(*shared, f"own {number}")
        steps = index.depths(blocks)
        known = steps[-1][0] if steps else 0
        common = index.common(blocks, known)
        holders = steps[-1][1] if steps else 0
        free = [f"m{n}" for n in range(spread) if not holders & index.bit(f"m{n}")]
        requests += 1
        if known and common == known and free:
            again += (known - index.enter(free[0], blocks, None)) * BLOCK
        else:
            owner = next((f"m{n}" for n in range(spread) if holders & index.bit(f"m{n}")), "m0")
            index.enter(owner, blocks, None)
    assert again <= requests * RENT


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_million_unique_prompts_stay_inside_the_bound():
    """Case 18: half of each prompt is shared with others, half is its own; memory of the process, shown."""

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096 / 1e6

    largest = 100_000
    index = PrefixIndex(BLOCK, largest=largest)
    before = resident()
    filled = 0.0
    most = 0
    for number in range(1_000_000):
        blocks = chain(f"document {number % 20_011}", 1, number, 2)
        index.enter(f"m{number % 8}", blocks, 10**9)
        if number % 10_000 == 0:
            most = max(most, index.entries)
            assert index.distinct <= index.entries <= largest
            assert len(index._credit) <= index.distinct
        if number == 200_000:
            filled = resident()
    after = resident()
    print(
        f"{most} entries of {largest} at most; {filled - before:.0f} MB when full, {after - filled:+.0f} MB after a million"
    )
    assert after - filled < 0.25 * (filled - before) + 5
