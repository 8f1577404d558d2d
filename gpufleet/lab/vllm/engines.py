"""Engines inside simulated containers, in memory and on the host's clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpufleet.lab.simhost import Answer, LabClock
from gpufleet.lab.vllm.engine_model import EngineModel, serve
from gpufleet.lab.vllm.replies import Request
from gpufleet.lab.vllm.spec import EngineSpec, parse_spec


class ModelEngines:
    """`EngineHost` without sockets. What is no vLLM is a process that lives and prints nothing."""

    def __init__(self, clock: LabClock, base: EngineSpec | None = None) -> None:
        self._clock = clock
        self._base = base
        self.models: dict[str, EngineModel] = {}
        self._plain: dict[str, int | None] = {}

    def launch(
        self, container_id: str, argv: tuple[str, ...], env: Mapping[str, str], bind: tuple[str, ...]
    ) -> None:
        """Begin a process."""
        del bind  # no socket here: requests come through `http`
        if not is_engine(argv):
            self._plain[container_id] = None
            return
        spec = parse_spec(argv, env, self._base)
        self.models[container_id] = EngineModel(spec, started=self._clock.monotonic())

    def end(self, container_id: str) -> None:
        """End it as SIGTERM does."""
        if container_id in self._plain:
            self._plain[container_id] = 0
        elif container_id in self.models:
            self.models[container_id].stop(self._clock.monotonic())

    def logs(self, container_id: str) -> str:
        """What it has printed."""
        model = self.models.get(container_id)
        return model.log(self._clock.monotonic()) if model is not None else ""

    def alive(self, container_id: str) -> int | None:
        """None while it lives, else its exit status."""
        if container_id in self._plain:
            return self._plain[container_id]
        model = self.models.get(container_id)
        return model.exit_code(self._clock.monotonic()) if model is not None else 0

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
        """One request; raises `ConnectionRefusedError` while nothing listens."""
        model = self.models.get(container_id)
        if model is None:
            raise ConnectionRefusedError("nothing listens in this container")
        lowered = {name.lower(): value for name, value in headers.items()}
        return serve(model, Request(method, path, lowered, body), self._clock.monotonic, sleep)


def is_engine(argv: tuple[str, ...]) -> bool:
    """Whether these words start vLLM."""
    return "serve" in argv[:3] or "vllm.entrypoints.openai.api_server" in argv
