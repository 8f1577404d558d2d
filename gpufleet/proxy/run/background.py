"""A proxy in a thread of its own, for the lab and for tests; a served fleet runs in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType

from gpufleet.proxy.config import ProxyConfig
from gpufleet.proxy.run.process import loop_factory
from gpufleet.proxy.run.server import Started, serve
from gpufleet.proxy.run.supervisor import supervise


class ProxyThread:
    """`with ProxyThread(config) as started:` serves until the block ends. Raises `CannotServe` on entering."""

    def __init__(self, config: ProxyConfig, *, uvloop: bool = True) -> None:
        self._config = config
        self._factory = loop_factory() if uvloop else asyncio.new_event_loop
        self._ready = threading.Event()
        self._started: Started | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="gpufleet-proxy", daemon=True)

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._factory) as runner:
                main = supervise if self._config.workers > 1 else serve
                runner.run(main(self._config, on_started=self._on_started))
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._error = error
        finally:
            self._ready.set()

    def _on_started(self, started: Started) -> None:
        self._started = started
        self._ready.set()

    def start(self) -> Started:
        """Returns when it listens."""
        self._thread.start()
        self._ready.wait()
        if self._started is None:
            raise self._error or RuntimeError("the proxy ended before it listened")
        return self._started

    def stop(self, timeout: float = 30.0) -> None:
        """Drain and end; hurries when that takes longer than `timeout` seconds."""
        if self._started is not None and self._thread.is_alive():
            self._started.stop()
            self._thread.join(timeout)
            if self._thread.is_alive():
                with contextlib.suppress(RuntimeError):  # it ended meanwhile
                    self._started.stop()
                self._thread.join(5.0)
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Started:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
