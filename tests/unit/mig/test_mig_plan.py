"""The smallest change, held against all that could be done."""

from __future__ import annotations

import random

import pytest

from gpufleet.errors import UsageError
from gpufleet.mig.boards import BOARDS
from gpufleet.mig.geometry import is_legal
from gpufleet.mig.layout import PRESETS, Wanted, at_least, parse
from gpufleet.mig.model import Placed
from gpufleet.mig.plan import LayoutChange, NoLayout, added, plan
from gpufleet.mig.profile import nearest, same_but_media
from gpufleet.mig.profile import parse as parse_name
from tests.unit.mig.boards_by_hand import CHECKED, states

H100 = BOARDS["H100-80GB"]


@pytest.mark.parametrize("board", CHECKED)
def test_no_other_layout_would_touch_less(board):
    geometry, all_states = BOARDS[board], states(board)
    by_profiles: dict[tuple[str, ...], list[frozenset[Placed]]] = {}
    for state in all_states:
        by_profiles.setdefault(tuple(sorted(one.profile for one in state)), []).append(state)
    dice = random.Random(board)
    for seen in dice.sample(all_states, min(len(all_states), 60)):
        busy = frozenset(one for one in seen if dice.random() < 0.4)
        for names, layouts in by_profiles.items():
            wanted = [Wanted(profile) for name in names if (profile := geometry.profile(name))]
            change = plan(geometry, tuple(seen), wanted, busy=busy)
            assert isinstance(change, LayoutChange)
            after = {*change.keep, *change.create}
            assert frozenset(after) in layouts
            assert {*change.keep, *change.destroy} == seen
            assert not {*change.create} & seen
            cheapest = min((len((seen - one) & busy), len(seen - one)) for one in layouts)
            assert (len({*change.destroy} & busy), len(change.destroy)) == cheapest


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
    with pytest.raises(UsageError) as caught:
        parse(text, H100)
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
