"""Listen, accept, reload routes and tokens, drain, stop. Owns every task of the process.

`serve` is one coroutine from start to end; `run` gives it a fast loop and the process's signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import resource
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from gpufleet.clock import Clock, SystemClock
from gpufleet.errors import CannotServe
from gpufleet.proxy.config import Address, ProxyConfig
from gpufleet.proxy.decide.auth import Directory
from gpufleet.proxy.run.admin import AdminConnection
from gpufleet.proxy.run.client import ClientConnection
from gpufleet.proxy.run.fleet import TableRefused
from gpufleet.proxy.run.routes_file import RoutesFile, RoutesUnreadable
from gpufleet.proxy.run.scrape import read_loads, watch
from gpufleet.proxy.run.state import ProxyState
from gpufleet.tokens.store import TokenReader

_LOG = logging.getLogger("gpufleet.proxy")
_BACKLOG = 4096
_GOODBYES = 5
"""Turns of the loop until a client that was cut has ended its exchange, and that its connection to the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Where a proxy listens, and how it is ended. `stop` may be called from any thread, twice to hurry."""

    listen: Address
    admin: Address
    stop: Callable[[], object]
    state: ProxyState


async def serve(
    config: ProxyConfig,
    *,
    clock: Clock | None = None,
    on_started: Callable[[Started], None] | None = None,
    signals: bool = False,
) -> None:
    """Serve until stopped. Raises `CannotServe`: the port is taken, or there is nothing to serve."""
    server = _Server(config, asyncio.get_running_loop(), clock or SystemClock())
    await server.start()
    try:
        if signals:
            server.listen_to_signals()
        if on_started is not None:
            on_started(server.started())
        await server.until_stopped()
    finally:
        await server.end()


def run(config: ProxyConfig, *, on_started: Callable[[Started], None] | None = None) -> None:
    """Serve in this process until SIGTERM or SIGINT."""
    gc.set_threshold(50_000, 50, 50)  # long-lived state, short-lived requests without cycles
    _allow_many_connections()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(config, on_started=on_started, signals=True))


def _allow_many_connections() -> None:
    """Two sockets a stream: the usual soft limit of 1,024 files would end at 500 streams."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The fast loop, uvloop, where it is installed: steadier tails and cheaper uploads; asyncio's own loop elsewhere."""
    try:
        import uvloop  # noqa: PLC0415 - it does not exist on every platform
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


class _Server:
    """What `serve` drives."""

    def __init__(self, config: ProxyConfig, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._config = config
        self._loop = loop
        self._clock = clock
        self._state = ProxyState(config, loop, clock)
        self._routes = RoutesFile(config.routes)
        self._tokens = TokenReader(config.tokens)
        self._token_trouble = ""
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._admin: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Everything that can be wrong is found before the first connection is accepted."""
        self._first_routes()
        self._first_tokens()
        state = self._state
        self._listener = await self._listen(lambda: ClientConnection(state), self._config.listen)
        try:
            self._admin = await self._listen(lambda: AdminConnection(state), self._config.admin)
        except CannotServe:
            self._listener.close()
            raise
        self._tasks = [
            self._loop.create_task(task) for task in (self._tick(), watch(state), read_loads(state))
        ]

    async def _listen(self, factory: Callable[[], asyncio.Protocol], address: Address) -> asyncio.Server:
        try:
            return await self._loop.create_server(factory, address.host, address.port, backlog=_BACKLOG)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            raise CannotServe(
                "the port is in use" if taken else f"cannot listen: {error.strerror or error}",
                where=str(address),
                hints=("stop what listens there, or choose another address with --listen and --admin",),
            ) from None

    def started(self) -> Started:
        """Only after `start`."""
        return Started(
            listen=_bound(self._listener, self._config.listen),
            admin=_bound(self._admin, self._config.admin),
            stop=lambda: self._loop.call_soon_threadsafe(self._on_stop),
            state=self._state,
        )

    def listen_to_signals(self) -> None:
        """SIGTERM and SIGINT drain and end, a second one hurries; SIGHUP reads the files again."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_stop)
        self._loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _on_stop(self) -> None:
        (self._hurry if self._stop.is_set() else self._stop).set()

    async def until_stopped(self) -> None:
        """Serve; then stop accepting and let requests in flight end, up to the deadline."""
        await self._stop.wait()
        state = self._state
        state.stopping = True
        if self._listener is not None:
            self._listener.close()
        self._look_at_clients()
        deadline = self._loop.time() + self._config.drain
        while self._unfinished() and self._loop.time() < deadline and not self._hurry.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._hurry.wait()
        if state.in_flight:
            _LOG.warning("stopping with %d requests in flight", state.in_flight)

    def _unfinished(self) -> bool:
        """An answer that is whole here may still be on its way, and so may a request that was let in."""
        return self._state.in_flight > 0 or any(client.unfinished for client in self._state.clients)

    async def end(self) -> None:
        """Close everything. Runs after a failure too."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in (self._listener, self._admin):
            if listener is not None:
                listener.close()
        for connection in (*self._state.clients, *self._state.operators):
            connection.close()
        self._state.fleet.close()
        for _ in range(_GOODBYES):
            await asyncio.sleep(0)

    # --- what happens again and again ----------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._config.tick)
            try:
                self._state.wall = self._clock.now().timestamp()
                if self._routes.changed():
                    self._read_routes()
                if self._tokens.changed():
                    self._read_tokens()
                self._state.fleet.tick(self._loop.time())
                self._look_at_clients()
            except Exception:  # noqa: BLE001 - the comment below
                # One bad turn must not end deadlines and reloads for all that follow.
                _LOG.exception("the proxy's periodic work failed")

    def _look_at_clients(self) -> None:
        now = self._loop.time()
        for connection in (*self._state.clients, *self._state.operators):
            connection.expire(now)

    def _reload(self) -> None:
        self._read_routes()
        self._read_tokens()

    def _first_routes(self) -> None:
        try:
            table = self._routes.read()
            self._state.fleet.replace(table)
        except (RoutesUnreadable, TableRefused) as error:
            if not self._config.wait_for_routes:
                raise _nothing_to_serve(self._config.routes, str(error)) from None
            _LOG.warning("waiting for routes at %s: %s", self._config.routes, error)
            return
        if not table.pools and not self._config.wait_for_routes:
            raise _nothing_to_serve(self._config.routes, "the route table names no pool")

    def _read_routes(self) -> None:
        """A bad file changes nothing: the generation in use stays."""
        try:
            self._state.fleet.replace(self._routes.read())
        except (RoutesUnreadable, TableRefused) as error:
            self._state.metrics.reloads.add(("refused",))
            _LOG.error(
                "new routes refused, generation %d stays: %s", self._state.fleet.table.generation, error
            )
        else:
            self._state.metrics.reloads.add(("read",))
            _LOG.info("routes of generation %d in use", self._state.fleet.table.generation)

    def _first_tokens(self) -> None:
        """Tokens that cannot be read are not no tokens."""
        self._read_tokens(say=False)
        if self._token_trouble:
            raise CannotServe(f"the tokens cannot be read: {self._token_trouble}", where=self._config.tokens)

    def _read_tokens(self, *, say: bool = True) -> None:
        """Whatever keeps them from being read changes nothing, and is said once."""
        trouble = ""
        try:
            tokens = self._tokens.read()
        except (OSError, sqlite3.Error) as error:
            trouble = str(error)
        else:
            self._state.directory = Directory(tokens, anonymous=self._config.allow_anonymous)
        if trouble and say and trouble != self._token_trouble:
            _LOG.error("tokens not read, those in use stay: %s", trouble)
        self._token_trouble = trouble


def _nothing_to_serve(path: str, why: str) -> CannotServe:
    return CannotServe(
        f"there is nothing to serve: {why}",
        where=path,
        hints=("deploy a pool first (`gpufleet pool deploy`), or start with --wait-for-routes",),
    )


def _bound(server: asyncio.Server | None, asked: Address) -> Address:
    if server is None or not server.sockets:
        return asked
    host, port = server.sockets[0].getsockname()[:2]
    return Address(host=host, port=port)
