"""What one deploy to a large fleet costs the machine it is typed on: CPU, memory, wall time, lines of progress.

Run by hand:

    python tests/bench/bench_deploy_scale.py [--hosts 200] [--load-seconds 60]

The fleet is the lab in a process of its own: simulated hosts behind a real SSH server, engines that load for a
minute. CPU and memory are those of the command line's process and the children it waited for (`wait4`), the lab's
excluded. The same deploy to one host comes first: its wall time is a host's own work. All hosts share this machine, so
what they spend on logins and scripts is part of the large deploy's wall time.

Bounds: 30 s of CPU, 300 MB, 1.3 times the time of one host; progress of fewer lines than two a host.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
CPU_SECONDS, MEGABYTES, RATIO = 30.0, 300.0, 1.3


@dataclass(frozen=True)
class Measured:
    """One command: seconds of wall time and CPU, peak memory in MB, and the lines it told."""

    wall: float
    cpu: float
    memory: float
    lines: tuple[str, ...]


@contextlib.contextmanager
def lab(folder: Path, hosts: int, load_seconds: float) -> Iterator[None]:
    """The simulated fleet, up until the end of the block."""
    read, write = os.pipe()
    command = [sys.executable, "-m", "gpufleet.lab.serve", str(folder), "--hosts", str(hosts)]
    command += ["--gpus", "1xH100-80GB", "--load-seconds", str(load_seconds), "--ready-fd", str(write)]
    server = subprocess.Popen(command, env=environment(), pass_fds=[write], stdout=subprocess.DEVNULL)
    try:
        os.close(write)
        with os.fdopen(read) as said:
            if (line := said.readline().strip()) != "ready":
                raise SystemExit(f"the lab did not start: {line or 'no word'}")
        yield
    finally:
        server.terminate()
        server.wait()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(CHECKOUT)}


def gpufleet(root: Path, *words: str) -> Measured:
    """Run a command to its good end."""
    command = [sys.executable, "-m", "gpufleet", "-i", str(root / "lab/inventory.yaml")]
    command += ["--state-dir", str(root / "state"), "-o", "json", *words]
    begun = time.perf_counter()
    with (root / "out").open("wb") as out, (root / "err").open("wb") as err:
        client = subprocess.Popen(
            command, env=environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
        _, status, used = os.wait4(client.pid, 0)
    client.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - begun
    told = (root / "err").read_text().splitlines()
    answer = json.loads((root / "out").read_text() or "{}")
    if client.returncode != 0 or answer.get("outcome") != "committed":
        raise SystemExit(f"{' '.join(words)}: exit {client.returncode}\n{answer}\n" + "\n".join(told[-20:]))
    return Measured(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000, tuple(told))


def deploy(root: Path, pool: str, hosts: str, replicas: int) -> Measured:
    words = ("--model", "qwen2.5", "--image", "vllm/vllm-openai:v0.20.0", "--hosts", hosts)
    return gpufleet(root, "pool", "deploy", pool, *words, "--replicas", str(replicas), "--yes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--load-seconds", type=float, default=60.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as name:
        root = Path(name)
        with lab(root / "lab", asked.hosts, asked.load_seconds):
            one = deploy(root, "one", "gpu-01", 1)
            gpufleet(root, "pool", "delete", "one", "--yes")
            fleet = deploy(root, "chat", "all", asked.hosts)
            gone = gpufleet(root, "pool", "delete", "chat", "--yes")
    print("\n".join(fleet.lines[-30:]))
    print(f"\n{'command':24} {'wall s':>8} {'CPU s':>8} {'MB':>6} {'lines':>6}")
    for title, measured in (
        ("deploy to 1 host", one),
        (f"deploy to {asked.hosts} hosts", fleet),
        (f"delete on {asked.hosts} hosts", gone),
    ):
        print(
            f"{title:24} {measured.wall:8.1f} {measured.cpu:8.1f} {measured.memory:6.0f} {len(measured.lines):6}"
        )
    print(f"wall time of {asked.hosts} hosts / of 1 host: {fleet.wall / one.wall:.2f}")
    missed = [
        text
        for text, held in (
            (f"CPU below {CPU_SECONDS:.0f} s", fleet.cpu < CPU_SECONDS),
            (f"memory below {MEGABYTES:.0f} MB", fleet.memory < MEGABYTES),
            (f"wall time within {RATIO} of one host's", fleet.wall <= RATIO * one.wall),
            ("fewer than two lines a host", len(fleet.lines) < 2 * asked.hosts),
        )
        if not held
    ]
    if missed:
        raise SystemExit(f"missed: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
