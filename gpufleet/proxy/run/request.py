"""One request from dispatch to its last byte.

Theory. An `Exchange` is called back by the connection to the engine and by the client's connection; it owns nothing
that both could free twice. Its phases are `decide.phase`'s.

The in-flight count of a member is taken in `_occupy` and given back in `_release`, nowhere else; `_release` may be
called as often as one likes. Everything that ends an exchange goes through `_end`, exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gpufleet.proxy.decide.balance.api import RequestKey
from gpufleet.proxy.decide.deadline import overdue
from gpufleet.proxy.decide.health import Observation
from gpufleet.proxy.decide.load import Share
from gpufleet.proxy.decide.phase import Phase
from gpufleet.proxy.decide.retry import RETRIED_STATUSES, Failure, Next, decide
from gpufleet.proxy.run.admission import Asked
from gpufleet.proxy.run.fleet import LivePool
from gpufleet.proxy.run.member import Seat
from gpufleet.proxy.run.state import Downstream, ProxyState
from gpufleet.proxy.run.upstream import UpstreamConnection
from gpufleet.proxy.wire.chunked import ProtocolError
from gpufleet.proxy.wire.heads import (
    Framing,
    ResponseHead,
    write_request_head,
    write_response_head,
)
from gpufleet.proxy.wire.openai import last_words
from gpufleet.proxy.wire.refusal import Refusal, no_healthy_members, upstream_failed, upstream_timeout
from gpufleet.proxy.wire.usage import TAIL, may_hold

CLIENT_GONE = "499"


# Bound to names of the module: Python 3.11 takes as long for `Enum.MEMBER` as for three calls.
_CHOOSING, _CONNECTING, _WAITING, _RELAYING, _ENDED = Phase
_, _LENGTH, _CHUNKED, _CLOSE = Framing
_ANSWERED = Observation.ANSWERED
_NO_KEY = RequestKey()


class Exchange:
    """One request; see the module."""

    __slots__ = (
        "_body",
        "_client",
        "_connecting",
        "_connection",
        "_counts",
        "_first_byte_at",
        "_fresh_tried",
        "_head",
        "_key",
        "_last_byte_at",
        "_others_tried",
        "_path",
        "_phase",
        "_pool",
        "_ranked",
        "_request_id",
        "_response",
        "_seat",
        "_share",
        "_size",
        "_started_at",
        "_state",
        "_stays",
        "_stream",
        "_tail",
        "_target",
        "_unchunk",
    )

    def __init__(
        self,
        state: ProxyState,
        client: Downstream,
        asked: Asked,
        body: bytes | bytearray,
        size: int,
        *,
        pool: LivePool,
        stream: bool,
        now: float,
    ) -> None:
        self._state = state
        self._client = client
        self._head = asked.head
        self._target = asked.target
        self._path = path = asked.place.path
        self._request_id = asked.request_id
        self._body = body
        self._size = size
        self._pool = pool
        self._stream = stream
        self._phase = _CHOOSING
        self._ranked: Sequence[str] = ()
        self._others_tried = 0
        self._fresh_tried = False
        self._seat: Seat | None = None
        self._share: Share | None = None
        self._key = _NO_KEY
        self._connection: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._response: ResponseHead | None = None
        self._unchunk = False
        # Engines report a stream's tokens when they are asked to; looking for them costs as much as the relay's own work.
        self._counts = not stream or "completions" not in path or size > 32 * TAIL or b"include_usage" in body
        self._tail = b""
        self._stays = False  # what the client was told: whether it may send another request
        self._started_at = self._last_byte_at = now
        self._first_byte_at: float | None = None
        state.in_flight += 1
        state.buffered += size

    def start(self, key: RequestKey, only: str | None = None) -> None:
        """Choose a member and send; `only` is the member that alone can answer."""
        pool = self._pool
        self._key = key
        self._ranked = (only,) if only else pool.rank(key, self._state.dice)
        if not self._ranked:
            self._refuse(no_healthy_members())
            return
        self._attempt(pool.by_id[self._ranked[0]])

    def _attempt(self, seat: Seat, *, fresh: bool = False) -> None:
        self._occupy(seat)
        pool = seat.member.connections
        connection = None if fresh else pool.take(self)
        if connection is None:
            self._phase = _CONNECTING
            self._connecting = pool.connect(self)
        else:
            self._send(connection)

    def _occupy(self, seat: Seat) -> None:
        self._release()
        self._seat = seat
        self._share = self._pool.take(seat, self._key)

    def _release(self) -> None:
        share, self._share = self._share, None
        if share is not None:
            share.end()

    def on_connected(self, connection: UpstreamConnection) -> None:
        self._connecting = None
        if self._phase is not _CONNECTING:
            connection.close()
            return
        self._send(connection)

    def _send(self, connection: UpstreamConnection) -> None:
        seat = self._seat
        if seat is None:  # for the type checker: an attempt has a seat
            return
        self._phase = _WAITING
        self._connection = connection
        head = self._head
        member = seat.member
        fields = b"Host: %s\r\nX-Request-Id: %s\r\n%s" % (member.host_field, self._request_id, member.key)
        body, size = self._body, self._size
        connection.send(
            write_request_head(head, self._target, fields=fields, length=size),
            body if isinstance(body, bytes) else memoryview(body)[:size],
        )

    def on_connect_failed(self, reason: str) -> None:
        self._connecting = None
        seat = self._seat
        if self._phase is not _CONNECTING or seat is None:
            return
        self._state.fleet.observe(seat.member, Observation.CONNECT_FAILED)
        self._failed(Failure.CONNECT, upstream_failed(f"The engine was not reached: {reason}"))

    def on_head(self, head: ResponseHead, body: bytes) -> None:
        seat, connection = self._seat, self._connection
        if seat is None or connection is None:
            return
        self._state.fleet.observe(seat.member, _ANSWERED)
        if head.status in RETRIED_STATUSES and self._after(Failure.BUSY) is Next.OTHER_MEMBER:
            self._drop_connection(reusable=connection.skip(head, body))
            self._failed(Failure.BUSY, no_healthy_members())
            return
        self._response = head
        self._phase = _RELAYING
        self._forget_body()
        content = self._answer_head(head, seat)
        if body or connection.reader.complete:
            self._relay(connection, content, body)
        else:
            self._client.write(content)

    def _forget_body(self) -> None:
        body, self._body = self._body, b""
        self._state.buffered -= self._size
        self._size = 0
        if isinstance(body, bytearray) and self._connection is not None and self._connection.flushed:
            self._state.bodies.give_back(body)

    def on_body(self, received: bytes) -> None:
        connection = self._connection
        if connection is None:
            return
        if self._first_byte_at is not None and not self._unchunk and connection.reader.passes(received):
            self._last_byte_at = self._state.loop.time()
            self._client.write(received)
            self._keep_tail(received)
        else:
            self._relay(connection, b"", received)

    def _relay(self, connection: UpstreamConnection, before: bytes, received: bytes) -> None:
        """Pass on what belongs to the body, and end with its last byte."""
        reader = connection.reader
        payload: list[bytes] | None = [] if self._unchunk else None
        try:
            taken = reader.follow(received, payload)
        except ProtocolError as error:
            if before:
                self._client.write(before)
            self._drop_connection(reusable=False)
            self._broken(upstream_failed(f"The engine broke its answer: {error.reason}"), gap=None)
            return
        now = self._last_byte_at = self._state.loop.time()
        if self._first_byte_at is None and taken:
            self._first_byte_at = now
            self._read(now - self._started_at)
        content = before + (received[:taken] if payload is None else b"".join(payload))
        if content:
            self._client.write(content)
        self._keep_tail(received)
        if reader.complete:
            self._complete(connection)

    def _keep_tail(self, received: bytes) -> None:
        if self._counts and (not self._stream or self._tail or may_hold(received)):
            self._tail = (self._tail + received)[-2 * TAIL :]

    def _read(self, seconds: float) -> None:
        """The engine has read the prompt. An answer that is no stream comes when all of it is written."""
        seat, share = self._seat, self._share
        if self._stream:
            self._state.metrics.ttft.observe(seconds, (self._pool.name,))
        if seat is not None and share is not None:
            timed = self._stream and not self._others_tried and not self._fresh_tried
            self._pool.first_byte(seat, share, seconds if timed else None)

    def _complete(self, connection: UpstreamConnection) -> None:
        response, first, pieces = self._response, self._first_byte_at, connection.reader.pieces
        if self._stream and first is not None and pieces > 1:
            self._state.metrics.gap.observe((self._last_byte_at - first) / (pieces - 1), (self._pool.name,))
        reusable = response is not None and response.persistent and not connection.reader.overrun
        self._drop_connection(reusable=reusable, now=self._last_byte_at)
        self._end(str(response.status) if response is not None else "502", now=self._last_byte_at)
        self._client.finished(persistent=self._stays)

    def on_lost(self, reason: str) -> None:
        connection, self._connection = self._connection, None
        if self._phase is _RELAYING and connection is not None:
            if connection.reader.complete:
                self._complete(connection)
            else:
                self._broken(upstream_failed("upstream connection lost"), gap=connection.reader.chunk_gap)
        elif self._phase is _WAITING and connection is not None:
            stale = connection.kept and not connection.touched
            why = upstream_failed(f"The engine did not answer: {reason}")
            self._failed(Failure.STALE if stale else Failure.SENT, why)

    def _after(self, failure: Failure) -> Next:
        tried = self._others_tried
        left = len(self._ranked) - 1 - tried
        return decide(failure, others_tried=tried, others_left=left, fresh_tried=self._fresh_tried)

    def _failed(self, failure: Failure, refusal: Refusal) -> None:
        """An attempt ended and not one byte went to the client."""
        seat = self._seat
        if seat is None:
            return
        metrics = self._state.metrics
        metrics.upstream_failures.add((self._pool.name, seat.id, failure.value))
        if failure is Failure.SENT:
            self._state.fleet.observe(seat.member, Observation.BROKEN)
        step = self._after(failure)
        if step is Next.GIVE_UP:
            # Nobody is left who could have been asked: that is the pool's state, not one engine's failure.
            nobody = failure is Failure.CONNECT and self._others_tried + 1 >= len(self._ranked)
            self._refuse(no_healthy_members() if nobody else refusal)
            return
        metrics.retries.add((self._pool.name, failure.value))
        if step is Next.SAME_MEMBER:
            self._fresh_tried = True
            self._attempt(seat, fresh=True)
        else:
            self._others_tried += 1
            self._attempt(self._pool.by_id[self._ranked[self._others_tried]])

    def _refuse(self, refusal: Refusal) -> None:
        tail = self._seat.tail if self._seat else b"x-gpufleet-pool: %s\r\n" % self._pool.name.encode()
        self._end(str(refusal.status))
        self._client.answer(refusal, tail)

    def _broken(self, refusal: Refusal, *, gap: int | None) -> None:
        """The answer broke after its head went out: say so where the dialect can, and never make it look whole.

        `gap` is what the open chunk still wants; None when the chunked framing itself was cut.
        """
        response, seat = self._response, self._seat
        if response is None or seat is None:
            return
        self._state.metrics.upstream_failures.add((self._pool.name, seat.id, "streaming"))
        self._state.fleet.observe(seat.member, Observation.BROKEN)
        self._end(str(refusal.status))
        chunked = response.framing is _CHUNKED and not self._unchunk
        speaks = response.is_event_stream and response.framing is not _LENGTH
        words = last_words(self._path, refusal, gap, chunked=chunked) if speaks else b""
        if words:
            self._client.write(words)
        self._client.cut(hard=not words and (response.framing is _CLOSE or self._unchunk))

    def client_gone(self) -> None:
        """The client left: the engine stops at once, in whatever phase."""
        if self._phase is _ENDED:
            return
        self._state.metrics.client_gone.add((self._pool.name,))
        self._drop_connection(reusable=False)
        self._end(CLIENT_GONE)

    def expire(self, now: float) -> None:
        """Look at the deadlines. Not retried: the engine may already be generating."""
        late = overdue(
            self._state.config.timeouts,
            now,
            started=self._started_at,
            first_byte=self._first_byte_at,
            last_byte=self._last_byte_at,
            stream=self._stream,
        )
        if not late:
            return
        refusal = upstream_timeout(f"The engine was too slow: {late}")
        connection = self._connection
        self._drop_connection(reusable=False)
        if self._phase is _RELAYING:
            self._broken(refusal, gap=connection.reader.chunk_gap if connection is not None else None)
        elif self._phase is not _ENDED:
            if self._seat is not None:
                self._state.fleet.observe(self._seat.member, Observation.LATE)
            self._refuse(refusal)

    def pause(self) -> None:
        """The client does not read: stop reading from the engine."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """The client reads again; the time it did not is not the engine's."""
        self._last_byte_at = self._state.loop.time()
        if self._connection is not None:
            self._connection.resume()

    def _drop_connection(self, *, reusable: bool, now: float | None = None) -> None:
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.give_back(self._state.loop.time() if now is None else now, reusable=reusable)

    def _end(self, code: str, *, now: float | None = None) -> None:
        if self._phase is _ENDED:
            return
        self._phase = _ENDED
        self._release()
        state = self._state
        state.in_flight -= 1
        if self._size:
            self._forget_body()
        pool, endpoint = self._pool.name, self._seat.id if self._seat else ""
        seconds = (state.loop.time() if now is None else now) - self._started_at
        tokens = state.metrics.ended(pool, endpoint, code, seconds, self._tail)
        if state.access is not None and state.access.wants(int(code)):
            request = (self._head, self._request_id, int(code), pool, endpoint, self._stream)
            state.access.note(*request, self._started_at, self._first_byte_at, tokens)

    def _answer_head(self, head: ResponseHead, seat: Seat) -> bytes:
        asked = self._head
        self._unchunk = head.framing is _CHUNKED and asked.minor == 0
        self._stays = (
            asked.persistent and not self._state.stopping and head.framing is not _CLOSE and not self._unchunk
        )
        fields = b"x-request-id: %s\r\n%s" % (self._request_id, seat.tail)
        if head.status == 503 and b"retry-after" not in head.fields:
            fields += b"Retry-After: 1\r\n"  # an engine never says when; without it clients are back within a second
        return write_response_head(head, fields=fields, minor=asked.minor, persistent=self._stays)
