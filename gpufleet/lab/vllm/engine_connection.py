"""One HTTP/1.1 connection of an engine: bytes to requests, one at a time, and replies to bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

import httptools

from gpufleet.lab.vllm.replies import Reply, Request, error

if TYPE_CHECKING:
    from gpufleet.lab.vllm.engine import RunningEngine

BODY_LIMIT = 32 * 2**20
"""Bytes of a request's body, as in vLLM."""

Deliver = Callable[["RunningEngine", Request, "Connection"], Awaitable[None]]


class Connection(asyncio.Protocol):
    """A connection; it ends the request under way when the client leaves."""

    early = False

    def __init__(self, running: RunningEngine, deliver: Deliver) -> None:
        self._running = running
        self._deliver = deliver
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._requests: deque[tuple[Request, bool]] = deque()
        self._work: asyncio.Task[None] | None = None
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._chunked = False
        self._head_sent = False

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # a stream listener makes nothing else
        self._transport = transport
        self._running.connections.add(self)
        if self._running.closed:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self._running.connections.discard(self)
        self._transport = None
        self._writable.set()
        if self._work is not None:
            self._work.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(error(400, "Bad Request", "upgrades are not supported"))
        except httptools.HttpParserError:
            self._refuse(error(400, "Bad Request", "invalid HTTP request received"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # what the parser calls

    def on_message_begin(self) -> None:
        self._url, self._headers = b"", {}
        self._body.clear()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > BODY_LIMIT:
            self._refuse(error(413, "Bad Request", "the body is too large"))

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode("latin-1")
        request = Request(method, self._url.decode("latin-1"), self._headers, bytes(self._body))
        self._requests.append((request, self._parser.should_keep_alive()))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._answer_all())

    # replies

    def head(self, reply: Reply) -> None:
        """Status line and headers."""
        self._head_sent = True
        self._chunked = reply.streamed
        lines = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}", "server: uvicorn"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        lines.append(
            "transfer-encoding: chunked" if self._chunked else f"content-length: {len(reply.body())}"
        )
        self._write("\r\n".join((*lines, "", "")).encode("latin-1", "replace"))

    async def piece(self, content: bytes) -> None:
        """A piece of the body, when the client has taken the earlier ones."""
        await self._writable.wait()
        self._write(b"%x\r\n%s\r\n" % (len(content), content) if self._chunked else content)

    def abort(self) -> None:
        """Reset the connection."""
        if self._transport is not None:
            self._transport.abort()

    async def _answer_all(self) -> None:
        while self._requests:
            request, keep_alive = self._requests.popleft()
            self._head_sent = self._chunked = False
            try:
                await self._deliver(self._running, request, self)
            except ConnectionRefusedError:
                self.abort()
                return
            if self._chunked:
                self._write(b"0\r\n\r\n")
            if not keep_alive and self._transport is not None:
                self._transport.close()
                return

    def _refuse(self, reply: Reply) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if not self._head_sent:
            reply.headers["connection"] = "close"
            self.head(reply)
            self._write(reply.body())
        self._transport.close()

    def _write(self, content: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(content)
