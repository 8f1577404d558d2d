"""Placement: every algorithm legal, deterministic and never fewer than a search over everything finds."""

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from gpufleet.deploy.placement.api import Demand, TooFew, placers
from gpufleet.names import HostName
from tests.kit import placer_kit as kit
from tests.kit.placer_kit import slot

EVERY = pytest.mark.parametrize("name", sorted(placers()))


def placed(demand, slots, name="best-fit"):
    placement = placers()[name](demand, slots)
    assert not isinstance(placement, TooFew)
    return placement


@EVERY
@given(slots=kit.fleets(), demand=kit.demands)
def test_a_placement_is_legal(name, slots, demand):
    kit.check(placers()[name], demand, slots)


@EVERY
@given(slots=kit.fleets(), demand=kit.demands, dice=st.randoms(use_true_random=False))
def test_the_order_of_slots_means_nothing(name, slots, demand, dice):
    shuffled = list(slots)
    dice.shuffle(shuffled)
    assert placers()[name](demand, slots) == placers()[name](demand, shuffled)


@EVERY
@given(slots=kit.fleets(), demand=kit.demands)
def test_never_fewer_than_first_fit(name, slots, demand):
    found = placers()[name](demand, slots)
    assert not isinstance(found, TooFew) or found.fits >= kit.first_fit(demand, slots)


@EVERY
@settings(max_examples=60)
@given(slots=kit.fleets().filter(lambda slots: len(slots) <= 7), demand=kit.demands)
def test_never_fewer_than_brute_force(name, slots, demand):
    best = kit.most(demand, slots)
    found = placers()[name](demand, slots)
    if isinstance(found, TooFew):
        assert found.fits == best < demand.replicas
    else:
        assert best >= demand.replicas


@settings(max_examples=60)
@given(slots=kit.fleets(), demand=kit.demands)
def test_spread_leaves_no_rack_fuller_than_it_must(slots, demand):
    found = placers()["spread"](demand, slots)
    if isinstance(found, TooFew):
        return
    way = Counter(one.host for one in found)
    hosts = sorted(
        {
            *(one.host for one in slots if kit.most(demand, [s for s in slots if s.host == one.host])),
            *demand.present,
        }
    )
    assert kit.fullness(demand, hosts, way) == max(kit.spreads(demand, slots))
    for full in way:
        for other in hosts:
            same = demand.racks.get(full, "") == demand.racks.get(other, "")
            more = demand.present.get(full, 0) + way[full] > demand.present.get(other, 0) + way[other] + 1
            if same and more:
                assert way[other] == kit.most(demand, [one for one in slots if one.host == other])


@EVERY
def test_nothing_free_fits_nothing(name):
    assert placers()[name](Demand(replicas=1), []) == TooFew(0)


@given(st.integers(1, 5), st.integers(1, 4), st.data())
def test_equal_hosts_get_equal_shares(hosts, gpus, data):
    slots = [slot(f"h{host}", index) for host in range(hosts) for index in range(gpus)]
    wanted = data.draw(st.integers(1, hosts * gpus))
    for name in placers():
        count = Counter(one.host for one in placed(Demand(replicas=wanted), slots, name))
        shares = [count.get(HostName(f"h{host}"), 0) for host in range(hosts)]
        assert max(shares) - min(shares) <= 1


def test_the_smallest_slot_that_holds_is_taken_wherever_it_lies():
    slots = [slot("a", 0, memory=80), slot("b", 1, "3g.40gb", 40), slot("a", 2, "1g.10gb", 10)]
    (one,) = placed(Demand(replicas=1, memory_mib=20), slots)
    assert (one.host, one.slots[0].index) == ("b", 1)


def test_new_replicas_go_where_there_are_few():
    slots = [slot("a", 0), slot("a", 1), slot("b", 0), slot("b", 1)]
    for name in placers():
        placement = placed(Demand(replicas=2, present={HostName("a"): 2}), slots, name)
        assert [one.host for one in placement] == ["b", "b"]


def test_spread_fills_racks_before_hosts():
    slots = [slot(host, index) for host in ("a1", "a2", "a3", "b1") for index in range(4)]
    racks = {HostName(host): host[0] for host in ("a1", "a2", "a3", "b1")}
    count = Counter(one.host for one in placed(Demand(replicas=6, racks=racks), slots, "spread"))
    assert count == {"b1": 3, "a1": 1, "a2": 1, "a3": 1}


def test_tensor_parallel_replicas_stay_on_one_island_and_leave_the_large_one_whole():
    slots = [slot("a", index, island="big") for index in range(4)] + [
        slot("a", index, island="small") for index in (4, 5)
    ]
    (pair,) = placed(Demand(replicas=1, devices=2), slots)
    assert [one.index for one in pair.slots] == [4, 5]
    assert placers()["best-fit"](Demand(replicas=1, devices=6), slots) == TooFew(0)
    (six,) = placed(Demand(replicas=1, devices=6, across=True), slots)
    assert len(six.slots) == 6


def test_replicas_share_a_gpu_that_is_shared_already_first():
    slots = [slot("a", 0), slot("a", 1, room=50)]
    placement = placed(Demand(replicas=3, share=40), slots)
    assert [one.slots[0].index for one in placement] == [1, 0, 0]
    assert placers()["best-fit"](Demand(replicas=4, share=40), slots) == TooFew(3)


def test_a_fleet_of_two_hundred_hosts_is_placed():
    slots = [slot(f"h{host:03}", index) for host in range(200) for index in range(8)]
    for name in placers():
        count = Counter(one.host for one in placed(Demand(replicas=1000), slots, name))
        assert set(count.values()) == {5}
