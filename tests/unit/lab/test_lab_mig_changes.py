"""The simulated nvidia-smi changes GPUs as the real one does, in its words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.hosts.model import Known, Unknown
from gpufleet.hosts.probes.mig_tables import parse_profiles
from gpufleet.hosts.probes.nvidia_smi import parse_gpu_instances, parse_listing
from gpufleet.lab.faults import Fault, FaultScript, Kind
from gpufleet.lab.fleet import HostWish, LabHost, build_fleet
from gpufleet.lab.gpus import mishaps
from gpufleet.lab.gpus.mig_changes import IN_USE
from gpufleet.lab.gpus.simgpu import Mishap
from gpufleet.mig.boards import BOARDS
from gpufleet.mig.geometry import is_legal
from gpufleet.mig.messages import Said, Verb, judge
from gpufleet.mig.model import Placed
from tests.kit.lab_kit import LabClock

CAPTURES = Path(__file__).parents[4] / "shared" / "fixtures" / "mig"


def lab(gpus: str = "1xH100-80GB", **more) -> LabHost:
    return build_fleet([HostWish(**{"name": "gpu-01", "gpus": gpus, **more})], LabClock())["gpu-01"]


def smi(host: LabHost, words: str, *, user: str = "root", code: int = 0) -> str:
    ended = host.sh(f"nvidia-smi {words}", user=user)
    assert ended.code == code, ended
    return ended.stdout.decode()


def places(host: LabHost) -> list[str]:
    text = host.sh("nvidia-smi mig -lgi", user="root").stdout.decode()
    rows = parse_gpu_instances(text)
    assert isinstance(rows, Known), text
    return [f"{row.profile}:{row.start}" for row in rows.value]


def same(capture: str, text: str) -> None:
    """Equal to a captured output, apart from bus ids and blanks that pastes collapse."""
    path = CAPTURES / f"{capture}.txt"
    if path.exists():
        assert shape(text) == shape(path.read_text())


def shape(text: str) -> list[str]:
    text = re.sub(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.\d", "BUS", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_the_life_of_a_layout():
    host = lab(driver="550.54.14")
    same("h100-80gb-57col.mig1", smi(host, "-i 0 -mig 1"))
    same("h100-80gb-57col.cgi-7x1g", smi(host, f"mig -i 0 -cgi {','.join(['19'] * 7)} -C"))
    assert places(host) == [f"1g.10gb:{at}" for at in range(7)]
    assert len(parse_listing(smi(host, "-L")).gpus[0].slices) == 7
    same("h100-80gb-57col.dci", smi(host, "mig -dci"))
    assert parse_listing(smi(host, "-L")).gpus[0].slices == ()
    assert places(host) == [f"1g.10gb:{at}" for at in range(7)]
    same("h100-80gb-57col.dgi", smi(host, "mig -dgi"))
    assert places(host) == []
    same("h100-80gb-57col.mig0", smi(host, "-i 0 -mig 0"))


def test_the_order_decides_without_explicit_starts():
    host = lab("1xA100-40GB", layouts={0: ()})
    text = smi(host, "mig -i 0 -cgi 19,19,14,9", code=23)
    same("a100-40gb.cgi-order-insufficient", text)
    assert len(places(host)) == 3  # what was made before the failure stays
    smi(host, "mig -dgi")
    smi(host, "mig -i 0 -cgi 9,19,14,19")
    smi(host, "mig -dgi")
    text = smi(host, "mig -i 0 -cgi 3g.20gb,3g.20gb,1g.5gb", code=23)
    same(
        "a100-40gb.cgi-two-3g-then-1g",
        text.replace("ID  1", "ID x").replace("ID  2", "ID 1").replace("ID x", "ID 2"),
    )


def test_explicit_starts_and_names():
    host = lab(layouts={0: ()})
    smi(host, "mig -i 0 -cgi 3g.40gb:4 -C")
    smi(host, "mig -i 0 -cgi 1g.10gb+me:1 -C")
    assert places(host) == ["1g.10gb+me:1", "3g.40gb:4"]
    text = smi(host, "mig -i 0 -cgi 7g.40gb", code=2)
    same("invalid-profile-name.cgi", text)
    assert "Invalid Argument" in text
    smi(host, "mig -i 0 -cgi 3g.40gb:4", code=23)


def test_old_drivers_print_no_ids():
    host = lab("1xA100-40GB", layouts={0: ()}, driver="450.80.02")
    same("a100-40gb-r450.cgi-no-ids", smi(host, "mig -cgi 9,9"))


def test_instances_go_after_their_compute_instances_and_not_under_a_process():
    host = lab(layouts={0: ("2g.20gb:0", "1g.10gb:4")})
    first = host.gpus.gpus[0].instances[0]
    text = smi(host, f"mig -i 0 -gi {first.gi} -dgi", code=19)
    same("rtxpro6000-server.dgi-before-dci", text)
    host.gpus.clients[host.gpus.gpus[0].uuid] = "dcgm"
    assert "In use by another client" in smi(host, f"mig -i 0 -gi {first.gi} -ci 0 -dci", code=19)
    host.gpus.clients.clear()
    smi(host, f"mig -i 0 -gi {first.gi} -ci 0 -dci")
    smi(host, f"mig -i 0 -gi {first.gi} -dgi")
    assert places(host) == ["1g.10gb:4"]
    assert "Not Found" in smi(host, f"mig -i 0 -gi {first.gi} -dgi", code=6)


def test_without_a_gpu_every_gpu_is_meant():
    host = lab("2xH100-80GB", layouts={0: ("1g.10gb:0",), 1: ("1g.10gb:0",)})
    smi(host, "mig -dci")
    smi(host, "mig -dgi")
    assert [gpu.instances for gpu in host.gpus.gpus] == [[], []]


def test_modes_of_two_generations():
    busy = lab("1xA100-40GB")
    busy.gpus.clients[busy.gpus.gpus[0].uuid] = "nvidia-persistenced"
    same("dgx-a100.mig1-pending-in-use", smi(busy, "-i 0 -mig 1"))
    row = smi(busy, "--query-gpu=mig.mode.current,mig.mode.pending --format=csv,noheader")
    assert row.strip() == "Disabled, Enabled"
    same("a100.gpu-reset-in-use", "\n".join(smi(busy, "-i 0 --gpu-reset", code=255).splitlines()))
    busy.gpus.clients.clear()
    assert "was successfully reset" in smi(busy, "-i 0 --gpu-reset")
    assert busy.gpus.gpus[0].mig
    virtual = lab("1xA100-40GB")
    virtual.gpus.passthrough = True
    same("a100-passthrough-vm.mig1-pending-not-supported", smi(virtual, "-i 0 -mig 1"))
    same("a100-passthrough-vm.gpu-reset-not-supported", smi(virtual, "-i 0 -r", code=3))
    later = lab(layouts={0: ("1g.10gb:0",)})
    assert "In use by another client" in smi(later, "-i 0 -mig 0", code=19)
    assert "Treating as warning" in smi(lab("1xL40S-48GB"), "-i 0 -mig 1")


@pytest.mark.parametrize(
    "words", ["-i 0 -mig 1", "-i 0 -r", "mig -i 0 -cgi 19 -C", "mig -i 0 -dci", "mig -i 0 -dgi"]
)
def test_changes_are_for_root(words):
    host = lab(layouts={0: ("1g.10gb:0",)})
    assert "Insufficient Permissions" in smi(host, words, user="ops", code=4)
    assert places(host) == ["1g.10gb:0"]


def test_mishaps_by_script():
    host = lab(layouts={0: ()})
    host.gpus.mishaps += [
        Mishap("-cgi", "lie"),
        Mishap("-cgi", "Unknown Error", skip=1),
        Mishap("-cgi", "Insufficient Resources"),
    ]
    assert "Successfully created" in smi(host, "mig -i 0 -cgi 1g.10gb:0 -C")
    assert places(host) == []
    assert "Successfully created" in smi(host, "mig -i 0 -cgi 1g.10gb:0 -C")
    assert "Unknown Error" in smi(host, "mig -i 0 -cgi 1g.10gb:1 -C", code=255)
    assert "Insufficient Resources" in smi(host, "mig -i 0 -cgi 1g.10gb:1 -C", code=23)
    assert places(host) == ["1g.10gb:0"]
    assert host.gpus.mishaps == []


def test_half_an_instance_and_a_header_above_an_error():
    host = lab(layouts={0: ("1g.10gb:0",)})
    host.strike(Fault(kind=Kind.GPU_MISHAP, host="gpu-01", detail="-cgi half"))
    host.strike(Fault(kind=Kind.GPU_MISHAP, host="gpu-01", detail="-lgip Unknown Error"))
    said = smi(host, "mig -i 0 -cgi 2g.20gb:2 -C", code=19)
    verdict = judge(Verb.CREATE, said, 19)
    assert (verdict.said, verdict.partial) == (Said.REFUSED, True)
    assert places(host) == ["1g.10gb:0", "2g.20gb:2"]
    assert len(parse_listing(smi(host, "-L")).gpus[0].slices) == 1
    said = smi(host, "mig -lgip", code=255)
    assert said.splitlines()[-2].startswith("|=")
    assert isinstance(parse_profiles(said), Unknown)
    assert isinstance(parse_profiles(smi(host, "mig -lgip")), Known)


def test_a_broken_gpu_does_no_work_and_the_others_do():
    host = lab("2xH100-80GB", layouts={1: ()})
    host.strike(Fault(kind=Kind.GPU_FAULT, host="gpu-01", detail="0 lost"))
    listed = parse_listing(smi(host, "-L"))
    assert [one.index for one in listed.gpus] == [1]
    assert "GPU is lost" in listed.other_lines[0]
    verdict = judge(Verb.MODE, smi(host, "-i 0 -mig 1", code=15), 15)
    assert (verdict.id, verdict.said) == ("gpu-faulted", Said.REFUSED)
    host.strike(Fault(kind=Kind.GPU_FAULT, host="gpu-01", detail="1 requires reset"))
    assert "GPU requires reset" in smi(host, "mig -i 1 -cgi 1g.10gb:0 -C", code=16)
    assert "[GPU requires reset]" in smi(host, "--query-gpu=mig.mode.current --format=csv,noheader")
    smi(host, "-i 1 --gpu-reset")
    smi(host, "mig -i 1 -cgi 1g.10gb:0 -C")  # the mode outlives a reset
    for detail in ("0 tired", "first lost"):
        with pytest.raises(ValueError, match="`"):
            host.strike(Fault(kind=Kind.GPU_FAULT, host="gpu-01", detail=detail))


def test_handles_of_a_monitor_keep_one_slice_or_the_whole_gpu():
    host = lab(layouts={0: ("1g.10gb:0", "1g.10gb:1")})
    first, second = host.gpus.gpus[0].instances
    host.gpus.clients[first.uuid] = "dcgm-exporter"
    assert IN_USE in smi(host, f"mig -i 0 -gi {first.gi} -ci 0 -dci", code=19)
    smi(host, f"mig -i 0 -gi {second.gi} -ci 0 -dci")
    host.strike(Fault(kind=Kind.GPU_CLIENT, host="gpu-01", detail="0"))
    assert IN_USE in smi(host, f"mig -i 0 -gi {second.gi} -dgi", code=19)
    host.strike(Fault(kind=Kind.GPU_CLIENT, host="gpu-01", detail="0 off"))
    smi(host, f"mig -i 0 -gi {second.gi} -dgi")


@pytest.mark.parametrize("text", ["-cgi", "-cgi bad luck", "-L lie", "-cgi lie/x", ""])
def test_what_is_no_mishap_is_named(text):
    with pytest.raises(ValueError, match="write VERB EFFECT"):
        mishaps.parse(text)


def test_mishaps_drawn_by_a_seed_can_be_written_and_read():
    script = FaultScript.random(7, ["gpu-01"], most=40, kinds=[Kind.GPU_MISHAP])
    read = [mishaps.parse(fault.detail) for fault in script.faults]
    assert [f"{one.verb} {one.effect}/{one.skip}" for one in read] == [
        fault.detail for fault in script.faults
    ]
    numbers = iter([1, 0, 4, 3, 2])
    assert mishaps.told(mishaps.drawn(lambda _: next(numbers))) == (
        "-cgi In use by another client/3; -cgi half/2"
    )


@pytest.mark.parametrize("board", ["A30-24GB", "RTX-PRO-6000-96GB"])
def test_ids_and_counts_of_boards_with_four_slices(board):
    host = lab(f"1x{board}", layouts={0: ()})
    mine = host.gpus.gpus[0].board
    half, quarter = next(one for one in mine.profiles if one.slices == 2), mine.profiles[0]
    smi(host, f"mig -i 0 -cgi {half.name}:{half.starts[1]} -C")
    smi(host, f"mig -i 0 -cgi {quarter.name}:{quarter.starts[0]},{quarter.name}:{quarter.starts[1]} -C")
    assert [one.gi for one in host.gpus.gpus[0].instances] == [2, 3, 4]  # as captured on an A30
    assert all(one.free == 0 for one in known(parse_profiles(smi(host, "mig -lgip"))))


def test_one_slice_has_the_media_engines():
    host = lab("1xRTX-PRO-6000-96GB", layouts={0: ("1g.24gb+me.all:0",)})
    free = {one.name: one.free for one in known(parse_profiles(smi(host, "mig -lgip")))}
    assert (free["1g.24gb+me"], free["2g.48gb+me.all"], free["1g.24gb"]) == (0, 0, 3)


def test_free_counts_of_the_planner_vectors():
    path = CAPTURES.parents[1] / "facts" / "mig" / "planner_vectors.yaml"
    if not path.exists():
        pytest.skip(f"{path.name} is not beside this checkout")
    for vector in yaml.safe_load(path.read_text(encoding="utf-8"))["vectors"]:
        board = next(key for key in BOARDS if key.lower() == vector["gpu"])
        there = tuple(f"{one['name']}:{one['start']}" for one in vector["existing"])
        table = known(parse_profiles(smi(lab(f"1x{board}", layouts={0: there}), "mig -lgip")))
        free = vector["free_reported_by_nvidia_smi"]
        assert {one.id: one.free for one in table if one.id in free} == free, vector["from"]


def known(fact):
    assert isinstance(fact, Known), fact
    return fact.value


@given(
    st.lists(
        st.tuples(st.sampled_from([one.name for one in BOARDS["H100-80GB"].profiles]), st.integers(0, 7)),
        max_size=9,
    )
)
def test_what_the_double_holds_is_always_legal(wishes):
    host = lab(layouts={0: ()})
    for name, start in wishes:
        host.sh(f"nvidia-smi mig -i 0 -cgi {name}:{start} -C", user="root")
    held = [Placed(one.start, one.profile.size, one.profile.name) for one in host.gpus.gpus[0].instances]
    assert is_legal(BOARDS["H100-80GB"], held)
