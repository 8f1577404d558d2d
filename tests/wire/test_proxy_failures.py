"""What goes wrong over real sockets: engines that refuse, reset, cut, hang; clients that leave; counters that return."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from functools import partial

import pytest

from gpufleet.pools.routes import EndpointRoute, PoolRoute, RouteTable
from gpufleet.proxy.decide.deadline import Timeouts
from gpufleet.proxy.decide.health import HealthRules
from tests.kit.engines import CHAT_ANSWER, ScriptedEngine, engines
from tests.kit.engines import chat as ordinary
from tests.kit.proxies import eventually, proxy, table

pytestmark = pytest.mark.wire
ASK = {"model": "m", "messages": []}
STREAM = {**ASK, "stream": True}


def busy(call):
    call.answer(b'{"error":{"message":"The engine is currently busy"}}', b"503 Service Unavailable")


def reset(call):
    call.reset()


def hang(call):
    call.engine.gone.append(call.wait_gone())


def hang_after_a_word(call):
    call.start_stream()
    call.event("one")
    call.engine.gone.append(call.wait_gone())


def has_calls(engine, count):
    return len(engine.calls) >= count


def refusing() -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.close()
    return engine


def idle(running):
    return running.started.state.in_flight == 0 and not any(running.in_flight())


@pytest.mark.parametrize("first", [busy, refusing])
@pytest.mark.parametrize("uvloop", [True, False])
def test_another_member_answers_when_the_first_cannot(tmp_path, first, uvloop):
    with engines(ordinary) as (good,):
        bad = refusing() if first is refusing else ScriptedEngine(first)
        with proxy(tmp_path, table(bad, bad_twin(first), good), uvloop=uvloop) as running:
            for _ in range(4):
                status, fields, body = running.post(ASK)
                assert (status, body) == (200, CHAT_ANSWER)
                assert fields["x-gpufleet-endpoint"] == "gpu-2/0"
            eventually(lambda: idle(running))
            assert "gpufleet_proxy_retries_total{" in running.admin("GET", "/metrics")[1]
        bad.close()


def bad_twin(kind) -> ScriptedEngine:
    return refusing() if kind is refusing else ScriptedEngine(kind)


def test_two_more_attempts_and_no_more(tmp_path):
    with engines(busy, busy, busy, busy) as members, proxy(tmp_path, table(*members)) as running:
        status, fields, body = running.post(ASK)
        assert status == 503
        assert b"currently busy" in body  # the last engine's own words pass through
        assert fields["retry-after"] == "1"
        assert sum(len(member.calls) for member in members) == 3
        eventually(lambda: idle(running))


def test_a_reset_after_the_request_was_sent_is_not_repeated(tmp_path):
    with engines(reset, reset) as members, proxy(tmp_path, table(*members)) as running:
        status, _, body = running.post(ASK)
        assert status == 502
        assert json.loads(body)["error"]["type"] == "upstream_error"
        assert sum(len(member.calls) for member in members) == 1
        eventually(lambda: idle(running))


@pytest.mark.parametrize("uvloop", [True, False])
def test_a_kept_connection_that_dies_under_us_is_opened_again(tmp_path, uvloop):
    def once_a_connection(call):
        if getattr(call.engine, "served", None) is call.sock:
            call.reset()
        else:
            call.engine.served = call.sock
            call.answer()

    with engines(once_a_connection) as (engine,), proxy(tmp_path, table(engine), uvloop=uvloop) as running:
        for _ in range(4):
            assert running.post(ASK)[0] == 200
        assert len(engine.calls) == 7  # each but the first was reset once and repeated on a new connection
        eventually(lambda: idle(running))


@pytest.mark.parametrize(
    "status", [b"400 Bad Request", b"429 Too Many Requests", b"500 Internal Server Error"]
)
def test_other_statuses_pass_through_at_once(tmp_path, status):
    def refuse(call):
        call.answer(b'{"object":"error","code":1}', status)

    with engines(refuse, refuse) as members, proxy(tmp_path, table(*members)) as running:
        got, _, body = running.post(ASK)
        assert (got, body) == (int(status[:3]), b'{"object":"error","code":1}')
        assert sum(len(member.calls) for member in members) == 1


def test_nobody_is_there(tmp_path):
    with proxy(tmp_path, RouteTable(pools=(PoolRoute(name="chat", models=("m",)),))) as running:
        status, fields, body = running.post(ASK)
        assert status == 503
        assert json.loads(body)["error"]["message"] == "Pool has no healthy members"
        assert fields["retry-after"]


@pytest.mark.parametrize(
    "last",
    [b"", b"20\r\ndata: {", b"2", b"5\r\nabcdeXX"],
    ids=["between", "in a chunk", "in a size", "bad chunk"],
)
def test_a_stream_that_dies_never_looks_whole(tmp_path, last):
    heard = threading.Event()

    def dying(call):
        call.start_stream()
        call.event("Hel")
        assert heard.wait(20)
        call.sock.sendall(last)
        if last != b"5\r\nabcdeXX":
            call.reset()
        else:
            call.wait_gone()

    with engines(dying) as (engine,), proxy(tmp_path, table(engine)) as running, running.dial() as client:
        client.ask(STREAM)
        client.until(b"Hel")
        heard.set()
        rest = client.rest()
        assert b"[DONE]" not in rest
        assert not rest.endswith(b"0\r\n\r\n")
        if last in {b"", b"20\r\ndata: {"}:
            assert b'"type":"upstream_error"' in rest
        eventually(lambda: idle(running))
        assert len(engine.calls) == 1


def test_the_error_event_stands_in_correct_framing(tmp_path):
    """A client's parser that follows chunks must reach the event, also when the engine died inside a chunk."""

    def dying(call):
        call.start_stream()
        call.event("Hel")
        call.send(b"40\r\ndata: {")
        call.reset()

    with engines(dying) as (engine,), proxy(tmp_path, table(engine)) as running, running.dial() as client:
        client.ask(STREAM)
        client.until(b"\r\n\r\n")
        rest, content = client.rest(), b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            content += rest[: int(size, 16)]
            assert rest[int(size, 16) :].startswith(b"\r\n")
            rest = rest[int(size, 16) + 2 :]
        last = [event for event in content.split(b"\n\n") if event.strip()][-1]
        assert json.loads(last.strip().removeprefix(b"data: "))["error"]["code"] == 502


def test_a_short_answer_is_cut_and_not_filled(tmp_path):
    def short(call):
        call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
        call.reset()

    with engines(short) as (engine,), proxy(tmp_path, table(engine)) as running, running.dial() as client:
        client.ask(ASK)
        assert client.rest().endswith(b"only this")
        eventually(lambda: idle(running))


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("uvloop", [True, False])
def test_a_client_that_leaves_during_prefill_ends_the_engines_work(tmp_path, body, how, uvloop):
    with engines(hang) as (engine,), proxy(tmp_path, table(engine), uvloop=uvloop) as running:
        client = running.dial()
        client.ask(body)
        eventually(lambda: engine.calls)
        assert running.in_flight() == [1]
        leave(client, how)
        eventually(lambda: engine.gone == [True], "the engine saw its connection close")
        eventually(lambda: idle(running))
        assert 'code="499"' in running.admin("GET", "/metrics")[1]


def leave(client, how):
    if how == "reset":
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.sock.close()


def test_a_client_that_leaves_mid_stream_ends_the_engines_work(tmp_path):
    with engines(hang_after_a_word) as (engine,), proxy(tmp_path, table(engine)) as running:
        client = running.dial()
        client.ask(STREAM)
        client.until(b"one")
        client.sock.close()
        eventually(lambda: engine.gone == [True])
        eventually(lambda: idle(running))


def test_a_client_that_leaves_while_its_engine_is_being_reached(tmp_path):
    """A listener whose queue is full: the connection hangs in the air."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        endpoint = EndpointRoute(id="h/0", url=f"http://127.0.0.1:{full.getsockname()[1]}")
        routes = RouteTable(pools=(PoolRoute(name="chat", models=("m",), endpoints=(endpoint,)),))
        with proxy(tmp_path, routes, timeouts=Timeouts(connect=60.0)) as running:
            client = running.dial()
            client.ask(ASK)
            eventually(lambda: running.in_flight() == [1])
            client.sock.close()
            eventually(lambda: idle(running))
        for filler in fillers:
            filler.close()


def test_counters_return_to_zero_after_all_of_it(tmp_path):
    """Each way that a request can end, on one member, and then nothing is in flight."""

    def never_ending_503(call):
        call.send(b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n")
        call.engine.gone.append(call.wait_gone())

    scripts = [reset, hang_after_a_word, never_ending_503, ordinary, hang]

    def each_in_turn(call):
        scripts[(len(call.engine.calls) - 1) % len(scripts)](call)

    with engines(each_in_turn) as (engine,), proxy(tmp_path, table(engine)) as running:
        for turn in range(10):
            client = running.dial()
            client.ask(STREAM)
            eventually(partial(has_calls, engine, turn + 1))
            client.sock.close()
        eventually(lambda: idle(running))
        eventually(lambda: engine.gone == [True] * len(engine.gone))
        assert running.started.state.buffered == 0
        assert running.post(ASK, path="/v1/completions")[0] in {200, 502, 503}


@pytest.mark.parametrize(
    ("body", "script", "timeouts", "status"),
    [
        (STREAM, hang, Timeouts(first_byte=0.2), b"504"),
        (ASK, hang, Timeouts(total=0.2), b"504"),
        (STREAM, hang_after_a_word, Timeouts(between=0.2), b"200"),
    ],
)
def test_an_engine_that_is_too_slow(tmp_path, body, script, timeouts, status):
    with (
        engines(script, script) as members,
        proxy(tmp_path, table(*members), timeouts=timeouts) as running,
        running.dial() as client,
    ):
        client.ask(body)
        head = client.until(b"\r\n\r\n")
        assert head.split(b" ", 2)[1] == status
        if status == b"200":
            rest = client.rest()
            assert b'"code":504' in rest
            assert b"[DONE]" not in rest
        eventually(lambda: [seen for member in members for seen in member.gone] == [True])
        assert sum(len(member.calls) for member in members) == 1
        eventually(lambda: idle(running))


def test_an_engine_that_cannot_be_reached_in_time(tmp_path):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        endpoint = EndpointRoute(id="h/0", url=f"http://127.0.0.1:{full.getsockname()[1]}")
        routes = RouteTable(pools=(PoolRoute(name="chat", models=("m",), endpoints=(endpoint,)),))
        with proxy(tmp_path, routes, timeouts=Timeouts(connect=0.2)) as running:
            status, _, body = running.post(ASK)
            assert status == 503  # nobody else is left to ask
            assert b"Pool has no healthy members" in body
        for filler in fillers:
            filler.close()


def test_a_client_that_is_too_slow(tmp_path):
    limits = Timeouts(head=0.1, idle=0.1)
    with engines(ordinary) as (engine,), proxy(tmp_path, table(engine), timeouts=limits) as running:
        half = b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: 9\r\n\r\n{"
        for piece in (b"POST /v1/chat", half):
            with running.dial() as client:
                client.send(piece)
                assert client.rest().startswith(b"HTTP/1.1 408 ")
        with running.dial() as client:
            assert client.rest() == b""
    assert not engine.calls


def test_as_soon_as_every_member_refuses_the_pool_has_nobody(tmp_path):
    with engines(ordinary, ordinary) as members:
        routes = table(*members)
    with proxy(tmp_path, routes) as running:  # both are gone, and no probe has told yet
        status, headers, body = running.post(ASK)
        assert status == 503
        assert b"Pool has no healthy members" in body
        assert headers["retry-after"]


def test_probes_take_a_dead_member_out_and_bring_it_back(tmp_path):
    rules = HealthRules(every=0.02, timeout=5.0)
    with (
        engines(ordinary, ordinary) as (first, second),
        proxy(tmp_path, table(first, second), health=rules) as running,
    ):

        def health():
            return [
                member["health"]
                for member in running.admin("GET", "/admin/members")[1]["pools"][0]["members"]
            ]

        eventually(lambda: health() == ["up", "up"])
        first.healthy = False
        eventually(lambda: health() == ["down", "up"])
        before = len(first.calls)
        assert {running.post(ASK)[1]["x-gpufleet-endpoint"] for _ in range(4)} == {"gpu-1/0"}
        assert len(first.calls) == before
        assert 'endpoint_healthy{pool="chat",endpoint="gpu-0/0"} 0' in running.admin("GET", "/metrics")[1]
        second.healthy = False
        eventually(lambda: health() == ["down", "down"])
        assert running.post(ASK)[0] == 503
        first.healthy = True
        eventually(lambda: health() == ["up", "down"])
        assert running.post(ASK)[0] == 200


def test_backpressure_is_not_a_fault(tmp_path):
    with engines(busy) as (engine,), proxy(tmp_path, table(engine)) as running:
        for _ in range(12):
            assert running.post(ASK)[0] == 503
        engine.script = ordinary
        assert running.post(ASK)[0] == 200


def test_an_engine_that_speaks_unasked_loses_its_connection(tmp_path):
    """Bytes behind an answer must never become the next client's answer."""
    spoke = threading.Event()

    def talkative(call):
        call.answer()
        call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong")
        spoke.set()

    with engines(talkative) as (engine,), proxy(tmp_path, table(engine)) as running:
        for _ in range(4):
            assert running.post(ASK)[2] == CHAT_ANSWER
            assert spoke.wait(20)
        eventually(lambda: engine.connections == len(engine.calls) == 4)


@pytest.mark.parametrize(
    "words", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\nContent-Length: 0\n\n", b"\x15\x03\x01\x00\x02"]
)
def test_what_speaks_no_http_is_not_waited_for(tmp_path, words):
    def speak(call):
        call.send(words)
        hang(call)

    with engines(speak) as (engine,), proxy(tmp_path, table(engine)) as running:
        status, _, body = running.post(ASK)
        assert status == 502
        assert b"does not speak HTTP/1.1" in body
        eventually(lambda: idle(running) and engine.gone == [True])


def test_a_reset_is_no_end_of_an_answer(tmp_path):
    def reset_after_a_word(call):
        call.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: one\n\n")
        told.wait(20)
        call.reset()

    told = threading.Event()
    with engines(reset_after_a_word) as (engine,), proxy(tmp_path, table(engine)) as running:
        with running.dial() as client:
            client.ask(STREAM)
            client.until(b"data: one\n\n")
            told.set()
            assert b'"upstream connection lost"' in client.rest()
        eventually(lambda: idle(running))
        assert 'phase="streaming"' in running.admin("GET", "/metrics")[1]


def test_a_head_that_trickles_is_too_slow(tmp_path):
    limits = Timeouts(head=0.5, linger=60.0)
    with (
        engines(ordinary) as (engine,),
        proxy(tmp_path, table(engine), timeouts=limits) as running,
        running.dial() as client,
    ):
        client.send(b"GET /v1/models HTTP/1.1\r\nX: ")
        client.sock.settimeout(0.02)
        answer = b""
        for _ in range(500):
            with contextlib.suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
                client.send(b"y")
                answer = client.sock.recv(100)
            if answer:
                break
        assert answer.startswith(b"HTTP/1.1 408 ")
