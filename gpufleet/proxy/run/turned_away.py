"""A client too many: told so in HTTP, given a moment to read it, and let go."""

from __future__ import annotations

import asyncio
from typing import cast

from gpufleet.proxy.run.state import ProxyState
from gpufleet.proxy.wire.answer import refusal_fields, write_answer
from gpufleet.proxy.wire.refusal import too_many_connections

_MOST = 1000
"""So many may be reading their refusal at once; beyond that a connection is closed without a word."""


class TurnedAway(asyncio.Protocol):
    """One connection over the limit. What it sends is not read: an answer is not reset away by unread bytes."""

    def __init__(self, state: ProxyState) -> None:
        self._state = state
        self._transport: asyncio.Transport | None = None
        self._since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        state = self._state
        state.metrics.connections_refused.add()
        if len(state.turned_away) >= _MOST:
            self._transport.abort()
            return
        self._since = state.loop.time()
        state.turned_away.add(self)
        refusal = too_many_connections()
        self._transport.write(
            write_answer(
                refusal.status,
                refusal.body(),
                request_id=state.new_request_id(),
                fields=refusal_fields(refusal, ""),
                persistent=False,
                head_only=False,
            )
        )
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._state.turned_away.discard(self)

    def expire(self, now: float) -> None:
        """Called on every tick."""
        if now - self._since > self._state.config.timeouts.linger:
            self.close()

    def close(self) -> None:
        """At once."""
        if self._transport is not None:
            self._transport.abort()
