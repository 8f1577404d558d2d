"""Large request bodies: the socket writes into the buffer that is sent on, and nothing is copied in between.

A body that is announced with a length is read by an `Upload`, which takes the place of the client's protocol for as
long as the body lasts. Its buffer grows with what arrives, so an announcement alone costs nothing; buffers are used
again, because pages that were touched once need not be asked of the kernel anew.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

UPLOAD_FROM: Final = 128 * 1024
"""Bytes that must be missing of a body; smaller ones are joined from what the loop reads."""
_FIRST: Final = 1024 * 1024
_KEPT: Final = 32 * 1024 * 1024


class BodyBuffers:
    """Buffers of uploads that ended; together at most 32 MiB."""

    __slots__ = ("_free", "_size")

    def __init__(self) -> None:
        self._free: list[bytearray] = []
        self._size = 0

    def find(self, wanted: int) -> bytearray | None:
        """The smallest free one that holds `wanted` bytes. Old content stays in it."""
        fitting = [buffer for buffer in self._free if len(buffer) >= wanted]
        if not fitting:
            return None
        buffer = min(fitting, key=len)
        self._free = [other for other in self._free if other is not buffer]
        self._size -= len(buffer)
        return buffer

    def give_back(self, buffer: bytearray) -> None:
        """Only when nobody reads it any more."""
        if self._size + len(buffer) <= _KEPT:
            self._free.append(buffer)
            self._size += len(buffer)


class Uploader(Protocol):
    """The client's connection, as an upload needs it."""

    def upload_grew(self, received: int) -> None:
        """So many bytes are here."""
        ...

    def upload_complete(self, buffer: bytearray, size: int) -> None:
        """The body is whole: the first `size` bytes of `buffer`."""
        ...

    def eof_received(self) -> bool:
        """The client sends nothing more."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        ...

    def pause_writing(self) -> None:
        """It does not read."""
        ...

    def resume_writing(self) -> None:
        """It does again."""
        ...


class Upload(asyncio.BufferedProtocol):
    """One body on its way in."""

    __slots__ = ("_buffer", "_buffers", "_client", "_received", "size")

    def __init__(self, client: Uploader, buffers: BodyBuffers, size: int, start: bytes) -> None:
        self._client = client
        self._buffers = buffers
        self.size = size
        self._received = len(start)
        self._buffer = buffers.find(size) or bytearray(min(size, _FIRST))
        self._buffer[: len(start)] = start

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Where the next bytes go. It grows here and not on arrival: the loop still holds its piece then."""
        if self._received == len(self._buffer):
            larger = self._buffers.find(self.size) or bytearray(min(self.size, 2 * self._received))
            larger[: self._received] = self._buffer
            self._buffer = larger
        return memoryview(self._buffer)[self._received : min(self.size, len(self._buffer))]

    def buffer_updated(self, nbytes: int) -> None:
        """The loop wrote them."""
        self._received += nbytes
        if self._received < self.size:
            self._client.upload_grew(self._received)
        else:
            self._client.upload_complete(self._buffer, self.size)

    def eof_received(self) -> bool:
        return self._client.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.connection_lost(exc)

    def pause_writing(self) -> None:
        self._client.pause_writing()

    def resume_writing(self) -> None:
        self._client.resume_writing()


def listen_by(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    """Hand the socket to another protocol. uvloop asks how to read only when reading starts."""
    transport.set_protocol(protocol)
    transport.pause_reading()
    transport.resume_reading()
