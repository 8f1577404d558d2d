"""Every outcome, in order, never more at once than asked for."""

from __future__ import annotations

import threading

import pytest

from gpufleet.errors import FleetError, HostUnreachable
from gpufleet.names import HostName
from gpufleet.remote.fanout import fanout

HOSTS = [HostName(f"gpu-{number}") for number in range(20)]


def test_every_outcome_in_the_order_of_the_hosts():
    def look(host: HostName) -> str:
        if host.endswith(("3", "7")):
            raise HostUnreachable("gone", where=host)
        return host.upper()

    seen: dict[HostName, str | FleetError] = {}
    found = fanout(HOSTS, look, forks=4, seen=lambda host, outcome: seen.update({host: outcome}))
    assert list(found) == HOSTS
    assert seen == found
    lost = [host for host, outcome in found.items() if isinstance(outcome, HostUnreachable)]
    assert lost == ["gpu-3", "gpu-7", "gpu-13", "gpu-17"]
    assert found[HOSTS[0]] == "GPU-0"


@pytest.mark.parametrize(("forks", "most"), [(1, 1), (0, 1), (3, 3), (100, 20)])
def test_no_more_at_once_than_forks(forks: int, most: int):
    running, peak, lock = 0, 0, threading.Lock()
    full = threading.Event()

    def look(_: HostName) -> None:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
            if running == most:
                full.set()
        # Everyone waits until as many run as may: then more would show.
        full.wait(30)
        with lock:
            running -= 1

    fanout(HOSTS, look, forks=forks)
    assert peak == most


def test_no_hosts_and_the_same_host_twice():
    assert fanout([], lambda host: host) == {}
    calls: list[HostName] = []
    fanout([HOSTS[0], HOSTS[0]], calls.append)
    assert calls == [HOSTS[0]]


def test_a_bug_is_raised_after_the_others_have_ended():
    ended: list[HostName] = []

    def look(host: HostName) -> None:
        if host == HOSTS[1]:
            raise ZeroDivisionError
        ended.append(host)

    with pytest.raises(ZeroDivisionError):
        fanout(HOSTS, look, forks=3)
    assert sorted(ended) == sorted(set(HOSTS) - {HOSTS[1]})


def test_an_interrupt_begins_no_further_host():
    begun: list[HostName] = []
    go_on = threading.Event()

    def look(host: HostName) -> None:
        begun.append(host)
        if host != HOSTS[0]:
            go_on.wait(30)

    def interrupt(_host: HostName, _outcome: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fanout(HOSTS, look, forks=2, seen=interrupt)
    count = len(begun)
    go_on.set()
    assert count <= 3
