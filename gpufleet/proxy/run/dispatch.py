"""From a whole request to whoever answers it: a member, or the proxy itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from gpufleet.proxy.decide.balance.api import RequestKey
from gpufleet.proxy.run.admission import Asked
from gpufleet.proxy.run.catalogue import choose_pool, models_answer
from gpufleet.proxy.run.fleet import LivePool
from gpufleet.proxy.run.request import Exchange
from gpufleet.proxy.run.state import Downstream, ProxyState
from gpufleet.proxy.wire.openai import BodyUnreadable, earlier_response, peek
from gpufleet.proxy.wire.paths import Service
from gpufleet.proxy.wire.refusal import Refusal, bad_body, no_such_response
from gpufleet.proxy.wire.usage import CHUNK_EDGE

_RELAY, _STORED = Service.RELAY, Service.STORED  # see `request`
_RESPONSES = "/v1/responses"
_ID: Final = re.compile(rb'"id": ?"(resp_[A-Za-z0-9_-]{1,128})"')
_MEMBER: Final = re.compile(rb"\r\nx-gpufleet-endpoint: ([^\r]+)\r\n")
_GOOD: Final = b"HTTP/1.1 2"
_LOOKED_AT: Final = 16 * 1024
"""Bytes of an answer; engines write the id first."""
Start = tuple[Exchange, RequestKey, str | None]
"""An exchange that has to be started, with its key and the only member that may answer."""


def dispatch(
    state: ProxyState, client: Downstream, asked: Asked, body: bytes | bytearray, size: int, *, now: float
) -> Start | Refusal | bytes:
    """The body is the first `size` bytes; `now` is the loop's time. Bytes are the answer of the proxy itself."""
    table, place = state.fleet.table, asked.place
    if place.service is _STORED:
        return _fetch(state, client, asked, body, size, now=now)
    if place.service is not _RELAY:
        return models_answer(table, place, asked.principal, int(state.started))
    try:
        peeked = peek(body, asked.head.fields.get(b"content-type", b""), size)
    except BodyUnreadable as error:
        return bad_body(str(error))
    pool = choose_pool(table, place, asked.principal, peeked.model)
    if isinstance(pool, Refusal):
        return pool
    only: str | None = None
    if place.path == _RESPONSES:
        client = _reading(state, client, asked, pool)
        only = _holder_of_earlier(state, asked, pool, earlier_response(body, size))
    exchange = Exchange(state, client, asked, body, size, pool=pool, stream=bool(peeked.stream), now=now)
    return exchange, pool.key(peeked.model or "", asked.session, body, size), only


def _reading(state: ProxyState, client: Downstream, asked: Asked, pool: LivePool) -> Downstream:
    def found(response: str, replica: str) -> None:
        state.stored.note(response, pool.name, replica, asked.principal)

    return Reading(client, found)


def _holder_of_earlier(state: ProxyState, asked: Asked, pool: LivePool, earlier: str | None) -> str | None:
    """The member that holds the response which this one continues; it must have the next one too."""
    holder = state.stored.find(earlier, asked.principal) if earlier else None
    return (
        holder.replica
        if holder is not None and holder.pool == pool.name and holder.replica in pool.by_id
        else None
    )


def _fetch(
    state: ProxyState, client: Downstream, asked: Asked, body: bytes | bytearray, size: int, *, now: float
) -> Start | Refusal:
    """A stored response is asked for, deleted or cancelled."""
    response = asked.place.path.split("/")[3]
    holder = state.stored.find(response, asked.principal)
    pool = state.fleet.table.pools.get(holder.pool) if holder is not None else None
    elsewhere = asked.place.pool is not None and holder is not None and asked.place.pool != holder.pool
    if holder is None or pool is None or holder.replica not in pool.by_id or elsewhere:
        return no_such_response(response)
    exchange = Exchange(state, client, asked, body, size, pool=pool, stream=False, now=now)
    return exchange, RequestKey(), holder.replica


class Reading:
    """The client's side, while an answer passes that may be stored: `found` gets its id and the member's, once."""

    __slots__ = ("_client", "_found", "_seen")

    def __init__(self, client: Downstream, found: Callable[[str, str], None]) -> None:
        self._client = client
        self._found: Callable[[str, str], None] | None = found
        self._seen = b""

    def write(self, content: bytes) -> None:
        """See `Downstream`."""
        found = self._found
        if found is not None:
            seen = self._seen = self._seen + content
            match = _ID.search(CHUNK_EDGE.sub(b"", seen)) if seen.startswith(_GOOD) else None
            if match is not None:
                member = _MEMBER.search(seen)  # of the head that we wrote ourselves
                if member is not None:
                    found(match[1].decode(), member[1].decode())
            if match is not None or len(seen) > _LOOKED_AT or not seen.startswith(_GOOD):
                self._found, self._seen = None, b""
        self._client.write(content)

    def answer(self, refusal: Refusal, pool: bytes) -> None:
        """See `Downstream`."""
        self._client.answer(refusal, pool)

    def finished(self, *, persistent: bool) -> None:
        """See `Downstream`."""
        self._client.finished(persistent=persistent)

    def cut(self, *, hard: bool) -> None:
        """See `Downstream`."""
        self._client.cut(hard=hard)
