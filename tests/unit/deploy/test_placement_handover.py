"""Which running containers make room for which new replica."""

from gpufleet.deploy.placement.api import Placed
from gpufleet.deploy.placement.handover import in_the_way
from gpufleet.names import HostName
from tests.kit import fleet_facts as facts
from tests.kit.placer_kit import slot


def on(*slots, share=100):
    return Placed(HostName("a"), slots, share)


def holder(name, *indexes, share=""):
    return facts.container(
        name,
        devices=[f"GPU-a-{index}" for index in indexes],
        labels={"gpufleet.share": share} if share else {},
    )


def held(placement, *containers, gpus=2, keep=()):
    host = facts.host("a", gpus=gpus, containers=(*containers, *keep))
    ids = {one.id: one.name for one in containers}
    found = in_the_way([host], placement, frozenset(ids), frozenset())
    return [sorted(ids[one] for one in each) for each in found]


def test_each_takes_the_place_of_the_one_on_its_gpu():
    placement = (on(slot("a", 0)), on(slot("a", 1)))
    assert held(placement, holder("x", 1), holder("y", 0)) == [["y"], ["x"]]


def test_what_is_free_already_stops_nobody():
    placement = (on(slot("a", 0)), on(slot("a", 1)))
    assert held(placement, holder("x", 1)) == [[], ["x"]]
    halves = (on(slot("a", 0), share=50), on(slot("a", 0), share=50))
    assert held(halves, holder("x", 0, share="50")) == [[], ["x"]]


def test_two_replicas_on_the_gpus_of_one_stand_with_it_both():
    assert held((on(slot("a", 0)), on(slot("a", 1))), holder("wide", 0, 1)) == [["wide"], ["wide"]]
    halves = (on(slot("a", 0), share=50), on(slot("a", 0), share=50))
    assert held(halves, holder("whole", 0)) == [["whole"], ["whole"]]


def test_equal_shares_are_handed_over_one_by_one():
    halves = (on(slot("a", 0), share=50), on(slot("a", 0), share=50))
    assert held(halves, holder("x", 0, share="50"), holder("y", 0, share="50")) == [["x"], ["y"]]


def test_a_larger_share_takes_as_many_as_it_must_and_what_stays_is_left_alone():
    placement = (on(slot("a", 0), share=60),)
    old = [holder(name, 0, share="30") for name in ("x", "y")]
    assert held(placement, *old, keep=[holder("kept", 0, share="40")]) == [["x", "y"]]


def test_two_whole_replicas_on_one_gpu_both_go():
    assert held((on(slot("a", 0)),), holder("x", 0), holder("y", 0)) == [["x", "y"]]
