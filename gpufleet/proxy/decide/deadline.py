"""How long a request may take, and whether it is too late."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds.

    Attributes:
        first_byte: from dispatch to the first byte of a streamed answer. An answer that is not streamed has no first
            token to wait for and is bounded by `total` alone.
        between: between two pieces of a body.
        total: from dispatch to the last byte of the answer; and before that from a request's first byte to its last.
        head: from the first byte of a request to the end of its head, and between two pieces of its body.
        idle: a client's connection without a request.
        linger: a refused client may go on sending this long before it is cut.
        upstream_idle: an engine's connection without a request; engines close theirs after 5.
    """

    connect: float = 2.0
    first_byte: float = 120.0
    between: float = 60.0
    total: float = 3600.0
    head: float = 30.0
    idle: float = 75.0
    linger: float = 2.0
    upstream_idle: float = 4.0


def overdue(
    limits: Timeouts, now: float, *, started: float, first_byte: float | None, last_byte: float, stream: bool
) -> str:
    """Which limit was passed, in words; empty when none was. Times are monotonic seconds."""
    if now - started > limits.total:
        return f"no whole answer within {limits.total:g} s"
    if first_byte is None:
        late = stream and now - started > limits.first_byte
        return f"no first byte within {limits.first_byte:g} s" if late else ""
    return f"nothing came for {limits.between:g} s" if now - last_byte > limits.between else ""
