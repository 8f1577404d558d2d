"""What holds of every placement algorithm, and small fleets to hold it against."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import hypothesis.strategies as st

from gpufleet.deploy.placement.api import WHOLE, Demand, Slot, TooFew
from gpufleet.names import GpuUuid, HostName


def slot(host, index, profile="", memory=81559, island="unknown", room=WHOLE):
    """One free slot."""
    uuid = f"GPU-{host}-{index}"
    return Slot(
        host=HostName(host),
        gpu=GpuUuid(uuid),
        device=uuid,
        index=index,
        profile=profile,
        memory_mib=memory,
        island=island,
        room=room,
    )


@st.composite
def fleets(draw):
    """Up to four hosts with up to four slots each, of all kinds."""
    shapes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    return [
        slot(
            f"h{number}",
            index,
            draw(st.sampled_from(["", "", "", "1g.10gb", "3g.40gb"])),
            draw(st.sampled_from([10, 40, 80, None])),
            draw(st.sampled_from(["unknown", "x", "y"])),
            draw(st.sampled_from([WHOLE, WHOLE, 70, 35])),
        )
        for number, size in enumerate(shapes)
        for index in range(size)
    ]


def _demand(replicas, kind, devices, share, present, racks, *, across):
    profile, memory = kind
    alone = profile is not None or memory is not None
    return Demand(
        replicas=replicas,
        devices=1 if alone or share < WHOLE else devices,
        profile=profile,
        memory_mib=memory,
        share=WHOLE if alone else share,
        across=across,
        present={HostName(f"h{at}"): number for at, number in enumerate(present)},
        racks={HostName(f"h{at}"): rack for at, rack in enumerate(racks)},
    )


demands = st.builds(
    _demand,
    st.integers(1, 8),
    st.sampled_from(
        [(None, None), (None, None), ("1g.10gb", None), ("3g.40gb", None), (None, 20), (None, 60)]
    ),
    st.integers(1, 3),
    st.sampled_from([WHOLE, WHOLE, 50, 30]),
    st.lists(st.integers(0, 3), max_size=4),
    st.lists(st.sampled_from(["", "r1", "r2"]), max_size=4),
    across=st.booleans(),
)


def check(place, demand, slots):
    """A placement is what was asked, and gives nothing away twice."""
    placement = place(demand, slots)
    if isinstance(placement, TooFew):
        assert 0 <= placement.fits < demand.replicas
        return
    assert len(placement) == demand.replicas
    used: Counter[str] = Counter()
    for one in placement:
        assert len(one.slots) == len({item.device for item in one.slots}) == demand.devices
        assert {item.host for item in one.slots} == {one.host}
        assert demand.across or len({item.island for item in one.slots}) == 1
        assert all(demand.takes(item) and item in slots for item in one.slots)
        used.update({item.device: one.share for item in one.slots})
    room = {item.device: item.room for item in slots}
    assert all(share <= room[device] for device, share in used.items())


def first_fit(demand, slots):
    """How many replicas the plainest algorithm places: slot by slot, host by host, island by island."""
    count = 0
    for key in {(item.host, "" if demand.across else item.island) for item in slots}:
        usable = [
            item
            for item in slots
            if demand.takes(item) and (item.host, "" if demand.across else item.island) == key
        ]
        count += (
            sum(item.room // demand.share for item in usable)
            if demand.devices == 1
            else len(usable) // demand.devices
        )
    return count


def most(demand, slots):
    """Brute force: any replica on any set of slots that may be its, and the rest again."""
    usable = [item for item in slots if demand.takes(item)]

    def search(left):
        best = 0
        free = [item for item in usable if left[item.device] >= demand.share]
        for chosen in combinations(free, demand.devices):
            if len({item.host for item in chosen}) > 1:
                continue
            if not demand.across and len({item.island for item in chosen}) > 1:
                continue
            less = {item.device: left[item.device] - demand.share for item in chosen}
            best = max(best, 1 + search({**left, **less}))
            if demand.devices == 1:
                break  # replicas of one slot each do not stand in each other's way
        return best

    return search({item.device: item.room for item in usable})


def spreads(demand, slots):
    """Brute force: of every way to give hosts replicas, how full racks and hosts then are, the emptiest first."""
    capacity = {
        host: most(demand, [item for item in slots if item.host == host]) for host in {s.host for s in slots}
    }
    hosts = sorted(host for host in capacity if capacity[host])
    known = sorted({*hosts, *demand.present})
    ways: list[dict[HostName, int]] = [{}]
    for host in hosts:
        ways = [{**way, host: number} for way in ways for number in range(capacity[host] + 1)]
    return [fullness(demand, known, way) for way in ways if sum(way.values()) == demand.replicas]


def fullness(demand, hosts, way):
    """Replicas by rack, the emptiest rack first."""
    racks = Counter({demand.racks.get(host, ""): 0 for host in hosts})
    for host in hosts:
        racks[demand.racks.get(host, "")] += way.get(host, 0) + demand.present.get(host, 0)
    return sorted(racks.values())
