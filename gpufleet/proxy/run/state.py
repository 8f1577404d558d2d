"""What all connections of one proxy process share."""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
from typing import Protocol

from gpufleet.clock import Clock
from gpufleet.proxy.config import ProxyConfig
from gpufleet.proxy.decide.auth import Directory
from gpufleet.proxy.decide.balance.api import Dice
from gpufleet.proxy.decide.metrics import ProxyMetrics
from gpufleet.proxy.run.fleet import Fleet
from gpufleet.proxy.run.stored import StoredResponses
from gpufleet.proxy.run.upload import BodyBuffers
from gpufleet.proxy.wire.heads import RequestHead
from gpufleet.proxy.wire.refusal import Refusal


class Connected(Protocol):
    """A client's connection, as the server sees it."""

    def expire(self, now: float) -> None:
        """Look at the deadlines. `now` is the loop's time."""
        ...

    def close(self) -> None:
        """At once."""
        ...


class Client(Connected, Protocol):
    """A connection of somebody who sends requests to engines."""

    @property
    def unfinished(self) -> bool:
        """It has to be waited for before the proxy may end."""
        ...


class Downstream(Protocol):
    """The client's side, as an exchange needs it."""

    def write(self, content: bytes) -> None:
        """Bytes for the client."""
        ...

    def answer(self, refusal: Refusal, pool: bytes) -> None:
        """An answer of our own; nothing was written yet."""
        ...

    def finished(self, *, persistent: bool) -> None:
        """The answer is whole; `persistent` False: close behind it."""
        ...

    def cut(self, *, hard: bool) -> None:
        """The answer cannot be made whole: close so that the client sees it. `hard`: by a reset."""
        ...


class Access(Protocol):
    """The access log, as requests need it."""

    def wants(self, status: int) -> bool:
        """Whether this request is to be written: asked once for each."""
        ...

    def note(  # noqa: PLR0917 - one call, in the order of the line
        self,
        head: RequestHead,
        request_id: bytes,
        status: int,
        pool: str = "",
        endpoint: str = "",
        stream: bool = False,  # noqa: FBT001, FBT002 - one call, in the order of the line
        started: float | None = None,
        first_byte: float | None = None,
        tokens: dict[str, int] | None = None,
    ) -> None:
        """Keep one line."""
        ...


class ProxyState:
    """One a process; lives on the loop's thread alone."""

    __slots__ = (
        "_numbers",
        "_prefix",
        "access",
        "bodies",
        "buffered",
        "clients",
        "config",
        "dice",
        "directory",
        "fleet",
        "in_flight",
        "loop",
        "metrics",
        "operators",
        "started",
        "stopping",
        "stored",
        "succeeded",
        "turned_away",
        "wall",
    )

    def __init__(self, config: ProxyConfig, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.config = config
        self.loop = loop
        self.fleet = Fleet(config, loop)
        self.metrics = ProxyMetrics()
        self.directory = Directory({}, anonymous=config.allow_anonymous)
        self.dice: Dice = random.Random()
        self.clients: set[Client] = set()
        self.operators: set[Connected] = set()
        """Connections to the admin address."""
        self.turned_away: set[Connected] = set()
        """Clients over the limit that read their refusal."""
        self.in_flight = 0
        """Requests between dispatch and last byte."""
        self.bodies = BodyBuffers()
        self.buffered = 0
        """Bytes of their bodies, and of those that are on their way to us."""
        self.access: Access | None = None
        """None: no access log is kept."""
        self.stored = StoredResponses()
        self.stopping = False
        self.succeeded = False
        """Another process accepts on the same socket: whoever is still connected here is served to the end."""
        self.wall = clock.now().timestamp()
        """Seconds since 1970, as of the last tick."""
        self.started = self.wall
        self._prefix = secrets.token_hex(6).encode()
        self._numbers = itertools.count(1)

    def new_request_id(self) -> bytes:
        """Unique over processes and restarts."""
        return b"%s-%x" % (self._prefix, next(self._numbers))
