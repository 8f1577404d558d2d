"""One client's connection: read a request, check who asks and for what, start its exchange, answer in order.

    READING --head and body whole--> BUSY (an exchange) --last byte--> READING
    READING --refused--> answered; READING when the body is here, else LINGERING --client closes, time--> closed
    READING --a large body is announced--> UPLOAD (`upload` reads it) --last byte--> BUSY
    any     --client leaves--> the exchange ends at once

A client may send the next request before the answer to the last (pipelining): it waits here, up to one head's size;
more than that and the connection is closed behind the current answer. Reading never stops while an exchange runs,
because that is how a client's departure is seen.
"""

from __future__ import annotations

import asyncio
from typing import cast

from gpufleet.proxy.run.admission import Asked, admit
from gpufleet.proxy.run.dispatch import dispatch
from gpufleet.proxy.run.request import Exchange
from gpufleet.proxy.run.sockets import reset
from gpufleet.proxy.run.state import ProxyState
from gpufleet.proxy.run.upload import UPLOAD_FROM, Upload, listen_by
from gpufleet.proxy.run.upstream import no_delay
from gpufleet.proxy.wire.answer import error_body, refusal_fields, write_answer
from gpufleet.proxy.wire.chunked import ProtocolError
from gpufleet.proxy.wire.heads import HEAD_LIMIT, RequestHead
from gpufleet.proxy.wire.http1 import RequestReader
from gpufleet.proxy.wire.paths import Place, Service
from gpufleet.proxy.wire.refusal import Refusal, malformed, overloaded, slow_client

_NOWHERE = Place(service=Service.UNKNOWN)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(asyncio.Protocol):
    """See the module."""

    __slots__ = (
        "_asked",
        "_began_at",
        "_exchange",
        "_held",
        "_last",
        "_last_read_at",
        "_lingering",
        "_overrun",
        "_paused_at",
        "_reader",
        "_state",
        "_transport",
        "_upload",
    )

    def __init__(self, state: ProxyState) -> None:
        self._state = state
        self._transport: asyncio.Transport | None = None
        self._reader = RequestReader(state.config.body_limit)
        self._exchange: Exchange | None = None
        self._asked: Asked | None = None
        self._last: Asked | None = None
        """The last request here, also when it is answered."""
        self._upload: Upload | None = None
        self._lingering = False
        self._overrun = False
        self._paused_at: float | None = None
        self._last_read_at = 0.0
        self._began_at = 0.0
        """When the request that is on its way began."""
        self._held = 0
        """Bytes of its body, counted with everybody's in `state.buffered`."""

    # --- what the socket tells -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        no_delay(transport)
        self._last_read_at = self._state.loop.time()
        self._state.clients.add(self)

    def data_received(self, data: bytes) -> None:
        if self._lingering or self._overrun:
            return
        self._last_read_at = now = self._state.loop.time()
        if self._exchange is None and self._paused_at is None and self._serve_whole(data, now):
            return
        if self._reader.idle:
            self._began_at = now
        self._reader.feed(data)
        if self._exchange is None:
            self._advance()
        elif self._reader.buffered > HEAD_LIMIT:
            self._overrun = True

    def eof_received(self) -> bool:
        self._leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._upload = None  # the upload knows us: its buffer would wait for a collection
        self._hold(0)
        self._state.clients.discard(self)
        self._leave()

    def pause_writing(self) -> None:
        self._paused_at = self._state.loop.time()
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        self._paused_at = None
        if self._exchange is not None:
            self._exchange.resume()
        else:
            self._next()

    def _leave(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()

    # --- reading requests ----------------------------------------------------------------------------------------

    def _serve_whole(self, data: bytes, now: float) -> bool:
        """The short way of a request that came in one piece; False when it is not one, and nothing was done."""
        try:
            whole = self._reader.whole(data)
        except ProtocolError as error:
            self._answer(malformed(error.status, error.reason), linger=True)
            return True
        if whole is None:
            return False
        self._began_at = now
        head, body = whole
        state = self._state
        self._asked = self._last = asked = admit(state, head, state.buffered, self._last)
        if asked.refusal is not None:
            self._answer(asked.refusal)
        else:
            self._dispatch(asked, body, len(body))
        return True

    def _advance(self) -> None:
        """Take requests from the buffer until one is under way or more bytes are needed."""
        try:
            while self._takes_requests():
                event = self._reader.next_event()
                self._hold(self._reader.held)
                if event is None:
                    self._refuse_too_much()
                    return
                if isinstance(event, bytes):
                    self._dispatch(self._asked, event, len(event))
                elif self._begin(event) and self._reader.missing >= UPLOAD_FROM:
                    self._receive(self._reader.missing)
                    return
        except ProtocolError as error:
            self._answer(malformed(error.status, error.reason), linger=True)

    def _refuse_too_much(self) -> None:
        if self._held and self._state.buffered > self._state.config.buffered_limit:
            self._answer(overloaded(), linger=True)

    # --- a large body (upload.Uploader) --------------------------------------------------------------------------

    def _receive(self, missing: int) -> None:
        """The body goes straight into its own buffer from here on."""
        transport = self._transport
        if transport is None:
            return
        start = self._reader.divert()
        self._upload = Upload(self, self._state.bodies, len(start) + missing, start)
        listen_by(transport, self._upload)

    def upload_grew(self, received: int) -> None:
        """More of it is here."""
        self._last_read_at = self._state.loop.time()
        self._hold(received)
        self._refuse_too_much()

    def upload_complete(self, buffer: bytearray, size: int) -> None:
        """All of it."""
        self._last_read_at = self._state.loop.time()
        self._end_upload()
        self._reader.diverted()
        self._hold(0)
        self._dispatch(self._asked, buffer, size)

    def _end_upload(self) -> None:
        if self._upload is not None and self._transport is not None:
            listen_by(self._transport, self)
        self._upload = None

    def _hold(self, held: int) -> None:
        self._state.buffered += held - self._held
        self._held = held

    def _takes_requests(self) -> bool:
        """Answers that the client does not read must not pile up, so a paused socket takes nothing new."""
        transport = self._transport
        return (
            self._exchange is None
            and not self._lingering
            and self._paused_at is None
            and transport is not None
            and not transport.is_closing()
        )

    def _begin(self, head: RequestHead) -> bool:
        """A head is here: everything that can be refused without the body is refused now; True when nothing was."""
        others = self._state.buffered - self._held
        self._asked = self._last = asked = admit(self._state, head, others, self._last)
        refusal = asked.refusal
        if refusal is not None:
            comes = head.length == 0 or not head.expects_continue
            if comes and self._reader.next_event() is not None:
                self._answer(refusal)
            else:
                self._answer(refusal, linger=True)
            return False
        if head.expects_continue and (head.length or 0) <= self._state.config.body_limit:
            self.write(_CONTINUE)
        return True

    def _dispatch(self, asked: Asked | None, body: bytes | bytearray, size: int) -> None:
        """A request is whole: its body is the first `size` bytes."""
        if asked is None:  # for the type checker: a body follows a head
            return
        found = dispatch(self._state, self, asked, body, size, now=self._last_read_at)
        if isinstance(found, Refusal):
            self._answer(found)
        elif isinstance(found, bytes):
            self._count(200)
            persistent = self._may_stay()
            self._write_answer(200, found, persistent=persistent)
            if not persistent:
                self._close()
        else:
            self._exchange, key, only = found
            self._exchange.start(key, only)

    # --- answers of our own --------------------------------------------------------------------------------------

    def _answer(self, refusal: Refusal, *, linger: bool = False) -> None:
        """`linger` while the client is still sending: closing at once would reset the answer away."""
        self._count(refusal.status)
        persistent = not linger and self._may_stay()
        self._tell(refusal, persistent=persistent)
        if linger:
            self._linger()
        elif not persistent:
            self._close()

    def _count(self, status: int) -> None:
        pool = self._place.pool
        known = pool is not None and pool in self._state.fleet.table.pools
        # A name that a client made up must not become a label: there would be no end of them.
        name, asked, access = pool if known and pool else "", self._asked, self._state.access
        self._state.metrics.requests.add((name, "", str(status)))
        if access is not None and asked is not None and access.wants(status):
            access.note(asked.head, asked.request_id, status, pool=name)

    def _may_stay(self) -> bool:
        return (
            self._asked is not None
            and self._asked.head.persistent
            and not self._overrun
            and not self._state.stopping
        )

    def _tell(self, refusal: Refusal, *, persistent: bool, pool: bytes = b"") -> None:
        body, fields = error_body(refusal, self._place.path), refusal_fields(refusal, self._place.method)
        self._write_answer(refusal.status, body, pool + fields, persistent=persistent)

    def _write_answer(self, status: int, body: bytes, fields: bytes = b"", *, persistent: bool) -> None:
        asked = self._asked
        answer = write_answer(
            status,
            body,
            request_id=asked.request_id if asked is not None else self._state.new_request_id(),
            fields=fields,
            persistent=persistent,
            head_only=asked is not None and asked.head.method == "HEAD",
        )
        self.write(answer)
        if persistent:
            self._forget()

    def _linger(self) -> None:
        """Read on without a use for it, until the client has read its answer."""
        self._lingering = True
        self._hold(0)
        self._end_upload()
        self._reader = RequestReader(self._state.config.body_limit)
        self._last_read_at = self._state.loop.time()
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def _forget(self) -> None:
        """What is answered next is another request: nothing of this one may stand in its answer."""
        if not self._reader.in_body:
            self._asked = None

    @property
    def _place(self) -> Place:
        return self._asked.place if self._asked is not None else _NOWHERE

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # --- what the exchange tells (request.Downstream) ------------------------------------------------------------

    def write(self, content: bytes) -> None:
        """Bytes for the client."""
        if self._transport is not None:
            self._transport.write(content)

    def answer(self, refusal: Refusal, pool: bytes) -> None:
        """Nothing of an answer was written yet."""
        persistent = self._may_stay()
        self._tell(refusal, persistent=persistent, pool=pool)
        self.finished(persistent=persistent)

    def finished(self, *, persistent: bool) -> None:
        """The answer is whole."""
        self._exchange = None
        if not persistent or self._overrun:
            self._close()
            return
        self._next()

    def cut(self, *, hard: bool) -> None:
        """The answer stays a torso."""
        self._exchange = None
        if hard and self._transport is not None:
            reset(self._transport)
        else:
            self._close()

    @property
    def unfinished(self) -> bool:
        """Bytes are owed to the client, or a request that was let in is on its way."""
        transport = self._transport
        if transport is None:
            return False
        return self._exchange is not None or self._reader.in_body or transport.get_write_buffer_size() > 0

    def close(self) -> None:
        """The proxy ends."""
        if self._transport is not None:
            self._transport.abort()

    def _next(self) -> None:
        self._forget()
        self._last_read_at = self._began_at = self._state.loop.time()
        if not self._reader.idle:
            self._state.loop.call_soon(self._advance)

    # --- deadlines -----------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Called on every tick."""
        transport = self._transport
        if transport is None:
            return
        quiet = now - self._last_read_at
        limits = self._state.config.timeouts
        if self._paused_at is not None:
            # The engine would go on holding memory for a client that takes nothing.
            if now - self._paused_at > limits.between:
                transport.abort()
        elif self._exchange is not None:
            self._exchange.expire(now)
        elif self._lingering or transport.is_closing():
            if quiet > (limits.linger if self._lingering else limits.between):
                transport.abort()
        elif self._reader.idle:
            if quiet > limits.idle or (self._state.stopping and not self._state.succeeded):
                transport.close()
        elif quiet > limits.head or now - self._began_at > (
            limits.total if self._reader.in_body else limits.head
        ):
            self._answer(slow_client(), linger=True)
