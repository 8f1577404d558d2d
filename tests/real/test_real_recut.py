"""A whole pool gets another MIG layout, host after host, while clients stream: none fails and none is cut.

The GPUs are the double's; Docker, containers bound to slices, sudo and sshd are real.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.real.desk import Answer, Operator
from tests.real.fleet import Fleet
from tests.real.scene import EXTRA, Scene, tidy
from tests.real.traffic import PACE, proxied, streaming

CLIENTS = 6
FIRST, SECOND = ("1g.10gb:0", "3g.40gb:4"), ("1g.10gb:1", "2g.20gb:4")


class Serving:
    """How few members of the pool the route table sent requests to, at any moment."""

    def __init__(self, table: Path) -> None:
        self.table = table
        self.least = 99
        self.stop = threading.Event()

    def watch(self) -> None:
        while not self.stop.wait(0.05):
            pools = json.loads(self.table.read_text())["pools"]
            members = [one for pool in pools if pool["name"] == "chat" for one in pool["endpoints"]]
            self.least = min(self.least, sum(one["state"] == "active" for one in members))


@contextmanager
def watched(table: Path) -> Iterator[Serving]:
    serving = Serving(table)
    thread = threading.Thread(target=serving.watch)
    thread.start()
    try:
        yield serving
    finally:
        serving.stop.set()
        thread.join()


def slices(fleet: Fleet, name: str) -> list[str]:
    """Profile and start of each GPU instance of GPU 0, asked by ssh."""
    table = fleet.ssh(name, "sudo nvidia-smi mig -i 0 -lgi")
    rows = [line.split() for line in table.splitlines() if " MIG " in line]
    return sorted(f"{row[3]}:{row[6].partition(':')[0]}" for row in rows)


def cut(fleet: Fleet, name: str) -> None:
    makes = "; ".join(f"sudo nvidia-smi mig -i 0 -cgi {one} -C" for one in FIRST)
    fleet.ssh(name, f"sudo nvidia-smi -i 0 -mig 1; {makes}")
    assert slices(fleet, name) == sorted(FIRST)


def uncut(fleet: Fleet, name: str) -> None:
    fleet.ssh(
        name,
        "sudo nvidia-smi mig -i 0 -dci; sudo nvidia-smi mig -i 0 -dgi; sudo nvidia-smi -i 0 -mig 0",
        check=False,
    )


def expect(answer: Answer, code: int = 0) -> None:
    assert answer.exit == code, answer
    assert "Traceback" not in answer.text, answer


@pytest.fixture
def scene(fleet: Fleet, tmp_path: Path) -> Iterator[Scene]:
    trio = fleet.trios[0]
    tidy(fleet, trio)
    try:
        for name in trio:
            cut(fleet, name)
        yield Scene(fleet, Operator(fleet, tmp_path / "desk", trio, extra=EXTRA), trio)
    finally:
        tidy(fleet, trio)
        for name in trio:
            uncut(fleet, name)


def test_a_pool_is_recut_under_traffic(scene: Scene, cases: list[str]) -> None:
    fleet, operator = scene.fleet, scene.operator
    defined = scene.define({"engine": {"image": "{v0.11.2}", "env": PACE}})
    defined.write_text(defined.read_text().replace('{"gpus": 1}', '{"mig": "1g.10gb"}'))
    with proxied(operator) as place:
        expect(operator.run("pool", "deploy", "-f", str(defined), "--yes"))
        before = {name: set(fleet.ssh(name, "docker ps -q --no-trunc").split()) for name in scene.trio}
        with (
            streaming(place, clients=CLIENTS) as traffic,
            watched(operator.state / "routes.json") as serving,
        ):
            traffic.wait_for(CLIENTS)
            layout = ",".join(SECOND)
            expect(operator.run("mig", "reconfigure", "--pool", "chat", "--layout", layout, "--yes"))
            traffic.wait_for(CLIENTS)
        traffic.assert_unharmed(at_least=3 * CLIENTS)
    assert serving.least == len(scene.trio) - 1
    for name in scene.trio:
        assert slices(fleet, name) == sorted(SECOND)
        now = set(fleet.ssh(name, "docker ps -q --no-trunc").split())
        assert (len(now - before[name]), len(before[name] - now)) == (1, 1)
        (heir,) = now - before[name]
        label = fleet.ssh(name, f"docker inspect -f '{{{{index .Config.Labels \"gpufleet.slice\"}}}}' {heir}")
        assert label.split()[1:] == ["1g.10gb", "1"]
    assert set(traffic.members) == {f"{name}/0" for name in scene.trio}
    cases.append("under traffic / a pool is recut")
