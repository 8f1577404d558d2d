"""Chunked framing, followed to its end without being written anew.

    SIZE --size line--> CONTENT --last byte--> AFTER --CRLF--> SIZE
    SIZE --size 0--> TRAILER --empty line--> complete

A relay passes the bytes on as they are and only learns from here where the message ends. Hexadecimal digits alone
make a size: no sign, no blank, no underscore, at most sixteen digits; every line ends in CRLF.
"""

from __future__ import annotations

import re
from enum import Enum, auto

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n")
LINE_LIMIT = 1024
"""Bytes of one size line or trailer line."""
TRAILER_LIMIT = 16 * 1024


class ProtocolError(Exception):
    """The peer does not speak HTTP/1.1 as we accept it; `status` is what a client is answered."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class _State(Enum):
    SIZE = auto()
    CONTENT = auto()
    AFTER = auto()
    TRAILER = auto()


# Bound to names of the module: Python 3.11 takes as long for `Enum.MEMBER` as for three calls.
_SIZE, _CONTENT, _AFTER, _TRAILER = _State


class ChunkFollower:
    """Where one chunked body ends. `feed` gives the number of bytes that belong to it and may set `complete`."""

    __slots__ = ("_left", "_line", "_state", "_trailer", "complete")

    def __init__(self) -> None:
        self._state = _SIZE
        self._left = 0
        self._line = b""
        self._trailer = 0
        self.complete = False

    @property
    def gap(self) -> int | None:
        """Content bytes missing of the open chunk; 0 between chunks; None inside framing."""
        if self._state is _CONTENT:
            return self._left
        return 0 if self._state is _SIZE and not self._line else None

    def feed(self, received: bytes, payload: list[bytes] | None = None) -> int:
        """Bytes of `received` that belong to this body. `payload` receives the content alone."""
        position, size = 0, len(received)
        while position < size and not self.complete:
            if self._state is _CONTENT:
                taken = min(self._left, size - position)
                if payload is not None:
                    payload.append(received[position : position + taken])
                position += taken
                self._left -= taken
                if self._left == 0:
                    self._state = _AFTER
            elif self._state is _SIZE and not self._line and (match := _SIZE_LINE.match(received, position)):
                start = match.end()
                end = start + self._open(match)
                # Most chunks arrive whole, with their CRLF: done without leaving SIZE.
                if start < end and received[end : end + 2] == b"\r\n":
                    self._state = _SIZE
                    self._left = 0
                    if payload is not None:
                        payload.append(received[start:end])
                    start = end + 2
                position = start
            else:
                position = self._line_piece(received, position)
        return position

    def passes(self, received: bytes) -> bool:
        """True when this is one whole chunk and nothing else, as engines write a token; it is then followed.

        What `feed` would say, for a third of the cost.
        """
        if self._state is not _SIZE or self._line or (match := _SIZE_LINE.match(received)) is None:
            return False
        start = match.end()
        whole = 0 < int(match[1], 16) == len(received) - start - 2 and received.endswith(b"\r\n")
        return whole and start <= LINE_LIMIT

    def _open(self, match: re.Match[bytes]) -> int:
        if match.end() - match.start() > LINE_LIMIT:
            raise ProtocolError(400, "a chunk's size line is too long")
        self._left = int(match[1], 16)
        self._state = _CONTENT if self._left else _TRAILER
        return self._left

    def _line_piece(self, received: bytes, position: int) -> int:
        """Gather a line that is cut, or that the fast way did not accept."""
        newline = received.find(b"\n", position)
        end = len(received) if newline < 0 else newline + 1
        self._line += received[position:end]
        line = self._line
        if self._state is _AFTER:
            if not b"\r\n".startswith(line):
                raise ProtocolError(400, "a chunk is not followed by CRLF")
        elif len(line) > LINE_LIMIT:
            raise ProtocolError(400, "a line of the chunked framing is too long")
        if newline >= 0:
            self._line = b""
            self._whole_line(line)
        return end

    def _whole_line(self, line: bytes) -> None:
        if self._state is _AFTER:
            self._state = _SIZE
        elif self._state is _SIZE:
            match = _SIZE_LINE.fullmatch(line)
            if match is None:
                raise ProtocolError(400, "a chunk's size is not a hexadecimal number")
            self._open(match)
        elif line == b"\r\n":
            self.complete = True
        else:
            self._trailer += len(line)
            if self._trailer > TRAILER_LIMIT or _TRAILER_LINE.fullmatch(line) is None:
                raise ProtocolError(400, "a trailer is not valid or too long")


class BoundedFollower(ChunkFollower):
    """A chunked body of at most `limit` bytes: a size line that would pass it is refused, not its content."""

    __slots__ = ("_limit", "_room")

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._room = limit

    def _open(self, match: re.Match[bytes]) -> int:
        size = super()._open(match)
        self._room -= size
        if self._room < 0:
            raise ProtocolError(413, f"the request body is larger than {self._limit} bytes")
        return size
