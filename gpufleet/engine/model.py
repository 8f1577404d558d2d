"""What an engine asks of the container it runs in, whatever runtime starts that container."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpufleet.engine.flags import Fault
from gpufleet.pools.model import Pool
from gpufleet.redact import Secret


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the host, read-only in the container."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContainer:
    """The engine's share of a container; the runtime's flags, GPU, port and labels are not its business.

    Attributes:
        entrypoint: the program; always written out, because images of different versions start different ones.
        arguments: its words.
        environment: variables; values may be secrets and never become words of a command line.
        port: TCP port it listens on inside the container.
        stop_timeout: seconds the runtime waits before it kills; more than the engine itself lets requests finish.
    """

    image: str
    entrypoint: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str | Secret[str]] = field(default_factory=dict)
    port: int = 8000
    mounts: tuple[Mount, ...] = ()
    stop_timeout: int = 90


class Engine(Protocol):
    """One kind of engine."""

    @property
    def health_path(self) -> str:
        """Answers 503 when the engine is known to be dead."""
        ...

    @property
    def metrics_path(self) -> str:
        """Prometheus text."""
        ...

    @property
    def busy_metrics(self) -> str:
        """Extended regular expression of the metric lines that are 0 when no request is under way."""
        ...

    def faults(self, pool: Pool) -> tuple[Fault, ...]:
        """What this version of the engine would refuse of `pool`, and what cannot be told of it."""
        ...

    def container(self, pool: Pool, *, key: Secret[str] | None, devices: int) -> EngineContainer:
        """What to run for one replica of `pool` on `devices` GPUs or slices."""
        ...
