"""What one proxy process is told: addresses, files, limits and times."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpufleet.proxy.decide.deadline import Timeouts
from gpufleet.proxy.decide.health import HealthRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen. Port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`HOST:PORT`, `[IPV6]:PORT` or `:PORT` (loopback). Raises `ValueError` with the reason."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"`{text}` is not HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"`{text}`: an IPv6 address stands in brackets, [::1]:8080")
    try:
        host.encode("idna")  # what a look-up does first
    except UnicodeError:
        raise ValueError(f"`{text}`: no host can have this name") from None
    return Address(host=host or "127.0.0.1", port=int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeRules:
    """Reading engines' metrics pages; seconds, and bytes of one page."""

    every: float = 5.0
    timeout: float = 2.0
    largest: int = 8 * 1024 * 1024

    @property
    def stale(self) -> float:
        """Older than this a load is not trusted: three readings were missed."""
        return 3 * self.every


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """One proxy.

    Attributes:
        routes: path of the route table.
        tokens: path of the token store.
        allow_anonymous: requests without a key are served.
        body_limit: bytes of one request body.
        buffered_limit: bytes of all request bodies together, arriving and waiting for their engines.
        tick: seconds between two looks at files, deadlines and idle connections.
        drain: seconds that requests in flight get when the proxy ends.
        connection_limit: connections of clients; one more is answered 503 and closed.
        certificate: path of a PEM file, for TLS; empty for plain TCP.
        private_key: path of its key; empty when it stands in the certificate's file.
        trace: start a trace (W3C `traceparent`) for a request that brings none; one that it brings always travels on.
        access_log: path of the access log, `-` for standard output; empty for none.
        access_share: share of the requests that went well that is written there; failures all are.
        workers: processes that serve the port together.
        handover: path of the socket over which another proxy takes over from this one; empty for none.
        take_over: take the port over from the proxy that offers it there; start anew when none does.
    """

    listen: Address
    admin: Address
    routes: str
    tokens: str
    allow_anonymous: bool = False
    wait_for_routes: bool = False
    body_limit: int = 64 * 1024 * 1024
    buffered_limit: int = 1024 * 1024 * 1024
    tick: float = 0.5
    drain: float = 600.0
    connection_limit: int = 100_000
    certificate: str = ""
    private_key: str = ""
    trace: bool = False
    access_log: str = ""
    access_share: float = 1.0
    workers: int = 1
    handover: str = ""
    take_over: bool = False
    timeouts: Timeouts = field(default_factory=Timeouts)
    health: HealthRules = field(default_factory=HealthRules)
    scrape: ScrapeRules = field(default_factory=ScrapeRules)
