"""Several worker processes as one proxy: counts, drains, metrics, a worker that is killed, a port that is handed over."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from dataclasses import replace
from functools import partial

import pytest

from gpufleet.errors import CannotServe
from gpufleet.proxy.decide.health import Verdict
from gpufleet.proxy.run.background import ProxyThread
from gpufleet.proxy.run.board import Board
from gpufleet.proxy.run.desk import together
from tests.kit.engines import PATIENCE, chat, engines
from tests.kit.proxies import Proxy, eventually, table, write
from tests.wire.test_proxy_handover import ASK, STREAM, Line, Load, config

pytestmark = pytest.mark.wire


class Held:
    """Streams that wait in their middle until all are let go."""

    def __init__(self):
        self.open = threading.Event()

    def __call__(self, call):
        call.start_stream()
        call.event("one")
        assert self.open.wait(PATIENCE)
        call.end_stream()


def total(running, name):
    page = running.admin("GET", "/metrics")[1]
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name))


def process_ids(log):
    return [int(found) for found in re.findall(r"worker \d \(process (\d+)\)", log)]


def test_two_workers_count_as_one(tmp_path):
    held = Held()
    with engines(held, chat) as members:
        wanted = config(tmp_path, table(*members, algorithm="least-busy"), workers=2)
        with ProxyThread(wanted) as started:
            running = Proxy(started, tmp_path / "routes.json")
            other = {"pool": "chat", "replica": "gpu-1/0"}
            running.admin("POST", "/admin/drain", other)
            with contextlib.ExitStack() as stack:
                streams = [stack.enter_context(running.dial()) for _ in range(6)]
                for stream in streams:
                    stream.ask(STREAM)
                    stream.until(b"one")
                running.admin("POST", "/admin/undrain", other)
                assert running.in_flight() == [6, 0]
                # Whichever worker has them, the others count them too, and choose the other member.
                eventually(lambda: total(running, "gpufleet_proxy_in_flight_elsewhere") == 6)
                assert {running.post(ASK)[1]["x-gpufleet-endpoint"] for _ in range(8)} == {"gpu-1/0"}
                held.open.set()
                for stream in streams:
                    stream.until(b"\r\n0\r\n\r\n")
            eventually(lambda: running.in_flight() == [0, 0])
            assert total(running, "gpufleet_proxy_requests_total") == 14
            assert total(running, "gpufleet_proxy_worker_up") == 2
            row = running.admin("POST", "/admin/drain", {"pool": "chat", "replica": "gpu-1/0"})[1]
            assert (row["state"], row["in_flight"]) == ("draining", 0)
            assert {
                running.post(ASK, "/v1/chat/completions", n="1")[1]["x-gpufleet-endpoint"] for _ in range(4)
            } == {"gpu-0/0"}
            assert running.admin("POST", "/admin/drain", {"pool": "chat", "replica": "x"})[0] == 404
            assert running.admin("GET", "/")[0] == 200
            write(tmp_path / "routes.json", table(members[1], generation=2))
            eventually(lambda: running.admin("GET", "/admin/members")[1]["generation"] == 2)


def children(of):
    with open(f"/proc/{of}/task/{of}/children") as file:  # noqa: PTH123 - no file on a disk
        direct = [int(word) for word in file.read().split()]
    return [child for child in direct if "proxy.run.worker" in command_line(child)]


def command_line(process):
    try:
        with open(f"/proc/{process}/cmdline") as file:  # noqa: PTH123 - no file on a disk
            return file.read()
    except OSError:
        return ""


def threads_children():
    """Of every thread of this process: a child belongs to the thread that started it."""
    found = set()
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - no folder on a disk
        try:
            with open(f"/proc/self/task/{thread}/children") as file:  # noqa: PTH123
                found |= {int(word) for word in file.read().split()}
        except OSError:
            continue
    return {child for child in found if "proxy.run.worker" in command_line(child)}


def test_a_killed_worker_gives_back_what_it_had_and_is_replaced(tmp_path, caplog):
    held = Held()
    with engines(held, chat) as members:
        wanted = config(tmp_path, table(*members, algorithm="least-busy"), workers=2)
        with ProxyThread(wanted) as started:
            running = Proxy(started, tmp_path / "routes.json")
            before = threads_children()
            assert len(before) == 2
            clients = [running.dial() for _ in range(3)]
            clients[0].ask(STREAM)
            clients[0].until(b"one")
            eventually(lambda: sorted(running.in_flight()) == [0, 1])
            running.admin("POST", "/admin/drain", {"pool": "chat", "replica": "gpu-0/0"})
            for process in before:  # one of them has it
                os.kill(process, signal.SIGKILL)
            eventually(lambda: len(threads_children() - before) == 2)
            eventually(lambda: running.admin("GET", "/admin/members")[0] == 200)
            eventually(lambda: running.in_flight() == [0, 0])
            assert {running.post(ASK)[1]["x-gpufleet-endpoint"] for _ in range(6)} == {"gpu-1/0"}
            assert caplog.text.count("died; another one starts") == 2
            held.open.set()
            for client in clients:
                client.sock.close()
    assert not threads_children()


def test_workers_hand_over_under_load(tmp_path):
    with (
        engines(chat, chat) as members,
        Line(config(tmp_path, table(*members), workers=2)) as line,
        Load(line.started.listen, 4) as load,
    ):
        for workers in (2, 1, 2):
            before = load.served
            line.follow(workers=workers)
            eventually(partial(load.has_served, before + 20))
        assert load.wrong == []


def test_a_stream_outlives_the_stop_and_the_port_is_free_afterwards(tmp_path):
    held = Held()
    with engines(held) as (engine,):
        wanted = config(tmp_path, table(engine), workers=2)
        thread = ProxyThread(wanted)
        started = thread.start()
        running = Proxy(started, tmp_path / "routes.json")
        with running.dial() as client:
            client.ask(STREAM)
            client.until(b"one")
            started.stop()
            eventually(lambda: running.admin("GET", "/health")[0] == 503)
            held.open.set()
            client.until(b"[DONE]")
        thread.stop()
        with ProxyThread(replace(wanted, listen=started.listen, admin=started.admin)):
            with pytest.raises(CannotServe, match="in use"):
                ProxyThread(replace(wanted, listen=started.listen)).start()
            with pytest.raises(CannotServe, match="in use"):
                ProxyThread(replace(wanted, admin=started.admin, workers=1, handover="")).start()


def test_the_board():
    descriptor = Board.make(3)
    boards = [Board(descriptor, 3, row) for row in range(3)]
    os.close(descriptor)
    assert boards[0].others() is None
    boards[1].write([("a", "u", 2), ("b", "v", 1)])
    boards[2].write([("a", "u", 3)])
    assert sorted(boards[0].others() or ()) == [("a", "u", 5), ("b", "v", 1)]
    assert boards[0].others() is None
    assert sorted(boards[1].others() or ()) == [("a", "u", 3)]
    boards[0].clear(1)  # the supervisor saw it die
    assert boards[2].others() == []
    assert boards[0].others() == [("a", "u", 3)]
    boards[1].write([("a", "u", 1)])
    assert boards[0].others() == [("a", "u", 4)]
    boards[1].write([(f"host-{number}/0", f"http://host-{number}:8000", 1) for number in range(50_000)])
    assert boards[0].others() == [("a", "u", 3)]
    for board in boards:
        board.close()


def page(in_flight, health, state, generation=1):
    row = {
        "replica": "a",
        "endpoint": "u",
        "state": state,
        "health": health,
        "in_flight": in_flight,
        "weight": 1,
    }
    pool = {"pool": "p", "algorithm": "random", "models": ["m"], "members": [row]}
    return {"generation": generation, "stopping": False, "in_flight": in_flight, "pools": [pool]}


def test_pages_of_workers_together():
    whole = together([page(2, "up", "active", 2), page(3, "down", "draining"), page(0, "unknown", "active")])
    assert (whole["generation"], whole["in_flight"]) == (1, 5)
    (row,) = whole["pools"][0]["members"]
    assert (row["in_flight"], row["health"], row["state"]) == (5, "down", "draining")
    assert together([])["pools"] == []
    for verdict in Verdict:  # every word that a worker may say has its place
        (row,) = together([page(0, "up", "active"), page(0, verdict.value, "active")])["pools"][0]["members"]
        assert row["health"] == verdict.value
