"""One client's connection: read a request, check who asks and for what, start its exchange, answer in order.

    READING --head and body whole--> BUSY (an exchange) --last byte--> READING
    READING --refused--> answered; READING when the body is here, else LINGERING --client closes, time--> closed
    any     --client leaves--> the exchange ends at once

A client may send the next request before the answer to the last (pipelining): it waits here, up to one head's size;
more than that and the connection is closed behind the current answer. Reading never stops while an exchange runs,
because that is how a client's departure is seen.
"""

from __future__ import annotations

import asyncio
import re
from typing import cast

from gpufleet.proxy.decide.balance.api import RequestKey
from gpufleet.proxy.run.catalogue import choose_pool, models_answer
from gpufleet.proxy.run.request import Exchange
from gpufleet.proxy.run.state import ProxyState
from gpufleet.proxy.run.upstream import no_delay
from gpufleet.proxy.wire.chunked import ProtocolError
from gpufleet.proxy.wire.heads import HEAD_LIMIT, RequestHead
from gpufleet.proxy.wire.http1 import RequestReader
from gpufleet.proxy.wire.openai import BodyUnreadable, peek
from gpufleet.proxy.wire.paths import Place, Service, classify
from gpufleet.proxy.wire.refusal import (
    REASONS,
    Refusal,
    bad_body,
    malformed,
    method_not_allowed,
    no_such_path,
    no_such_pool,
    not_implemented,
    overloaded,
    slow_client,
    stopping,
)
from gpufleet.tokens.model import ANONYMOUS, Principal

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_NOWHERE = Place(service=Service.UNKNOWN)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(asyncio.Protocol):
    """See the module."""

    __slots__ = (
        "_began_at",
        "_exchange",
        "_head",
        "_held",
        "_last_read_at",
        "_lingering",
        "_overrun",
        "_paused_at",
        "_place",
        "_principal",
        "_reader",
        "_request_id",
        "_state",
        "_transport",
    )

    def __init__(self, state: ProxyState) -> None:
        self._state = state
        self._transport: asyncio.Transport | None = None
        self._reader = RequestReader(state.config.body_limit)
        self._exchange: Exchange | None = None
        self._head: RequestHead | None = None
        self._place = _NOWHERE
        self._principal: Principal = ANONYMOUS
        self._request_id = b""
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
        self._transport = None
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

    def _advance(self) -> None:
        """Take requests from the buffer until one is under way or more bytes are needed."""
        try:
            while self._takes_requests():
                event = self._reader.next_event()
                self._hold(self._reader.held)
                if event is None:
                    if self._held and self._state.buffered > self._state.config.buffered_limit:
                        self._answer_and_linger(overloaded())
                    return
                if isinstance(event, bytes):
                    self._dispatch(event)
                else:
                    self._begin(event)
        except ProtocolError as error:
            self._answer_and_linger(malformed(error.status, error.reason))

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

    def _begin(self, head: RequestHead) -> None:
        """A head is here: everything that can be refused without the body is refused now."""
        self._head = head
        given = head.fields.get(b"x-request-id")
        self._request_id = given if given and _REQUEST_ID.fullmatch(given) else self._state.new_request_id()
        refusal = self._gate(head)
        if refusal is not None:
            comes = head.length == 0 or not head.expects_continue
            if comes and self._reader.next_event() is not None:
                self._answer(refusal)
            else:
                self._answer_and_linger(refusal)
        elif head.expects_continue and (head.length or 0) <= self._state.config.body_limit:
            self.write(_CONTINUE)

    def _gate(self, head: RequestHead) -> Refusal | None:
        path = head.target.split(b"?", 1)[0].decode("ascii")
        self._place = place = classify(path)
        if self._state.stopping:
            return stopping()
        identified = self._state.directory.identify(head.fields, self._state.wall)
        if isinstance(identified, Refusal):
            return identified
        self._principal = identified
        if place.service is Service.UNKNOWN:
            return no_such_path()
        if place.service is Service.NOT_YET:
            return not_implemented(place.path)
        if head.method != place.method and (head.method, place.method) != ("HEAD", "GET"):
            return method_not_allowed(place.method)
        if place.pool is not None and place.pool not in self._state.fleet.table.pools:
            return no_such_pool(place.pool)
        if self._state.buffered - self._held + (head.length or 0) > self._state.config.buffered_limit:
            return overloaded()
        return None

    def _dispatch(self, body: bytes) -> None:
        """A request is whole."""
        head = self._head
        if head is None:  # for the type checker: a body follows a head
            return
        if self._place.service is not Service.RELAY:
            table, created = self._state.fleet.table, int(self._state.started)
            page = models_answer(table, self._place, self._principal, created)
            if isinstance(page, Refusal):
                self._answer(page)
            else:
                self._count(200)
                self._write_answer(200, page, persistent=self._may_stay())
            return
        try:
            peeked = peek(body, head.fields.get(b"content-type", b""))
        except BodyUnreadable as error:
            self._answer(bad_body(str(error)))
            return
        pool = choose_pool(self._state.fleet.table, self._place, self._principal, peeked.model)
        if isinstance(pool, Refusal):
            self._answer(pool)
            return
        query = head.target.partition(b"?")
        exchange = Exchange(
            self._state,
            self,
            head,
            body,
            pool=pool,
            target=self._place.path.encode() + query[1] + query[2],
            path=self._place.path,
            stream=bool(peeked.stream),
            request_id=self._request_id,
        )
        self._exchange = exchange
        exchange.start(RequestKey(model=peeked.model or ""))

    # --- answers of our own --------------------------------------------------------------------------------------

    def _answer(self, refusal: Refusal) -> None:
        self._count(refusal.status)
        self._write_answer(refusal.status, refusal.body(), persistent=self._may_stay(), refusal=refusal)

    def _answer_and_linger(self, refusal: Refusal) -> None:
        """Answer while the client is still sending: closing at once would reset the answer away."""
        self._count(refusal.status)
        self._write_answer(refusal.status, refusal.body(), persistent=False, refusal=refusal, linger=True)

    def _count(self, status: int) -> None:
        pool = self._place.pool
        known = pool is not None and pool in self._state.fleet.table.pools
        # A name that a client made up must not become a label: there would be no end of them.
        self._state.metrics.requests.add((pool if known and pool else "", "", str(status)))

    def _may_stay(self) -> bool:
        return (
            self._head is not None
            and self._head.persistent
            and not self._overrun
            and not self._state.stopping
        )

    def _write_answer(
        self,
        status: int,
        body: bytes,
        *,
        persistent: bool,
        refusal: Refusal | None = None,
        linger: bool = False,
        pool: bytes = b"",
    ) -> None:
        if not self._request_id:
            self._request_id = self._state.new_request_id()
        extra = pool
        if refusal is not None and refusal.retry_after is not None:
            extra += b"Retry-After: %d\r\n" % refusal.retry_after
        if status == 401:
            extra += b"WWW-Authenticate: Bearer\r\n"
        elif status == 405:
            extra += b"Allow: %s\r\n" % self._place.method.encode()
        if not persistent:
            extra += b"Connection: close\r\n"
        self.write(
            b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nx-request-id: %s\r\n%s\r\n"
            % (status, REASONS.get(status, b""), len(body), self._request_id, extra)
            + (b"" if self._head is not None and self._head.method == "HEAD" else body)
        )
        if linger:
            self._lingering = True
            self._hold(0)
            self._reader = RequestReader(self._state.config.body_limit)
            self._last_read_at = self._state.loop.time()
            if self._transport is not None and self._transport.can_write_eof():
                self._transport.write_eof()
        elif persistent:
            self._forget()
        else:
            self._close()

    def _forget(self) -> None:
        """What is answered next is another request: nothing of this one may stand in its answer."""
        if not self._reader.in_body:
            self._head, self._request_id, self._place = None, b"", _NOWHERE

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
        self._exchange = None
        persistent = self._may_stay()
        self._write_answer(refusal.status, refusal.body(), persistent=persistent, refusal=refusal, pool=pool)
        if persistent:
            self._next()

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
            self._transport.abort()
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
            if quiet > limits.idle or self._state.stopping:
                transport.close()
        elif quiet > limits.head or now - self._began_at > (
            limits.total if self._reader.in_body else limits.head
        ):
            self._answer_and_linger(slow_client())
