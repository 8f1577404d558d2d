"""A proxy in a thread before scripted engines, and a client that says bytes and reads bytes."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from gpufleet.pools.routes import EndpointRoute, PoolRoute, RouteTable, encode
from gpufleet.proxy.config import Address, ProxyConfig, ScrapeRules
from gpufleet.proxy.decide.deadline import Timeouts
from gpufleet.proxy.decide.health import HealthRules
from gpufleet.proxy.run.background import ProxyThread
from gpufleet.proxy.run.server import Started
from tests.kit.engines import PATIENCE, ScriptedEngine

CHAT = "/v1/chat/completions"
LOOPBACK = Address(host="127.0.0.1", port=0)
NO_PROBES = HealthRules(every=3600.0)
NO_SCRAPES = ScrapeRules(every=3600.0)


def table(*members: ScriptedEngine, generation: int = 1, **fields: Any) -> RouteTable:
    """One pool `chat` that serves the model `m`."""
    endpoints = tuple(
        EndpointRoute(id=f"gpu-{number}/0", url=engine.url) for number, engine in enumerate(members)
    )
    fields = {"name": "chat", "models": ("m",), "endpoints": endpoints, **fields}
    return RouteTable(generation=generation, pools=(PoolRoute(**fields),))


def write(path: Path, routes: RouteTable | bytes) -> None:
    """As the control plane does it: whole, by rename."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(routes if isinstance(routes, bytes) else encode(routes))
    fresh.replace(path)


def eventually(question: Callable[[], Any], what: str = "") -> Any:
    """Poll until the answer is true."""
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        answer = question()
        if answer:
            return answer
        pause.wait(0.01)
    raise AssertionError(f"never came true: {what or question}")


def refuses(host: str, port: int) -> bool:
    """Whether nothing listens there any more.

    A listener that closes resets whoever waits in its queue; that is not yet a refusal, and the next try is.
    """
    try:
        socket.create_connection((host, port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        return False
    return False


@dataclass
class Proxy:
    """A running proxy."""

    started: Started
    routes: Path

    def in_flight(self) -> list[int]:
        """Of each member, over the admin address."""
        page = self.admin("GET", "/admin/members")[1]
        return [member["in_flight"] for pool in page["pools"] for member in pool["members"]]

    def admin(self, method: str, path: str, body: object = None, **fields: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.started.admin.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), fields)
            answer = connection.getresponse()
            content = answer.read()
            plain = answer.headers["Content-Type"] != "application/json"
            return answer.status, content.decode() if plain else json.loads(content)

    def post(self, body: object, path: str = CHAT, **fields: str) -> tuple[int, dict[str, str], bytes]:
        """Status, fields in lower case, content."""
        connection = http.client.HTTPConnection("127.0.0.1", self.started.listen.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST", path, content, {"Content-Type": "application/json", **fields})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    def get(self, path: str, **fields: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.started.listen.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=fields)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def dial(self) -> RawClient:
        return RawClient(socket.create_connection(("127.0.0.1", self.started.listen.port), timeout=PATIENCE))


class RawClient:
    """Bytes out, bytes in."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, content: bytes) -> None:
        self.sock.sendall(content)

    def ask(self, body: object, path: str = CHAT, fields: bytes = b"") -> None:
        self.ask_raw(json.dumps(body).encode(), path, fields)

    def ask_raw(self, content: bytes, path: str = CHAT, fields: bytes = b"") -> None:
        self.send(
            b"POST %s HTTP/1.1\r\nHost: p\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s"
            % (path.encode(), fields, len(content), content)
        )

    def until(self, mark: bytes) -> bytes:
        """Everything up to and with `mark`."""
        while mark not in self.received:
            piece = self.sock.recv(65536)
            if not piece:
                raise AssertionError(f"closed before {mark!r}: {self.received!r}")
            self.received += piece
        found, _, self.received = self.received.partition(mark)
        return found + mark

    def exactly(self, size: int) -> bytes:
        """The next `size` bytes."""
        pieces = [self.received]
        missing = size - len(self.received)
        while missing > 0:
            piece = self.sock.recv(262144)
            if not piece:
                raise AssertionError(f"closed {missing} bytes early")
            pieces.append(piece)
            missing -= len(piece)
        whole = b"".join(pieces)
        self.received = whole[size:]
        return whole[:size]

    def rest(self) -> bytes:
        """Everything until the proxy closes."""
        with contextlib.suppress(ConnectionResetError):
            while piece := self.sock.recv(65536):
                self.received += piece
        return self.received


@contextlib.contextmanager
def proxy(
    folder: Path, routes: RouteTable, *, uvloop: bool = True, timeouts: Timeouts | None = None, **fields: Any
) -> Iterator[Proxy]:
    """Serves anonymously, does not probe and looks at files often, unless told otherwise."""
    path = folder / "routes.json"
    write(path, routes)
    settings: dict[str, Any] = {
        "allow_anonymous": True,
        "health": NO_PROBES,
        "scrape": NO_SCRAPES,
        "tick": 0.02,
        "drain": PATIENCE,
        "timeouts": timeouts or Timeouts(),
        **fields,
    }
    config = ProxyConfig(
        listen=LOOPBACK, admin=LOOPBACK, routes=str(path), tokens=str(folder / "tokens.db"), **settings
    )
    with ProxyThread(config, uvloop=uvloop) as started:
        yield Proxy(started, path)


def statuses(answers: Sequence[bytes]) -> list[bytes]:
    """The codes of raw answers."""
    return [answer.split(b" ", 2)[1] for answer in answers]
