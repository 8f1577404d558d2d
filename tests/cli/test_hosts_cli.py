"""`gpufleet hosts` as a process, on this machine (`connection: local`) with programs of our own in front of its PATH."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.hosts.answers import INFO, recorded

CHECKOUT = Path(__file__).parents[2]


@dataclass
class Bench:
    """A folder with an inventory, a home and programs; `gone` is a host whose port nobody listens on."""

    root: Path

    def program(self, name: str, body: str) -> None:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    def gpufleet(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gpufleet", *words],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd=self.root,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("GPUFLEET")},
                "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
                "HOME": str(self.root / "home"),
                "PYTHONPATH": str(CHECKOUT),
                "NO_COLOR": "1",
            },
        )

    def json(self, *words: str, status: int = 0) -> dict[str, object]:
        ended = self.gpufleet("-o", "json", *words)
        assert ended.returncode == status, ended
        answer = json.loads(ended.stdout)
        assert isinstance(answer, dict)
        assert (answer["schema"], answer["exit"]) == (1, status)
        return answer


@pytest.fixture
def bench(tmp_path):
    for name in ("bin", "home"):
        (tmp_path / name).mkdir()
    made = Bench(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "inventory.yaml").write_text(
        "version: 1\nhosts:\n"
        "  here: {address: 127.0.0.1, connection: local, labels: {rack: r1}}\n"
        f"  gone: {{address: 127.0.0.2, port: {port}, user: nobody}}\n"
    )
    (tmp_path / "info.json").write_text(json.dumps(INFO))
    (tmp_path / "inspect.json").write_text(recorded("containers", "docker-26-gpu-by-uuid"))
    made.program(
        "docker",
        f'case "$1" in version) echo 26.1.5;; info) cat {tmp_path}/info.json;; ps) echo 9f0e;;'
        f" inspect) cat {tmp_path}/inspect.json;; esac",
    )
    made.program("sudo", "exit 0")
    made.program("nvidia-ctk", "exit 1")
    for name in ("list/h200-570-two-gpus", "query/h200-570-plain"):
        (tmp_path / name.split("/")[0]).write_text(recorded(*name.split("/")))
    made.program(
        "nvidia-smi",
        f'case "$*" in -L) cat {tmp_path}/list;; *query-gpu*) cat {tmp_path}/query;; *query-compute*) ;; *) exit 2;; esac',
    )
    return made


def test_list_connects_to_nobody(bench):
    ended = bench.gpufleet("hosts", "list")
    assert ended.returncode == 0
    assert [line.split()[0] for line in ended.stdout.splitlines()] == ["HOST", "here", "gone"]
    (only,) = bench.json("hosts", "list", "rack=r1")["hosts"]
    assert (only["host"], only["connection"], only["labels"]) == ("here", "local", {"rack": "r1"})


def test_facts_as_json(bench):
    answer = bench.json("hosts", "facts", "here")
    assert (answer["command"], answer["outcome"]) == ("hosts facts", "ok")
    (host,) = answer["hosts"]
    assert [gpu["memory_total_mib"] for gpu in host["gpus"]] == [143771, 143771]
    assert host["gpus"][0]["mig"]["current"] is False
    assert host["containers"][0]["labels"]["gpufleet.pool"] == "chat"
    assert host["cuda"] is None
    assert host["unknown"]["cuda"]
    assert "never-shown" not in json.dumps(answer)


def test_facts_as_tables(bench):
    ended = bench.gpufleet("hosts", "facts", "here")
    assert ended.returncode == 0
    assert "docker 26.1.5" in ended.stdout
    assert ended.stdout.count("NVIDIA H200") == 2


def test_check_of_a_host_that_is_well(bench):
    answer = bench.json("hosts", "check", "here")
    (host,) = answer["hosts"]
    assert host["status"] in {"ok", "warning"}, host  # a full disk of this machine may be warned of
    assert set(host) >= {"host", "status", "phase", "reason", "hint", "duration_s", "findings"}


def test_check_finds_what_is_wrong(bench):
    bench.program("nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    answer = bench.json("hosts", "check", "here", status=8)
    assert answer["outcome"] == "refused"
    assert answer["error"]["code"] == "preflight"
    (host,) = answer["hosts"]
    assert (host["status"], host["phase"]) == ("error", "preflight")
    assert "driver-mismatch" in {one["code"] for one in host["findings"]}
    ended = bench.gpufleet("hosts", "check", "here")
    assert ended.returncode == 8
    assert "[driver-mismatch]" in ended.stdout
    assert "fix: reboot the host" in ended.stdout


@pytest.mark.parametrize("command", ["facts", "check"])
def test_a_host_that_is_not_reached(bench, command):
    answer = bench.json("hosts", command, status=7)
    by_name = {row["host"]: row for row in answer["hosts"]}
    assert by_name["gone"]["status"] == "unreachable"
    assert by_name["gone"]["phase"] == "connect"
    assert by_name["gone"]["reason"]
    assert by_name["gone"]["hint"]
    assert by_name["here"]["status"] != "unreachable"
    assert answer["error"]["where"] == "gone"
    ended = bench.gpufleet("hosts", command, "gone")
    assert ended.returncode == 7
    assert "gone" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_run_gives_each_word_as_it_is(bench):
    hostile = "a; touch owned `id` $(id) \"'\\ $HOME\n*"
    answer = bench.json("hosts", "run", "here", "--", "printf", "%s|", hostile, "--yes", "")
    (host,) = answer["hosts"]
    assert host["stdout"] == f"{hostile}|--yes||"
    assert not (bench.root / "owned").exists()


def test_run_tells_every_status(bench):
    answer = bench.json("hosts", "run", "here", "--", "sh", "-c", "echo out; echo err >&2; exit 3", status=8)
    (host,) = answer["hosts"]
    assert (host["status"], host["exit"], host["stdout"], host["stderr"]) == ("failed", 3, "out\n", "err\n")
    ended = bench.gpufleet("hosts", "run", "all", "--", "true")
    assert ended.returncode == 7
    assert "gone # " in ended.stdout


def test_run_that_does_not_end_is_in_doubt(bench):
    answer = bench.json("hosts", "run", "here", "--timeout", "1", "--", "sleep", "60", status=11)
    (host,) = answer["hosts"]
    assert (answer["outcome"], host["status"]) == ("in_doubt", "in_doubt")


def test_run_dry(bench):
    ended = bench.gpufleet("hosts", "run", "here", "--dry-run", "--", "touch", str(bench.root / "made it"))
    assert ended.returncode == 0
    assert "touch" in ended.stdout
    assert not (bench.root / "made it").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("facts", "her"),
        ("check", "group=none"),
        ("check", "!here", "!gone"),
        ("run", "here"),
        ("run", "nowhere", "--", "true"),
        ("trust", "here"),
        ("trust", "all"),
        ("trust", "nowhere"),
    ],
)
def test_what_does_not_fit_is_a_usage_error(bench, words):
    ended = bench.gpufleet("hosts", *words)
    assert ended.returncode == 2, ended
    assert ended.stdout == ""
    assert "error:" in ended.stderr
    assert "Traceback" not in ended.stderr
