"""The operator's address: health, metrics, a status page, members with their in-flight counts, drain.

Listens on loopback by default and asks for no key. A browser page of another site must not reach it: a request that
carries `Origin`, or whose `Host` is a name and not an address, changes nothing and reads nothing.
"""

from __future__ import annotations

import asyncio
import html
import ipaddress
import logging
from typing import cast

import msgspec

from gpufleet.proxy.decide.metrics import render
from gpufleet.proxy.run.desk import Desk, NoAnswer, Row
from gpufleet.proxy.run.state import ProxyState
from gpufleet.proxy.wire.chunked import ProtocolError
from gpufleet.proxy.wire.heads import RequestHead
from gpufleet.proxy.wire.http1 import RequestReader
from gpufleet.proxy.wire.refusal import REASONS

_LOG = logging.getLogger("gpufleet.proxy")
_JSON = b"application/json"
_UNREAD_LIMIT = 1024 * 1024
"""Bytes of answers that an operator may leave unread."""


class _Drain(msgspec.Struct, forbid_unknown_fields=True):
    pool: str
    replica: str


class AdminConnection(asyncio.Protocol):
    """One connection of an operator or of Prometheus."""

    def __init__(self, state: ProxyState, desk: Desk) -> None:
        self._state = state
        self._desk = desk
        self._task: asyncio.Task[None] | None = None
        """Of the request that is being answered."""
        self._reader = RequestReader(64 * 1024)
        self._head: RequestHead | None = None
        self._transport: asyncio.Transport | None = None
        self._heard_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._heard_at = self._state.loop.time()
        self._state.operators.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._task is not None:
            self._task.cancel()
        self._state.operators.discard(self)

    def expire(self, now: float) -> None:
        """Whoever says nothing for long is let go."""
        if now - self._heard_at > self._state.config.timeouts.idle:
            self.close()

    def close(self) -> None:
        """At once."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._state.loop.time()
        self._reader.feed(data)
        self._advance()

    def _advance(self) -> None:
        """Answer what was asked, one request after the other."""
        try:
            while self._task is None and self._transport is not None and not self._transport.is_closing():
                if self._transport.get_write_buffer_size() > _UNREAD_LIMIT:
                    self.close()
                    return
                event = self._reader.next_event()
                if event is None:
                    return
                if isinstance(event, RequestHead):
                    self._head = event
                elif self._head is not None:
                    self._transport.pause_reading()  # what is asked meanwhile waits with its sender
                    self._task = self._state.loop.create_task(self._answer(self._head, bytes(event)))
        except ProtocolError as error:
            self._head = None
            self._respond(error.status, _JSON, _problem(error.reason))

    async def _answer(self, head: RequestHead, body: bytes) -> None:
        try:
            status, content_type, content = await respond(self._state, self._desk, head, body)
        except NoAnswer as error:
            status, content_type, content = 503, _JSON, _problem(str(error))
        except Exception:  # noqa: BLE001 - one question that fails must not leave its asker waiting
            _LOG.exception("an operator's question failed")
            status, content_type, content = 500, _JSON, _problem("the proxy failed on this question")
        self._task = None
        self._respond(status, content_type, content)
        self._advance()
        if self._task is None and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _respond(self, status: int, content_type: bytes, body: bytes) -> None:
        persistent = self._head is not None and self._head.persistent and not self._state.stopping
        if self._transport is None:
            return
        self._transport.write(
            b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nCache-Control: no-store\r\n%s\r\n"
            % (
                status,
                REASONS.get(status, b""),
                content_type,
                len(body),
                b"" if persistent else b"Connection: close\r\n",
            )
            + (b"" if self._head is not None and self._head.method == "HEAD" else body)
        )
        if not persistent:
            self._transport.close()


async def respond(state: ProxyState, desk: Desk, head: RequestHead, body: bytes) -> tuple[int, bytes, bytes]:
    """Status, content type and body. Raises `NoAnswer`."""
    path = head.target.split(b"?", 1)[0].decode("ascii")
    if not _from_an_operator(head):
        return 403, _JSON, _problem("this address is reached by its IP address and not from a web page")
    if head.method == "POST" and path in {"/admin/drain", "/admin/undrain"}:
        return await _drain(desk, body, wanted=path == "/admin/drain")
    if head.method not in {"GET", "HEAD"}:
        return 405, _JSON, _problem("this path is read with GET")
    if path == "/health":
        status = "stopping" if state.stopping else "ok"
        return 503 if state.stopping else 200, _JSON, msgspec.json.encode({"status": status})
    if path == "/metrics":
        page = render(await desk.families())
        return 200, b"text/plain; version=0.0.4; charset=utf-8", page.encode()
    if path == "/admin/members":
        return 200, _JSON, msgspec.json.encode(await desk.members())
    if path == "/":
        return 200, b"text/html; charset=utf-8", status_page(await desk.members()).encode()
    return (
        404,
        _JSON,
        _problem("there is /, /health, /metrics, /admin/members, /admin/drain and /admin/undrain"),
    )


def _from_an_operator(head: RequestHead) -> bool:
    host = head.fields.get(b"host", b"").decode("latin-1")
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if b"origin:" in head.kept.lower():
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in {"localhost", ""}
    return True


async def _drain(desk: Desk, body: bytes, *, wanted: bool) -> tuple[int, bytes, bytes]:
    try:
        asked = msgspec.json.decode(body, type=_Drain)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return 400, _JSON, _problem(f'send {{"pool": "...", "replica": "HOST/N"}}: {error}')
    row = await desk.drain(asked.pool, asked.replica, wanted=wanted)
    if row is None:
        return 404, _JSON, _problem(f"pool `{asked.pool}` has no member `{asked.replica}`")
    return 200, _JSON, msgspec.json.encode(row)


def _problem(message: str) -> bytes:
    return msgspec.json.encode({"error": {"message": message}})


def status_page(page: Row) -> str:
    """One small page without scripts."""
    rows = "".join(
        "<tr>"
        + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in (pool["pool"], *row.values()))
        + "</tr>"
        for pool in page["pools"]
        for row in pool["members"]
    )
    titles = ("pool", "replica", "endpoint", "state", "health", "weight", "in flight")
    heads = "".join(f"<th>{title}</th>" for title in titles)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=5><title>gpufleet proxy</title>"
        "<style>body{font:15px system-ui;margin:2em}td,th{padding:.3em .8em;text-align:left;border-bottom:1px solid #ccc}"
        "</style><h1>gpufleet proxy</h1>"
        f"<p>route table generation {page['generation']}, {page['in_flight']} requests in flight</p>"
        f"<table><tr>{heads}</tr>{rows}</table></html>\n"
    )
