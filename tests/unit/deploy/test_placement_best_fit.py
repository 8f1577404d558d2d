"""Placement: legal, deterministic, balanced, and never fewer than a search over everything finds."""

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given

from gpufleet.deploy.placement.api import Demand, Slot, TooFew, placers
from gpufleet.deploy.placement.best_fit import place
from gpufleet.names import GpuUuid, HostName


def slot(host, index, profile="", memory=81559):
    uuid = f"GPU-{host}-{index}"
    return Slot(
        host=HostName(host), gpu=GpuUuid(uuid), device=uuid, index=index, profile=profile, memory_mib=memory
    )


def placed(demand, slots):
    placement = place(demand, slots)
    assert not isinstance(placement, TooFew)
    return placement


@st.composite
def fleets(draw):
    shapes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    return [
        slot(
            f"h{number}",
            index,
            draw(st.sampled_from(["", "", "1g.10gb", "3g.40gb"])),
            draw(st.sampled_from([10, 40, 80])),
        )
        for number, size in enumerate(shapes)
        for index in range(size)
    ]


demands = st.builds(
    Demand,
    replicas=st.integers(1, 8),
    devices=st.integers(1, 3),
    profile=st.sampled_from([None, "1g.10gb", "3g.40gb"]),
    memory_mib=st.sampled_from([None, None, 20, 60]),
)


def most(demand, slots):
    """Brute force: take any set of `devices` fitting slots of one host, and go on with the rest."""
    usable = [item for item in slots if demand.takes(item)]

    def search(rest):
        best = 0
        for position, first in enumerate(rest):
            mates = [item for item in rest[position + 1 :] if item.host == first.host]
            if len(mates) + 1 >= demand.devices:
                chosen = {first.device, *(item.device for item in mates[: demand.devices - 1])}
                best = max(
                    best, 1 + search([item for item in rest[position + 1 :] if item.device not in chosen])
                )
                if best * demand.devices > len(rest) - demand.devices:
                    break
        return best

    return search(usable)


@given(fleets(), demands)
def test_a_placement_is_legal(slots, demand):
    placement = place(demand, slots)
    if isinstance(placement, TooFew):
        return
    assert len(placement) == demand.replicas
    taken = [item.device for one in placement for item in one.slots]
    assert len(taken) == len(set(taken))
    for one in placement:
        assert len(one.slots) == demand.devices
        assert {item.host for item in one.slots} == {one.host}
        assert all(demand.takes(item) and item in slots for item in one.slots)


@given(fleets(), demands)
def test_never_fewer_than_brute_force(slots, demand):
    best = most(demand, slots)
    placement = place(demand, slots)
    if isinstance(placement, TooFew):
        assert placement.fits == best < demand.replicas
    else:
        assert best >= demand.replicas


@given(fleets(), demands, st.randoms())
def test_the_order_of_slots_means_nothing(slots, demand, dice):
    shuffled = list(slots)
    dice.shuffle(shuffled)
    assert place(demand, slots) == place(demand, shuffled)


@given(st.integers(1, 5), st.integers(1, 4), st.data())
def test_equal_hosts_get_equal_shares(hosts, gpus, data):
    slots = [slot(f"h{host}", index) for host in range(hosts) for index in range(gpus)]
    wanted = data.draw(st.integers(1, hosts * gpus))
    count = Counter(one.host for one in placed(Demand(replicas=wanted), slots))
    shares = [count.get(HostName(f"h{host}"), 0) for host in range(hosts)]
    assert max(shares) - min(shares) <= 1


def test_the_smallest_slot_that_holds_is_taken():
    slots = [slot("a", 0, memory=80), slot("a", 1, "3g.40gb", 40), slot("a", 2, "1g.10gb", 10)]
    (one,) = placed(Demand(replicas=1, memory_mib=20), slots)
    assert one.slots[0].index == 1


def test_new_replicas_go_where_there_are_few():
    slots = [slot("a", 0), slot("a", 1), slot("b", 0), slot("b", 1)]
    placement = placed(Demand(replicas=2, present={HostName("a"): 2}), slots)
    assert [one.host for one in placement] == ["b", "b"]


def test_every_registered_algorithm_is_a_function_of_this_shape():
    for algorithm in placers().values():
        assert algorithm(Demand(replicas=1), []) == TooFew(0)
