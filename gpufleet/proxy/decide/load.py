"""What one member has to do, as this proxy counts it; never what a page said a while ago.

A request takes its share when it is sent and gives it back exactly once: the prompt's part at the first byte of the
answer, the rest at the end, both at the end when there was no first byte. The holder of a share is a `Share`, which may
be ended as often as one likes.
"""

from __future__ import annotations

from typing import Final

PENDING_WEIGHT: Final = 0.25
"""What a token that waits to be read in front of a request costs against one of its own. Between 0.2 and 0.3 nothing
depends on it much; 1 would be the greedy choice, which throws caches away."""
REQUEST_TOKENS: Final = 160.0
"""What a request in flight costs, in tokens of prompt: it decodes while others are read."""


class Load:
    """One member's.

    Attributes:
        running: requests that this process has in flight on it.
        elsewhere: those that other processes of the same proxy have, and `outside` those of other clients altogether.
        pending: prompt tokens, not cached as far as is known, of requests without a first byte.
        burden: all of it in tokens; kept up to date, because it is read for every member at every request.
        cache_tokens: tokens that its KV cache holds; None while it has not said so.
    """

    __slots__ = (
        "_pending_weight",
        "_request_tokens",
        "burden",
        "cache_tokens",
        "elsewhere",
        "outside",
        "pending",
        "running",
    )

    def __init__(
        self, *, pending_weight: float = PENDING_WEIGHT, request_tokens: float = REQUEST_TOKENS
    ) -> None:
        self._pending_weight = pending_weight
        self._request_tokens = request_tokens
        self.running = 0
        self.elsewhere = 0
        self.outside = 0
        self.pending = 0
        self.burden = 0.0
        self.cache_tokens: int | None = None

    @property
    def total(self) -> int:
        """Requests in flight, whoever sent them."""
        return self.running + self.elsewhere + self.outside

    def take(self, pending: int) -> Share:
        """One more request, with so many tokens of prompt to be read."""
        self.running += 1
        self.pending += pending
        self.burden += (
            self._pending_weight * pending + self._request_tokens
        )  # quarters and whole numbers: exact
        return Share(self, pending)

    def reckon(self) -> None:
        """Work `burden` out anew; whoever sets a field calls it."""
        self.burden = self._pending_weight * self.pending + self._request_tokens * (
            self.running + self.elsewhere + self.outside
        )


class Share:
    """One request's part of a member's load."""

    __slots__ = ("_ended", "_load", "pending", "queue")

    def __init__(self, load: Load, pending: int) -> None:
        self._load = load
        self._ended = False
        self.pending = pending
        """Tokens that are still to be read."""
        self.queue = load.pending
        """Tokens that were to be read when it came, its own among them."""

    def first_byte(self) -> None:
        """The prompt has been read."""
        if self.pending:
            load = self._load
            load.pending -= self.pending
            load.burden -= load._pending_weight * self.pending  # noqa: SLF001 - its own other half
            self.pending = 0

    def end(self) -> None:
        """The request is over, in whatever way."""
        if self._ended:
            return
        self._ended = True
        load = self._load
        self.first_byte()
        load.running -= 1
        load.burden -= load._request_tokens  # noqa: SLF001 - its own other half
