"""A whole lab: in this process with engines over HTTP, and in the background by the command line."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpufleet.clock import SystemClock
from gpufleet.errors import CannotServe, Refused
from gpufleet.inventory.load import load
from gpufleet.lab import background
from gpufleet.lab.lab_files import LabFolder
from gpufleet.lab.serve import RunningLab
from tests.kit.transport_kit import eventually

pytestmark = pytest.mark.wire
RUN = "docker run -d --name mm -p 8000:8000 --entrypoint vllm vllm/vllm-openai:v1 serve some/model --served-model-name chat"


def test_an_engine_of_a_simulated_host_streams_over_http(tmp_path: Path):
    with RunningLab(tmp_path / "lab", hosts=2, load_seconds=0.05, pull_seconds=0.0) as lab:
        for host in lab.fleet:
            assert host.sh(RUN).code == 0
        for host in lab.fleet:
            base = f"http://{host.host.address}:8000"

            def ready(base: str = base) -> bool:
                try:
                    return httpx.get(f"{base}/health", timeout=30.0).status_code == 200
                except httpx.TransportError:
                    return False

            eventually(ready)
            body = {
                "model": "chat",
                "messages": [{"role": "user", "content": "hi"}],
                "stream": True,
                "max_tokens": 4,
            }
            answer = httpx.post(f"{base}/v1/chat/completions", json=body, timeout=60.0)
            assert answer.text.rstrip().endswith("data: [DONE]")
        first = lab.fleet["gpu-01"]
        assert first.sh("docker kill mm").code == 0
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://{first.host.address}:8000/health", timeout=30.0)
        assert load(lab.folder.inventory).hosts.keys() == {"gpu-01", "gpu-02"}


def gpufleet(*words: str, code: int = 0) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "gpufleet", *words, "-o", "json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_up_status_and_down(tmp_path: Path):
    folder = LabFolder(tmp_path / "lab")
    where = ("--dir", str(folder.path))
    assert gpufleet("lab", "status", *where, code=8)["running"] is False
    up = gpufleet("lab", "up", "--hosts", "2", "--gpus", "1xA100-80GB", *where)
    process = background.find(folder)
    assert process is not None
    try:
        assert gpufleet("lab", "status", *where)["pid"] == up["pid"] == process.pid
        assert gpufleet("lab", "up", *where, code=4)["outcome"] == "refused"
        facts = gpufleet("-i", str(folder.inventory), "hosts", "check")
        assert facts["exit"] == 0
    finally:
        down = gpufleet("lab", "down", *where)
    assert down["ended"] is True
    assert not folder.path.exists()
    assert gpufleet("lab", "down", *where)["ended"] is False
    assert not process.alive


def test_a_process_that_only_has_the_number_is_left_alone(tmp_path: Path):
    folder = LabFolder(tmp_path)
    with subprocess.Popen(["sleep", "60"]) as bystander:
        try:
            record = {"pid": bystander.pid, "born": "1", "hosts": 1, "gpus": "1xH100-80GB"}
            (tmp_path / "lab.json").write_text(json.dumps(record))
            assert background.down(folder, SystemClock()) is None
            assert bystander.poll() is None
        finally:
            bystander.send_signal(signal.SIGKILL)


def test_files_that_no_lab_wrote_are_neither_overwritten_nor_removed(tmp_path: Path):
    folder = LabFolder(tmp_path)
    own = {path: f"mine: {path.name}" for path in (folder.inventory, folder.key, folder.known_hosts)}
    for path, content in own.items():
        path.write_text(content)
    assert background.down(folder, SystemClock()) is None
    with pytest.raises(Refused, match=r"no lab wrote: inventory\.yaml, id_ecdsa, known_hosts"):
        background.up(folder, hosts=1, gpus="1xH100-80GB")
    assert {path: path.read_text() for path in tmp_path.iterdir()} == own


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be(tmp_path: Path, place: str):
    (tmp_path / "file").write_text("")
    folder = LabFolder(tmp_path / place)
    with pytest.raises(Refused, match="cannot go there"):
        background.up(folder, hosts=1, gpus="1xH100-80GB")
    assert background.down(folder, SystemClock()) is None


def test_ctrl_c_while_a_lab_starts_leaves_none_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    started: list[subprocess.Popen[bytes]] = []

    def interrupted(*_: object) -> object:
        raise KeyboardInterrupt

    class Remembered(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            started.append(self)

    folder = LabFolder(tmp_path / "lab")
    with monkeypatch.context() as patch:
        patch.setattr("gpufleet.lab.background.select.select", interrupted)
        patch.setattr("gpufleet.lab.background.subprocess.Popen", Remembered)
        with pytest.raises(KeyboardInterrupt):
            background.up(folder, hosts=1, gpus="1xH100-80GB")
    assert started[0].returncode == -signal.SIGKILL
    assert background.down(folder, SystemClock()) is None
    assert not (folder.path / "lab.json").exists()


def test_a_lab_whose_starter_was_killed_ends(tmp_path: Path):
    reading, writing = os.pipe()
    words = ["-m", "gpufleet.lab.serve", str(tmp_path), "--hosts", "1", "--ready-fd", str(writing)]
    with subprocess.Popen([sys.executable, *words], pass_fds=(writing,)) as lab:
        os.close(writing)
        os.close(reading)
        try:
            assert lab.wait(60) == 1
        finally:
            lab.kill()


def test_one_start_at_a_time(tmp_path: Path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(Refused, match="another command starts a lab there"):
            background.up(LabFolder(tmp_path), hosts=1, gpus="1xH100-80GB")
    finally:
        os.close(descriptor)


def test_a_lab_that_cannot_start_says_why(tmp_path: Path):
    with pytest.raises(CannotServe, match="write NUMBERxBOARD"):
        background.up(LabFolder(tmp_path / "lab"), hosts=1, gpus="1xNOPE")


def test_a_second_lab_takes_another_network(tmp_path: Path):
    with RunningLab(tmp_path / "a", hosts=1) as one, RunningLab(tmp_path / "b", hosts=1) as two:
        addresses = {one.fleet["gpu-01"].host.address, two.fleet["gpu-01"].host.address}
        assert len(addresses) == 2


def test_a_network_that_another_lab_took_meanwhile(tmp_path: Path):
    early = RunningLab(tmp_path / "early", hosts=1)
    with RunningLab(tmp_path / "quick", hosts=1) as quick, early:
        assert early.fleet["gpu-01"].host.address != quick.fleet["gpu-01"].host.address
        assert early.folder.inventory.exists()


def test_a_port_that_this_machine_uses_is_in_use_on_its_hosts(tmp_path: Path):
    with socket.create_server(("0.0.0.0", 0)) as somebody:
        port = somebody.getsockname()[1]
        with RunningLab(tmp_path / "lab", hosts=1, ports=range(port, port + 1)) as lab:
            assert f":{port} " in lab.fleet["gpu-01"].sh("ss -Htln").stdout.decode()
