"""The relay over real sockets: what passes, in what order, and what never does."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import threading
from functools import partial

import pytest

from gpufleet.pools.routes import EndpointRoute, PoolRoute, RouteTable
from gpufleet.proxy.decide.deadline import Timeouts
from tests.kit.engines import CHAT_ANSWER, ScriptedEngine, engines
from tests.kit.engines import chat as ordinary
from tests.kit.proxies import CHAT, eventually, proxy, table

pytestmark = pytest.mark.wire
ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("uvloop", [True, False])
def test_a_chat_passes_through_and_says_where_it_was(tmp_path, uvloop):
    with engines(ordinary) as (engine,), proxy(tmp_path, table(engine), uvloop=uvloop) as running:
        status, fields, body = running.post(
            ASK, Authorization="Bearer sk-client", **{"x-request-id": "mine-1", "x-custom": "kept"}
        )
        assert (status, body) == (200, CHAT_ANSWER)
        assert (fields["x-request-id"], fields["x-gpufleet-pool"]) == ("mine-1", "chat")
        assert fields["x-gpufleet-endpoint"] == "gpu-0/0"
        call = engine.calls[0]
        assert json.loads(call.body) == ASK
        assert b"sk-client" not in call.head
        assert b"\r\nx-custom: kept" in call.head
        assert b"\r\nX-Request-Id: mine-1" in call.head
        assert f"\r\nHost: 127.0.0.1:{engine.port}".encode() in call.head
        assert b"Host: 127.0.0.1:%d" % running.started.listen.port not in call.head


@pytest.mark.parametrize("uvloop", [True, False])
def test_a_stream_arrives_word_by_word(tmp_path, uvloop):
    heard = threading.Semaphore(0)

    def slow(call):
        call.start_stream()
        for word in ("one", "two"):
            call.event(word)
            assert heard.acquire(timeout=20)  # the next word is said when the client has this one
        call.end_stream()

    with (
        engines(slow) as (engine,),
        proxy(tmp_path, table(engine), uvloop=uvloop) as running,
        running.dial() as client,
    ):
        client.ask({**ASK, "stream": True})
        assert b"Transfer-Encoding: chunked" in client.until(b"\r\n\r\n")
        client.until(b'"one"')
        heard.release()
        client.until(b'"two"')
        heard.release()
        client.until(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        eventually(lambda: running.in_flight() == [0])
        assert "gpufleet_proxy_ttft_seconds_count" in running.admin("GET", "/metrics")[1]


def test_chunked_bytes_are_the_engines_own(tmp_path):
    """Chunk sizes, extensions and trailers are not written anew."""
    framed = b"3;note=x\r\nabc\r\nA\r\n0123456789\r\n0\r\nX-Trailer: 1\r\n\r\n"

    def odd(call):
        call.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed)

    with engines(odd) as (engine,), proxy(tmp_path, table(engine)) as running, running.dial() as client:
        for _ in range(2):  # and the connection is good for another
            client.ask(ASK)
            client.until(b"\r\n\r\n")
            assert client.until(b"X-Trailer: 1\r\n\r\n") == framed
    assert engine.connections == 1


def test_a_compressed_answer_keeps_its_label(tmp_path):
    packed = gzip.compress(b'{"ok":true}')

    def zipped(call):
        call.answer(packed, fields=b"Content-Encoding: gzip\r\n")

    with engines(zipped) as (engine,), proxy(tmp_path, table(engine)) as running:
        _, fields, body = running.post(ASK)
        assert fields["content-encoding"] == "gzip"
        assert gzip.decompress(body) == b'{"ok":true}'


def test_an_old_client_gets_the_content_without_chunks(tmp_path):
    with engines(ordinary) as (engine,), proxy(tmp_path, table(engine)) as running, running.dial() as client:
        body = json.dumps({**ASK, "stream": True}).encode()
        client.send(b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body))
        answer = client.rest()
        assert b"ransfer-Encoding" not in answer
        assert answer.endswith(b"data: [DONE]\n\n")


def test_an_answer_framed_twice_is_framed_once(tmp_path):
    def both(call):
        call.send(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n2\r\nok\r\n0\r\n\r\n"
        )

    with engines(both) as (engine,), proxy(tmp_path, table(engine)) as running, running.dial() as client:
        client.ask(ASK)
        head = client.until(b"\r\n\r\n").lower()
        assert b"content-length" not in head
        assert client.until(b"0\r\n\r\n") == b"2\r\nok\r\n0\r\n\r\n"


def test_an_answer_that_ends_with_its_connection(tmp_path):
    def closing(call):
        call.send(b"HTTP/1.0 200 OK\r\n\r\nuntil the end")
        call.sock.shutdown(1)

    with engines(closing) as (engine,), proxy(tmp_path, table(engine)) as running, running.dial() as client:
        client.ask(ASK)
        answer = client.rest()
        assert b"Connection: close" in answer
        assert answer.endswith(b"until the end")


def test_pipelined_requests_are_answered_in_order(tmp_path):
    def echo(call):
        call.answer(call.body)

    with (
        engines(echo, echo) as members,
        proxy(tmp_path, table(*members)) as running,
        running.dial() as client,
    ):
        for number in range(5):
            client.ask({"model": "m", "user": f"u{number}"})
        for number in range(5):
            client.until(b"\r\n\r\n")
            assert f"u{number}".encode() in client.until(b"}")


def test_a_client_that_pipelines_without_end_is_answered_and_closed(tmp_path):
    release = threading.Event()

    def waiting(call):
        release.wait(20)
        call.answer()

    with engines(waiting) as (engine,), proxy(tmp_path, table(engine)) as running, running.dial() as client:
        client.ask(ASK)
        eventually(lambda: engine.calls)
        client.ask({"model": "m", "pad": "x" * 200_000})
        eventually(lambda: not running.started.state.stopping)
        release.set()
        answer = client.rest()
        assert answer.count(b"HTTP/1.1 200") in {1, 2}  # refused safely: what was answered is whole
        assert answer.endswith(CHAT_ANSWER)


def test_expect_100_continue_is_answered_here(tmp_path):
    with engines(ordinary) as (engine,), proxy(tmp_path, table(engine)) as running, running.dial() as client:
        body = json.dumps(ASK).encode()
        client.send(
            b"POST %s HTTP/1.1\r\nHost: p\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
            % (CHAT.encode(), len(body))
        )
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        assert b"200 OK" in client.until(b"\r\n\r\n")
        assert b"xpect" not in engine.calls[0].head


def test_a_chunked_request_reaches_the_engine_whole(tmp_path):
    with engines(ordinary) as (engine,), proxy(tmp_path, table(engine)) as running, running.dial() as client:
        body = json.dumps(ASK).encode()
        client.send(
            b"POST %s HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n"
            % (CHAT.encode(), body[:5], len(body) - 5, body[5:])
        )
        assert b"200 OK" in client.until(b"\r\n\r\n")
        assert engine.calls[0].body == body
        assert b"ransfer-Encoding" not in engine.calls[0].head


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
        ),
        (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            400,
        ),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nX: a\r\n b\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\nHost: p\n\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nHost: p\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: 2000\r\n\r\n", 413),
        (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nExpect: 100-continue\r\nContent-Length: 2000\r\n\r\n",
            413,
        ),
    ],
)
def test_bad_framing_is_answered_and_closed(tmp_path, request_, status):
    with (
        engines(ordinary) as (engine,),
        proxy(tmp_path, table(engine), body_limit=1000) as running,
        running.dial() as client,
    ):
        client.send(request_)
        answer = client.rest()
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert b"Connection: close" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
    assert not engine.calls


def test_paths_and_pools(tmp_path):
    with engines(ordinary, ordinary) as (first, second):
        routes = RouteTable(
            generation=1,
            pools=(
                PoolRoute(
                    name="a", models=("m", "alias"), endpoints=(EndpointRoute(id="h/0", url=first.url),)
                ),
                PoolRoute(name="b", models=("other",), endpoints=(EndpointRoute(id="h/1", url=second.url),)),
            ),
        )
        with proxy(tmp_path, routes) as running:
            for path in (CHAT, f"/pools/b{CHAT}", f"/api/internal/gpu-pool/b{CHAT}?x=1"):
                status, fields, _ = running.post({"model": "other"}, path)
                assert (status, fields["x-gpufleet-pool"]) == (200, "b")
            assert second.calls[-1].head.startswith(b"POST /v1/chat/completions?x=1 HTTP/1.1\r\n")
            assert [card["id"] for card in running.get("/v1/models")[1]["data"]] == ["m", "alias", "other"]
            assert [card["id"] for card in running.get("/pools/b/v1/models")[1]["data"]] == ["other"]
            assert running.get("/v1/models/alias")[1]["id"] == "alias"
            for answer, status in (
                (running.post({"model": "none"}), 404),
                (running.post({"model": "m"}, f"/pools/b{CHAT}"), 404),
                (running.post({"model": "m"}, f"/pools/none{CHAT}"), 404),
                (running.post({}), 400),
                (running.post(b"{"), 400),
                (running.post({"model": "m"}, "/v1/load_lora_adapter"), 404),
                (running.post({"model": "m"}, "/v1/models"), 405),
                (running.get("/v1/realtime"), 501),
                (running.get("/metrics"), 404),
            ):
                assert answer[0] == status
    assert not first.calls


def test_an_upload_is_routed_by_its_model_and_passes_untouched(tmp_path):
    body = (
        b'--b1\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        + bytes(range(256)) * 40
        + b"\r\n"
        b'--b1\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b1--\r\n'
    )
    with engines(ordinary) as (engine,), proxy(tmp_path, table(engine)) as running:
        kind = "multipart/form-data; boundary=b1"
        assert running.post(body, "/v1/audio/transcriptions", **{"Content-Type": kind})[0] == 200
        assert engine.calls[0].body == body
        assert f"content-type: {kind}".encode() in engine.calls[0].head


def test_a_large_body_passes_both_ways(tmp_path):
    def echo(call):
        call.answer(call.body)

    with engines(echo) as (engine,), proxy(tmp_path, table(engine)) as running:
        big = json.dumps({"model": "m", "image": "x" * 3_000_000}).encode()
        assert running.post(big)[2] == big
        eventually(lambda: running.started.state.buffered == 0)


def test_the_members_key_replaces_the_tenants(tmp_path):
    (tmp_path / "key").write_text("engine-secret\n")
    with engines(ordinary) as (engine,):
        endpoint = EndpointRoute(id="h/0", url=engine.url, key=f"${{file:{tmp_path / 'key'}}}")
        routes = RouteTable(pools=(PoolRoute(name="chat", models=("m",), endpoints=(endpoint,)),))
        with proxy(tmp_path, routes) as running:
            assert running.post(ASK, Authorization="Bearer tenant")[0] == 200
            assert b"\r\nAuthorization: Bearer engine-secret\r\n" in engine.calls[0].head + b"\r\n"
            assert "engine-secret" not in running.admin("GET", "/")[1] + running.admin("GET", "/metrics")[1]


def test_a_client_that_does_not_read_stops_the_engine_and_not_the_proxy(tmp_path):
    """Back-pressure: what lies between engine and client is bounded."""
    sent = [0]
    stuck = threading.Event()

    def firehose(call):
        call.start_stream()
        call.sock.settimeout(0.5)
        try:
            for _ in range(2000):
                call.chunk(b"data: " + b"x" * 65_000 + b"\n\n")
                sent[0] += 65_000
        except TimeoutError:
            stuck.set()

    with engines(firehose) as (engine,), proxy(tmp_path, table(engine)) as running, running.dial() as client:
        client.ask({**ASK, "stream": True})
        assert stuck.wait(20), "the engine could send everything to a client that reads nothing"
        assert sent[0] < 60_000_000
        assert running.post({"model": "none"})[0] == 404  # everybody else is served
    eventually(lambda: running_is_idle(running, engine))


def test_a_client_that_never_reads_is_cut_and_its_engine_freed(tmp_path):
    def firehose(call):
        call.start_stream()
        try:
            while True:
                call.chunk(b"data: " + b"x" * 65_000 + b"\n\n")
        except OSError:
            call.engine.gone.append(True)

    limits = Timeouts(between=0.2)
    with (
        engines(firehose) as (engine,),
        proxy(tmp_path, table(engine), timeouts=limits) as running,
        running.dial() as client,
    ):
        client.ask({**ASK, "stream": True})
        eventually(lambda: engine.gone == [True])
        eventually(lambda: running.in_flight() == [0])


@pytest.mark.parametrize("uvloop", [True, False])
def test_a_connection_that_was_paused_serves_the_next_client(tmp_path, uvloop):
    """More than all buffers hold, for a client that begins to read late; then the same connection for another."""
    big = b"x" * 16_000_000

    def large(call):
        call.answer(big if b"large" in call.body else CHAT_ANSWER)

    with engines(large) as (engine,), proxy(tmp_path, table(engine), uvloop=uvloop) as running:
        for _ in range(2):
            with running.dial() as late:
                late.ask({**ASK, "user": "large"})
                late.until(b"\r\n\r\n")
                received = len(late.received)
                while received < len(big):
                    received += len(late.sock.recv(65536))
            assert running.post(ASK)[2] == CHAT_ANSWER
        assert engine.connections == 1


def test_names_that_clients_make_up_do_not_become_labels(tmp_path):
    with engines(ordinary) as (engine,), proxy(tmp_path, table(engine)) as running:
        for number in range(5):
            assert running.post(ASK, f"/pools/made-up-{number}{CHAT}")[0] == 404
        page = running.admin("GET", "/metrics")[1]
        assert "made-up" not in page
        assert 'requests_total{pool="",endpoint="",code="404"} 5' in page


def running_is_idle(running, engine: ScriptedEngine) -> bool:
    return bool(engine.calls) and running.started.state.in_flight == 0


def test_an_answer_to_head_has_no_body(tmp_path):
    with engines(ordinary) as (engine,), proxy(tmp_path, table(engine)) as running, running.dial() as client:
        for path, status in ((b"/v1/models", 200), (b"/v1/chat/completions", 405), (b"/nowhere", 404)):
            client.send(b"HEAD %s HTTP/1.1\r\nHost: p\r\n\r\n" % path)
            head = client.until(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 %d " % status)
            assert (b"\r\nAllow: POST\r\n" in head) == (status == 405)
        assert client.received == b""  # what came behind would be taken for the next answer
        admin = http.client.HTTPConnection("127.0.0.1", running.started.admin.port, timeout=20)
        with contextlib.closing(admin):
            for _ in range(2):
                admin.request("HEAD", "/health")
                answer = admin.getresponse()
                assert (answer.status, answer.read()) == (200, b"")


def test_an_answer_carries_its_own_request_id(tmp_path):
    with engines(ordinary) as (engine,), proxy(tmp_path, table(engine)) as running, running.dial() as client:
        client.ask(ASK, fields=b"X-Request-Id: first\r\n")
        assert b"x-request-id: first\r\n" in client.until(b"]}")
        client.send(b"GARBAGE\r\n\r\n")
        answer = client.rest()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"x-request-id: " in answer
        assert b"first" not in answer


def test_a_model_with_a_slash_in_its_name(tmp_path):
    with (
        engines(ordinary) as (engine,),
        proxy(tmp_path, table(engine, models=("lab/chat",))) as running,
    ):
        for path in ("/v1/models/lab/chat", "/v1/models/lab%2Fchat", "/pools/chat/v1/models/lab%2Fchat"):
            status, card = running.get(path)
            assert (status, card["id"], card["object"]) == (200, "lab/chat", "model")
        assert running.get("/v1/models/lab%252Fchat")[0] == 404


def test_bodies_on_their_way_are_counted_and_bounded(tmp_path):
    head = b"POST %s HTTP/1.1\r\nHost: p\r\n%s\r\n\r\n%s"
    long, chunked = b"Content-Length: 900", b"Transfer-Encoding: chunked"
    with engines(ordinary) as (engine,), proxy(tmp_path, table(engine), buffered_limit=1000) as running:
        buffered = partial(getattr, running.started.state, "buffered")
        with running.dial() as one, running.dial() as two:
            one.send(head % (CHAT.encode(), long, b"x" * 600))
            eventually(lambda: buffered() == 600)
            two.send(head % (CHAT.encode(), chunked, b"190\r\n" + b"y" * 400 + b"\r\n190\r\n" + b"y" * 300))
            assert two.rest().startswith(b"HTTP/1.1 503 ")
            eventually(lambda: buffered() == 600)
        eventually(lambda: buffered() == 0)
        assert running.post(ASK)[0] == 200
        eventually(lambda: buffered() == 0)
