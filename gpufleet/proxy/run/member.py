"""One engine with its counters and connections, and its place in a pool."""

from __future__ import annotations

import asyncio
import re

from gpufleet.pools.routes import EndpointRoute
from gpufleet.proxy.decide.engine_load import EngineLoad
from gpufleet.proxy.decide.health import Health, Verdict
from gpufleet.proxy.decide.load import Load
from gpufleet.proxy.run.upstream import ConnectionPool

_URL = re.compile(r"http(s)?://(?:([A-Za-z0-9._-]+)|\[([0-9A-Za-z:.%]+)\])(?::([0-9]{1,5}))?/?")


class Member:
    """One engine."""

    __slots__ = (
        "answers",
        "answers_at_back",
        "answers_at_probe",
        "connections",
        "health",
        "host_field",
        "id",
        "key",
        "load",
        "load_at",
        "metrics_path",
        "outside_before",
        "probe_path",
        "progress",
        "progress_at",
        "resting",
        "served",
        "url",
        "warmth",
        "work",
    )

    def __init__(self, route: EndpointRoute, loop: asyncio.AbstractEventLoop, connect_timeout: float) -> None:
        host, port = split_url(route.url)
        self.id = route.id
        self.url = route.url
        self.host_field = f"[{host}]:{port}".encode() if ":" in host else f"{host}:{port}".encode()
        self.probe_path = route.health
        self.metrics_path = route.metrics
        self.load: EngineLoad | None = None
        """What its own page said last, and when (the loop's time); only ever added to what is counted here."""
        self.load_at = 0.0
        self.progress = -1.0
        """Tokens and requests that its page counted, and when they last grew (the loop's time)."""
        self.progress_at = 0.0
        self.answers = 0
        """Heads of answers it has sent; as it came back, and as it was probed last."""
        self.answers_at_back = 0
        self.answers_at_probe = 0
        self.resting = False
        """It warms up and is left out until the next tick."""
        self.warmth = 0.0
        self.key = b""
        self.connections = ConnectionPool(
            host, port, loop, connect_timeout, tls=route.url.startswith("https:")
        )
        self.health = Health()
        self.work = Load()
        """Requests in flight and what they have to read; taken and given back exactly once each."""
        self.outside_before = 0
        """Requests of other clients, as the page before the last one said."""
        self.served = 0

    @property
    def running(self) -> int:
        """Requests that this process has in flight."""
        return self.work.running

    @property
    def elsewhere(self) -> int:
        """In flight from other processes of the same proxy, as they told last."""
        return self.work.elsewhere

    def told(self, load: EngineLoad, now: float, ours: int) -> None:
        """Its page says how busy it is; `ours` is the most that all of this proxy had in flight while it was asked.

        What is above that are requests of others. Of two pages the smaller number counts: one that ended just when the
        page was written is nobody's.
        """
        self.load, self.load_at = load, now
        self.work.cache_tokens = load.kv_tokens
        if load.running is not None:
            others = max(0, int(load.running + (load.waiting or 0.0)) - ours)
            self.others(min(others, self.outside_before))
            self.outside_before = others

    def others(self, requests: int) -> None:
        """So many requests of other clients are in flight on it."""
        if self.work.outside != requests:
            self.work.outside = requests
            self.work.reckon()


class Seat:
    """A member's place in one pool: what a policy sees."""

    __slots__ = ("draining", "id", "load", "member", "pool", "tail", "weight")

    def __init__(self, pool: str, member: Member, weight: int, *, draining: bool) -> None:
        self.pool = pool
        self.id = member.id
        self.member = member
        self.load = member.work
        self.weight = weight
        self.draining = draining
        self.tail = f"x-gpufleet-pool: {pool}\r\nx-gpufleet-endpoint: {member.id}\r\n".encode()

    @property
    def running(self) -> int:
        """Requests in flight on the member, whoever sent them."""
        return self.load.total

    @property
    def in_flight(self) -> int:
        """Those that this proxy sent, whichever pool and process."""
        return self.load.running + self.load.elsewhere

    @property
    def verdict(self) -> Verdict:
        """What health says of the member."""
        return self.member.health.verdict

    @property
    def resting(self) -> bool:
        """The member warms up, and this is not its turn."""
        return self.member.resting


def split_url(url: str) -> tuple[str, int]:
    """Host and port of `http://host:port` or `https://host:port`. Raises `ValueError`."""
    match = _URL.fullmatch(url)
    port = int(match[4] or (443 if match[1] else 80)) if match is not None else 0
    if match is None or not 1 <= port <= 65535:
        raise ValueError(f"`{url}` is not http://HOST:PORT or https://HOST:PORT")
    return (match[2] or match[3]).lower(), port
