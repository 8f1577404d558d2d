"""The smallest change, held against all that could be done."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from gpufleet.errors import FleetError, Unplaceable, UsageError
from gpufleet.mig.boards import BOARDS
from gpufleet.mig.geometry import is_legal
from gpufleet.mig.layout import PRESETS, Wanted, at_least, parse
from gpufleet.mig.model import Placed
from gpufleet.mig.plan import LayoutChange, NoLayout, added, plan
from gpufleet.mig.profile import nearest, same_but_media
from gpufleet.mig.profile import parse as parse_name
from tests.unit.mig.boards_by_hand import CHECKED, states

H100 = BOARDS["H100-80GB"]


@dataclass(frozen=True)
class Board:
    """All that a board can hold, found without the planner: slices as bits, layouts by what they are made of."""

    options: tuple[Placed, ...]
    layouts: dict[tuple[str, ...], list[int]]

    def bits(self, slices: Iterable[Placed]) -> int:
        return sum(1 << self.options.index(one) for one in slices)

    def slices(self, bits: int) -> frozenset[Placed]:
        return frozenset(one for at, one in enumerate(self.options) if bits >> at & 1)


def by_brute_force(board: str) -> Board:
    options = tuple(sorted({one for state in states(board) for one in state}))
    found = Board(options, {})
    for state in sorted(
        states(board), key=lambda state: ([one.start for one in sorted(state)], sorted(state))
    ):
        found.layouts.setdefault(tuple(sorted(one.profile for one in state)), []).append(found.bits(state))
    return found


def wishes(board: str, names: Iterable[str]) -> list[Wanted]:
    return [Wanted(profile) for name in names if (profile := BOARDS[board].profile(name))]


@pytest.mark.parametrize("board", CHECKED)
def test_no_other_layout_would_touch_less(board):
    """From every state of the board to every layout: fewest slices in use end, then fewest end, then lowest starts."""
    geometry, every = BOARDS[board], by_brute_force(board)
    dice = random.Random(board)
    wanted = {names: wishes(board, names) for names in every.layouts}
    alone = {bits: every.slices(bits) for layouts in every.layouts.values() for bits in layouts}
    compared = 0
    for seen, slices in alone.items():
        used = seen & dice.getrandbits(len(every.options)) if dice.random() < 0.5 else 0
        busy, there = every.slices(used), tuple(sorted(slices))
        for names, layouts in every.layouts.items():
            best, least = 0, 1000
            for bits in layouts:
                cost = 16 * (used & ~bits).bit_count() + (seen & ~bits).bit_count()
                if cost < least:
                    best, least = bits, cost
            change = plan(geometry, there, wanted[names], busy=busy)
            assert isinstance(change, LayoutChange)
            kept = alone[best] & slices
            assert frozenset(change.keep) == kept, (there, names)
            assert frozenset(change.create) == alone[best] - kept, (there, names)
            assert frozenset(change.destroy) == slices - kept, (there, names)
            compared += 1
    assert compared == len(alone) * len(wanted)


@pytest.mark.parametrize("board", CHECKED)
def test_a_place_that_is_asked_for_is_had_with_the_least_change(board):
    geometry, every = BOARDS[board], by_brute_force(board)
    dice = random.Random(board)
    all_states = states(board)
    for names, layouts in every.layouts.items():
        for bits in layouts:
            if not bits:
                continue
            pinned = dice.choice(sorted(every.slices(bits)))
            wanted = wishes(board, names)
            at = names.index(pinned.profile)
            wanted[at] = Wanted(wanted[at].profile, pinned.start)
            seen = dice.choice(all_states)
            change = plan(geometry, tuple(seen), wanted)
            assert isinstance(change, LayoutChange)
            assert pinned in {*change.keep, *change.create}
            there, pin = every.bits(seen), every.bits([pinned])
            least = min((there & ~other).bit_count() for other in layouts if other & pin)
            assert len(change.destroy) == least


@pytest.mark.parametrize("board", CHECKED)
def test_what_no_layout_holds_is_refused_with_what_does_fit(board):
    geometry, every = BOARDS[board], by_brute_force(board)
    names = [one.name for one in geometry.profiles]
    most = 8 if len(names) < 8 else 4
    refused = 0
    for count in range(1, most + 1):
        for wanted in itertools.combinations_with_replacement(sorted(names), count):
            answer = plan(geometry, (), wishes(board, wanted))
            assert isinstance(answer, LayoutChange) == (wanted in every.layouts), wanted
            if isinstance(answer, NoLayout):
                refused += 1
                fits = tuple(sorted(one.profile.name for one in answer.nearest))
                left = Counter(wanted) - Counter(fits)
                assert fits in every.layouts, wanted
                assert left.total() == len(wanted) - len(fits) > 0
                assert not any(tuple(sorted((*fits, one))) in every.layouts for one in left), wanted
                assert answer.reason
    assert refused > 100


@pytest.mark.parametrize("board", BOARDS)
def test_what_is_there_already_is_no_change(board):
    geometry = BOARDS[board]
    for preset in PRESETS:
        first = plan(geometry, (), parse(preset, geometry))
        assert isinstance(first, LayoutChange), preset
        assert first.create
        again = plan(geometry, first.create, parse(preset, geometry))
        assert isinstance(again, LayoutChange)
        assert not again.changes
        assert is_legal(geometry, first.create)


@pytest.mark.parametrize(
    ("layout", "keep", "create"),
    [
        ("3g.40gb,2g.20gb,1g.10gb,1g.10gb", [], ["1g.10gb:0", "1g.10gb:1", "2g.20gb:2", "3g.40gb:4"]),
        ("2x3g.40gb", [], ["3g.40gb:0", "3g.40gb:4"]),
        ("3g.40gb:4,1g.10gb:0", [], ["1g.10gb:0", "3g.40gb:4"]),
        ("2x>=19gib", [], ["1g.20gb:0", "1g.20gb:2"]),
        ("none", [], []),
    ],
)
def test_layouts_as_people_write_them(layout, keep, create):
    change = plan(H100, (), parse(layout, H100))
    assert isinstance(change, LayoutChange)
    assert [str(one) for one in change.keep] == keep
    assert [str(one) for one in change.create] == create


def test_a_used_slice_stays_where_it_is():
    seen = tuple(Placed(start, 1, "1g.10gb") for start in (0, 1, 5))
    change = plan(H100, seen, parse("3g.40gb,2x1g.10gb", H100), busy=frozenset({seen[2]}))
    assert isinstance(change, LayoutChange)
    assert seen[2] in change.keep
    assert [str(one) for one in change.create] == ["3g.40gb:0", "1g.10gb:4"]


def test_one_move_makes_room():
    seen = tuple(Placed(start, 1, "1g.10gb") for start in (0, 1, 5))
    change = plan(H100, seen, added(seen, H100, parse("3g.40gb", H100)))
    assert isinstance(change, LayoutChange)
    assert [str(one) for one in change.destroy] == ["1g.10gb:5"]
    assert len(change.create) == 2


@pytest.mark.parametrize(
    ("layout", "reason", "fits"),
    [
        ("3x3g.40gb", "at most 2 of 3g.40gb", ["3g.40gb", "3g.40gb"]),
        ("2x1g.10gb+me", "at most 1 of 1g.10gb+me", ["1g.10gb+me"]),
        ("2x3g.40gb,1g.10gb", "9 memory slots are wanted", ["3g.40gb", "3g.40gb"]),
        ("3g.40gb:0,1g.10gb:2", "overlap", ["3g.40gb:0"]),
        ("4g.40gb,3g.40gb:0", "no starts side by side", None),
    ],
)
def test_why_not(layout, reason, fits):
    answer = plan(H100, (), parse(layout, H100))
    assert isinstance(answer, NoLayout)
    assert reason in answer.reason
    if fits is not None:
        assert [str(one) for one in answer.nearest] == fits
    assert isinstance(plan(H100, (), answer.nearest), LayoutChange)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3g.39gb", "did you mean 3g.40gb"),
        ("2g.24gb", "did you mean 2g.20gb"),
        ("big", "it has 1g.10gb"),
        ("", "3g.40gb,2x1g.10gb"),
        ("1g.10gb,,", "3g.40gb,2x1g.10gb"),
        ("3g.40gb:2", "it starts at 0, 4"),
        ("2x3g.40gb:0", "a start of its own"),
        ("0x3g.40gb", "1 to 64"),
        (">=200gib", "the largest holds 79.25 GiB"),
        ("-rf /", "3g.40gb,2x1g.10gb"),
    ],
)
def test_wishes_that_no_board_has(text, said):
    with pytest.raises(FleetError) as caught:
        parse(text, H100)
    assert isinstance(caught.value, Unplaceable) == text.startswith(("3g.39", "2g.24"))
    assert said in " ".join([caught.value.summary, *caught.value.hints])


def test_unknown_memory_is_never_chosen():
    with pytest.raises(UsageError) as caught:
        at_least(BOARDS["B300-269GB"], 1)
    assert "unknown" in caught.value.hints[0]


def test_names():
    for text in ("1g.10gb", "1g.10gb+me", "1c.3g.40gb", "1g.24gb+me.all", "2g.48gb-me"):
        assert str(parse_name(text)) == text
    assert parse_name("MIG 1g.10gb") == parse_name("1g.10gb")
    assert parse_name("1g") is None
    assert same_but_media("1g.10gb+me", "1g.10gb")
    assert not same_but_media("1g.10gb", "1g.20gb")
    assert nearest("3g.39gb", [one.name for one in H100.profiles])[0] == "3g.40gb"
