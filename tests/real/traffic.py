"""Clients that stream through a real proxy all the while that something else goes on, and count every single answer."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

from tests.real.desk import Operator, Started
from tests.real.machine import until

TOKENS = 60
"""Of one stream; with the engine's pace it lasts longer than proxies take to read a new route table."""

PACE = {"ENGINE_TOKEN_SECONDS": "0.06"}
"""The environment of engines under traffic: streams are then longer than any step between two of them."""


_GREETING = re.compile(r"serving at http://([^/]+)/v1, status at http://([^/]+)/")


@dataclass(slots=True)
class Traffic:
    """What the clients saw.

    Attributes:
        failed: requests that were answered with an error, or not at all, each with what was said.
        cut: streams that began and did not come to their end.
        members: how many streams each member served to the end.
    """

    finished: int = 0
    failed: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    members: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    begun: float = field(default_factory=monotonic)

    def assert_unharmed(self, at_least: int = 1) -> None:
        """No failed request, no cut stream, and enough of them to mean something."""
        assert (self.failed, self.cut) == ([], []), (self.failed[:5], self.cut[:5], self.finished)
        assert self.finished >= at_least, f"only {self.finished} streams"

    def wait_for(self, streams: int, within: float = 60.0) -> None:
        """Until so many more streams came to their end."""
        wanted, end, pause = self.finished + streams, monotonic() + within, threading.Event()
        while self.finished < wanted:
            assert monotonic() < end, f"{self.finished} of {wanted} streams: {self.failed[:3]} {self.cut[:3]}"
            pause.wait(0.02)


@contextmanager
def proxied(operator: Operator) -> Iterator[str]:
    """A proxy of this desk on ports of its own, which its commands know; gives `host:port` for clients.

    It ends as an operator's would, by SIGINT.
    """
    words = ("proxy", "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    with operator.start(*words, "--allow-anonymous", "--wait-for-routes", "--health-every", "0.5") as started:
        lines = _told(started)
        found = None
        while found is None:
            found = _GREETING.match(lines.get(timeout=60))
        operator.environment["GPUFLEET_PROXIES"] = found[2]
        yield found[1]
        started.interrupt()
        started.process.wait(30)


def _told(started: Started) -> queue.Queue[str]:
    """Lines of its standard error as they come; the rest is read so that it never blocks."""
    lines: queue.Queue[str] = queue.Queue()
    stream = started.process.stderr
    assert stream is not None

    def read() -> None:
        for line in stream:
            lines.put(line.strip())

    threading.Thread(target=read, daemon=True).start()
    return lines


@contextmanager
def streaming(place: str, model: str = "some/model", clients: int = 3) -> Iterator[Traffic]:
    """Clients that ask one stream after the other until the block ends; each comes to its last stream's end."""
    _wait_until_served(place, model)
    traffic, stop = Traffic(), threading.Event()
    threads = [
        threading.Thread(target=_client, args=(place, model, traffic, stop), daemon=True)
        for _ in range(clients)
    ]
    for thread in threads:
        thread.start()
    try:
        yield traffic
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a stream hangs"


def _wait_until_served(place: str, model: str) -> None:
    """Until the proxy has read a route table that serves the model."""

    def served() -> bool:
        trial = Traffic()
        _one(place, _body(model), trial)
        return trial.finished == 1

    until(served, within=30, what=f"{place} serves {model}")


def _body(model: str) -> str:
    wish = {"model": model, "stream": True, "max_tokens": TOKENS}
    return json.dumps({**wish, "messages": [{"role": "user", "content": "hello"}]})


def _client(place: str, model: str, traffic: Traffic, stop: threading.Event) -> None:
    while not stop.is_set():
        _one(place, _body(model), traffic)


def _one(place: str, body: str, traffic: Traffic) -> None:
    """One stream, from request to `[DONE]`."""
    with contextlib.closing(http.client.HTTPConnection(place, timeout=60)) as connection:
        member = "the proxy"
        try:
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            member = answer.headers.get("x-gpufleet-endpoint", member)
            text = answer.read().decode(errors="replace")
        except http.client.IncompleteRead as error:
            _note(traffic, cut=f"{member}: {error!r}")
            return
        except (OSError, http.client.HTTPException) as error:
            _note(traffic, failed=f"{member}: {error!r}")
            return
    if answer.status != 200:
        _note(traffic, failed=f"{answer.status} from {member}: {text[:500]}")
    elif text.rstrip().endswith("data: [DONE]") and text.count('"delta"') == TOKENS + 1:
        _note(traffic, member=member)
    else:
        _note(traffic, cut=f"{member}: ...{text[-200:]}")


def _note(traffic: Traffic, *, member: str = "", failed: str = "", cut: str = "") -> None:
    with traffic.lock:
        if failed:
            traffic.failed.append(f"{monotonic() - traffic.begun:.1f} s: {failed}")
        elif cut:
            traffic.cut.append(f"{monotonic() - traffic.begun:.1f} s: {cut}")
        else:
            traffic.finished += 1
            traffic.members[member] = traffic.members.get(member, 0) + 1
