"""Listen, accept, look at files and deadlines, drain, stop. Owns every task of the process.

`serve` is one coroutine from start to end; `run` gives it a fast loop and the process's signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpufleet.clock import Clock, SystemClock
from gpufleet.errors import CannotServe
from gpufleet.proxy.config import Address, ProxyConfig
from gpufleet.proxy.run.access_log import AccessLog
from gpufleet.proxy.run.admin import AdminConnection
from gpufleet.proxy.run.client import ClientConnection
from gpufleet.proxy.run.desk import OwnDesk
from gpufleet.proxy.run.port import PURPOSES, Port
from gpufleet.proxy.run.process import run_loop, tidy
from gpufleet.proxy.run.scrape import read_loads, watch
from gpufleet.proxy.run.sockets import BACKLOG, Sockets, notify
from gpufleet.proxy.run.sources import Sources
from gpufleet.proxy.run.state import Connected, ProxyState
from gpufleet.proxy.run.tls import Certificate
from gpufleet.proxy.run.turned_away import TurnedAway

_LOG = logging.getLogger("gpufleet.proxy")
_ACCEPTING = 0.2
_HANDSHAKE = 2.0
"""Seconds that somebody who was accepted may need to become a client, without TLS and with it."""
_TIDY = 60.0
"""Seconds between two looks for garbage."""
_GOODBYES = 5
"""Turns of the loop until a client that was cut has ended its exchange, and that its connection to the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Where a proxy listens, and how it is ended. `stop` may be called from any thread, twice to hurry.

    `hand_over` ends it too, but for a successor that accepts from the same queue; `reload` reads routes and tokens.
    """

    listen: Address
    admin: Address
    stop: Callable[[], object]
    hand_over: Callable[[], None]
    reload: Callable[[], None]
    state: ProxyState


async def serve(
    config: ProxyConfig,
    *,
    clock: Clock | None = None,
    on_started: Callable[[Started], None] | None = None,
    signals: bool = False,
    given: Sockets | None = None,
) -> None:
    """Serve until stopped. Raises `CannotServe`: the port is taken, or there is nothing to serve.

    With sockets that are `given` it is a worker: these and no others, and nobody takes over from it alone.
    """
    server = _Server(config, asyncio.get_running_loop(), clock or SystemClock())
    try:
        await server.start(given)
        if signals:
            server.listen_to_signals()
        if on_started is not None:
            on_started(server.started())
        await server.until_stopped()
    finally:
        await server.end()


def run(config: ProxyConfig, *, on_started: Callable[[Started], None] | None = None) -> None:
    """Serve in this process until SIGTERM or SIGINT."""
    run_loop(serve(config, on_started=on_started, signals=True))


class _Server:
    """What `serve` drives."""

    def __init__(self, config: ProxyConfig, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._config = config
        self._loop = loop
        self._clock = clock
        self._state = state = ProxyState(config, loop, clock)
        self._sources = Sources(state)
        self._port = Port(
            config, drained=lambda: sorted(state.fleet.drained), counts=state.fleet.counts_in_all
        )
        self._certificate: Certificate | None = None
        self._access: AccessLog | None = None
        self._settled_at = 0.0
        """A successor is there, and nobody is between the kernel's queue and our clients any more."""
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._servers: dict[str, list[asyncio.Server]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, given: Sockets | None) -> None:
        """Everything that can be wrong is found before the first connection is accepted."""
        state, port = self._state, self._port
        self._sources.first()
        if self._config.certificate:
            self._certificate = Certificate(self._config.certificate, self._config.private_key)
        if self._config.access_log:
            self._open_access_log()
        if given is None:
            port.open()
        else:
            port.sockets = given
        if port.taken is not None:
            state.fleet.drained.update(port.taken.offer.drained)
            state.fleet.refresh()
            state.fleet.count_elsewhere(port.taken.offer.counts)
        factories: dict[str, Callable[[], asyncio.Protocol]] = {
            "listen": lambda: (
                ClientConnection(state)
                if len(state.clients) < self._config.connection_limit
                else TurnedAway(state)
            ),
            "admin": lambda: AdminConnection(state, OwnDesk(state)),
        }
        for purpose, found in port.sockets.items():
            for sock in found:
                # A copy: closing the server must leave the socket to be handed over.
                server = await self._loop.create_server(
                    factories[purpose],
                    sock=sock.dup(),
                    backlog=BACKLOG,
                    **(self._tls() if purpose == "listen" else {}),
                )
                self._servers.setdefault(purpose, []).append(server)
        self._tasks += [
            self._loop.create_task(task) for task in (self._tick(), watch(state), read_loads(state))
        ]
        self._tasks += port.follow(self._loop, state.fleet.count_elsewhere)
        if given is None:
            self._tasks += port.offer(self._loop, self._hand_over)

    def _open_access_log(self) -> None:
        config = self._config
        log = AccessLog(self._state, config.access_log, config.access_share)
        try:
            log.open()
        except OSError as error:
            raise CannotServe(
                f"the access log cannot be written: {error.strerror or error}",
                where=config.access_log,
                hints=("give --access-log a path in a folder that this user may write, or `-`",),
            ) from None
        self._access = self._state.access = log
        self._tasks.append(self._loop.create_task(log.write_for_ever()))

    def _tls(self) -> dict[str, Any]:
        """Arguments of `create_server`; a handshake has as long as a request's head."""
        if self._certificate is None:
            return {}
        return {"ssl": self._certificate.context, "ssl_handshake_timeout": self._config.timeouts.head}

    def _hand_over(self) -> None:
        """Another proxy accepts from the same queue: this one finishes what it has, requests on kept connections too."""
        _LOG.info("another proxy took over; finishing what is in flight")
        self._state.succeeded = True
        self._stop.set()

    def started(self) -> Started:
        """Only after `start`."""
        return Started(
            listen=self._port.address("listen"),
            admin=self._port.address("admin"),
            stop=lambda: self._loop.call_soon_threadsafe(self._on_stop),
            hand_over=self._hand_over,
            reload=self._sources.reload,
            state=self._state,
        )

    def listen_to_signals(self) -> None:
        """SIGTERM and SIGINT drain and end, a second one hurries; SIGHUP reads the files again."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_stop)
        self._loop.add_signal_handler(signal.SIGHUP, self._sources.reload)

    def _on_stop(self) -> None:
        (self._hurry if self._stop.is_set() else self._stop).set()

    async def until_stopped(self) -> None:
        """Serve; then stop accepting and let requests in flight end, up to the deadline."""
        await self._stop.wait()
        state = self._state
        state.stopping = True
        if not state.succeeded:
            notify(os.environ, "STOPPING=1")
        state.succeeded = state.succeeded or self._port.activated
        # With a successor nobody asks this process any more; without one operators see the rest of it.
        self._close("listen")
        if state.succeeded:
            self._close("admin")
        self._port.withdraw()
        self._settled_at = self._loop.time() + (_HANDSHAKE if self._certificate is not None else _ACCEPTING)
        for _ in range(_GOODBYES):
            await asyncio.sleep(0)  # who was accepted just now is not among the clients yet
        self._look_at_clients()
        deadline = self._loop.time() + self._config.drain
        while self._unfinished() and self._loop.time() < deadline and not self._hurry.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._hurry.wait()
        if state.in_flight:
            _LOG.warning("stopping with %d requests in flight", state.in_flight)

    def _close(self, purpose: str) -> None:
        for server in self._servers.pop(purpose, []):
            server.close()
        self._port.close(purpose)

    def _unfinished(self) -> bool:
        """An answer that is whole here may still be on its way, and so may a request that was let in."""
        state = self._state
        if state.succeeded and (state.clients or self._loop.time() < self._settled_at):
            return True  # a kept connection may bring one more request; idle ones go when their time is up
        return state.in_flight > 0 or any(client.unfinished for client in state.clients)

    async def end(self) -> None:
        """Close everything. Runs after a failure too."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for purpose in PURPOSES:
            self._close(purpose)
        self._port.end()
        for connection in self._connected():
            connection.close()
        self._state.fleet.close()
        for _ in range(_GOODBYES):
            await asyncio.sleep(0)
        if self._access is not None:
            self._access.flush()
            self._access.close()

    async def _tick(self) -> None:
        """Again and again."""
        tidied_at = self._loop.time()
        while True:
            await asyncio.sleep(self._config.tick)
            try:
                if self._loop.time() - tidied_at > _TIDY:
                    tidied_at = self._loop.time()
                    tidy()
                self._state.wall = self._clock.now().timestamp()
                self._sources.look()
                if self._certificate is not None:
                    self._certificate.look()
                self._state.fleet.tick(self._loop.time())
                self._look_at_clients()
            except Exception:  # noqa: BLE001 - the comment below
                # One bad turn must not end deadlines and reloads for all that follow.
                _LOG.exception("the proxy's periodic work failed")

    def _look_at_clients(self) -> None:
        now = self._loop.time()
        for connection in self._connected():
            connection.expire(now)

    def _connected(self) -> tuple[Connected, ...]:
        state = self._state
        return (*state.clients, *state.operators, *state.turned_away)
