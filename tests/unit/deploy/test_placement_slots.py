"""What counts as free, and what is said of the rest."""

from dataclasses import replace

from gpufleet.deploy.placement.slots import find, free_ports, islands_of
from gpufleet.hosts.model import Known, MigFact, Unknown
from gpufleet.names import GpuUuid
from tests.kit import fleet_facts as facts


def reasons(room):
    return {taken.what: taken.reason for taken in room.taken}


def test_empty_gpus_are_free():
    room = find([facts.host("a", gpus=2)])
    assert [slot.device for slot in room.free] == ["GPU-a-0", "GPU-a-1"]
    assert not room.taken


def test_any_container_takes_its_gpu_by_uuid_by_index_and_by_all():
    for device in ("GPU-a-0", "0"):
        room = find([facts.host("a", containers=[facts.container("other", devices=[device])])])
        assert [slot.device for slot in room.free] == ["GPU-a-1"]
        assert reasons(room) == {"GPU 0": "container other holds it"}
    room = find([facts.host("a", containers=[facts.container("other", devices=["all"])])])
    assert not room.free


def test_a_stopped_container_holds_nothing():
    for state in ("exited", "created", "dead"):
        old = facts.container("old", devices=["0"], state=state, restart="unless-stopped")
        room = find([facts.host("a", containers=[old])])
        assert len(room.free) == 2


def test_a_stopped_container_that_starts_again_by_itself_holds_its_gpu():
    old = facts.container("old", devices=["0"], state="exited", restart="always")
    room = find([facts.host("a", containers=[old])])
    assert [slot.index for slot in room.free] == [1]
    assert "starts again" in reasons(room)["GPU 0"]
    assert len(find([facts.host("a", containers=[old])], idle=frozenset({old.id})).free) == 2


def share(name, percent, gpu="GPU-a-0", **changes):
    return facts.container(name, devices=[gpu], labels={"gpufleet.share": percent}, **changes)


def test_shares_leave_the_rest_of_a_gpu():
    sharing = [share("one", "30"), share("two", "25")]
    gpus = [facts.gpu("a", 0, used=40000, processes=[facts.process(5), facts.process(6)])]
    room = find([facts.host("a", gpus=gpus, containers=sharing)])
    assert [(slot.index, slot.room) for slot in room.free] == [(0, 45)]
    assert "has a share" in reasons(room)["55 % of GPU 0"]
    freed = find([facts.host("a", gpus=gpus, containers=sharing)], frozenset({sharing[0].id}))
    assert [slot.room for slot in freed.free] == [75]


def test_a_share_that_is_not_understood_is_all_of_it():
    for word in ("", "0", "100", "101", "-5", "half", "٣"):
        room = find([facts.host("a", gpus=1, containers=[share("one", word)])])
        assert not room.free


def test_memory_beyond_the_shares_of_a_gpu_takes_it():
    for used in (30000, Unknown("no answer")):
        gpu = facts.gpu("a", 0, memory_used_mib=used if isinstance(used, Unknown) else Known(used))
        room = find([facts.host("a", gpus=[gpu], containers=[share("one", "30")])])
        assert not room.free
        assert ("30000 MiB" in reasons(room)["GPU 0"]) or ("no answer" in reasons(room)["GPU 0"])


def test_a_gpu_that_is_shared_out_has_no_room():
    room = find([facts.host("a", gpus=1, containers=[share("one", "60"), share("two", "40")])])
    assert not room.free
    assert "one, two" in reasons(room)["GPU 0"]


def linked(*peers):
    return Known(frozenset(GpuUuid(f"GPU-a-{peer}") for peer in peers))


def test_islands_are_what_nvlink_joins():
    links = [linked(1), linked(0, 2), linked(1), linked(), linked(), Unknown("not asked")]
    gpus = [facts.gpu("a", index, nvlink=link) for index, link in enumerate(links)]
    islands = islands_of(gpus)
    assert [islands[gpu.uuid] for gpu in gpus] == [
        *["NVLink GPU-a-0"] * 3,
        "no NVLink",
        "no NVLink",
        "unknown",
    ]
    assert [slot.island for slot in find([facts.host("a", gpus=gpus)]).free] == [
        islands[gpu.uuid] for gpu in gpus
    ]


def test_two_hundred_hosts_of_eight_gpus_are_looked_at_once_a_container_at_most():
    """What a plan does of a full fleet stays linear: every GPU is looked at a small number of times."""
    fleet = [
        facts.host(
            f"h{number}",
            gpus=8,
            containers=[
                facts.container(f"c{number}-{at}", devices=[f"GPU-h{number}-{at}"]) for at in range(8)
            ],
        )
        for number in range(200)
    ]
    room = find(fleet)
    assert (len(room.free), len(room.taken)) == (0, 1600)


def test_a_process_or_memory_without_an_owner_takes_a_gpu():
    gpus = [facts.gpu("a", 0, processes=[facts.process(7)]), facts.gpu("a", 1, used=2048), facts.gpu("a", 2)]
    room = find([facts.host("a", gpus=gpus)])
    assert [slot.index for slot in room.free] == [2]
    assert "process 7" in reasons(room)["GPU 0"]
    assert "2048 MiB" in reasons(room)["GPU 1"]


def test_unknown_is_never_free():
    unread = Unknown("no answer")
    gpus = [
        facts.gpu("a", 0, processes=unread),
        facts.gpu("a", 1, memory_used_mib=unread),
        facts.gpu(
            "a",
            2,
            mig=MigFact(
                capable=Known(True), current=unread, pending=unread, instances=unread, gpu_instances=unread
            ),
        ),
    ]
    room = find([facts.host("a", gpus=gpus)])
    assert not room.free
    assert len(room.taken) == 3
    assert all("no answer" in taken.reason for taken in room.taken)
    for changes in ({"gpus": unread}, {"containers": unread}):
        room = find([facts.host("a", **changes)])
        assert not room.free
        assert "no answer" in room.taken[0].reason


def test_a_gpu_in_mig_mode_gives_its_slices_alone():
    instances = [facts.mig_slice("a", 0, 0), facts.mig_slice("a", 0, 1)]
    used = facts.container("other", devices=["MIG-a-0-1"])
    room = find([facts.host("a", gpus=[facts.gpu("a", 0, instances=instances)], containers=[used])])
    assert [(slot.device, slot.profile, slot.gpu) for slot in room.free] == [
        ("MIG-a-0-0", "3g.40gb", "GPU-a-0")
    ]
    assert reasons(room) == {"slice 3g.40gb of GPU 0": "container other holds it"}


def test_a_process_takes_its_slice_and_an_unplaced_one_all():
    instances = [facts.mig_slice("a", 0, 0), facts.mig_slice("a", 0, 1)]
    one = find(
        [facts.host("a", gpus=[facts.gpu("a", 0, instances=instances, processes=[facts.process(5, gi=2)])])]
    )
    assert [slot.device for slot in one.free] == ["MIG-a-0-0"]
    unplaced = find(
        [facts.host("a", gpus=[facts.gpu("a", 0, instances=instances, processes=[facts.process(5)])])]
    )
    assert not unplaced.free


def test_released_containers_give_their_gpu_back():
    old = facts.container("old", devices=["GPU-a-0"])
    busy = facts.host(
        "a", gpus=[facts.gpu("a", 0, used=70000, processes=[facts.process(9)])], containers=[old]
    )
    assert not find([busy]).free
    assert [slot.index for slot in find([busy], frozenset({old.id})).free] == [0]


def test_ports_skip_listeners_and_every_container():
    stopped = facts.container("old", state="exited", ports=[8001])
    ports = free_ports(facts.host("a", containers=[stopped], listening=(22, 8000)), 8000, 8003)
    assert ports == (8002, 8003)
    assert isinstance(free_ports(facts.host("a", listening=()), 8000, 8001), tuple)
    unread = free_ports(facts.host("a", containers=[], gpus=1), 8000, 8001)
    assert unread == (8000, 8001)


def test_unread_ports_are_no_free_ports():
    host = replace(facts.host("a"), listening=Unknown("x"))
    assert isinstance(free_ports(host, 8000, 8001), Unknown)


def cdi(devices, **changes):
    runtime = facts.host("a").runtime
    assert isinstance(runtime, Known)
    fact = replace(runtime.value, kind="podman", **changes)
    return find([facts.host("a", runtime=Known(fact), cdi_devices=devices)])


def test_what_the_cdi_specification_does_not_name_is_not_used_where_cdi_hands_out_gpus():
    room = cdi(Known(("nvidia.com/gpu=0", "nvidia.com/gpu=GPU-a-1")))
    assert [slot.index for slot in room.free] == [1]
    assert "nvidia-ctk cdi generate" in reasons(room)["GPU 0"]
    assert not cdi(Unknown("no answer")).free
    docker = find([facts.host("a", cdi_devices=Known(()))])
    assert len(docker.free) == 2
