"""HTTP/1.1 as bytes in, events out; no sockets.

Theory. Heads are read by `heads`. Bodies are not parsed by llhttp, because a relay must know *where* a message ends
inside the bytes it holds, and llhttp does not say: lengths are counted and chunked framing is followed by `chunked`.

    RequestReader    AT_HEAD --head--> IN_BODY --last byte--> AT_HEAD       feed(), then next_event() until None
    ResponseReader   head(), then follow() for every piece of the body until complete

Both give the same events however the bytes are cut, and raise nothing but `ProtocolError`.
"""

from __future__ import annotations

import re

from gpufleet.proxy.wire.chunked import BoundedFollower, ChunkFollower, ProtocolError
from gpufleet.proxy.wire.heads import (
    HEAD_LIMIT,
    Framing,
    HeadMemory,
    RequestHead,
    ResponseHead,
)

# Bound to names of the module: Python 3.11 takes as long for `Enum.MEMBER` as for three calls.
_NONE, _LENGTH, _CHUNKED, _CLOSE = Framing
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_VERSION = b"HTTP/1."
_RETURN = 13
"""Empty lines may stand in front of a request."""
_EMPTY_LINES = re.compile(rb"(?:\r\n)++")


class RequestReader:
    """The server's side of one connection: heads and whole bodies, one request after the other.

    Raises `ProtocolError` from `next_event`; the connection is of no use after that.
    """

    __slots__ = (
        "_body_limit",
        "_buffer",
        "_chunks",
        "_content",
        "_head",
        "_memory",
        "_missing",
        "_parts",
        "_scanned",
    )

    def __init__(self, body_limit: int) -> None:
        self._body_limit = body_limit
        self._memory = HeadMemory()
        self._buffer = b""
        self._scanned = 0
        self._head: RequestHead | None = None
        self._parts: list[bytes] = []
        self._missing = 0
        self._content = bytearray()
        """Of a chunked body: pieces of two bytes, kept one by one, would take twenty times their size."""
        self._chunks: ChunkFollower | None = None

    @property
    def buffered(self) -> int:
        """Bytes that arrived and belong to no event yet."""
        return len(self._buffer)

    @property
    def idle(self) -> bool:
        """Nothing of a request has arrived."""
        return self._head is None and not self._buffer

    @property
    def in_body(self) -> bool:
        """A head was read and its body is not whole."""
        return self._head is not None

    @property
    def held(self) -> int:
        """Bytes of the body that is on its way."""
        head = self._head
        if head is None:
            return 0
        return len(self._buffer) + (
            len(self._content) if head.length is None else head.length - self._missing
        )

    def whole(self, received: bytes) -> tuple[RequestHead, bytes] | None:
        """A request that is all of `received`, as most are, when nothing else is here; else None, and nothing is taken.

        Says what `feed` and `next_event` would say, at half their cost.
        """
        end = received.find(b"\r\n\r\n") + 4
        if not 4 < end <= HEAD_LIMIT or self._buffer or self._head is not None or received[0] == _RETURN:
            return None
        head = self._memory.request(received[:end])
        length = head.length
        if length != len(received) - end or head.expects_continue or length > self._body_limit:
            return None
        return head, received[end:]

    def feed(self, received: bytes) -> None:
        """Take what the socket gave."""
        self._buffer = self._buffer + received if self._buffer else received

    def next_event(self) -> RequestHead | bytes | None:
        """A head, or the whole body that belongs to the last head, or None: more bytes are needed."""
        if self._head is None:
            return self._read_head()
        if self._head.length is None:
            return self._read_chunks()
        return self._read_length(self._head.length)

    @property
    def missing(self) -> int:
        """Bytes that a body with a length still lacks; 0 for one in chunks, and for one that is over the limit."""
        head = self._head
        if head is None or head.length is None or head.length > self._body_limit:
            return 0
        return max(0, self._missing - len(self._buffer))

    def divert(self) -> bytes:
        """What is here of the body of the last head. The caller reads the rest by itself and says `diverted` then."""
        start = b"".join((*self._parts, self._buffer))
        self._parts, self._buffer = [], b""
        return start

    def diverted(self) -> None:
        """The body is whole; a head is next."""
        self._head = None

    def _read_head(self) -> RequestHead | None:
        buffer = self._buffer
        empty = _EMPTY_LINES.match(buffer)  # ignored before a request (RFC 9112 2.2), however they arrive
        if empty is not None:
            buffer = self._buffer = buffer[empty.end() :]
        end = buffer.find(b"\r\n\r\n", max(0, self._scanned - 3))
        if end < 0 or end + 4 > HEAD_LIMIT:
            self._refuse_early(buffer)
            self._scanned = len(buffer)
            return None
        end += 4
        self._head = head = self._memory.request(buffer if end == len(buffer) else buffer[:end])
        self._buffer = buffer[end:]
        self._scanned = 0
        self._missing = head.length or 0
        self._chunks = BoundedFollower(self._body_limit) if head.length is None else None
        return head

    def _refuse_early(self, buffer: bytes) -> None:
        """A head that can only become wrong is not waited for. What is wrong first is what is said."""
        if _BARE_LINE_FEED.search(buffer, max(0, self._scanned - 1), HEAD_LIMIT):
            raise ProtocolError(400, "a line of the head does not end in CRLF")
        if buffer and not (65 <= buffer[0] <= 90 or buffer == b"\r"):
            raise ProtocolError(400, "this is not an HTTP/1.1 request")
        if len(buffer) > HEAD_LIMIT:
            raise ProtocolError(431, "the request head is larger than 64 KiB")

    def _read_length(self, length: int) -> bytes | None:
        if length > self._body_limit:
            raise ProtocolError(413, f"the request body is larger than {self._body_limit} bytes")
        buffer, missing = self._buffer, self._missing
        if len(buffer) < missing:
            if buffer:
                self._parts.append(buffer)
                self._missing = missing - len(buffer)
                self._buffer = b""
            return None
        if len(buffer) == missing:
            last, self._buffer = buffer, b""
        else:
            last, self._buffer = buffer[:missing], buffer[missing:]
        return self._end(last)

    def _read_chunks(self) -> bytes | None:
        chunks = self._chunks
        if chunks is None:  # for the type checker: set together with the head
            raise ProtocolError(400, "no chunked body is expected here")
        pieces: list[bytes] = []
        taken = chunks.feed(self._buffer, pieces)
        self._content += b"".join(pieces)
        self._buffer = self._buffer[taken:]
        if not chunks.complete:
            return None
        body, self._content = bytes(self._content), bytearray()
        return self._end(body)

    def _end(self, last: bytes) -> bytes:
        self._head = None
        if not self._parts:
            return last
        self._parts.append(last)
        body = b"".join(self._parts)
        self._parts = []
        return body


class ResponseReader:
    """The client's side of one connection: the head of the final answer, then the end of its body."""

    __slots__ = (
        "_buffer",
        "_chunks",
        "_framing",
        "_left",
        "_memory",
        "_scanned",
        "complete",
        "overrun",
        "pieces",
    )

    def __init__(self) -> None:
        self._memory = HeadMemory()
        self.begin()

    def begin(self) -> None:
        """Another answer is next."""
        self._buffer = b""
        self._scanned = 0
        self._framing = _NONE
        self._left = 0
        self._chunks: ChunkFollower | None = None
        self.pieces = 0
        """How many came of the body."""
        self.complete = False
        self.overrun = False
        """Bytes came after the end of the answer: this connection must not be used again."""

    def head(self, received: bytes) -> tuple[ResponseHead, bytes] | None:
        """The head and the bytes behind it, or None when the head is not whole. Interim answers (1xx) are dropped."""
        buffer = self._buffer + received if self._buffer else received
        while True:
            scanned = self._scanned
            end = buffer.find(b"\r\n\r\n", max(0, scanned - 3))
            if end < 0:
                if len(buffer) > HEAD_LIMIT:
                    raise ProtocolError(502, "the response head is larger than 64 KiB")
                if not _VERSION.startswith(buffer[: len(_VERSION)]) or _BARE_LINE_FEED.search(
                    buffer, max(0, scanned - 1)
                ):
                    raise ProtocolError(
                        502, "the engine does not speak HTTP/1.1"
                    )  # the rest would never come
                self._buffer, self._scanned = buffer, len(buffer)
                return None
            end += 4
            if end > HEAD_LIMIT:
                raise ProtocolError(502, "the response head is larger than 64 KiB")
            head = self._memory.response(buffer[:end])
            buffer = buffer[end:]
            self._scanned = 0
            if head.status >= 200:
                break
        self._buffer = b""
        self._framing = head.framing
        self._left = head.length
        self._chunks = ChunkFollower() if head.framing is _CHUNKED else None
        self.complete = head.framing is _NONE or (head.framing is _LENGTH and head.length == 0)
        if self.complete and buffer:
            self.overrun = True
        return head, buffer

    def follow(self, received: bytes, payload: list[bytes] | None = None) -> int:
        """How many of these bytes belong to the body; sets `complete` with the last of them.

        `payload`, when given, receives the content without chunked framing.
        """
        size = len(received)
        self.pieces += 1
        if self.complete:
            self.overrun = self.overrun or size > 0
            return 0
        if self._chunks is not None:
            taken = self._chunks.feed(received, payload)
            self.complete = self._chunks.complete
        else:
            taken = size
            if self._framing is _LENGTH:
                taken = min(size, self._left)
                self._left -= taken
                self.complete = self._left == 0
            if payload is not None and taken:
                payload.append(received[:taken])
        if taken < size:
            self.overrun = True
        return taken

    def passes(self, received: bytes) -> bool:
        """`follow` for a piece that is one whole chunk, the usual one of a stream; False: another, and nothing was done."""
        if self._chunks is None or self.complete or not self._chunks.passes(received):
            return False
        self.pieces += 1
        return True

    def closed(self) -> bool:
        """The peer closed the connection in order, not by a reset; True when the answer is whole."""
        if self._framing is _CLOSE:
            self.complete = True
        return self.complete

    @property
    def chunk_gap(self) -> int | None:
        """Bytes still missing of the chunk that is open; 0 between chunks, None when a size line is cut."""
        return self._chunks.gap if self._chunks is not None else None
