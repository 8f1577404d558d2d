"""What the proxy costs beside nginx, HAProxy and other LLM routers: ratios of one run, all taking turns.

Run by hand, with a harness folder that has `bench.py`, `mock.c`, `lg.c`, `peers.json` and `peers.sh`:

    python tests/bench/bench_proxy.py --harness DIR [--peers-home DIR] [--turns 5] [--rows 1,3,4]

The harness starts four mock engines and a load generator on one core and gives each proxy the other. What counts is
operations a CPU second of a proxy's whole process tree, the median of all turns, divided by the same of a peer:
time that other processes take is in neither. Latencies are what a proxy adds to the direct way. gpufleet serves as it
ships: keys checked, model peeked at, tokens counted, metrics on. A peer that is not installed is named and left out;
`peers.sh setup` of the harness makes those that come from PyPI, in the folder of `--peers-home`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpufleet.pools.routes import EndpointRoute, PoolRoute, RouteTable, encode
from gpufleet.tokens.model import Principal, digest, issue
from gpufleet.tokens.store import TokenStore

KEY = "sk-bench-0123456789abcdef"
PORTS = (9101, 9102, 9103, 9104)
OURS, OURS_TWICE = "gpufleet", "gpufleet-2"


@dataclass(frozen=True)
class Bound:
    """One figure of the table: ours divided by a peer's, at least (or `most`: at most) the aim, and the floor."""

    row: int
    scenario: str
    figure: str
    peer: str
    aim: float
    floor: float
    most: bool = False


BOUNDS = (
    Bound(1, "req64", "per_core", "nginx", 0.6, 0.4),
    Bound(1, "req64", "per_core", "vllm-router", 3.3, 2.0),
    Bound(1, "req64", "per_core", "smg", 5.5, 3.5),
    Bound(2, "req64", "per_core", "litellm", 300, 150),
    Bound(3, "req1", "added", "nginx", 1.25, 1.5, most=True),
    Bound(3, "req1", "added", "vllm-router", 0.65, 0.8, most=True),
    Bound(3, "req1", "added", "smg", 0.5, 0.65, most=True),
    *(
        Bound(4, scenario, "per_core", peer, aim, floor)
        for scenario in ("sse1000x20", "sse200x30")
        for peer, aim, floor in (("nginx", 0.85, 0.7), ("vllm-router", 1.25, 1.0), ("smg", 1.5, 1.2))
    ),
    Bound(4, "sse1000x20", "p99", "nginx", 2.0, 2.0, most=True),
    Bound(4, "sse200x30", "p99", "nginx", 2.0, 2.0, most=True),
    Bound(5, "sse1000", "per_core", "vllm-router", 1.2, 1.0),
    Bound(5, "sse1000", "per_core", "smg", 2.0, 1.6),
    Bound(6, "up4m", "per_core", "nginx", 1.4, 1.0),
    Bound(6, "up4m", "per_core", "vllm-router", 5.0, 3.0),
    Bound(6, "up4m", "per_core", "smg", 0.95, 0.7),
)
HELD_MB = (40.0, 60.0)
TWO_WORKERS = (1.1, 1.0)

Medians = Mapping[tuple[str, str], Mapping[str, float]]
"""Scenario and peer to the medians of their figures."""


def make_site(folder: Path) -> list[str]:
    """A state directory with the harness's key and its mock engines as one pool; the words that serve it."""
    state = folder / "state"
    state.mkdir()
    _, token = issue(
        Principal(name="bench", tenant="bench"),
        now=time.time(),
        lifetime=None,
        random_bytes=os.urandom,
    )
    TokenStore(state / "tokens.db").add(replace(token, digest=digest(KEY.encode())))
    members = tuple(EndpointRoute(id=f"mock-{port}/0", url=f"http://127.0.0.1:{port}") for port in PORTS)
    pool = PoolRoute(name="bench", models=("mock-model",), endpoints=members)
    (state / "routes.json").write_bytes(encode(RouteTable(generation=1, pools=(pool,))))
    return [sys.executable, "-m", "gpufleet", "--state-dir", str(state), "proxy", "serve"]


def add_ourselves(harness: Path, serve: list[str]) -> None:
    """Entries for one process and for two."""
    peers = json.loads((harness / "peers.json").read_text())
    for name, port, workers in ((OURS, 9421, 1), (OURS_TWICE, 9423, 2)):
        words = [
            "--listen",
            f"127.0.0.1:{port}",
            "--admin",
            f"127.0.0.1:{port + 1}",
            "--workers",
            str(workers),
        ]
        peers[name] = {"cmd": [*serve, *words], "target": f"http://127.0.0.1:{port}", "settle": 2}
    (harness / "peers.json").write_text(json.dumps(peers))


def measure(
    harness: Path, home: Path, how: str, peers: list[str], scenarios: list[str], turns: int, *more: str
) -> Medians:
    """Run the harness; medians over the turns."""
    out = harness / "out.jsonl"
    out.unlink(missing_ok=True)
    words = [sys.executable, "bench.py", how, "--peers", ",".join(peers), "--scenarios", ",".join(scenarios)]
    environment = {**os.environ, "PROXY_BENCH_HOME": str(home)}
    subprocess.run(
        [*words, "--reps", str(turns), "--out", str(out), *more], cwd=harness, env=environment, check=True
    )
    seen: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in out.read_text().splitlines():
        record = json.loads(line)
        for figure, value in record["s"].items():
            seen[record["scenario"], record["peer"]][figure].append(value)
    medians = {
        key: {figure: statistics.median(values) for figure, values in figures.items()}
        for key, figures in seen.items()
    }
    for (scenario, _), figures in medians.items():
        if (scenario, "direct") in medians and "p50" in figures:
            figures["added"] = figures["p50"] - medians[scenario, "direct"]["p50"]
    return medians


def line(row: int, what: str, seen: float, aim: float, floor: float, *, most: bool, unit: str = "") -> str:
    """One row of the table, with a word."""
    sign = -1 if most else 1
    word = "aim" if sign * seen >= sign * aim else "floor" if sign * seen >= sign * floor else "MISSED"
    return f"{row:2}  {what:44} {seen:9.2f}{unit}   {aim:7g} {floor:7g}   {word}"


def compared(medians: Medians, rows: set[int]) -> list[str]:
    """The rows that are ratios."""
    lines = []
    for bound in BOUNDS:
        ours, theirs = medians.get((bound.scenario, OURS)), medians.get((bound.scenario, bound.peer))
        if bound.row not in rows or ours is None:
            continue
        what = f"{bound.scenario} {bound.figure} / {bound.peer}"
        if theirs is None:
            lines.append(f"{bound.row:2}  {what:44} not measured: {bound.peer} is not there")
            continue
        ratio = ours[bound.figure] / theirs[bound.figure]
        lines.append(line(bound.row, what, ratio, bound.aim, bound.floor, most=bound.most))
    return lines


def installed(harness: Path, home: Path, wanted: list[str]) -> list[str]:
    """Peers whose program is there."""
    known = json.loads((harness / "peers.json").read_text())
    programs = {name: home / name / "bin" for name in ("vllm-router", "smg", "litellm")}
    there = [
        name
        for name in wanted
        if name in known
        and (programs[name].is_dir() if name in programs else name in {"direct", OURS} or shutil.which(name))
    ]
    for name in sorted(set(wanted) - set(there)):
        print(f"{name}: not installed, left out", file=sys.stderr)
    return there


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--harness", type=Path, required=True)
    parser.add_argument("--peers-home", type=Path, default=Path.home() / ".cache/proxy-bench")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rows", default="1,2,3,4,5,6,7,8")
    parser.add_argument("--peers", default="direct,nginx,haproxy,vllm-router,smg,litellm,gpufleet")
    asked = parser.parse_args()
    rows = {int(row) for row in asked.rows.split(",")}
    with tempfile.TemporaryDirectory(prefix="bench-proxy-") as name:
        harness = Path(name) / "harness"
        shutil.copytree(asked.harness, harness)
        subprocess.run([sys.executable, "bench.py", "build"], cwd=harness, check=True)
        add_ourselves(harness, make_site(Path(name)))
        peers = installed(harness, asked.peers_home, asked.peers.split(","))
        table: list[str] = []
        fast = [peer for peer in peers if peer != "litellm"]
        scenarios = sorted(
            {bound.scenario for bound in BOUNDS if bound.row in rows and bound.peer != "litellm"}
        )
        if scenarios:
            table += compared(
                measure(harness, asked.peers_home, "interleave", fast, scenarios, asked.turns), rows - {2}
            )
        if 2 in rows and "litellm" in peers:
            medians = measure(harness, asked.peers_home, "interleave", ["litellm", OURS], ["req64"], 2)
            table += compared(medians, {2})
        if 7 in rows:
            held = measure(harness, asked.peers_home, "matrix", [OURS], ["hold2000"], 2)["hold2000", OURS]
            table.append(line(7, "hold2000: PSS", held["pss_mb"], *HELD_MB, most=True, unit=" MB"))
        if 8 in rows:
            both = measure(
                harness,
                asked.peers_home,
                "interleave",
                [OURS, OURS_TWICE],
                ["req64"],
                asked.turns,
                "--unpinned",
            )
            ratio = both["req64", OURS_TWICE]["rate"] / both["req64", OURS]["rate"]
            table.append(line(8, "req64: rate of two workers / one", ratio, *TWO_WORKERS, most=False))
    print(f"\n    {'figure':44} {'seen':>9}   {'aim':>7} {'floor':>7}")
    print("\n".join(table))


if __name__ == "__main__":
    main()
