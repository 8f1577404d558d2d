"""The simulated nvidia-smi changes GPUs as the real one does, in its words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.hosts.model import Known
from gpufleet.hosts.probes.nvidia_smi import parse_gpu_instances, parse_listing
from gpufleet.lab.fleet import HostWish, LabHost, build_fleet
from gpufleet.lab.gpus.simgpu import Mishap
from gpufleet.mig.boards import BOARDS
from gpufleet.mig.geometry import is_legal
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
