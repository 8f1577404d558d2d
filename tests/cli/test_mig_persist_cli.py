"""`gpufleet mig persist` on simulated hosts behind a real SSH server: keep, lose, bring back, forget."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from gpufleet.cli.app import main
from gpufleet.clock import SystemClock
from gpufleet.lab.fleet import HostWish, LabHost, build_fleet
from gpufleet.lab.gpus import cdi
from gpufleet.lab.lab_files import LabFolder
from gpufleet.lab.sshd import LabServer
from gpufleet.mig import boot_unit
from tests.kit.lab_kit import own_network

CUT = {"cut": ("3g.40gb:4", "1g.10gb+me:0"), "old": ("3g.40gb:0", "3g.40gb:4")}
IMAGE = "vllm/vllm-openai:v0.20.0"


@pytest.fixture
def lab(tmp_path):
    network = own_network(2)
    wishes = [
        HostWish(
            name="cut", address=f"{network}.1", gpus="2xH100-80GB", layouts={0: CUT["cut"]}, images=(IMAGE,)
        ),
        HostWish(
            name="old", address=f"{network}.2", gpus="1xA100-80GB", layouts={0: CUT["old"]}, images=(IMAGE,)
        ),
    ]
    with LabServer(build_fleet(wishes, SystemClock()), LabFolder(tmp_path / "lab")) as server:
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

    def call(*words: str) -> tuple[int, dict[str, Any], str]:
        code = main([*words, "-o", "json", "--yes", "--state-dir", "state"])
        said = capsys.readouterr()
        return code, json.loads(said.out), said.err

    return call


def boot(host: LabHost) -> None:
    with host.lock:
        host.power_on()


def places(host: LabHost, index: int = 0) -> set[str]:
    return {f"{one.profile.name}:{one.start}" for one in host.gpus.gpus[index].instances}


@pytest.mark.parametrize("name", ["cut", "old"])
def test_case_24_what_is_kept_comes_back_before_containers_do(run, lab, name):
    host = lab.fleet[name]
    uuid = host.gpus.gpus[0].devices()[0][1].uuid
    device = f"--gpus '\"device={uuid}\"'"
    started = host.sh(f"docker run -d --name one --restart always {device} {IMAGE} --model x", user="root")
    assert started.code == 0, started.stderr
    boot(host)
    assert places(host) == set()
    assert host.sh("docker ps -q", user="root").stdout == b""  # the slice it was made for was gone
    (gone,) = run("mig", "show", name)[1]["without_slice"]
    assert (gone["container"], gone["device"], gone["reason"]) == ("one", uuid, "is not there")
    for place in CUT[name]:
        if not host.gpus.gpus[0].mig:
            host.gpus.gpus[0].set_mig(enabled=True)
        profile, _, start = place.partition(":")
        host.gpus.gpus[0].create(profile, int(start))
    assert host.sh("docker start one", user="root").code == 0

    code, answer, err = run("mig", "persist", f"{name}:0")
    assert (code, answer["outcome"]) == (0, "committed"), err
    assert run("mig", "persist", name, "--check")[0] == 0
    boot(host)
    assert host.journal == []
    assert places(host) == set(CUT[name])
    assert b"one" in host.sh("docker ps --format '{{.Names}}'", user="root").stdout
    assert uuid in cdi.named(host.host)
    code, answer, _ = run("mig", "show", name)
    assert answer["gpus"][0]["boot"]["standing"] == "same"
    assert host.sh(f"systemctl restart {boot_unit.NAME}", user="root").code == 0


def test_slices_that_are_lost_are_told_and_not_forgotten(run, lab):
    host = lab.fleet["cut"]
    assert run("mig", "show", "cut")[1]["gpus"][0]["boot"]["standing"] == "not_kept"
    assert run("mig", "persist", "cut", "--check")[0] == 3
    assert run("mig", "persist", "cut")[0] == 0
    host.gpus.reset()
    code, answer, _ = run("mig", "persist", "cut", "--check")
    assert (code, answer["gpus"][0]["standing"], answer["gpus"][0]["missing"]) == (
        3,
        "lost",
        ["1g.10gb+me:0", "3g.40gb:4"],
    )
    code, answer, _ = run("hosts", "check", "cut")
    assert "mig-layout-lost" in {one["code"] for one in answer["hosts"][0]["findings"]}
    assert "are not there: 1g.10gb+me:0, 3g.40gb:4" in json.dumps(answer)
    code, answer, _ = run("mig", "persist", "cut")
    assert (code, answer["outcome"]) == (4, "refused")
    assert "restart gpufleet-mig.service" in json.dumps(answer["error"]["hints"])
    assert host.sh(f"systemctl restart {boot_unit.NAME}", user="root").code == 0
    assert places(host) == set(CUT["cut"])
    assert run("mig", "persist", "cut", "--check")[0] == 0


def test_another_layout_is_kept_in_place_of_the_former(run, lab):
    host = lab.fleet["cut"]
    assert run("mig", "persist", "cut")[0] == 0
    host.gpus.gpus[0].create("1g.10gb", 2)
    code, answer, _ = run("mig", "persist", "cut", "--check")
    assert (code, answer["gpus"][0]["standing"], answer["gpus"][0]["extra"]) == (3, "differs", ["1g.10gb:2"])
    assert "mig-layout-differs" in json.dumps(run("hosts", "check", "cut")[1])
    boot(host)
    assert places(host) == set(CUT["cut"])
    host.gpus.gpus[0].create("1g.10gb", 2)
    assert run("mig", "persist", "cut:0")[0] == 0
    boot(host)
    assert places(host) == {*CUT["cut"], "1g.10gb:2"}


def test_removing_takes_every_file_away_and_leaves_the_slices(run, lab):
    host = lab.fleet["cut"]
    before = set(host.host.fs.names("/etc"))
    assert run("mig", "persist", "cut", "--dry-run")[1]["outcome"] == "changes"
    assert run("mig", "persist", "cut")[0] == 0
    assert run("mig", "persist", "cut")[1]["outcome"] == "no_change"
    assert host.host.fs.exists(boot_unit.LINK_PATH)
    assert run("mig", "persist", "cut", "--remove")[0] == 0
    for path in (boot_unit.SCRIPT_PATH, boot_unit.UNIT_PATH, boot_unit.LINK_PATH, "/etc/gpufleet"):
        assert not host.host.fs.exists(path)
    assert set(host.host.fs.names("/etc")) - {"systemd"} == before - {"systemd"}
    assert places(host) == set(CUT["cut"])
    assert run("mig", "persist", "cut", "--remove")[1]["outcome"] == "no_change"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("all",), 2, "names 2 hosts"),
        (("cut:7",), 2, "there is no GPU 7"),
        (("cut", "--check", "--remove"), 2, "--check only compares"),
        (("nobody",), 2, "nobody"),
    ],
)
def test_what_is_asked_wrongly(run, words, code, said):
    ended, answer, _ = run("mig", "persist", *words)
    assert ended == code
    assert said in json.dumps(answer["error"])
    assert answer["error"]["hints"]


def test_without_systemd_nothing_is_kept(run, lab):
    lab.fleet["cut"].host.fs.rmdir("/run/systemd/system")
    code, answer, _ = run("mig", "persist", "cut")
    assert (code, "systemd does not run here" in json.dumps(answer["error"])) == (8, True)


def test_an_instance_without_a_compute_instance_is_not_kept(run, lab):
    lab.fleet["cut"].gpus.gpus[0].create("1g.10gb", 2, compute=False)
    code, answer, _ = run("mig", "persist", "cut")
    assert (code, "compute instance" in json.dumps(answer["error"])) == (4, True)


def test_a_file_of_somebody_else_is_told(run, lab):
    host = lab.fleet["cut"]
    host.host.fs.write("/etc/gpufleet/mig-layout", b"gpu 0 3g.40gb\n")
    code, answer, _ = run("mig", "persist", "cut")
    assert (code, "--remove" in json.dumps(answer["error"]["hints"])) == (4, True)
    assert run("mig", "persist", "cut", "--remove")[0] == 0
    assert not host.host.fs.exists("/etc/gpufleet/mig-layout")
