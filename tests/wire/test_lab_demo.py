"""The README's first command: the main job on the lab, through real SSH and HTTP, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.kit.transport_kit import eventually

pytestmark = [pytest.mark.wire, pytest.mark.timeout(300)]


def listening_on_loopback(network: str) -> list[str]:
    """Addresses of this network on which something listens, from the kernel's own table."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    found = []
    for line in lines:
        _, local, _, state, *_ = line.split()
        address = ".".join(str(int(local[at : at + 2], 16)) for at in (6, 4, 2, 0))
        if state == "0A" and address.startswith(network):
            found.append(address)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the lab needs a whole loopback network, as Linux has it")
def test_the_demo_tells_the_whole_story_and_cleans_up():
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpufleet", "lab", "demo", "-o", "json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": folder, "GPUFLEET_STATE": f"{folder}/state"},
        )
        out, err = process.communicate(timeout=280)
        assert process.returncode == 0, err + out
        answer = json.loads(out)
        assert answer["outcome"] == "ok"
        assert len(answer["steps"]) == 8
        assert len(answer["answer"].split()) >= 3
        assert answer["answer"] in err.replace("\n", ""), "the streamed answer was shown as it came"
        rolled_back = answer["steps"][5]
        assert rolled_back["exit"] == 9
        assert "gpu-04" in rolled_back["cause"]
        answered = answer["steps"][6]["answered"]
        assert sum(answered.values()) == 12
        assert not any(name.startswith("gpu-02/") for name in answered)
        assert [path for path in Path(folder).iterdir() if path.name.startswith("gpufleet-demo")] == []
        assert listening_on_loopback(f"127.78.{1 + process.pid % 250}.") == []


@pytest.mark.skipif(sys.platform != "linux", reason="the lab needs a whole loopback network, as Linux has it")
def test_a_demo_that_is_ended_cleans_up(tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, "-m", "gpufleet", "lab", "demo"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path), "GPUFLEET_STATE": str(tmp_path / "state")},
    )
    try:
        eventually(lambda: list(tmp_path.glob("gpufleet-demo-*/lab/inventory.yaml")))
        process.terminate()
        assert process.wait(120) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
    assert list(tmp_path.glob("gpufleet-demo-*")) == []
    assert listening_on_loopback(f"127.78.{1 + process.pid % 250}.") == []
