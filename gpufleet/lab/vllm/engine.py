"""Engines behind real sockets, many in one process: one thread, one event loop, one listener an address.

    with EngineServer() as server:
        engine = server.start((("127.0.0.1", 8001),), spec)     # returns at once; it listens after load_seconds
        server.state(engine), server.log(engine), server.exit_code(engine)
        server.stop(engine)                                     # status 0, or 137 for a kill
        server.change_mode(engine, Mode.HANG)

Every method may be called from any thread; the state of an engine is touched in the loop's thread alone. While an
engine loads, its port is bound and does not listen, as vLLM does it: clients are refused. A client that leaves
ends its request at once. `lab.served_engines` puts such a server behind the `EngineHost` of `lab.simhost`.
"""

from __future__ import annotations

import asyncio
import math
import queue
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from gpufleet.clock import SystemClock
from gpufleet.lab.vllm import log
from gpufleet.lab.vllm.engine_connection import Connection
from gpufleet.lab.vllm.engine_model import EngineModel, Phase
from gpufleet.lab.vllm.replies import Reply, Request
from gpufleet.lab.vllm.spec import EngineSpec, Mode

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds that a caller waits for the loop's thread before something is wrong."""


class Sink(Protocol):
    """Where a reply goes: a connection, or a queue that another thread reads."""

    @property
    def early(self) -> bool:
        """Whether it wants status and headers before the body is there."""
        ...

    def head(self, reply: Reply) -> None:
        """Status and headers."""
        ...

    async def piece(self, content: bytes) -> None:
        """A piece of the body."""
        ...


@dataclass(slots=True, eq=False)
class RunningEngine:
    """One engine and its sockets. Its fields belong to the loop's thread."""

    model: EngineModel
    sockets: list[socket.socket] = field(default_factory=list)
    connections: set[Connection] = field(default_factory=set)
    askers: set[asyncio.Task[None]] = field(default_factory=set)
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    life: asyncio.Task[None] | None = None
    closed: bool = False

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Where it is bound; ports are real ones also when 0 was asked for."""
        return tuple(bound.getsockname()[:2] for bound in self.sockets)


async def deliver(running: RunningEngine, request: Request, sink: Sink) -> None:
    """Answer one request over time; cancelled when the client has left, and then counted as aborted.

    Raises:
        ConnectionRefusedError: the engine is not ready any more.
    """
    engine, now = running.model, asyncio.get_running_loop().time
    reply = engine.respond(request, now())
    ticket, reason = reply.ticket, "abort"
    early = reply.streamed or sink.early
    try:
        if early:
            sink.head(reply)
        if ticket is not None:
            while not engine.begin(ticket, now()):
                running.freed.clear()
                await running.freed.wait()
        for place, chunk in enumerate(reply.chunks):
            if chunk.delay:
                await (asyncio.sleep(chunk.delay) if math.isfinite(chunk.delay) else asyncio.Event().wait())
            if place == 0 and not early:
                sink.head(reply)
            await sink.piece(chunk.content)
            if ticket is not None:
                engine.sent(ticket, chunk, now())
        if not reply.chunks and not early:
            sink.head(reply)
        if ticket is not None:
            reason = ticket.generation.finish
    finally:
        if ticket is not None:
            engine.finish(ticket, reason, now())
            running.freed.set()


class EngineServer:
    """See the module."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._running: set[RunningEngine] = set()
        self._accepting: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lab-engines", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, binds: Sequence[tuple[str, int]], spec: EngineSpec) -> RunningEngine:
        """Start an engine. A port that is taken is no exception: the engine says so in its log and ends with 1."""
        model = EngineModel(spec, self._loop.time())
        model.wall = SystemClock().now().timestamp() - model.started
        sockets: list[socket.socket] = []
        try:
            for address, port in binds:
                bound = _bound(address, port)
                sockets.append(bound)
        except OSError as error:
            for bound in sockets:
                bound.close()
            sockets = []
            _port_taken(model, error)
        return self._call(self._begin(RunningEngine(model, sockets)))

    def stop(self, running: RunningEngine, status: int = 0) -> None:
        """End it: 0 as after SIGTERM, 137 as after a kill. Requests under way are aborted, connections reset."""
        self._call(self._end(running, status))

    def state(self, running: RunningEngine) -> Phase:
        """Loading, ready or exited."""
        return running.model.phase(self._loop.time())

    def exit_code(self, running: RunningEngine) -> int | None:
        """None while it lives."""
        return running.model.exit_code(self._loop.time())

    def log(self, running: RunningEngine) -> str:
        """Everything it has printed."""
        return running.model.log(self._loop.time())

    def change_mode(self, running: RunningEngine, mode: Mode) -> None:
        """Behave otherwise from the next request on."""
        self._loop.call_soon_threadsafe(running.model.change_mode, mode)

    def ask(
        self, running: RunningEngine, request: Request, sleep: Callable[[float], None]
    ) -> tuple[Reply, Iterator[bytes]]:
        """One request from another thread, without a socket; `sleep` is how that thread waits.

        Raises:
            ConnectionRefusedError: it is not ready.
        """
        sink = _QueueSink()
        task = asyncio.run_coroutine_threadsafe(sink.feed(running, request), self._loop)
        first = sink.items.get(timeout=PATIENCE)
        if isinstance(first, Reply):
            return first, sink.pieces(sleep, task.cancel)
        raise first if isinstance(first, BaseException) else ConnectionResetError("the engine ended")

    def close(self) -> None:
        """End every engine, the loop and its thread."""
        if self._loop.is_closed():
            return
        self._call(self._end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _begin(self, running: RunningEngine) -> RunningEngine:
        self._running.add(running)
        running.life = asyncio.create_task(self._live(running))
        return running

    async def _live(self, running: RunningEngine) -> None:
        """Load, then listen; or load, then end."""
        model = running.model
        end = log.ending(model.spec)
        if model.stopped is not None or (end is not None and end.status is None):
            return
        share = 1.0 if end is None else end.at
        await asyncio.sleep(max(0.0, model.started + share * model.spec.load_seconds - self._loop.time()))
        if end is not None:
            _close(running)
            return
        try:
            for bound in running.sockets:
                bound.listen(1024)
                self._loop.add_reader(bound, self._accept, running, bound)
        except OSError as error:  # two may bind one port before the first of them listens
            _port_taken(model, error)
            _close(running)

    def _accept(self, running: RunningEngine, listener: socket.socket) -> None:
        """Take one connection. An asyncio.Server is not used: closed while it accepts, it leaks what it accepted."""
        with suppress(BlockingIOError, InterruptedError, ConnectionAbortedError):
            accepted, _ = listener.accept()
            accepted.setblocking(False)
            work = self._loop.create_task(
                self._loop.connect_accepted_socket(lambda: Connection(running, deliver), accepted)
            )
            self._accepting.add(work)
            work.add_done_callback(self._accepting.discard)

    async def _end_all(self) -> None:
        for running in list(self._running):
            await self._end(running, 0)
        # what is just being accepted must come to its end: `Connection` closes it then
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        if rest:
            await asyncio.wait(rest, timeout=PATIENCE / 2)
        for _ in range(3):  # transports close their sockets in a later round of the loop
            await asyncio.sleep(0)

    async def _end(self, running: RunningEngine, status: int) -> None:
        running.model.stop(self._loop.time(), status)
        if running.life is not None:
            running.life.cancel()
            with suppress(asyncio.CancelledError):
                await running.life
        _close(running)
        self._running.discard(running)


def _bound(address: str, port: int) -> socket.socket:
    """A socket that is bound and does not listen."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # the protocol is named, because asyncio sets TCP_NODELAY only where it stands
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


def _port_taken(model: EngineModel, error: OSError) -> None:
    """What the process says and how it ends."""
    model.extra_log.append(f"(APIServer pid=1) OSError: [Errno {error.errno}] {error.strerror}")
    model.stopped = 1


def _close(running: RunningEngine) -> None:
    running.closed = True
    for bound in running.sockets:
        if bound.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(bound)
            bound.close()
    for connection in list(running.connections):
        connection.abort()
    for asker in running.askers:
        asker.cancel()


@dataclass(slots=True)
class _QueueSink:
    """A reply on its way to another thread: a Reply, then bytes, then None or what went wrong."""

    items: queue.SimpleQueue[Reply | bytes | BaseException | None] = field(default_factory=queue.SimpleQueue)
    early: bool = True

    def head(self, reply: Reply) -> None:
        self.items.put(reply)

    async def piece(self, content: bytes) -> None:
        self.items.put(content)

    async def feed(self, running: RunningEngine, request: Request) -> None:
        """The whole reply, in the loop's thread."""
        work = asyncio.create_task(deliver(running, request, self))
        running.askers.add(work)
        try:
            await work
        except (ConnectionError, asyncio.CancelledError) as error:
            self.items.put(
                error if isinstance(error, ConnectionError) else ConnectionResetError("the engine ended")
            )
        else:
            self.items.put(None)
        finally:
            work.cancel()
            running.askers.discard(work)

    def pieces(self, sleep: Callable[[float], None], leave: Callable[[], object]) -> Iterator[bytes]:
        """The body, in the thread that asked; leaving early ends the request."""
        try:
            while True:
                try:
                    item = self.items.get_nowait()
                except queue.Empty:
                    sleep(0.005)
                    continue
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, bytes):
                    yield item
        finally:
            leave()
