"""One proxy takes over from another under load: nobody is refused, no stream is cut, nothing is forgotten."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial

import pytest

from gpufleet.errors import CannotServe
from gpufleet.pools.routes import EndpointRoute
from gpufleet.proxy.config import Address, ProxyConfig
from gpufleet.proxy.run.background import ProxyThread
from gpufleet.proxy.run.sockets import inherited, notify
from tests.kit.engines import PATIENCE, chat, engines
from tests.kit.proxies import CHAT, LOOPBACK, NO_PROBES, NO_SCRAPES, Proxy, eventually, table, write

pytestmark = pytest.mark.wire
ASK = {"model": "m", "messages": []}
STREAM = {**ASK, "stream": True}


class Gate:
    """A stream that waits in its middle."""

    def __init__(self):
        self.open = threading.Event()

    def __call__(self, call):
        call.start_stream()
        call.event("one")
        assert self.open.wait(PATIENCE)
        call.event("two")
        call.end_stream()


def config(folder, routes, **fields):
    path = folder / "routes.json"
    if routes is not None:
        write(path, routes)
    settings = {"drain": PATIENCE, "tick": 0.02, "health": NO_PROBES, "scrape": NO_SCRAPES, **fields}
    return ProxyConfig(
        listen=LOOPBACK,
        admin=LOOPBACK,
        routes=str(path),
        tokens=str(folder / "tokens.db"),
        allow_anonymous=True,
        handover=str(folder / ("x" * 120) / "proxy.sock"),
        **settings,
    )


class Line:
    """Proxies that follow one another on one port."""

    def __init__(self, wanted):
        self.threads = [ProxyThread(wanted)]
        self.config = wanted
        self.started = self.threads[0].start()
        self.config = replace(wanted, listen=self.started.listen, admin=self.started.admin, take_over=True)

    def follow(self, **fields):
        thread = ProxyThread(replace(self.config, **fields))
        self.threads.append(thread)
        self.started = thread.start()

    def serves(self, generation):
        return self.started.state.fleet.table.generation == generation

    @property
    def proxy(self):
        return Proxy(self.started, self.config.routes)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for thread in reversed(self.threads):
            thread.stop()


class Load:
    """Clients that ask without pause: half with kept connections, half with a new one each, every other a stream."""

    def __init__(self, address, clients=6):
        self.address = address
        self.stop = threading.Event()
        self.wrong: list[object] = []
        self.served = 0
        self.threads = [threading.Thread(target=self._client, args=(number,)) for number in range(clients)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def has_served(self, number):
        return self.served > number

    def _client(self, number):
        connection = http.client.HTTPConnection(self.address.host, self.address.port, timeout=PATIENCE)
        turn = number
        while not self.stop.is_set():
            turn += 1
            try:
                connection.request("POST", CHAT, json.dumps(STREAM if turn % 2 else ASK))
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append(error)
                connection.close()
                continue
            if answer.status != 200 or (turn % 2 and b"[DONE]" not in content):
                self.wrong.append((answer.status, content))
            self.served += 1
            if number % 2:
                connection.close()
        connection.close()


def test_twenty_restarts_under_load_fail_nobody(tmp_path):
    with (
        engines(chat, chat) as members,
        Line(config(tmp_path, table(*members))) as line,
        Load(line.started.listen) as load,
    ):
        for _ in range(20):
            before = load.served
            line.follow()
            eventually(partial(load.has_served, before + 20))
        assert load.wrong == []
        assert line.proxy.admin("GET", "/admin/members")[1]["generation"] == 1


def test_two_hundred_route_tables_under_load_fail_nobody(tmp_path):
    """Algorithms switched, members drained, taken away and brought back, and two restarts in the middle of it."""
    algorithms = ("round-robin", "least-busy", "weighted-static", "random", "cache-aware")
    with engines(chat, chat, chat) as members:
        with (
            Line(config(tmp_path, table(*members), tick=0.002)) as line,
            Load(line.started.listen, 4) as load,
        ):
            for number in range(2, 202):
                endpoints = [
                    EndpointRoute(
                        id=f"gpu-{place}/0",
                        url=engine.url,
                        weight=1 + number % 3,
                        state="draining" if number % 5 == 4 and place == number % 3 else "active",
                    )
                    for place, engine in enumerate(members)
                    if number % 2 or place != number // 2 % 3
                ]
                fields = {"endpoints": tuple(endpoints), "algorithm": algorithms[number % 5]}
                write(tmp_path / "routes.json", table(generation=number, **fields))
                eventually(partial(line.serves, number))
                if number in {70, 140}:
                    line.follow()
            eventually(partial(load.has_served, 300))
            assert load.wrong == []
        assert line.started.state.in_flight == 0


def test_a_stream_goes_on_in_the_old_process_and_is_counted_in_the_new(tmp_path):
    gate = Gate()
    with engines(gate) as (engine,), Line(config(tmp_path, table(engine))) as line:
        old = line.started
        with line.proxy.dial() as client:
            client.ask(STREAM)
            client.until(b"one")
            line.proxy.admin("POST", "/admin/drain", {"pool": "chat", "replica": "gpu-0/0"})
            line.follow()
            assert line.proxy.in_flight() == [
                1
            ]  # from the first answer on: nobody would stop this member now
            eventually(lambda: old.state.stopping)
            assert line.proxy.in_flight() == [1]
            page = line.proxy.admin("GET", "/admin/members")[1]
            assert page["pools"][0]["members"][0]["state"] == "draining"  # an operator said so to the old one
            assert line.proxy.post(ASK)[0] == 503
            gate.open.set()
            client.until(b"[DONE]")
        eventually(lambda: line.proxy.in_flight() == [0])
        line.threads[0].stop()


def test_a_kept_connection_is_served_once_more_and_told_to_close(tmp_path):
    with (
        engines(chat) as (engine,),
        Line(config(tmp_path, table(engine))) as line,
        line.proxy.dial() as client,
    ):
        client.ask(ASK)
        client.until(b"[]}")
        old = line.started
        line.follow()
        eventually(lambda: old.state.stopping)
        client.ask(ASK)
        head = client.until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"Connection: close" in head
        assert client.rest().endswith(b"[]}")
        line.threads[0].stop()


def test_a_successor_that_cannot_start_changes_nothing(tmp_path):
    with engines(chat) as (engine,), Line(config(tmp_path, table(engine))) as line:
        with pytest.raises(CannotServe, match="no route table"):
            ProxyThread(replace(line.config, routes=str(tmp_path / "none.json"))).start()
        with pytest.raises(CannotServe, match="in use"):
            ProxyThread(replace(line.config, take_over=False)).start()
        assert line.proxy.post(ASK)[0] == 200
        assert not line.started.state.stopping
        line.follow()  # and it can still be taken over
        assert line.proxy.post(ASK)[0] == 200


def test_taking_over_from_nobody_is_an_ordinary_start(tmp_path):
    with engines(chat) as (engine,):
        wanted = config(tmp_path, table(engine), take_over=True)
        with Line(wanted) as line:
            assert line.proxy.post(ASK)[0] == 200


def test_another_address_is_bound_anew(tmp_path):
    with engines(chat) as (engine,), Line(config(tmp_path, table(engine))) as line:
        old = line.started
        line.follow(listen=Address(host="127.0.0.1", port=free_port()))
        assert line.started.listen != old.listen
        assert line.started.admin == old.admin
        assert line.proxy.post(ASK)[0] == 200


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def command(*words, **fields):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-m", "gpufleet", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **fields,
    )


def test_real_processes(tmp_path):
    """The same by the command line, and SIGTERM at the end."""
    with engines(chat, chat) as members, contextlib.ExitStack() as stack:
        write(tmp_path / "routes.json", table(*members))
        address = Address(host="127.0.0.1", port=free_port())
        words = ["--state-dir", str(tmp_path), "proxy", "serve", "--allow-anonymous", "--take-over"]
        words += ("--listen", str(address), "--admin", f"127.0.0.1:{free_port()}", "--drain", "20")

        def start(workers):
            process = stack.enter_context(command(*words, "--workers", str(workers)))
            stack.callback(process.kill)
            for line in iter(process.stderr.readline, ""):
                if "serving at" in line:
                    return process
            raise AssertionError("it ended before it served")

        running = start(1)
        with Load(address, clients=4) as load:
            for workers in (2, 1, 2):
                before, old = load.served, running
                running = start(workers)
                eventually(partial(load.has_served, before + 20))
                assert old.wait(PATIENCE * 3) == 0
        assert load.wrong == []
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE) == 0


SERVE = """
import os, socket, sys
from gpufleet.cli.app import main
sock = socket.create_server(("127.0.0.1", 0))
admin = socket.create_server(("127.0.0.1", 0))
print(sock.getsockname()[1], flush=True)
os.dup2(admin.fileno(), 9), os.dup2(sock.fileno(), 10)
os.dup2(9, 3), os.dup2(10, 4)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="2", LISTEN_FDNAMES="admin:listen")
sys.argv = ["gpufleet", *sys.argv[1:]]
main()
"""


def test_sockets_of_systemd(tmp_path):
    """Asked for another port on the command line: systemd's is the one."""
    with engines(chat) as (engine,), contextlib.ExitStack() as stack:
        write(tmp_path / "routes.json", table(engine))
        told = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        told.bind("\0gpufleet-test-" + str(os.getpid()))
        told.settimeout(PATIENCE)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "NOTIFY_SOCKET": f"@gpufleet-test-{os.getpid()}",
        }
        words = ("--state-dir", str(tmp_path), "proxy", "serve", "--allow-anonymous")
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", SERVE, *words],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                close_fds=False,
                text=True,
            )
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        port = int(process.stdout.readline())
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("POST", CHAT, json.dumps(ASK))
        assert connection.getresponse().read().endswith(b"[]}")
        connection.close()
        assert told.recv(1000) == f"READY=1\nMAINPID={process.pid}".encode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert told.recv(1000) == b"STOPPING=1"


def test_what_is_no_listening_socket_is_refused():
    assert inherited({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) == {}
    assert inherited({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "many"}) == {}
    assert inherited({}) == {}
    notify({"NOTIFY_SOCKET": "/nowhere/at/all"}, "READY=1")
    notify({}, "READY=1")
