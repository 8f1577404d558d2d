"""Waves hold their limit, whatever the swaps; shares are rounded as the guide says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.deploy.placement.api import Placed, Slot
from gpufleet.deploy.replicas import New, Present
from gpufleet.deploy.strategy import Swap, count_of, swaps, waves
from gpufleet.errors import Unplaceable
from gpufleet.hosts.model import ContainerFact
from gpufleet.names import GpuUuid, HostName, ReplicaId
from gpufleet.pools.model import StrategyWish

HOST = HostName("gpu-01")
FACTS: dict[str, Any] = {
    "image": "",
    "image_id": "",
    "exit_code": 0,
    "restart_policy": "",
    "restart_count": 0,
    "labels": {},
    "ports": (),
    "devices": (),
    "host_network": False,
    "created_at": "",
    "started_at": "",
}


def new(number):
    slot = Slot(
        host=HOST, gpu=GpuUuid(f"GPU-{number}"), device=f"GPU-{number}", index=number, memory_mib=None
    )
    return New(replica=ReplicaId(f"gpu-01/{number}"), placed=Placed(HOST, (slot,)), port=8000 + number)


def old(number, state="running"):
    container = ContainerFact(id=f"c{number}", name=f"old-{number}", state=state, **FACTS)
    return Present(replica=ReplicaId(f"gpu-01/{number}"), host=HOST, container=container)


@pytest.mark.parametrize(
    ("wish", "replicas", "up", "count"),
    [
        (3, 8, False, 3),
        ("25%", 8, False, 2),
        ("25%", 7, False, 1),
        ("25%", 7, True, 2),
        ("1%", 4, False, 1),
        ("100%", 5, False, 5),
        ("10%", 1, True, 1),
    ],
)
def test_shares_are_rounded_down_or_up_and_never_to_nothing(wish, replicas, up, count):
    assert count_of(wish, replicas, up=up) == count


def test_swaps_keep_together_what_shares_a_slot():
    found = swaps(
        [new(0), new(1), new(2)],
        [old(0), old(1), old(2), old(3)],
        [frozenset({"c0", "c1"}), frozenset(), frozenset({"c1"})],
    )
    assert [[one.replica for one in swap.start] for swap in found] == [["gpu-01/0", "gpu-01/2"], ["gpu-01/1"]]
    assert [one.container.id for one in found[0].stopped] == ["c0", "c1"]
    assert [one.container.id for one in found[1].leaving] == ["c2"]


@st.composite
def cases(draw):
    """Swaps of one new replica each: alongside one that leaves, alone, or in the place of one to three."""
    made, number = [], 0
    for at in range(draw(st.integers(1, 8))):
        down = draw(st.integers(0, 3))
        stopped = tuple(old(number + n) for n in range(down))
        number += down
        leaving: tuple[Present, ...] = ()
        if not down and draw(st.booleans()):
            leaving, number = (old(number),), number + 1
        made.append(Swap(start=(new(at),), stopped=stopped, leaving=leaving))
    serving = draw(st.frozensets(st.sampled_from([f"c{n}" for n in range(number)] or ["none"])))
    return tuple(made), serving


@given(
    cases(),
    st.sampled_from(["all-at-once", "rolling", "canary", "blue-green"]),
    st.one_of(st.integers(1, 4), st.sampled_from(["10%", "50%", "100%"])),
    st.one_of(st.integers(1, 3), st.sampled_from(["1%", "40%"])),
)
def test_a_limit_is_held_nothing_is_lost_and_nobody_stops_before_the_gentle(case, kind, limit, canary):
    found, serving = case
    wish = StrategyWish(kind=kind, max_unavailable=limit, canary=canary)
    allowed = count_of(limit, len(found))
    downs = [sum(one.container.id in serving for one in swap.stopped) for swap in found]
    try:
        made = waves(wish, len(found), found, serving)
    except Unplaceable:
        assert kind in {"rolling", "canary"}
        assert max(downs) > allowed
        return
    for part in ("start", "stopped", "leaving"):
        if part == "leaving" and kind == "canary":
            continue  # whom canaries relieve goes on serving
        wanted = [one for swap in found for one in getattr(swap, part)]
        got = [one for wave in made for one in getattr(wave, part)]
        assert sorted(map(repr, got)) == sorted(map(repr, wanted))
    touched = any(one.container.id in serving for swap in found for one in (*swap.stopped, *swap.leaving))
    stops = [sum(one.container.id in serving for one in wave.stopped) for wave in made]
    if kind == "rolling" and touched:
        assert all(count <= allowed for count in stops)
        assert all(wave.published for wave in made[:-1])
        assert not made[-1].published
        assert sorted(count > 0 for count in stops) == [count > 0 for count in stops]
    if kind == "canary" and touched:
        assert made[0].watched
        assert made[0].published
        assert len(made[0].start) >= min(count_of(canary, len(found), up=True), len(found))
        assert all(count <= allowed for count in stops[1:])
        assert not any(wave.watched for wave in made[1:])
    if kind == "blue-green" and touched:
        assert [wave.published for wave in made] == [True]
    if not touched or kind == "all-at-once":
        assert len(made) == 1
        assert not made[0].published
