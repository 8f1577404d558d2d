"""Start-up of short commands, as ratios to `python -c 'import typer'` in the same run.

    python tests/bench/bench_startup.py [ROUNDS]

Every round runs all commands once, in turn, so that a slow moment of the machine hits them all. Medians of wall
time; aims: `--version` 1.5, `inventory validate` of 50 hosts 2.5, `--help` 2.6. Byte code is kept between the runs,
as it is for whoever installed the program, in a folder of its own that the first round fills.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def inventory(folder: Path) -> Path:
    hosts = "\n".join(
        f"  gpu-{n:02}: {{address: 10.0.0.{n + 1}, labels: {{rack: r{n % 5}}}}}" for n in range(50)
    )
    path = folder / "inventory.yaml"
    path.write_text(f"version: 1\ndefaults: {{user: ops}}\nhosts:\n{hosts}\n", encoding="utf-8")
    return path


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = inventory(Path(folder))
        program = str(Path(sys.executable).parent / "gpufleet")
        commands = {
            "python -c 'import typer'": [sys.executable, "-c", "import typer"],
            "gpufleet --version": [program, "--version"],
            "gpufleet --help": [program, "--help"],
            "gpufleet inventory validate": [program, "inventory", "validate", "-i", str(path)],
        }
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "bytecode")
        walls: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(rounds + 1):
            for name, words in commands.items():
                began = time.perf_counter()
                subprocess.run(
                    words, check=True, capture_output=True, stdin=subprocess.DEVNULL, env=environment
                )
                if turn:
                    walls[name].append(time.perf_counter() - began)
        base = statistics.median(walls["python -c 'import typer'"])
        print(f"{'command':32} {'median ms':>10} {'ratio':>6}")
        for name, times in walls.items():
            median = statistics.median(times)
            print(f"{name:32} {median * 1000:10.1f} {median / base:6.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
