"""Engines inside the containers of simulated hosts, in memory: nothing listens, time comes from a clock.

The `EngineHost` of `lab.simhost` for fast tests. `lab.engine.ServedEngines` is the same with real sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from gpufleet.lab.engine_model import EngineModel, Phase, serve
from gpufleet.lab.vllm.api import Request
from gpufleet.lab.vllm.spec import EngineSpec, parse_spec

KILLED = 137


class Ticking(Protocol):
    """The part of a clock that engines need."""

    def now(self) -> datetime:
        """The time of day, aware."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


Plan = Callable[[str, EngineSpec], EngineSpec]
"""Container id and the spec of its command line to the spec that is started: how faults get in."""


def as_planned(_container_id: str, spec: EngineSpec) -> EngineSpec:
    """No fault."""
    return spec


@dataclass(slots=True)
class MemoryEngines:
    """Implements `lab.simhost.EngineHost`. `base` gives times and anything else the command line does not say."""

    clock: Ticking
    base: EngineSpec = field(default_factory=EngineSpec)
    plan: Plan = as_planned
    engines: dict[str, EngineModel] = field(default_factory=dict)

    def launch(
        self,
        container_id: str,
        argv: tuple[str, ...],
        env: Mapping[str, str],
        bind: tuple[str, ...],  # noqa: ARG002  # nothing listens here
    ) -> None:
        """Begin a process."""
        spec = self.plan(container_id, parse_spec(argv, env, self.base))
        started = self.clock.monotonic()
        self.engines[container_id] = EngineModel(spec, started, wall=self.clock.now().timestamp() - started)

    def end(self, container_id: str) -> None:
        """End it; its log stays."""
        engine = self.engines.get(container_id)
        if engine is not None:
            engine.stop(self.clock.monotonic())

    def logs(self, container_id: str) -> str:
        """What it has printed since its last launch."""
        engine = self.engines.get(container_id)
        return engine.log(self.clock.monotonic()) if engine else ""

    def alive(self, container_id: str) -> int | None:
        """None while it lives, else its exit code."""
        engine = self.engines.get(container_id)
        return engine.exit_code(self.clock.monotonic()) if engine else KILLED

    def http(
        self, container_id: str, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Mapping[str, str], Iterable[bytes]]:
        """One request; an empty piece of the body means that time has passed.

        Raises:
            ConnectionRefusedError: it does not listen.
        """
        engine = self.engines.get(container_id)
        if engine is None or engine.phase(self.clock.monotonic()) is not Phase.READY:
            raise ConnectionRefusedError("nothing listens on the engine's port")
        lowered = {name.lower(): value for name, value in headers.items()}
        return serve(engine, Request(method, path, lowered, body), self.clock.monotonic, self.clock.sleep)
