"""`gpufleet mig` on simulated hosts behind a real SSH server, and offline."""

from __future__ import annotations

import json
import os

import pytest

from gpufleet.cli.app import main
from gpufleet.clock import SystemClock
from gpufleet.hosts.model import Known
from gpufleet.hosts.probes.mig_tables import parse_profiles
from gpufleet.lab.fleet import HostWish, build_fleet
from gpufleet.lab.gpus.kernel_files import add_service
from gpufleet.lab.lab_files import LabFolder
from gpufleet.lab.memory import MemoryTransport
from gpufleet.lab.sshd import LabServer
from gpufleet.names import HostName
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit
from tests.kit.lab_kit import own_network


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    network = own_network(3)
    wishes = [
        HostWish(
            name="cut",
            address=f"{network}.1",
            gpus="2xH100-80GB",
            layouts={0: ("1g.10gb:0", "1g.10gb:1", "1g.10gb+me:5")},
        ),
        HostWish(name="whole", address=f"{network}.2", gpus="1xL40S-48GB"),
        HostWish(name="old", address=f"{network}.3", gpus="1xA100-80GB"),
    ]
    with LabServer(build_fleet(wishes, SystemClock()), LabFolder(tmp_path_factory.mktemp("lab"))) as server:
        yield server


@pytest.fixture
def run(lab, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    for name in [name for name in os.environ if name.startswith("GPUFLEET")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    hosts = "".join(f"  {one.name}: {{address: {one.host.address}, port: {lab.port}}}\n" for one in lab.fleet)
    (tmp_path / "inventory.yaml").write_text(
        f"version: 1\ndefaults:\n  user: ops\n  identity_file: {lab.folder.key}\n"
        f"  known_hosts: {lab.folder.known_hosts}\n  ssh_config: {lab.folder.ssh_config}\nhosts:\n{hosts}"
    )

    def call(*words: str) -> tuple[int, str, str]:
        code = main([*words, "--no-input", "--state-dir", "state"])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_profiles_are_the_hosts_own(run):
    code, out, _ = run("mig", "profiles", "cut:0", "-o", "json")
    assert code == 0
    (gpu,) = json.loads(out)["gpus"]
    offered = {one["name"]: one for one in gpu["profiles"]}
    assert offered["1g.10gb"]["free"] == 4
    assert offered["1g.10gb+me"]["free"] == 0
    assert offered["3g.40gb"] == {
        "name": "3g.40gb",
        "id": 9,
        "memory_gib": 39.5,
        "free": 0,
        "total": 2,
        "engines": {"sm": 60, "copy": 3, "decoders": 3, "encoders": 0, "jpeg": 3, "optical_flow": 0},
        "placements": [{"start": 0, "size": 4}, {"start": 4, "size": 4}],
    }


def test_free_counts_are_those_of_the_hosts_table(run, lab):
    session = MemoryTransport(lab.fleet).open(HostName("cut"))
    said = session.run(Command(argv=("nvidia-smi", "mig", "-i", "0", "-lgip"), mutates=False))
    assert isinstance(said, Exit)
    printed = parse_profiles(said.stdout)
    assert isinstance(printed, Known)
    _, out, _ = run("mig", "profiles", "cut:0", "-o", "json")
    ours = {one["name"]: one["free"] for one in json.loads(out)["gpus"][0]["profiles"]}
    assert ours == {row.name: row.free for row in printed.value}


def test_show_is_a_picture(run):
    code, out, err = run("mig", "show")
    assert code == 0
    assert "cut:0" in out
    assert "MIG on" in out
    assert "|-1g.10gb-|-1g.10gb-|.........|" in out
    assert "nobody" in out
    assert "whole:0: NVIDIA L40S cannot be cut into slices" in err


def test_show_as_json(run):
    _, out, _ = run("mig", "show", "cut:all", "whole", "-o", "json")
    first, second, third = json.loads(out)["gpus"]
    assert [(one["profile"], one["start"], one["size"]) for one in first["slices"]] == [
        ("1g.10gb", 0, 1),
        ("1g.10gb", 1, 1),
        ("1g.10gb+me", 5, 1),
    ]
    assert (first["current"], second["current"]) == (True, False)
    assert third["status"] == "unknown"
    assert "cannot be cut" in third["reason"]


def test_a_plan_touches_as_little_as_can_be(run):
    code, out, _ = run("mig", "plan", "cut:0", "--add", "3g.40gb", "-o", "json")
    answer = json.loads(out)
    assert (code, answer["outcome"], answer["fits"]) == (0, "changes", True)
    assert answer["destroy"] == [{"profile": "1g.10gb+me", "start": 5, "size": 1}]
    assert {"profile": "3g.40gb", "start": 4, "size": 4} in answer["create"]
    assert (answer["mode_change"], answer["needs_reset"]) == (False, False)
    assert all(
        words[:3] == ["nvidia-smi", "mig", "-i"] and words[3].startswith("GPU-")
        for words in answer["commands"]
    )
    assert [words[-1] for words in answer["commands"]] == ["-dci", "-dgi", "-C", "-C"]


def test_what_is_there_is_no_change(run):
    code, out, _ = run("mig", "plan", "cut:0", "--layout", "2x1g.10gb,1g.10gb+me", "-o", "json")
    assert (code, json.loads(out)["outcome"]) == (0, "no_change")


def test_turning_mig_on_says_what_it_takes(run):
    code, out, _ = run("mig", "plan", "old:0", "--layout", "2x3g.40gb", "-o", "json")
    answer = json.loads(out)
    assert (code, answer["mode_change"], answer["needs_reset"]) == (0, True, True)
    assert answer["commands"][0][-2:] == ["-mig", "1"]
    _, text, _ = run("mig", "plan", "cut:1", "--layout", "whole")
    assert "MIG is turned on; everything on the GPU ends" in text


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("cut:0", "--layout", "3x3g.40gb"), 4, "at most 2 of 3g.40gb"),
        (("cut:0", "--layout", "3g.39gb"), 4, "did you mean 3g.40gb"),
        (("cut:7", "--layout", "whole"), 2, "its GPUs: cut:0, cut:1"),
        (("cut", "--layout", "whole"), 2, "names 2 GPUs"),
        (("nobody:0", "--layout", "whole"), 2, "nobody"),
        (("whole:0", "--layout", "whole"), 4, "cannot be cut into slices"),
        (("cut:", "--layout", "whole"), 2, "HOST:INDEX"),
        (("cut:0",), 2, "--layout"),
        (("cut:0", "--model", "H100-80GB", "--layout", "whole"), 2, "--model"),
        (("--model", "H900", "--layout", "whole"), 2, "no board is called"),
        (("--model", "A100-40GB", "--layout", "2x>=19gib,1g.5gb"), 4, "memory slots"),
    ],
)
def test_wishes_that_cannot_be_had(run, words, code, said):
    ended, out, err = run("mig", "plan", *words, "-o", "json")
    assert ended == code
    answer = json.loads(out)
    assert answer["exit"] == code
    assert answer["error"]["hints"]
    assert said in json.dumps(answer["error"])
    assert "Traceback" not in err


def test_a_plan_tells_who_stands_in_the_way(run, lab):
    host = lab.fleet["old"]
    add_service(host.host, host.gpus, "nvidia-dcgm")
    add_service(host.host, host.gpus, "nvidia-persistenced", handles=False)
    host.host.parts["modules"].add_drm(uses=2)
    stranger = host.host.spawn("root", "python3")
    host.host.hold_open(stranger, ["/dev/nvidia0"])
    try:
        code, out, _ = run("mig", "plan", "old:0", "--layout", "2x3g.40gb", "-o", "json")
        answer = json.loads(out)
        assert (code, answer["services"], answer["unknown"]) == (
            0,
            ["nvidia-dcgm", "nvidia-persistenced"],
            [],
        )
        assert [one["kind"] for one in answer["blockers"]] == ["module", "process"]
        assert f"pid {stranger} (python3)" in answer["blockers"][1]["reason"]
        _, text, _ = run("mig", "plan", "old:0", "--layout", "2x3g.40gb")
        assert "stops   nvidia-dcgm, nvidia-persistenced, and starts them again" in text
        assert "in the way: the kernel module nvidia_drm is in use 2 times" in text
    finally:
        host.host.finish(stranger)
        host.host.change_service("nvidia-dcgm", active=False)
        host.host.change_service("nvidia-persistenced", active=False)
        host.host.parts["modules"].loaded.pop("nvidia_drm")
    _, out, _ = run("mig", "plan", "old:0", "--layout", "2x3g.40gb", "-o", "json")
    assert (json.loads(out)["services"], json.loads(out)["blockers"]) == ([], [])


def test_what_only_root_may_see_is_not_taken_for_nothing(run, lab, tmp_path):
    file = tmp_path / "inventory.yaml"
    file.write_text(file.read_text().replace("  user: ops\n", "  user: ops\n  become: never\n"))
    _, out, _ = run("mig", "plan", "old:0", "--layout", "2x3g.40gb", "-o", "json")
    assert any("root alone" in line for line in json.loads(out)["unknown"])


def test_offline_plans_need_no_inventory(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["mig", "plan", "--model", "a30-24gb", "--layout", "balanced", "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["profile"] for one in answer["create"]] == ["1g.6gb", "1g.6gb", "2g.12gb"]
    assert main(["mig", "plan", "--model", "B200-180GB", "--layout", "half"]) == 0
    assert "nobody has printed the placements" in capsys.readouterr().err


def test_layouts_from_a_file(run, tmp_path):
    (tmp_path / "layouts.yaml").write_text(
        "layouts:\n  one: 7g.80gb\n  other: {board: A100, slices: 7g.80gb}\n"
    )
    code, out, _ = run("mig", "plan", "cut:0", "-f", "layouts.yaml", "--layout", "one", "-o", "json")
    assert (code, len(json.loads(out)["destroy"])) == (0, 3)
    code, out, _ = run("mig", "plan", "cut:0", "-f", "layouts.yaml", "--layout", "other", "-o", "json")
    assert code == 4
    assert "this GPU is NVIDIA H100" in json.loads(out)["error"]["message"]
    assert run("mig", "plan", "cut:0", "-f", "nothing.yaml", "--layout", "one")[0] == 2
    assert run("mig", "plan", "cut:0", "-f", "layouts.yaml", "--add", "one")[0] == 2


def test_layouts_for_mig_parted(run, tmp_path):
    code, out, _ = run("mig", "show", "cut", "--mig-parted")
    assert code == 0
    (tmp_path / "parted.yaml").write_text(out)
    code, out, _ = run("mig", "plan", "cut:0", "-f", "parted.yaml", "--layout", "current", "-o", "json")
    assert (code, json.loads(out)["outcome"]) == (0, "no_change")
    assert run("mig", "show", "--mig-parted")[0] == 2


def test_a_plan_names_the_move_that_makes_room(run):
    _, out, _ = run("mig", "plan", "cut:0", "--add", "3g.40gb", "-o", "json")
    assert json.loads(out)["moved"] == [{"profile": "1g.10gb+me", "from": 5, "to": 2}]
    _, text, _ = run("mig", "plan", "cut:0", "--add", "3g.40gb")
    assert "this move makes room: 1g.10gb+me:5 to 2" in text


def test_slices_by_their_memory_and_presets_on_a_host(run):
    for wish, made in (
        ("2x>=19gib", ["1g.20gb", "1g.20gb"]),
        ("balanced", ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]),
        ("all-smallest", ["1g.10gb"] * 7),
        ("half", ["3g.40gb", "3g.40gb"]),
        ("whole", ["7g.80gb"]),
    ):
        code, out, _ = run("mig", "plan", "cut:1", "--layout", wish, "-o", "json")
        assert (code, sorted(one["profile"] for one in json.loads(out)["create"])) == (0, made), wish
    code, out, _ = run("mig", "plan", "cut:1", "--layout", "1x>=100gib", "-o", "json")
    assert code == 2
    assert "the largest holds 79.25 GiB" in json.dumps(json.loads(out)["error"])


@pytest.mark.parametrize(
    ("devices", "index", "code", "said"),
    [
        ("7", 0, 2, "write a list: [7]"),
        ("[1]", 0, 2, "no entry for GPU 0"),
        ("[0]", 0, 0, ""),
        ("all", 1, 0, ""),
    ],
)
def test_configurations_of_mig_parted_come_in(run, tmp_path, devices, index, code, said):
    (tmp_path / "parted.yaml").write_text(
        f"version: v1\nmig-configs:\n  small:\n    - devices: {devices}\n"
        '      mig-enabled: true\n      mig-devices: {"1g.10gb": 7}\n'
    )
    words = ("mig", "plan", f"cut:{index}", "-f", "parted.yaml", "--layout", "small", "-o", "json")
    ended, out, _ = run(*words)
    assert ended == code, out
    assert said in out
