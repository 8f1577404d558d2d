"""Engines inside simulated containers, each with a real server; `lab.engines` is the same in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpufleet.lab.simhost import Answer
from gpufleet.lab.vllm.engine import EngineServer, RunningEngine
from gpufleet.lab.vllm.engine_model import Phase
from gpufleet.lab.vllm.engines import is_engine
from gpufleet.lab.vllm.replies import Request
from gpufleet.lab.vllm.spec import EngineSpec, parse_spec


@dataclass(slots=True)
class ServedEngines:
    """Implements `lab.simhost.EngineHost` with real servers; what is no vLLM lives and prints nothing.

    Attributes:
        base: times, and anything else that the command line does not say.
        engines: by container id; None for what is no vLLM.
    """

    server: EngineServer
    base: EngineSpec = field(default_factory=EngineSpec)
    engines: dict[str, RunningEngine | None] = field(default_factory=dict)

    def launch(
        self, container_id: str, argv: tuple[str, ...], env: Mapping[str, str], bind: tuple[str, ...]
    ) -> None:
        """Begin a process that listens on every address of `bind` (`127.77.0.1:8000`, `[::1]:8000`)."""
        self.end(container_id)
        self.engines[container_id] = None
        if is_engine(argv):
            spec = parse_spec(argv, env, self.base)
            self.engines[container_id] = self.server.start([_split(text) for text in bind], spec)

    def end(self, container_id: str) -> None:
        """End it; its log stays."""
        running = self.engines.get(container_id)
        if running is not None:
            self.server.stop(running)
        else:
            self.engines.pop(container_id, None)

    def logs(self, container_id: str) -> str:
        """What it has printed since its last launch."""
        running = self.engines.get(container_id)
        return self.server.log(running) if running else ""

    def alive(self, container_id: str) -> int | None:
        """None while it lives, else its exit code."""
        running = self.engines.get(container_id)
        if running is not None:
            return self.server.exit_code(running)
        return None if container_id in self.engines else 0

    def http(
        self,
        container_id: str,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        sleep: Callable[[float], None],
    ) -> Answer:
        """One request from inside the host.

        Raises:
            ConnectionRefusedError: it does not listen.
        """
        running = self.engines.get(container_id)
        if running is None or self.server.state(running) is not Phase.READY:
            raise ConnectionRefusedError("nothing listens on the engine's port")
        lowered = {name.lower(): value for name, value in headers.items()}
        reply, pieces = self.server.ask(running, Request(method, path, lowered, body), sleep)
        return reply.status, reply.headers, pieces


def _split(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
