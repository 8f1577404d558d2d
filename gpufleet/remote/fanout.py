"""One function for many hosts at once, and every outcome of it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from gpufleet.errors import FleetError
from gpufleet.names import HostName

T = TypeVar("T")


def fanout(
    hosts: Iterable[HostName],
    function: Callable[[HostName], T],
    *,
    forks: int = 32,
    seen: Callable[[HostName, T | FleetError], None] | None = None,
) -> dict[HostName, T | FleetError]:
    """What `function` gave or raised for each host, in the order of `hosts`, at most `forks` at once.

    A `FleetError` is an outcome like any other. Any other exception is a bug: it is raised once every host that
    was begun has ended. The threads are daemons, so Ctrl-C ends the waiting at once and begins no further host;
    what runs then is cut off with the process. `seen` is called in the caller's thread for each outcome as it comes.
    """
    order = list(dict.fromkeys(hosts))
    waiting: queue.SimpleQueue[HostName] = queue.SimpleQueue()
    ended: queue.SimpleQueue[tuple[HostName, T | FleetError | BaseException]] = queue.SimpleQueue()
    stop = threading.Event()
    for host in order:
        waiting.put(host)

    def work() -> None:
        while not stop.is_set():
            try:
                host = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                ended.put((host, function(host)))
            except BaseException as wrong:  # noqa: BLE001 handed to the caller's thread
                ended.put((host, wrong))

    for number in range(min(max(1, forks), len(order))):
        threading.Thread(target=work, daemon=True, name=f"fanout-{number}").start()
    try:
        return _collect(order, ended, seen)
    finally:
        stop.set()


def _collect(
    order: list[HostName],
    ended: queue.SimpleQueue[tuple[HostName, T | FleetError | BaseException]],
    seen: Callable[[HostName, T | FleetError], None] | None,
) -> dict[HostName, T | FleetError]:
    found: dict[HostName, T | FleetError] = {}
    bugs: list[BaseException] = []
    for _ in order:
        host, outcome = ended.get()
        if isinstance(outcome, BaseException) and not isinstance(outcome, FleetError):
            bugs.append(outcome)
            continue
        found[host] = outcome
        if seen is not None:
            seen(host, outcome)
    if bugs:
        raise bugs[0]
    return {host: found[host] for host in order}
