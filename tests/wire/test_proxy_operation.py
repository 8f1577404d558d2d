"""Operating a proxy: reload, drain, tokens, stop, and what the admin address tells."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import threading
from dataclasses import replace
from functools import partial

import pytest

from gpufleet.errors import CannotServe
from gpufleet.pools.routes import EndpointRoute, PoolRoute, RouteTable
from gpufleet.proxy.config import ProxyConfig, parse_address
from gpufleet.proxy.decide.deadline import Timeouts
from gpufleet.proxy.run.background import ProxyThread
from gpufleet.proxy.run.fleet import TableRefused, check
from gpufleet.tokens.model import Principal, issue
from gpufleet.tokens.store import TokenStore
from tests.kit.engines import chat as ordinary
from tests.kit.engines import engines
from tests.kit.proxies import CHAT, LOOPBACK, eventually, proxy, refuses, table, write

pytestmark = pytest.mark.wire
ASK = {"model": "m", "messages": []}


def serves(running, number):
    return generation(running) == number


def generation(running):
    return running.admin("GET", "/admin/members")[1]["generation"]


class Gate:
    """An engine that waits until it is let go."""

    def __init__(self):
        self.open = threading.Event()

    def __call__(self, call):
        assert self.open.wait(20)
        call.answer()


def test_reload_under_load_fails_nobody(tmp_path):
    with engines(*[ordinary] * 4) as members:
        first, second = table(*members[:2]), table(*members[2:], algorithm="least-busy")
        with proxy(tmp_path, first) as running:
            stop, failures, served = threading.Event(), [], []

            def client():
                connection = http.client.HTTPConnection("127.0.0.1", running.started.listen.port, timeout=20)
                while not stop.is_set():
                    connection.request("POST", CHAT, json.dumps(ASK))
                    answer = connection.getresponse()
                    answer.read()
                    served.append(answer.headers["x-gpufleet-endpoint"])
                    if answer.status != 200:
                        failures.append(answer.status)
                connection.close()

            threads = [threading.Thread(target=client) for _ in range(4)]
            for thread in threads:
                thread.start()
            for number in range(2, 12):
                write(running.routes, replace_generation(second if number % 2 == 0 else first, number))
                eventually(partial(serves, running, number))
            stop.set()
            for thread in threads:
                thread.join()
            assert not failures
            assert len(served) > 20
            assert not any(running.in_flight())
        assert all(member.calls for member in members)


def replace_generation(routes, number):
    return RouteTable(generation=number, pools=routes.pools)


def test_a_request_in_flight_keeps_its_member_and_its_count_over_a_reload(tmp_path):
    gate = Gate()
    with (
        engines(gate, ordinary) as (slow, other),
        proxy(tmp_path, table(slow)) as running,
        running.dial() as client,
    ):
        client.ask(ASK)
        eventually(lambda: slow.calls)
        write(running.routes, table(slow, other, generation=2, algorithm="least-busy"))
        eventually(lambda: generation(running) == 2)
        assert running.in_flight() == [1, 0]
        for _ in range(3):
            assert running.post(ASK)[1]["x-gpufleet-endpoint"] == "gpu-1/0"
        write(running.routes, table(other, generation=3))
        eventually(lambda: generation(running) == 3)
        gate.open.set()
        assert b"x-gpufleet-endpoint: gpu-0/0" in client.until(b"\r\n\r\n")
        eventually(lambda: running.started.state.in_flight == 0)


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"",
        b'{"version":2}',
        b'{"pools":[{"name":"chat","algorithm":"magic"}]}',
        b'{"pools":[{"name":"a/b"}]}',
        b'{"pools":[{"name":"chat","endpoints":[{"id":"h/0","url":"ftp://x"}]}]}',
        b'{"pools":[{"name":"chat","endpoints":[{"id":"h\\r\\nX: 1","url":"http://x:1"}]}]}',
        b'{"pools":[{"name":"chat","endpoints":[{"id":"h/0","url":"http://x:1","key":"plain"}]}]}',
        b'{"pools":[{"name":"chat","endpoints":[{"id":"h/0","url":"http://x:1","key":"${env:GPUFLEET_NOT_SET}"}]}]}',
        b'{"pools":[{"name":"chat","surprise":1}]}',
    ],
)
def test_a_bad_route_table_is_refused_and_the_old_one_stays(tmp_path, content):
    with engines(ordinary) as (engine,), proxy(tmp_path, table(engine)) as running:
        write(running.routes, content)
        eventually(lambda: 'reloads_total{result="refused"}' in running.admin("GET", "/metrics")[1])
        assert running.post(ASK)[0] == 200
        assert generation(running) == 1
        write(running.routes, table(engine, generation=2))
        eventually(lambda: generation(running) == 2)


def test_a_member_that_comes_back_is_as_busy_as_it_was(tmp_path):
    gate = Gate()
    limits = Timeouts(upstream_idle=3600.0)
    with (
        engines(gate, ordinary) as (engine, other),
        proxy(tmp_path, table(engine), timeouts=limits) as running,
    ):
        generation = partial(getattr, running.started.state.fleet, "table")
        with running.dial() as client:
            client.ask(ASK)
            eventually(lambda: engine.calls)
            for number, member in ((2, other), (3, engine)):
                write(running.routes, table(member, generation=number))
                eventually(partial(lambda wanted: generation().generation == wanted, number))
            assert running.in_flight() == [1]
            gate.open.set()
            client.until(b"\r\n\r\n")
            eventually(lambda: running.in_flight() == [0])
        for _ in range(2):
            assert running.post(ASK)[0] == 200
        assert engine.connections == 1  # kept again, that of the request in flight too


def test_drain_over_the_admin_address(tmp_path):
    gate = Gate()
    with engines(gate, ordinary) as (slow, other), proxy(tmp_path, table(slow, other)) as running:
        with running.dial() as client:
            client.ask(ASK)
            eventually(lambda: slow.calls)
            status, row = running.admin("POST", "/admin/drain", {"pool": "chat", "replica": "gpu-0/0"})
            assert (status, row["state"], row["in_flight"]) == (200, "draining", 1)
            assert {running.post(ASK)[1]["x-gpufleet-endpoint"] for _ in range(4)} == {"gpu-1/0"}
            write(running.routes, table(slow, other, generation=2))  # a reload does not forget it
            eventually(lambda: generation(running) == 2)
            assert {running.post(ASK)[1]["x-gpufleet-endpoint"] for _ in range(4)} == {"gpu-1/0"}
            gate.open.set()
            client.until(b"\r\n\r\n")
            eventually(lambda: running.in_flight() == [0, 0])
        assert (
            running.admin("POST", "/admin/undrain", {"pool": "chat", "replica": "gpu-0/0"})[1]["state"]
            == "active"
        )
        assert {running.post(ASK)[1]["x-gpufleet-endpoint"] for _ in range(4)} == {"gpu-0/0", "gpu-1/0"}


def test_a_member_that_the_route_table_drains_gets_nothing_new(tmp_path):
    with engines(ordinary, ordinary) as (first, second):
        routes = RouteTable(
            pools=(
                PoolRoute(
                    name="chat",
                    models=("m",),
                    endpoints=(
                        EndpointRoute(id="h/0", url=first.url, state="draining"),
                        EndpointRoute(id="h/1", url=second.url),
                    ),
                ),
            )
        )
        with proxy(tmp_path, routes) as running:
            for _ in range(3):
                assert running.post(ASK)[1]["x-gpufleet-endpoint"] == "h/1"
    assert not first.calls


def test_the_admin_address(tmp_path):
    with engines(ordinary) as (engine,), proxy(tmp_path, table(engine)) as running:
        running.post(ASK)
        assert running.admin("GET", "/health") == (200, {"status": "ok"})
        page = running.admin("GET", "/metrics")[1]
        assert 'gpufleet_proxy_requests_total{pool="chat",endpoint="gpu-0/0",code="200"} 1' in page
        assert 'gpufleet_proxy_in_flight{pool="chat",endpoint="gpu-0/0"} 0' in page
        assert "gpu-0/0" in running.admin("GET", "/")[1]
        assert running.admin("GET", "/v1/models")[0] == 404
        assert running.admin("POST", "/admin/drain", {"pool": "chat", "replica": "x"})[0] == 404
        assert running.admin("POST", "/admin/drain", {"pool": "chat"})[0] == 400
        assert running.admin("DELETE", "/admin/members")[0] == 405
        drain = {"pool": "chat", "replica": "gpu-0/0"}
        assert running.admin("POST", "/admin/drain", drain, Origin="https://evil.example")[0] == 403
        assert running.admin("POST", "/admin/drain", drain, Host="evil.example")[0] == 403
        assert running.post(ASK)[0] == 200


def test_tokens(tmp_path):
    store = TokenStore(tmp_path / "tokens.db")
    secret, token = issue(
        Principal(name="demo", models=frozenset({"m"})), now=1.0, lifetime=None, random_bytes=os.urandom
    )
    good = {"Authorization": f"Bearer {secret.reveal()}"}
    with engines(ordinary) as (engine,):
        routes = table(engine)
        pool = routes.pools[0]
        both = RouteTable(pools=(PoolRoute(name="chat", models=("m", "n"), endpoints=pool.endpoints),))
        with proxy(tmp_path, both, allow_anonymous=False) as running:
            status, fields, body = running.post(ASK)
            assert (status, fields["www-authenticate"]) == (401, "Bearer")
            assert json.loads(body)["error"]["code"] == "invalid_api_key"
            assert running.post(ASK, **good)[0] == 401
            store.add(token)
            eventually(lambda: running.post(ASK, **good)[0] == 200)
            assert running.post({"model": "n"}, **good)[0] == 403
            assert running.get("/v1/models", **good)[1]["data"][0]["id"] == "m"
            assert len(running.get("/v1/models", **good)[1]["data"]) == 1
            assert running.get("/v1/models")[0] == 401
            store.revoke("demo", 2.0)
            eventually(lambda: running.post(ASK, **good)[0] == 401)
    assert secret.reveal().encode() not in b"".join(call.head for call in engine.calls)


def test_what_was_found_for_the_same_head_ends_with_the_token_and_the_route(tmp_path):
    """A client that keeps its connection sends the same head each time; it is not known for ever by it."""
    store = TokenStore(tmp_path / "tokens.db")
    secret, token = issue(Principal(name="demo"), now=1.0, lifetime=None, random_bytes=os.urandom)
    store.add(token)
    key = f"Authorization: Bearer {secret.reveal()}\r\n".encode()
    with engines(ordinary) as (engine,), proxy(tmp_path, table(engine), allow_anonymous=False) as running:

        def status(client, path="/pools/chat" + CHAT, fields=key):
            client.ask(ASK, path, fields)
            head = client.until(b"\r\n\r\n")
            (length,) = re.findall(rb"(?i)content-length: (\d+)", head)
            client.exactly(int(length))
            return int(head[9:12])

        with running.dial() as client:
            assert [status(client) for _ in range(3)] == [200] * 3
            assert status(client, fields=key.replace(b"gf-", b"gx-")) == 401
            assert [status(client) for _ in range(2)] == [200] * 2
            write(running.routes, table(engine, name="other", generation=2))
            eventually(lambda: status(client) == 404)
            write(running.routes, table(engine, generation=3))
            eventually(lambda: status(client) == 200)
            store.revoke("demo", 2.0)
            eventually(lambda: status(client) == 401)


def test_tokens_that_cannot_be_read_are_not_no_tokens(tmp_path, caplog):
    path = tmp_path / "tokens.db"
    with engines(ordinary) as (engine,):
        path.mkdir()
        with (
            pytest.raises(CannotServe, match="the tokens cannot be read"),
            proxy(tmp_path, table(engine), allow_anonymous=False),
        ):
            pass
        path.rmdir()
        secret, token = issue(Principal(name="demo"), now=1.0, lifetime=None, random_bytes=os.urandom)
        TokenStore(path).add(token)
        with proxy(tmp_path, table(engine), allow_anonymous=False) as running:
            broken = tmp_path / "broken"
            broken.write_bytes(b"no tokens " * 100)
            broken.replace(path)
            eventually(lambda: "those in use stay: file is not a database" in caplog.text)
            threading.Event().wait(0.1)  # several more looks at the file
            assert running.post(ASK, Authorization=f"Bearer {secret.reveal()}")[0] == 200
            assert caplog.text.count("file is not a database") == 1


def test_a_refused_upload_is_answered_before_it_is_read(tmp_path):
    with engines(ordinary) as (engine,), proxy(tmp_path, table(engine), allow_anonymous=False) as running:
        with running.dial() as client:
            client.send(b"POST %s HTTP/1.1\r\nHost: p\r\nContent-Length: 50000000\r\n\r\n" % CHAT.encode())
            assert b" 401 " in client.until(b"\r\n\r\n")
        with running.dial() as client:  # a small one is read, and the connection stays
            for _ in range(2):
                client.ask(ASK)
                assert b" 401 " in client.until(b"\r\n\r\n")
                client.until(b"}}")


def test_stop_lets_requests_end_and_refuses_new_connections(tmp_path):
    gate = Gate()
    with engines(gate) as (engine,):
        path = tmp_path / "routes.json"
        write(path, table(engine))
        config = ProxyConfig(
            listen=LOOPBACK,
            admin=LOOPBACK,
            routes=str(path),
            tokens=str(tmp_path / "t"),
            allow_anonymous=True,
            tick=0.02,
        )
        thread = ProxyThread(config)
        started = thread.start()
        with socket.create_connection((started.listen.host, started.listen.port), timeout=20) as sock:
            body = json.dumps(ASK).encode()
            sock.sendall(
                b"POST %s HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\n\r\n%s"
                % (CHAT.encode(), len(body), body)
            )
            eventually(lambda: engine.calls)
            started.stop()
            eventually(lambda: refuses(started.listen.host, started.listen.port))
            gate.open.set()
            answer = b"".join(iter(lambda: sock.recv(65536), b""))
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"Connection: close" in answer
        thread.stop()


def test_the_drain_deadline_ends_a_request_that_does_not_end(tmp_path):
    with engines(lambda call: call.engine.gone.append(call.wait_gone())) as (engine,):
        with proxy(tmp_path, table(engine), drain=0.05) as running:
            client = running.dial()
            client.ask(ASK)
            eventually(lambda: engine.calls)
        assert client.rest() == b""
        client.sock.close()
        eventually(lambda: engine.gone == [True])


def test_a_taken_port_and_missing_routes_are_said_at_once(tmp_path):
    path = tmp_path / "routes.json"
    config = ProxyConfig(listen=LOOPBACK, admin=LOOPBACK, routes=str(path), tokens=str(tmp_path / "t"))
    with pytest.raises(CannotServe, match="no route table"):
        ProxyThread(config).start()
    with ProxyThread(replace(config, wait_for_routes=True, allow_anonymous=True, tick=0.02)) as started:
        with pytest.raises(CannotServe, match="in use"):
            ProxyThread(replace(config, listen=started.listen, wait_for_routes=True)).start()
        with engines(ordinary) as (engine,):
            write(path, table(engine, generation=4))
            eventually(lambda: started.state.fleet.table.generation == 4)


@pytest.mark.parametrize("uvloop", [True, False])
def test_stop_waits_for_bytes_and_bodies_that_are_on_their_way(tmp_path, uvloop):
    large = b"x" * 16_000_000
    with engines(lambda call: call.answer(large)) as (engine,), contextlib.ExitStack() as stack:
        with proxy(tmp_path, table(engine), uvloop=uvloop) as running:
            reader, sender = stack.enter_context(running.dial()), stack.enter_context(running.dial())
            reader.ask(ASK)
            eventually(lambda: engine.calls)
            body = json.dumps(ASK).encode()
            sender.send(
                b"POST %s HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body))
            )
            eventually(lambda: sum(one.unfinished for one in list(running.started.state.clients)) == 2)
            got: list[bytes] = []

            def finish():
                eventually(lambda: running.started.state.stopping)
                sender.send(body)
                got.extend(
                    b"".join(iter(partial(client.sock.recv, 65536), b"")) for client in (reader, sender)
                )

            thread = threading.Thread(target=finish)
            thread.start()
        thread.join()
        assert [answer.partition(b"\r\n\r\n")[2] for answer in got] == [large, large]


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "http://user:word@h:1"},
        {"url": "http://h:0"},
        {"url": "http://h:1#x"},
        {"url": "http://h h:1"},
        {"url": "http://h:1/v1"},
        {"health": "/health\r\nX: y"},
        {"id": "a\nb"},
    ],
)
def test_a_member_that_could_write_into_a_request_or_a_log_is_refused(wrong):
    endpoint = EndpointRoute(**{"id": "h/0", "url": "http://h:1", **wrong})
    with pytest.raises(TableRefused) as refused:
        check(RouteTable(pools=(PoolRoute(name="chat", endpoints=(endpoint,)),)))
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "text", ["h", "h:", "h:x", "h:65536", "::1:80", "[::1:80", "..:80", f"{'a' * 70}.x:80"]
)
def test_an_address_that_cannot_be(text):
    with pytest.raises(ValueError, match=r"is not HOST:PORT|in brackets|no host can have this name"):
        parse_address(text)


def test_an_operator_that_does_not_read_is_let_go(tmp_path):
    with engines(ordinary) as (engine,), proxy(tmp_path, table(engine)) as running:
        with socket.create_connection(("127.0.0.1", running.started.admin.port), timeout=20) as sock:
            with contextlib.suppress(ConnectionError):
                for _ in range(10_000):
                    sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 100)
            eventually(lambda: not running.started.state.operators)
        assert running.admin("GET", "/health")[0] == 200
