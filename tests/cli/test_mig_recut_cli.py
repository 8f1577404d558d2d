"""`gpufleet mig reconfigure` on simulated hosts behind a real SSH server."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from gpufleet.cli.app import main
from gpufleet.clock import SystemClock
from gpufleet.lab.fleet import HostWish, LabHost, build_fleet
from gpufleet.lab.lab_files import LabFolder
from gpufleet.lab.sshd import LabServer
from tests.kit.lab_kit import own_network

IMAGE = "vllm/vllm-openai:v0.20.0"
CUT = ("1g.10gb:0", "1g.10gb:1", "3g.40gb:4")


@pytest.fixture
def lab(tmp_path):
    wish = HostWish(
        name="cut", address=f"{own_network(1)}.1", gpus="2xH100-80GB", layouts={0: CUT}, images=(IMAGE,)
    )
    with LabServer(build_fleet([wish], SystemClock()), LabFolder(tmp_path / "lab")) as server:
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


def places(host: LabHost, index: int = 0) -> set[str]:
    return {f"{one.profile.name}:{one.start}" for one in host.gpus.gpus[index].instances}


def test_a_gpu_is_recut_under_a_pool_that_serves(run, lab):
    host = lab.fleet["cut"]
    code, _, err = run(
        "pool", "deploy", "chat", "--model", "qwen/qwen2.5", "--hosts", "cut", "--replicas", "2",
        "--mig", "1g.10gb", "--image", IMAGE, "--ignore-memory",
    )  # fmt: skip
    assert code == 0, err
    words = ("mig", "reconfigure", "cut:0", "--layout", "1g.10gb:0,1g.10gb:3,2g.20gb")
    code, answer, _ = run(*words, "--dry-run")
    assert (code, answer["outcome"], answer["homeless"]) == (0, "changes", [])
    assert [(one["replica"], one["from"], one["to"]) for one in answer["moves"]] == [
        ("cut/1", "1g.10gb:1", "1g.10gb:3")
    ]
    assert all(host.gpus.gpus[0].uuid in line for line in answer["commands"])
    assert run(*words, "--check")[0] == 3
    assert places(host) == set(CUT)
    code, answer, err = run(*words)
    assert (code, answer["outcome"]) == (0, "committed"), err
    assert (answer["hosts"][0]["host"], answer["hosts"][0]["status"]) == ("cut", "done")
    assert places(host) == {"1g.10gb:0", "1g.10gb:3", "2g.20gb:4"}
    assert run(*words)[1]["outcome"] == "no_change"
    roll = ("mig", "reconfigure", "--pool", "chat", "--layout", "1g.10gb:0,1g.10gb:2")
    code, answer, _ = run(*roll, "--min-available", "2")
    assert (code, "--min-available" in json.dumps(answer["error"])) == (4, True)
    code, answer, err = run(*roll)
    assert (code, [one["outcome"] for one in answer["gpus"]]) == (0, ["committed"]), err
    assert places(host) == {"1g.10gb:0", "1g.10gb:2"}
    assert run("mig", "reconfigure", "cut:0", "--pool", "chat", "--layout", "half")[0] == 2
    code, answer, _ = run("mig", "show", "cut")
    assert answer["without_slice"] == []
    code, answer, _ = run("mig", "reconfigure", "cut:0", "--layout", "3g.40gb")
    assert (code, answer["outcome"]) == (4, "refused")
    assert "--allow-homeless" in json.dumps(answer["error"]["hints"])
    code, answer, _ = run("change", "list")
    assert "recut cut:0" in json.dumps(answer["runs"])


def test_a_gpu_is_restored_from_its_run_and_from_a_file(run, lab, tmp_path):
    host = lab.fleet["cut"]
    _, kept, _ = run("mig", "show", "cut")
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    code, answer, err = run("mig", "reconfigure", "cut:0", "--layout", "half")
    assert code == 0, err
    assert run("mig", "restore", "--from", answer["run"], "--check")[0] == 3
    code, answer, err = run("mig", "restore", "--from", answer["run"])
    assert (code, answer["command"], answer["outcome"]) == (0, "mig restore", "committed"), err
    assert places(host) == set(CUT)
    code, answer, err = run("mig", "reconfigure", "cut:0", "--layout", "off")
    assert code == 0, err
    assert not host.gpus.gpus[0].mig
    code, answer, err = run("mig", "restore", "cut:0", "--from", "kept.json")
    assert code == 0, err
    assert places(host) == set(CUT)
    assert run("mig", "restore", "cut:1", "--from", "kept.json", "--dry-run")[1]["outcome"] == "no_change"
    for words in (("cut:0",), ("--from", "kept.json"), ("cut:0", "--from", "no-such-run")):
        assert run("mig", "restore", *words)[0] == 2, words


def test_a_failure_is_told_with_the_fix_and_leaves_the_layout(run, lab):
    host = lab.fleet["cut"]
    host.sh("lab-fault gpu-mishap -cgi Insufficient Resources", user="root")
    code, answer, err = run("mig", "reconfigure", "cut:0", "--add", "1g.10gb")
    assert (code, answer["outcome"]) == (9, "rolled_back"), err
    assert "Insufficient Resources" in json.dumps(answer["error"])
    assert "plan anew" in json.dumps(answer["error"]["hints"])
    assert places(host) == set(CUT)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("cut:0", "--layout", "half", "--add", "1g.10gb"), 2, "one of the two"),
        (("cut:0", "--layout", "9g.90gb"), 4, "9g.90gb"),
        (("cut:0", "--layout", "4x2g.20gb"), 4, "at most 3"),
        (("cut", "--layout", "half"), 2, "one is changed at a time"),
        (("nobody:0", "--layout", "half"), 2, "nobody"),
    ],
)
def test_what_is_asked_wrongly_changes_nothing(run, lab, words, code, said):
    found, answer, _ = run("mig", "reconfigure", *words)
    assert found == code
    assert said in json.dumps(answer["error"])
    assert places(lab.fleet["cut"]) == set(CUT)
