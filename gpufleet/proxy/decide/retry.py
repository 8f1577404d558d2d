"""Whether a request may be tried once more.

Only while not one byte went to the client, and only when the engine cannot have begun its work or says itself that
it did not: no connection, a kept connection that was closed under us, 502, 503, 504. Never after 4xx, 500 or a
time-out: the engine may already be generating, and the answer would cost twice.
"""

from __future__ import annotations

from enum import Enum


class Failure(Enum):
    """Where an attempt ended."""

    CONNECT = "connect"
    STALE = "stale connection"
    BUSY = "502, 503 or 504"
    SENT = "lost after sending"


class Next(Enum):
    """What follows."""

    SAME_MEMBER = "same member"
    OTHER_MEMBER = "other member"
    GIVE_UP = "give up"


RETRIED_STATUSES = frozenset({502, 503, 504})
MORE_ATTEMPTS = 2


def decide(failure: Failure, *, others_tried: int, others_left: int, fresh_tried: bool) -> Next:
    """`others_tried` are the members that this request has already gone on to."""
    if failure is Failure.STALE and not fresh_tried:
        return Next.SAME_MEMBER
    if failure is Failure.SENT or others_tried >= MORE_ATTEMPTS or others_left == 0:
        return Next.GIVE_UP
    return Next.OTHER_MEMBER
