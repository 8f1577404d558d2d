"""Places on a connection, and lines that are said once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from gpufleet.clock import SystemClock
from gpufleet.remote.exchange import Deadline
from gpufleet.remote.ssh.sharing import Once, Slots


def soon(seconds: float = 60.0) -> Deadline:
    return Deadline.after(SystemClock(), seconds)


def test_no_more_at_once_than_places():
    slots, lock, running, peak = Slots(3), threading.Lock(), 0, 0
    full = threading.Event()

    def work(_: int) -> bool:
        nonlocal running, peak
        with slots.one(soon()) as free:
            with lock:
                running += 1
                peak = max(peak, running)
                if running == 3:
                    full.set()
            full.wait(30)
            with lock:
                running -= 1
            return free

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(work, range(12)))
    assert peak == 3


def test_no_place_in_time():
    slots = Slots(1)
    with slots.one(soon()), slots.one(soon(0.01)) as free:
        assert not free
    with slots.one(soon()) as free:
        assert free


def test_a_refusal_lowers_the_limit_and_tells_whether_others_run():
    slots = Slots(8)
    with slots.one(soon()):
        assert slots.after_refusal(soon(0.01))
        with slots.one(soon(0.01)) as second:
            # One that was refused alone leaves one place.
            assert not second
    slots = Slots(8)
    with slots.one(soon()), slots.one(soon()), slots.one(soon()):
        assert not slots.after_refusal(soon(0.01))
        with slots.one(soon(0.01)) as fourth:
            assert not fourth


def test_a_line_is_said_once():
    said: list[str] = []
    once = Once(said.append)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(once, ["a", "b"] * 50))
    assert sorted(said) == ["a", "b"]
