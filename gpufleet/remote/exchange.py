"""One frame over one SSH channel: send it, pump both streams, stop at the end lines or at the deadline.

Works on anything shaped like paramiko's Channel. Both streams are read in one loop, so a command that fills one
while the other is read cannot stand still. The end lines and not the end of the streams close the exchange: a
child left in the background keeps the streams open, a cut connection closes them.
"""

from __future__ import annotations

import math
import select
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from gpufleet.clock import Clock
from gpufleet.remote.framing import finished
from gpufleet.remote.offer import STALL, Offer

_CHUNK = 1 << 16
_GRACE = 2.0
"""Seconds for the second stream's end line after the first's: a forced command may merge the streams."""


class Channel(Protocol):
    """What this module asks of a channel."""

    def settimeout(self, timeout: float | None) -> None: ...
    def send(self, _content: bytes, /) -> int: ...
    def shutdown_write(self) -> None: ...
    def fileno(self) -> int: ...
    def recv_ready(self) -> bool: ...
    def recv(self, _count: int, /) -> bytes: ...
    def recv_stderr_ready(self) -> bool: ...
    def recv_stderr(self, _count: int, /) -> bytes: ...
    @property
    def closed(self) -> bool: ...
    @property
    def eof_received(self) -> int: ...


class Ended(Enum):
    """Why the pump stopped."""

    ANSWERED = "answered"
    CLOSED = "closed"
    DEADLINE = "deadline"
    STALLED = "stalled"


@dataclass(slots=True)
class Received:
    """What was read, and how far the exchange came.

    Attributes:
        sent: whether any byte of the frame was handed to the connection.
    """

    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    sent: bool = False
    ended: Ended = Ended.CLOSED


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time that nothing moves."""

    clock: Clock
    at: float

    @classmethod
    def after(cls, clock: Clock, seconds: float) -> Deadline:
        """So many seconds from now."""
        return cls(clock, clock.monotonic() + seconds)

    def left(self) -> float:
        """Seconds that remain, never negative."""
        return max(0.0, self.at - self.clock.monotonic())


def exchange(
    channel: Channel, frame: bytes, marker: str, deadline: Deadline, offer: Offer | None = None
) -> Received:
    """Send the frame and read until both end lines are there, the channel closes or the time is over.

    With an `offer` standard input stays open, and the files are given as they are asked for.
    """
    received = Received()
    try:
        if not _send(channel, frame, received, deadline):
            received.ended = Ended.DEADLINE
            return received
        if offer is None:
            channel.shutdown_write()
    except OSError:
        # The far end closed before it read all: what it printed may say why.
        _drain(channel, received)
        return received
    _pump(channel, marker, received, deadline, offer)
    return received


def _send(
    channel: Channel, content: bytes, received: Received, deadline: Deadline, patience: float = math.inf
) -> bool:
    """False when the far end took nothing for `patience` seconds, or the time is over."""
    view = memoryview(content)
    while view:
        left = min(deadline.left(), patience)
        if left <= 0:
            return False
        channel.settimeout(left)
        try:
            count = channel.send(bytes(view[:_CHUNK]))
        except TimeoutError:
            return False
        if count == 0:
            raise BrokenPipeError
        received.sent = True
        view = view[count:]
        _drain(channel, received)
    return True


def _give(channel: Channel, offer: Offer, received: Received, deadline: Deadline) -> bool:
    """Answer what the script asks for by now; False when the far end stopped taking it."""
    while (wanted := offer.wanted(received.stdout)) is not None:
        try:
            for piece in offer.pieces(*wanted):
                if not _send(channel, piece, received, deadline, STALL):
                    return False
            if offer.trouble:
                channel.shutdown_write()
        except OSError:
            # The command ended before it read all; its end lines, or the end of the channel, say how.
            return True
    return True


def _pump(channel: Channel, marker: str, received: Received, deadline: Deadline, offer: Offer | None) -> None:
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    grace: Deadline | None = None
    while True:
        # Asked before draining: what came in front of the end is then surely drained.
        over = bool(channel.closed or channel.eof_received)
        _drain(channel, received)
        if offer is not None and not over and not _give(channel, offer, received, deadline):
            received.ended = Ended.STALLED if deadline.left() > 0 else Ended.DEADLINE
            return
        ends = finished(received.stdout, marker) + finished(received.stderr, marker)
        if ends == 2 or (ends == 1 and over):
            received.ended = Ended.ANSWERED
            return
        if over:
            received.ended = Ended.CLOSED
            return
        if ends == 1 and grace is None:
            grace = Deadline.after(deadline.clock, _GRACE)
        left = min(deadline.left(), grace.left() if grace is not None else deadline.left())
        if left <= 0:
            received.ended = Ended.ANSWERED if ends else Ended.DEADLINE
            return
        # A short wait too, since the end of a channel that was closed under us wakes nobody in every version.
        poll.poll(min(left, 1.0) * 1000)


def _drain(channel: Channel, received: Received) -> None:
    while channel.recv_ready():
        received.stdout += channel.recv(_CHUNK)
    while channel.recv_stderr_ready():
        received.stderr += channel.recv_stderr(_CHUNK)
