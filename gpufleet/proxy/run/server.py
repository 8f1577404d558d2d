"""Listen, accept, reload routes and tokens, drain, stop. Owns every task of the process.

`serve` is one coroutine from start to end; `run` gives it a fast loop and the process's signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpufleet.clock import Clock, SystemClock
from gpufleet.errors import CannotServe
from gpufleet.proxy.config import Address, ProxyConfig
from gpufleet.proxy.decide.auth import Directory
from gpufleet.proxy.run.admin import AdminConnection
from gpufleet.proxy.run.client import ClientConnection
from gpufleet.proxy.run.fleet import TableRefused
from gpufleet.proxy.run.handover import Handover, Offer, Taken, take
from gpufleet.proxy.run.routes_file import RoutesFile, RoutesUnreadable
from gpufleet.proxy.run.scrape import read_loads, watch
from gpufleet.proxy.run.sockets import BACKLOG, Sockets, bind, fits, inherited, notify
from gpufleet.proxy.run.state import ProxyState
from gpufleet.tokens.store import TokenReader

_LOG = logging.getLogger("gpufleet.proxy")
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
        self._sockets: Sockets = {}
        """Held beside the servers, so that they can be handed over."""
        self._servers: dict[str, list[asyncio.Server]] = {}
        self._taken: Taken | None = None
        self._handover: Handover | None = None
        self._activated = False
        """systemd holds the sockets: somebody will serve new clients when this process ends."""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Everything that can be wrong is found before the first connection is accepted."""
        config, state = self._config, self._state
        self._first_routes()
        self._first_tokens()
        given = inherited(os.environ)
        self._activated = bool(given)
        if config.take_over and config.handover:
            self._taken = take(Path(config.handover))
        if self._taken is not None:
            given = self._taken.sockets
            state.fleet.drained.update(self._taken.offer.drained)
            state.fleet.refresh()
            state.fleet.count_elsewhere(self._taken.offer.counts)
        for purpose, address in (("listen", config.listen), ("admin", config.admin)):
            self._sockets[purpose] = _fitting(given.get(purpose, []), address, strict=not self._activated)
        factories: dict[str, Callable[[], asyncio.Protocol]] = {
            "listen": lambda: ClientConnection(state),
            "admin": lambda: AdminConnection(state),
        }
        for purpose, found in self._sockets.items():
            for sock in found:
                server = await self._loop.create_server(factories[purpose], sock=sock.dup(), backlog=BACKLOG)
                self._servers.setdefault(purpose, []).append(server)
        self._tasks = [
            self._loop.create_task(task) for task in (self._tick(), watch(state), read_loads(state))
        ]
        if self._taken is not None:
            self._tasks.append(
                self._loop.create_task(self._taken.follow(self._loop, state.fleet.count_elsewhere))
            )
        self._offer()
        notify(os.environ, f"READY=1\nMAINPID={os.getpid()}")

    def _offer(self) -> None:
        """From now on another proxy may take over from this one."""
        if not self._config.handover:
            return
        self._handover = Handover(
            Path(self._config.handover),
            describe=self._described,
            on_taken=self._hand_over,
            counts=self._state.fleet.counts,
        )
        try:
            self._handover.open()
        except OSError as error:
            _LOG.warning("no other proxy can take over from this one: %s: %s", self._config.handover, error)
            return
        self._tasks.append(self._loop.create_task(self._handover.serve(self._loop)))

    def _described(self) -> tuple[Offer, list[socket.socket]]:
        given = [(purpose, sock) for purpose, found in self._sockets.items() for sock in found]
        offer = Offer(
            purposes=[purpose for purpose, _ in given],
            drained=sorted(self._state.fleet.drained),
            counts=self._state.fleet.counts(),
        )
        return offer, [sock for _, sock in given]

    def _hand_over(self) -> None:
        """Another proxy accepts from the same queue: this one finishes what it has, requests on kept connections too."""
        _LOG.info("another proxy took over; finishing what is in flight")
        self._state.succeeded = True
        self._stop.set()

    def started(self) -> Started:
        """Only after `start`."""
        return Started(
            listen=_bound(self._sockets.get("listen"), self._config.listen),
            admin=_bound(self._sockets.get("admin"), self._config.admin),
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
        state.succeeded = state.succeeded or self._activated
        if not state.succeeded or self._activated:
            notify(os.environ, "STOPPING=1")
        # With a successor nobody asks this process any more; without one operators see the rest of it.
        self._close("listen")
        if state.succeeded:
            self._close("admin")
        if self._handover is not None:
            self._handover.close()
        self._look_at_clients()
        deadline = self._loop.time() + self._config.drain
        while self._unfinished() and self._loop.time() < deadline and not self._hurry.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._hurry.wait()
        if state.in_flight:
            _LOG.warning("stopping with %d requests in flight", state.in_flight)

    def _close(self, purpose: str) -> None:
        """Listen no more; a queue that nobody else holds is gone."""
        for server in self._servers.pop(purpose, []):
            server.close()
        for sock in self._sockets.pop(purpose, []):
            sock.close()

    def _unfinished(self) -> bool:
        """An answer that is whole here may still be on its way, and so may a request that was let in."""
        state = self._state
        if state.succeeded and state.clients:
            return True  # a kept connection may bring one more request; idle ones go when their time is up
        return state.in_flight > 0 or any(client.unfinished for client in state.clients)

    async def end(self) -> None:
        """Close everything. Runs after a failure too."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for purpose in ("listen", "admin"):
            self._close(purpose)
        if self._handover is not None:
            self._handover.close()
        if self._taken is not None:
            self._taken.close()
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


def _fitting(given: list[socket.socket], address: Address, *, strict: bool) -> list[socket.socket]:
    """The sockets that were given, when they listen where it is wanted; else new ones. systemd's are always right."""
    if given and (not strict or all(fits(sock, address) for sock in given)):
        return given
    for sock in given:
        sock.close()
    return bind(address)


def _bound(sockets: list[socket.socket] | None, asked: Address) -> Address:
    if not sockets or sockets[0].family not in {socket.AF_INET, socket.AF_INET6}:
        return asked
    host, port = sockets[0].getsockname()[:2]
    return Address(host=host, port=port)
