"""What is told when a pool does not fit."""

from dataclasses import replace

from gpufleet.deploy.placement import nearest
from gpufleet.deploy.placement.api import Demand
from gpufleet.deploy.placement.slots import find
from gpufleet.hosts.model import Known
from gpufleet.names import GpuUuid, HostName
from tests.kit import fleet_facts as facts
from tests.kit.placer_kit import slot


def kinds(found):
    return {one.kind: dict(one.fields) for one in found}


def test_fewer_gpus_each_and_islands_that_may_be_crossed():
    slots = [slot("a", index, island="x" if index < 2 else "y") for index in range(4)]
    found = kinds(nearest.smaller(Demand(replicas=1, devices=4), slots))
    assert found == {"across": {"across": True}, "fewer-gpus": {"gpus": 2}}
    assert kinds(nearest.smaller(Demand(replicas=3, devices=4), slots)) == {"fewer-gpus": {"gpus": 1}}


def test_the_most_memory_that_all_could_have():
    slots = [slot("a", 0, memory=81559), slot("a", 1, "3g.40gb", 40448), slot("b", 0, memory=None)]
    (one,) = nearest.smaller(Demand(replicas=2, memory_mib=50_000), slots)
    assert one.fields == {"memory_gib": 39.5}
    assert "slice.memory_gib: 39.5" in one.text
    assert nearest.smaller(Demand(replicas=3, memory_mib=50_000), slots) == ()


def test_the_largest_share_that_all_could_have():
    slots = [slot("a", 0, room=40), slot("a", 1, room=35)]
    assert kinds(nearest.smaller(Demand(replicas=2, share=50), slots)) == {"smaller-share": {"share": 0.35}}
    assert kinds(nearest.smaller(Demand(replicas=3, share=50), slots)) == {"smaller-share": {"share": 0.2}}


def test_other_slices_and_whole_gpus():
    slots = [slot("a", 0), slot("a", 1, "1g.10gb", 9984), slot("a", 2, "2g.20gb", 20096)]
    found = nearest.smaller(Demand(replicas=1, profile="3g.40gb"), slots)
    assert [dict(one.fields) for one in found] == [{"gpus": 1}, {"mig": "2g.20gb"}, {"mig": "1g.10gb"}]


def test_the_container_that_would_have_to_go_and_whose_it_is():
    both = facts.container("wide", devices=["GPU-a-0", "GPU-a-1"])
    ours = facts.container("ours", devices=["GPU-b-0"], labels={"gpufleet.pool": "embed"})
    hosts = [
        facts.host("a", containers=[both]),
        facts.host("b", gpus=1, containers=[ours, facts.container("idle", devices=["0"], state="created")]),
    ]
    first, second = nearest.in_the_way(Demand(replicas=4), hosts)
    assert first.fields == {"host": "a", "container": "wide", "pool": None, "replicas": 2}
    assert "did not start" in first.text
    assert second.fields == {"host": "b", "container": "ours", "pool": "embed", "replicas": 1}


def test_two_containers_on_one_gpu_are_no_single_way_out():
    two = [facts.container(name, devices=["GPU-a-0"]) for name in ("one", "two")]
    assert nearest.in_the_way(Demand(replicas=1), [facts.host("a", gpus=1, containers=two)]) == ()


def test_hosts_that_were_not_selected_come_with_their_room():
    found = nearest.elsewhere(Demand(replicas=1), [facts.host("c", gpus=1), facts.host("d", gpus=3)])
    assert [dict(one.fields) for one in found] == [
        {"host": "d", "replicas": 3},
        {"host": "c", "replicas": 1},
    ]


def test_each_host_says_what_is_taken_and_what_is_free_and_not_enough():
    pairs = [Known(frozenset({GpuUuid("GPU-a-1")})), Known(frozenset({GpuUuid("GPU-a-0")}))]
    gpus = [facts.gpu("a", index, nvlink=link) for index, link in enumerate(pairs)]
    gpus.append(facts.gpu("a", 2, nvlink=Known(frozenset())))
    hosts = [
        facts.host("a", gpus=gpus),
        facts.host("b", gpus=1, containers=[facts.container("x", devices=["0"])]),
    ]
    told = nearest.reasons(Demand(replicas=1, devices=3), find(hosts))
    assert told[HostName("a")] == [
        "free and not enough: GPU 0 (NVLink GPU-a-0), GPU 1 (NVLink GPU-a-0), GPU 2 (no NVLink)"
    ]
    assert told[HostName("b")] == ["GPU 0: container x holds it"]
    small = nearest.reasons(Demand(replicas=1, memory_mib=90_000), find(hosts))
    assert "GPU 0 (79.6 GiB)" in small[HostName("a")][0]


def test_what_is_wanted_in_words():
    one = Demand(replicas=1)
    assert nearest.wanted(one) == "a GPU"
    assert nearest.wanted(replace(one, devices=2)) == "2 GPUs of one host"
    assert nearest.wanted(replace(one, profile="3g.40gb")) == "a 3g.40gb slice"
    assert nearest.wanted(replace(one, memory_mib=24576)) == "24 GiB"
    assert nearest.wanted(replace(one, share=50)) == "50 % of a GPU"
    assert nearest.fewer(0).fields == {"replicas": 0}
