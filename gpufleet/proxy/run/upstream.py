"""Connections to one engine: kept alive, taken, given back, and failures that say in which phase they happened.

connect --made--> BUSY --answer whole, both sides keep it--> IDLE --taken--> BUSY
                  BUSY --closed, reset, bad bytes--> the exchange is told LOST, the connection is gone
IDLE is closed after a few seconds: an engine that closes first leaves a race that costs a retry.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from typing import Protocol, cast

from gpufleet.proxy.run.tls import members_context
from gpufleet.proxy.wire.chunked import ProtocolError
from gpufleet.proxy.wire.heads import ResponseHead
from gpufleet.proxy.wire.http1 import ResponseReader

_ONE_WRITE = 128 * 1024
"""Up to this size head and body go out in one piece."""


class Exchange(Protocol):
    """Who waits for an answer on a connection. Calls come in the order of the bytes."""

    def on_connected(self, connection: UpstreamConnection) -> None:
        """A new connection is there."""
        ...

    def on_connect_failed(self, reason: str) -> None:
        """There will be none."""
        ...

    def on_head(self, head: ResponseHead, body: bytes) -> None:
        """The final head, and what of the body came with it, not yet followed."""
        ...

    def on_body(self, received: bytes) -> None:
        """Bytes behind the head, not yet followed."""
        ...

    def on_lost(self, reason: str) -> None:
        """The connection ended; `reader.complete` says whether that was the end of the answer too."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """One socket to one engine. Serves one exchange at a time."""

    __slots__ = (
        "_paused",
        "exchange",
        "head_seen",
        "idle_since",
        "kept",
        "owner",
        "reader",
        "touched",
        "transport",
    )

    def __init__(self, owner: ConnectionPool) -> None:
        self.owner = owner
        self.exchange: Exchange | None = None
        self.transport: asyncio.Transport | None = None
        self._paused = False
        self.reader = ResponseReader()
        self.head_seen = False
        self.touched = False
        """A byte of the answer has arrived."""
        self.kept = False
        """It served before: a reset before the first byte may mean that the engine had closed it."""
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Told by the loop; `connect` tells the exchange."""
        self.transport = cast("asyncio.Transport", transport)
        self.owner.open.add(self)

    def send(self, head: bytes, body: bytes | memoryview) -> None:
        """One request. The body is in memory already and bounded, so nothing waits for the socket."""
        transport = self.transport
        if transport is None:
            return
        self.reader.begin()
        self.head_seen = self.touched = False
        if len(body) <= _ONE_WRITE:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)

    @property
    def flushed(self) -> bool:
        """Nothing of the request waits for the socket."""
        return self.transport is not None and self.transport.get_write_buffer_size() == 0

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:  # nobody asked
            self.close()
            return
        if self.head_seen:
            exchange.on_body(data)
            return
        self.touched = True
        try:
            found = self.reader.head(data)
        except ProtocolError as error:
            self.exchange = None
            self.close()
            exchange.on_lost(error.reason)
            return
        if found is not None:
            self.head_seen = True
            exchange.on_head(*found)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.owner.open.discard(self)
        exchange, self.exchange = self.exchange, None
        self.transport = None
        if exc is None:
            self.reader.closed()
        if exchange is not None:
            exchange.on_lost("the engine reset the connection" if exc else "the engine closed the connection")

    def skip(self, head: ResponseHead, body: bytes) -> bool:
        """Throw this answer away; True when it is here to its end, so that the connection can serve again."""
        try:
            self.reader.follow(body)
        except ProtocolError:
            return False
        return head.persistent and self.reader.complete and not self.reader.overrun

    def give_back(self, now: float, *, reusable: bool) -> None:
        """The answer is whole."""
        self.exchange = None
        if self._paused:  # the last piece was more than its client could take; the next client is another
            self.resume()
        transport = self.transport
        if not reusable or self.owner.closed or transport is None or not _clean(transport):
            self.close()
            return
        self.kept = True
        self.idle_since = now
        self.owner.idle.append(self)

    def close(self) -> None:
        """At once; an engine learns by this that nobody waits any more."""
        self.exchange = None
        if self.transport is not None:
            self.transport.abort()

    def abandon(self) -> None:
        """Nobody waits for it to be made. uvloop closes such a socket itself and never tells that it is lost."""
        self.close()
        self.owner.open.discard(self)

    def pause(self) -> None:
        """The client does not keep up."""
        if self.transport is not None and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """It does again."""
        if self._paused and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
        self._paused = False


class ConnectionPool:
    """All connections to one engine."""

    __slots__ = ("_connecting", "closed", "host", "idle", "loop", "open", "port", "timeout", "tls")

    def __init__(
        self, host: str, port: int, loop: asyncio.AbstractEventLoop, timeout: float, *, tls: bool = False
    ) -> None:
        self.host = host
        self.port = port
        self.loop = loop
        self.timeout = timeout
        self.tls: ssl.SSLContext | None = members_context() if tls else None
        """None: plain TCP."""
        self.idle: deque[UpstreamConnection] = deque()
        self.open: set[UpstreamConnection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self.closed = False

    def take(self, exchange: Exchange) -> UpstreamConnection | None:
        """The connection that was used last, when one is idle."""
        while self.idle:
            connection = self.idle.pop()
            transport = connection.transport
            if transport is not None and not transport.is_closing():
                connection.exchange = exchange
                return connection
        return None

    def connect(self, exchange: Exchange) -> asyncio.Task[None]:
        """Open one; the exchange is told. Cancelling the task ends the attempt without a word."""
        task = self.loop.create_task(self._connect(exchange))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return task

    async def _connect(self, exchange: Exchange) -> None:
        connection = UpstreamConnection(self)
        try:
            async with asyncio.timeout(self.timeout):
                await self.loop.create_connection(lambda: connection, self.host, self.port, ssl=self.tls)
        except TimeoutError:
            connection.abandon()
            exchange.on_connect_failed(f"no connection within {self.timeout:g} s")
        except (OSError, UnicodeError) as error:
            exchange.on_connect_failed(getattr(error, "strerror", None) or str(error))
        except asyncio.CancelledError:
            connection.abandon()
            raise
        else:
            if connection.transport is None:
                exchange.on_connect_failed("the engine closed the connection at once")
                return
            no_delay(connection.transport)
            connection.exchange = exchange
            exchange.on_connected(connection)

    def close_idle(self, before: float) -> None:
        """Close what has been idle since before that time."""
        while self.idle and self.idle[0].idle_since <= before:
            self.idle.popleft().close()

    def close(self) -> None:
        """The member left: close what is idle, keep nothing more. Exchanges go on to their end."""
        self.closed = True
        while self.idle:
            self.idle.popleft().close()


def _clean(transport: asyncio.Transport) -> bool:
    """Open, and nothing of the last request is still on its way."""
    return not transport.is_closing() and transport.get_write_buffer_size() == 0


def no_delay(transport: asyncio.BaseTransport) -> None:
    """Small pieces leave at once. uvloop does it by itself, asyncio for some sockets only."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
