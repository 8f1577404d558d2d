"""Several processes that are one proxy: this one holds the sockets and the admin address, the workers serve.

start    read routes and tokens, get the sockets, start the workers, wait until each serves
a worker dies   its counts are given back, another takes its place and its socket: who waits in the queue is served
stop     SIGTERM: each worker drains; a second one hurries; whoever is still there after that is killed
taken over      the workers finish what they have, the new proxy accepts from the same sockets
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace

import msgspec

from gpufleet.clock import Clock, SystemClock
from gpufleet.errors import CannotServe
from gpufleet.proxy.config import ProxyConfig
from gpufleet.proxy.decide.metrics import Family, gauge, merged
from gpufleet.proxy.run.admin import AdminConnection
from gpufleet.proxy.run.board import Board
from gpufleet.proxy.run.desk import NoAnswer, Row, together
from gpufleet.proxy.run.handover import Count
from gpufleet.proxy.run.port import Port
from gpufleet.proxy.run.process import run_loop
from gpufleet.proxy.run.server import Started
from gpufleet.proxy.run.sockets import BACKLOG, notify
from gpufleet.proxy.run.sources import Sources
from gpufleet.proxy.run.state import ProxyState
from gpufleet.proxy.run.tls import Certificate
from gpufleet.proxy.run.worker import CONNECTION, LARGEST_LINE, Assignment, Order, Report

_LOG = logging.getLogger("gpufleet.proxy")
_ANSWER = 5.0
"""Seconds until a worker that does not answer an operator's question is unknown."""
_START = 60.0
_PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0)
"""Seconds before a worker is started again, by how often in a row it died young."""
_YOUNG = 30.0
_GRACE = 5.0
"""Seconds beyond the drain deadline until a worker is killed."""


def run(config: ProxyConfig, *, on_started: Callable[[Started], None] | None = None) -> None:
    """Serve with `config.workers` processes until SIGTERM or SIGINT."""
    run_loop(supervise(config, on_started=on_started, signals=True))


async def supervise(
    config: ProxyConfig, *, on_started: Callable[[Started], None] | None = None, signals: bool = False
) -> None:
    """Serve until stopped. Raises `CannotServe`."""
    supervisor = _Supervisor(config, asyncio.get_running_loop(), SystemClock())
    try:
        await supervisor.start()
        if signals:
            supervisor.listen_to_signals()
        if on_started is not None:
            on_started(supervisor.started())
        await supervisor.until_stopped()
    finally:
        await supervisor.end()


class _Worker:
    """One worker's process, as its supervisor sees it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, assignment: Assignment) -> None:
        self.row = assignment.row
        self.gone = asyncio.Event()
        self.started_at = loop.time()
        self._loop = loop
        self._turn = asyncio.Lock()
        self._serves = False
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._connection, theirs = socket.socketpair()
        # Not number 3 by chance: dup2 onto itself would leave it to be closed by the new program.
        high = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 16)
        theirs.close()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment.pop("NOTIFY_SOCKET", None)  # systemd hears of the supervisor alone
        self.pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-m", "gpufleet.proxy.run.worker"],
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, high, CONNECTION)],
        )
        os.close(high)
        self._watched = os.pidfd_open(self.pid)
        loop.add_reader(self._watched, self._died)

    async def begin(self, assignment: Assignment, descriptors: list[int]) -> bool:
        """Tell it what to serve; False when it died before it served."""
        socket.send_fds(self._connection, [msgspec.json.encode(assignment)], descriptors)
        self._connection.setblocking(False)
        self._reader, self._writer = await asyncio.open_connection(sock=self._connection, limit=LARGEST_LINE)
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(_START):
                self._serves = bool(await self._reader.readline())
        return self._serves

    async def ask(self, order: Order) -> Report | None:
        """None when it does not answer. One that was too slow is heard no more: its answers would be out of step."""
        async with self._turn:
            reader, writer = self._reader, self._writer
            if reader is None or writer is None or not self._serves or self.gone.is_set():
                return None
            try:
                async with asyncio.timeout(_ANSWER):
                    writer.write(msgspec.json.encode(order) + b"\n")
                    line = await reader.readline()
                return msgspec.json.decode(line, type=Report) if line else None
            except (TimeoutError, OSError, ValueError):
                _LOG.error("worker %d does not answer; it is started again", self.row)
                self.kill()
                return None

    def kill(self) -> None:
        """At once."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def _died(self) -> None:
        self._loop.remove_reader(self._watched)
        os.close(self._watched)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        if self._writer is not None:
            self._writer.close()
        else:
            self._connection.close()
        self.gone.set()


class _Supervisor:
    """What `supervise` drives; answers operators for all workers (`desk.Desk`)."""

    def __init__(self, config: ProxyConfig, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._config = config
        self._loop = loop
        self._clock = clock
        self._state = ProxyState(config, loop, clock)
        self._sources = Sources(self._state)
        self._drained: set[tuple[str, str]] = set()
        self._port = Port(config, drained=lambda: sorted(self._drained), counts=self._counts)
        self._rows = config.workers + 1
        self._memory = Board.make(self._rows)
        self._board = Board(self._memory, self._rows, config.workers)
        self._of_workers: list[Count] = []
        self._before: list[Count] = []
        """What a proxy that was taken over still has in flight."""
        self._workers: dict[int, _Worker] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._servers: list[asyncio.Server] = []
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def start(self) -> None:
        """Every worker serves when this returns. Raises `CannotServe`."""
        self._sources.first()
        if self._config.certificate:
            Certificate(
                self._config.certificate, self._config.private_key
            )  # what is wrong with it is said here, once
        port = self._port
        port.open(copies=self._config.workers)
        if port.taken is not None:
            self._drained.update(port.taken.offer.drained)
            self._count_before(port.taken.offer.counts)
        begun = await asyncio.gather(*(self._begin(row) for row in range(self._config.workers)))
        if not all(begun):
            raise CannotServe(
                "a worker process did not start",
                where=str(port.address("listen")),
                hints=("the lines of the log above say why; try with --workers 1",),
            )
        for sock in port.sockets["admin"]:
            server = await self._loop.create_server(
                lambda: AdminConnection(self._state, self), sock=sock.dup(), backlog=BACKLOG
            )
            self._servers.append(server)
        self._keepers = [self._loop.create_task(self._keep(row)) for row in range(self._config.workers)]
        self._tasks = [self._loop.create_task(self._tick())]
        self._tasks += port.follow(self._loop, self._count_before)
        self._tasks += port.offer(self._loop, self._hand_over)

    async def _begin(self, row: int) -> bool:
        config, number = self._config, self._config.workers
        assignment = Assignment(
            config=replace(
                config,
                handover="",
                take_over=False,
                buffered_limit=max(1, config.buffered_limit // number),
                connection_limit=max(1, config.connection_limit // number),
            ),
            row=row,
            rows=self._rows,
            drained=sorted(self._drained),
            level=_LOG.getEffectiveLevel(),
        )
        sockets = self._port.sockets["listen"]
        own = [sock for place, sock in enumerate(sockets) if place % number == row] or [
            sockets[row % len(sockets)]  # fewer sockets than workers: some share one
        ]
        worker = self._workers[row] = _Worker(self._loop, assignment)
        return await worker.begin(assignment, [self._memory, *(sock.fileno() for sock in own)])

    async def _keep(self, row: int) -> None:
        """As long as the proxy serves, one worker is in this place."""
        young = 0
        while True:
            worker = self._workers[row]
            await worker.gone.wait()
            self._board.clear(row)
            if self._stop.is_set():
                return
            young = young + 1 if self._loop.time() - worker.started_at < _YOUNG else 0
            pause = _PAUSES[min(young, len(_PAUSES) - 1)]
            _LOG.error("worker %d (process %d) died; another one starts in %g s", row, worker.pid, pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stop.wait()
            if self._stop.is_set():
                return
            await self._begin(row)

    # --- counts --------------------------------------------------------------------------------------------------

    def _counts(self) -> list[Count]:
        """Of all workers and of those before them, for whoever takes over."""
        found = self._board.others()
        if found is not None:
            self._of_workers = found
        return [*self._of_workers, *self._before]

    def _count_before(self, counts: list[Count]) -> None:
        self._before = counts
        self._board.write(counts)

    # --- what operators ask (desk.Desk) --------------------------------------------------------------------------

    async def _ask(self, order: Order) -> list[Report | None]:
        workers = [self._workers[row] for row in sorted(self._workers)]
        return list(await asyncio.gather(*(worker.ask(order) for worker in workers)))

    async def families(self) -> list[Family]:
        """Of all workers that answer; which do is a figure too."""
        reports = await self._ask(Order(do="report"))
        up: dict[tuple[str, ...], float] = {
            (str(row),): float(report is not None) for row, report in enumerate(reports)
        }
        return [
            *merged(report.families for report in reports if report is not None),
            gauge("gpufleet_proxy_worker_up", "1: the worker process answers.", ("worker",), up),
        ]

    async def members(self) -> Row:
        """See `Desk`."""
        page = together([report.members for report in self._all(await self._ask(Order(do="report")))])
        for pool in page["pools"]:
            for row in pool["members"]:
                row["in_flight"] += self._had(row)
        return {**page, "stopping": self._state.stopping}

    async def drain(self, pool: str, replica: str, *, wanted: bool) -> Row | None:
        """See `Desk`."""
        order = Order(do="drain" if wanted else "undrain", pool=pool, replica=replica)
        rows = [report.row for report in self._all(await self._ask(order))]
        found = [row for row in rows if row is not None]
        if not found:
            return None
        (self._drained.add if wanted else self._drained.discard)((pool, replica))
        return {**found[-1], "in_flight": sum(int(row["in_flight"]) for row in found) + self._had(found[-1])}

    def _had(self, row: Row) -> int:
        """What the proxy before this one still has on a member."""
        wanted = (row["replica"], row["endpoint"])
        return sum(number for id_, url, number in self._before if (id_, url) == wanted)

    @staticmethod
    def _all(reports: list[Report | None]) -> list[Report]:
        """One that is missing may hold any number of requests."""
        answered = [report for report in reports if report is not None]
        if len(answered) < len(reports):
            raise NoAnswer(f"{len(reports) - len(answered)} of {len(reports)} worker processes do not answer")
        return answered

    # --- the end -------------------------------------------------------------------------------------------------

    def started(self) -> Started:
        """Only after `start`."""
        return Started(
            listen=self._port.address("listen"),
            admin=self._port.address("admin"),
            stop=lambda: self._loop.call_soon_threadsafe(self._on_stop),
            hand_over=self._hand_over,
            reload=self._reload,
            state=self._state,
        )

    def listen_to_signals(self) -> None:
        """As `server` has them."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_stop)
        self._loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _reload(self) -> None:
        self._tasks.append(self._loop.create_task(self._tell("reload")))

    async def _tell(self, what: str) -> None:
        await self._ask(Order(do=what))

    def _on_stop(self) -> None:
        (self._hurry if self._stop.is_set() else self._stop).set()

    def _hand_over(self) -> None:
        _LOG.info("another proxy took over; the workers finish what is in flight")
        self._state.succeeded = True
        self._stop.set()

    async def until_stopped(self) -> None:
        """Serve; then let every worker end what it has."""
        await self._stop.wait()
        state, port = self._state, self._port
        state.stopping = True
        if not state.succeeded:
            notify(os.environ, "STOPPING=1")
        leaves = state.succeeded or port.activated
        port.withdraw()
        if leaves:
            self._close_admin()
        await self._tell("hand_over" if leaves else "stop")
        port.close("listen")
        hurry = self._loop.create_task(self._hurry.wait())
        ended = self._loop.create_task(self._all_gone())
        await asyncio.wait(
            (hurry, ended), timeout=self._config.drain + _GRACE, return_when=asyncio.FIRST_COMPLETED
        )
        if not ended.done():
            await self._tell("stop")  # the second that a stopping worker hears
            if leaves:
                await self._tell("stop")
            await asyncio.wait((ended,), timeout=_GRACE)
        for task in (hurry, ended):
            task.cancel()

    async def _all_gone(self) -> None:
        for worker in self._workers.values():
            await worker.gone.wait()

    def _close_admin(self) -> None:
        for server in self._servers:
            server.close()
        self._port.close("admin")

    async def end(self) -> None:
        """Close everything; no worker outlives it. Runs after a failure too."""
        self._stop.set()
        for task in (*self._tasks, *self._keepers):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._keepers, return_exceptions=True)
        self._close_admin()
        self._port.end()
        for worker in self._workers.values():
            if not worker.gone.is_set():
                worker.kill()
                await worker.gone.wait()
        for connection in tuple(self._state.operators):
            connection.close()
        self._board.close()
        os.close(self._memory)
        await asyncio.sleep(0)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._config.tick)
            self._state.wall = self._clock.now().timestamp()
            for connection in tuple(self._state.operators):
                connection.expire(self._loop.time())
