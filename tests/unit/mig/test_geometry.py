"""Placements against every state of the boards, and against counts that nvidia-smi printed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpufleet.lab.gpus.boards import BOARDS as LAB_BOARDS
from gpufleet.mig.boards import BOARDS
from gpufleet.mig.geometry import free_count, is_legal, layouts
from gpufleet.mig.model import Placed
from tests.unit.mig.boards_by_hand import CHECKED, states

FACTS = Path(__file__).parents[4] / "shared" / "facts" / "mig"
BOARD_OF = {
    "h100-80gb": "H100-80GB",
    "h200-141gb": "H200-141GB",
    "a100-40gb": "A100-40GB",
    "a30-24gb": "A30-24GB",
}


@pytest.mark.parametrize("board", CHECKED)
def test_free_counts_are_the_most_that_can_be_added(board):
    geometry, all_states = BOARDS[board], states(board)
    legal = frozenset(all_states)
    for state in all_states:
        for profile in geometry.profiles:
            more = 0
            frontier = [state]
            while frontier:
                grown = {
                    held | {Placed(start, profile.size, profile.name)}
                    for held in frontier
                    for start in profile.starts
                    if Placed(start, profile.size, profile.name) not in held
                } & legal
                if not grown:
                    break
                more, frontier = more + 1, list(grown)[:40]
            assert free_count(geometry, tuple(state), profile) == more, (state, profile.name)


@pytest.mark.parametrize("board", CHECKED)
def test_legal_is_what_can_be_reached(board):
    geometry, all_states = BOARDS[board], states(board)
    assert all(is_legal(geometry, tuple(state)) for state in all_states)
    one = geometry.profiles[0]
    here = Placed(one.starts[0], one.size, one.name)
    assert not is_legal(geometry, (here, here))
    assert not is_legal(geometry, (Placed(geometry.slots, one.size, one.name),))
    assert not is_legal(geometry, (Placed(0, one.size, "9g.9gb"),))


@pytest.mark.parametrize("board", CHECKED)
def test_layouts_are_all_the_states_of_their_profiles(board):
    geometry = BOARDS[board]
    by_profiles: dict[tuple[str, ...], set[frozenset[Placed]]] = {}
    for state in states(board):
        by_profiles.setdefault(tuple(sorted(one.profile for one in state)), set()).add(state)
    for names, expected in by_profiles.items():
        wanted = [profile for name in names if (profile := geometry.profile(name))]
        found = list(layouts(geometry, wanted))
        assert len(found) == len(set(found))
        assert {frozenset(layout) for layout in found} == expected


PRINTED = [
    # board, slices there, free counts by profile id as -lgip printed them on such a GPU
    ("H100-80GB", ["1g.10gb:4", "1g.10gb:6"], {19: 5, 20: 1, 15: 2, 14: 2, 9: 1, 5: 1, 0: 0}),
    ("H100-80GB", ["1g.10gb:6", "3g.40gb:0", "1g.10gb+me:4"], {19: 1, 20: 0, 15: 0, 14: 0, 9: 0, 5: 0, 0: 0}),
    ("A100-40GB", ["3g.20gb:0", "3g.20gb:4"], {19: 0, 14: 0, 9: 0, 5: 0, 0: 0}),
    ("A30-24GB", [], {14: 4, 21: 1, 5: 2, 6: 1, 0: 1}),
]


@pytest.mark.parametrize(("board", "there", "free"), PRINTED)
def test_counts_that_were_printed(board, there, free):
    geometry = BOARDS[board]
    slices = [_placed(board, text) for text in there]
    assert {one.id: free_count(geometry, slices, one) for one in geometry.profiles if one.id in free} == free


def test_counts_of_the_planner_vectors():
    path = FACTS / "planner_vectors.yaml"
    if not path.exists():
        pytest.skip(f"{path.name} is not beside this checkout")
    vectors = yaml.safe_load(path.read_text(encoding="utf-8"))["vectors"]
    assert vectors
    for vector in vectors:
        geometry = BOARDS[BOARD_OF[vector["gpu"]]]
        slices = [Placed(one["start"], one["size"], one["name"]) for one in vector["existing"]]
        free = {int(key): value for key, value in vector["free_reported_by_nvidia_smi"].items()}
        counted = {one.id: free_count(geometry, slices, one) for one in geometry.profiles if one.id in free}
        assert counted == free, vector["from"]


def test_the_shipped_boards_agree_with_the_facts():
    path = FACTS / "gpus.yaml"
    if not path.exists():
        pytest.skip(f"{path.name} is not beside this checkout")
    shipped = {key.lower(): board for key, board in BOARDS.items()}
    shipped["rtxpro6000-96gb"] = shipped["rtx-pro-6000-96gb"]
    compared = 0
    for gpu in yaml.safe_load(path.read_text(encoding="utf-8"))["gpus"]:
        board = shipped.get(gpu["key"])
        if not gpu["profiles"]:
            assert board is None, gpu["key"]
            continue
        assert board is not None, gpu["key"]
        assert board.slots == gpu["grid"]
        assert [
            (one.name, one.id, one.total, one.memory_gib, list(one.starts), one.size)
            for one in board.profiles
        ] == [
            (
                row["name"],
                row["id"],
                row["max_instances"],
                row["memory_gib"],
                row["placements"]["starts"],
                row["placements"]["size"],
            )
            for row in gpu["profiles"]
        ], gpu["key"]
        compared += 1
    assert compared == len(BOARDS)


def _placed(board: str, text: str) -> Placed:
    name, _, start = text.partition(":")
    profile = BOARDS[board].profile(name)
    assert profile is not None
    return Placed(int(start), profile.size, profile.name)


def test_the_labs_boards_are_these_boards():
    for key, simulated in LAB_BOARDS.items():
        if simulated.profiles:
            assert [
                (one.name, one.id, one.total, one.gib, one.starts, one.size) for one in simulated.profiles
            ] == [
                (one.name, one.id, one.total, one.memory_gib, one.starts, one.size)
                for one in BOARDS[key].profiles
            ], key
