"""What cannot be done to a GPU ends with exit code 4 or 8 and the fix, and nothing was changed: `mig plan` and `mig reconfigure`."""

from __future__ import annotations

import json

import pytest

from gpufleet.lab.fleet import HostWish, build_fleet
from tests.kit.lab_kit import LabClock
from tests.kit.pool_desk import Desk

CUT = ("1g.10gb:0", "1g.10gb:1", "3g.40gb:4")
LAYOUTS = "layouts:\n  chat: {board: A100, slices: 2x3g.40gb}\n"
PARTED = (
    'version: v1\nmig-configs:\n  chat: [{devices: all, mig-enabled: true, mig-devices: {"1g.24gb": 7}}]\n'
)


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    wishes = [
        HostWish(name="gpu-01", address="127.77.0.1", gpus="2xH100-80GB", layouts={0: CUT}),
        HostWish(name="gpu-02", address="127.77.0.2", gpus="1xL40S-48GB"),
    ]
    made = Desk(tmp_path, monkeypatch, capsys, fleet=build_fleet(wishes, LabClock()))
    (tmp_path / "layouts.yaml").write_text(LAYOUTS)
    (tmp_path / "parted.yaml").write_text(PARTED)
    monkeypatch.chdir(tmp_path)
    return made


def fallen_off_the_bus(lab):
    lab.gpus.gpus[0].fault = "lost"


def needs_a_reset(lab):
    lab.gpus.gpus[0].fault = "requires reset"


def pending_of_somebody(lab):
    lab.gpus.gpus[0].pending = False


def driver_mismatch(lab):
    lab.gpus.trouble = "mismatch"


def driver_down(lab):
    lab.gpus.trouble = "no-driver"


def nothing(lab):
    assert lab.gpus.gpus


BAD = {
    "unknown profile": (nothing, "gpu-01:0", ("--layout", "3g.39gb"), 4, "did you mean 3g.40gb"),
    "unknown profile in a file": (
        nothing, "gpu-01:0", ("--layout", "chat", "-f", "parted.yaml"), 4, "did you mean 1g.10gb",
    ),
    "too many slices": (nothing, "gpu-01:0", ("--layout", "3x3g.40gb"), 4, "this much fits: --layout 3g.40gb,3g.40gb"),
    "a GPU without MIG": (nothing, "gpu-02:0", ("--layout", "half"), 4, "this GPU cannot be cut"),
    "a layout for another board": (
        nothing, "gpu-01:0", ("--layout", "chat", "-f", "layouts.yaml"), 4, "name a layout for this board",
    ),
    "mode pending": (pending_of_somebody, "gpu-01:0", ("--layout", "half"), 8, "take it back: sudo nvidia-smi -i GPU-"),
    "driver mismatch": (driver_mismatch, "gpu-01:0", ("--layout", "half"), 4, "reboot the host"),
    "driver down": (driver_down, "gpu-01:0", ("--layout", "half"), 4, "modprobe nvidia"),
    "fallen off the bus": (fallen_off_the_bus, "gpu-01:0", ("--layout", "half"), 4, "until it is reset or the host rebooted"),
    "needs a reset": (needs_a_reset, "gpu-01:0", ("--layout", "half"), 4, "until it is reset or the host rebooted"),
}  # fmt: skip


def state(lab):
    """What must not change: modes, slices and containers."""
    return [
        (gpu.mig, gpu.pending, [(one.gi, one.profile.name, one.start) for one in gpu.instances])
        for gpu in lab.gpus.gpus
    ], sorted(lab.containers.containers)


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_had_is_refused_with_the_fix(desk, name):
    break_it, gpu, words, code, said = BAD[name]
    lab = desk.fleet[gpu.partition(":")[0]]
    break_it(lab)
    before = state(lab)
    for verb in (("plan",), ("reconfigure", "--yes")):
        answer = desk.json("mig", verb[0], gpu, *words, *verb[1:])
        assert answer["exit"] == code, (verb, answer)
        assert said in json.dumps(answer["error"]), verb
        assert answer["error"]["hints"]
    assert state(lab) == before


def test_a_gpu_that_is_busy_without_a_process_that_nvidia_smi_shows(desk):
    lab = desk.fleet["gpu-01"]
    stranger = lab.host.spawn("root", "leaky-monitor")
    lab.host.hold_open(stranger, ["/dev/nvidia1"])
    before = state(lab)
    answer = desk.json("mig", "plan", "gpu-01:1", "--layout", "half")
    assert f"pid {stranger} (leaky-monitor)" in json.dumps(answer["blockers"])
    answer = desk.json("mig", "reconfigure", "gpu-01:1", "--layout", "half", "--yes")
    assert answer["exit"] == 8
    assert f"pid {stranger} (leaky-monitor)" in json.dumps(answer["error"])
    assert answer["error"]["hints"]
    assert state(lab) == before


def test_a_handle_that_nobody_can_see_leaves_everything_as_it_was(desk):
    """No file is open and no process listed: only the first try tells, and it is taken back."""
    lab = desk.fleet["gpu-01"]
    lab.gpus.clients[lab.gpus.gpus[0].uuid] = "dcgm"
    before = state(lab)
    answer = desk.json("mig", "reconfigure", "gpu-01:0", "--layout", "half", "--yes")
    assert (answer["exit"], answer["outcome"]) == (9, "rolled_back")
    assert "In use by another client" in json.dumps(answer["error"])
    assert state(lab) == before


def test_without_sudo_no_slice_is_taken_for_free_room(desk):
    path = desk.path / "inventory.yaml"
    path.write_text(path.read_text().replace("127.77.0.1}", "127.77.0.1, become: never}"))
    lab = desk.fleet["gpu-01"]
    before = state(lab)
    for verb in (("plan",), ("reconfigure", "--yes")):
        answer = desk.json("mig", verb[0], "gpu-01:0", "--layout", "half", *verb[1:])
        assert answer["exit"] == 4
        assert "sudo -n" in json.dumps(answer["error"]["hints"])
    assert state(lab) == before
