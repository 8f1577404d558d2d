"""The command line in this process in front of simulated hosts: what an operator types, and what came of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpufleet import clock as clocks
from gpufleet.cli import wiring
from gpufleet.cli.app import main
from gpufleet.lab.faults import Fault, FaultScript
from gpufleet.lab.fleet import build_fleet, wishes_of
from gpufleet.lab.memory import MemoryTransport
from gpufleet.lab.vllm.engines import ModelEngines
from gpufleet.lab.vllm.spec import EngineSpec
from tests.kit.lab_kit import LabClock

INVENTORY = """\
version: 1
hosts:
  gpu-01: {address: 127.77.0.1}
  gpu-02: {address: 127.77.0.2}
pools:
  chat:
    model: qwen/qwen2.5
    replicas: 2
    engine: {image: "vllm/vllm-openai:v0.20.0"}
    gate: {every: 0.05, stall: 100, within: 110}
"""


class Desk:
    """One operator: an inventory, a state directory, and a fleet that may be shared with others."""

    def __init__(
        self,
        path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        *,
        gpus: str = "1xH100-80GB",
        fleet: Any = None,
    ) -> None:
        clock = fleet.clock if fleet else LabClock()
        quick = EngineSpec(load_seconds=0.1)
        self.fleet = fleet or build_fleet(
            wishes_of(2, gpus), clock, engines=lambda _host: ModelEngines(clock, quick)
        )
        self.fleet.registry.seconds = 0.0
        self.path, self.capsys = path, capsys
        self.state = path / "state"
        self.faults: tuple[Fault, ...] = ()
        (path / "inventory.yaml").write_text(INVENTORY)
        monkeypatch.setattr(clocks, "SystemClock", lambda: clock)  # pauses pass at once
        monkeypatch.setattr(
            wiring,
            "transport",
            lambda inventory, settings: MemoryTransport(self.fleet, FaultScript(self.faults)),
        )

    def run(self, *words: str) -> tuple[int, Any]:
        """One command line; its exit code and what it said."""
        code = main(
            [
                *words,
                "-i",
                str(self.path / "inventory.yaml"),
                "--state-dir",
                str(self.state),
                "--no-input",
            ]
        )
        return code, self.capsys.readouterr()

    def json(self, *words: str) -> dict[str, Any]:
        """The same with its JSON answer, which is one line and says the exit code."""
        code, said = self.run(*words, "-o", "json")
        assert said.out.count("\n") == 1
        answer: dict[str, Any] = json.loads(said.out)
        assert (answer["schema"], answer["exit"]) == (1, code)
        return answer

    def containers(self) -> dict[str, list[str]]:
        """Ids of what is on each host, asked past gpufleet."""
        return {lab.name: sorted(lab.containers.containers) for lab in self.fleet}
