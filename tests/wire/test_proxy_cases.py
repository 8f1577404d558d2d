"""Defects that other proxies have had, each played through as it was reported."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket

import pytest

from gpufleet.pools.routes import EndpointRoute, PoolRoute, RouteTable
from gpufleet.proxy.config import ScrapeRules
from gpufleet.tokens.model import Principal, issue
from gpufleet.tokens.store import TokenStore
from tests.kit.engines import CHAT_ANSWER, PATIENCE, chat, engines
from tests.kit.proxies import eventually, proxy, table

pytestmark = pytest.mark.wire
ASK = {"model": "m", "messages": []}
STREAM = {**ASK, "stream": True}
OFTEN = ScrapeRules(every=0.02, timeout=20.0)


def hang(call):
    call.engine.gone.append(call.wait_gone())


def idle(running):
    return running.started.state.in_flight == 0 and not any(running.in_flight())


def test_05_who_leaves_an_answer_that_is_not_streamed_stops_its_engine(tmp_path):
    """production-stack 634: the engine went on for 40 seconds, because nobody looked at the client meanwhile."""
    with engines(hang) as (engine,), proxy(tmp_path, table(engine)) as running:
        client = running.dial()
        client.ask({**ASK, "max_tokens": 4000})
        eventually(lambda: engine.calls)
        assert running.in_flight() == [1]
        client.sock.close()
        eventually(lambda: engine.gone == [True])
        eventually(lambda: idle(running))
        assert 'code="499"' in running.admin("GET", "/metrics")[1]


def test_06_the_number_in_flight_comes_back_after_every_error(tmp_path):
    """production-stack 1040, router 211: reset before the head, a departure in the stream, a 503 that never ends."""

    def stream_on(call):
        call.start_stream()
        call.event("one")
        hang(call)

    def endless_refusal(call):
        call.send(b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n")
        hang(call)

    def reset(call):
        call.reset()

    scripts = iter([reset, stream_on, endless_refusal])

    def each_in_turn(call):
        next(scripts)(call)

    with engines(each_in_turn) as (engine,), proxy(tmp_path, table(engine)) as running:
        assert running.post(STREAM)[0] == 502
        with running.dial() as client:
            client.ask(STREAM)
            client.until(b"one")
            assert running.in_flight() == [1]
        eventually(lambda: engine.gone == [True])
        with running.dial() as client:
            client.ask(STREAM)
            client.until(b"abcde")
        eventually(lambda: engine.gone == [True, True])
        eventually(lambda: idle(running))


def test_12_models_are_listed_while_a_member_is_down(tmp_path):
    """router 135: one dead member made the whole list a 500."""
    with engines(chat) as (engine,), socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        dead = EndpointRoute(id="b/0", url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        routes = table(engine)
        pools = (*routes.pools, PoolRoute(name="other", models=("m", "n"), endpoints=(dead,)))
        with proxy(tmp_path, RouteTable(generation=1, pools=pools)) as running:
            status, page = running.get("/v1/models")
            assert (status, page["object"]) == (200, "list")
            assert [card["id"] for card in page["data"]] == ["m", "n"]
            assert running.post(ASK)[0] == 200


@pytest.mark.parametrize(
    "page",
    [
        b'vllm:gpu_cache_usage_perc{model_name="m"} 0.91\n',
        b'vllm:gpu_cache_usage_perc{model_name="m"} 0.91\nvllm:kv_cache_usage_perc{model_name="m"} 0.91\n',
        (
            b'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.91\n'
            b'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 5.0\n'
            b'vllm:external_prefix_cache_hits_total{model_name="m"} 999\n'
        ),
    ],
    ids=["old", "both", "new with decoys"],
)
def test_13_a_metric_that_was_renamed_is_not_read_as_zero(tmp_path, page, caplog):
    with engines(chat) as (engine,):
        engine.page = page
        with proxy(tmp_path, table(engine), scrape=OFTEN) as running:
            line = 'gpufleet_proxy_engine_kv_cache_used_ratio{pool="chat",endpoint="gpu-0/0"} 0.91'
            eventually(lambda: line in running.admin("GET", "/metrics")[1].splitlines())
            assert (
                "engine_requests_waiting{" not in running.admin("GET", "/metrics")[1]
            )  # unknown, not 5 and not 0
    assert caplog.text.count("does not say running, waiting") == 1


@pytest.mark.parametrize(
    ("path", "mark"),
    [
        ("/v1/chat/completions", b'"type":"upstream_error"'),
        ("/v1/messages", b'event: error\ndata: {"type":"error"'),
        ("/v1/responses", b"event: response.failed\n"),
    ],
)
def test_17_death_after_the_first_words_is_told_and_never_looks_like_an_end(tmp_path, path, mark):
    """open-webui 29628: a stream that just stopped, or a made-up [DONE]."""

    def dying(call):
        call.start_stream()
        call.event("Hel")
        call.reset()

    with engines(dying, chat) as members, proxy(tmp_path, table(*members)) as running:
        with running.dial() as client:
            client.ask(STREAM, path)
            rest = client.rest()
            assert mark in rest
            assert b"[DONE]" not in rest
            assert not rest.endswith(b"0\r\n\r\n")
        assert [len(member.calls) for member in members] == [1, 0]  # bytes were sent: nobody else is asked
        eventually(lambda: idle(running))


def test_24_a_pool_that_is_down_sends_its_requests_to_no_other(tmp_path):
    """arbr 77: a tenant's prompt and token went to every provider that was alive."""
    with engines(chat) as (cloud,), socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        down = EndpointRoute(id="a/0", url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        local = PoolRoute(name="local", models=("m",), endpoints=(down,))
        other = PoolRoute(name="cloud", models=("n",), endpoints=table(cloud).pools[0].endpoints)
        secret, token = issue(Principal(name="hr"), now=1.0, lifetime=None, random_bytes=os.urandom)
        TokenStore(tmp_path / "tokens.db").add(token)
        key = {"Authorization": f"Bearer {secret.reveal()}"}
        routes = RouteTable(generation=1, pools=(local, other))
        with proxy(tmp_path, routes, allow_anonymous=False) as running:
            status, fields, body = running.post(ASK, **key)
            assert (status, bool(fields["retry-after"])) == (503, True)
            assert json.loads(body)["error"]["type"] == "service_unavailable"
            assert not cloud.calls
            assert (
                running.post({**ASK, "model": "n"}, **key)[2] == CHAT_ANSWER
            )  # asked for by name it answers
    assert secret.reveal().encode() not in cloud.calls[0].head


def test_thousands_over_the_limit_are_refused_politely(tmp_path):
    """As many connections as the file limit allows: two files each, since client and proxy are one process here."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = min(9000, (soft - 1000) // 2 - 200)
    beyond = min(3000, limit // 200 * 100)
    print(f"{limit} connections served, {beyond} refused")
    with (
        engines(chat) as (engine,),
        proxy(tmp_path, table(engine), connection_limit=limit) as running,
        contextlib.ExitStack() as stack,
    ):
        state = running.started.state
        clients = [stack.enter_context(running.dial()) for _ in range(limit)]
        eventually(lambda: len(state.clients) == limit)
        for _ in range(0, beyond, 100):
            with contextlib.ExitStack() as refused:
                crowd = [refused.enter_context(running.dial()) for _ in range(100)]
                for client in crowd:
                    client.sock.settimeout(PATIENCE)
                    answer = client.rest()
                    assert answer.startswith(b"HTTP/1.1 503 ")
                    assert b"Retry-After: 1\r\n" in answer
        for client in clients[:: max(1, limit // 50)]:
            client.ask(ASK)
            client.until(b"[]}")
        page = running.admin("GET", "/metrics")[1]
        assert f"gpufleet_proxy_connections_refused_total {beyond}" in page
        for client in clients:
            client.sock.close()
        eventually(lambda: not state.clients and not state.turned_away)
        assert running.post(ASK)[0] == 200


def test_a_name_of_a_megabyte_is_answered_and_kept_nowhere(tmp_path, caplog):
    name = "m" * 1_048_576
    with engines(chat) as (engine,), proxy(tmp_path, table(engine)) as running:
        for body in ({**ASK, "model": name}, {**STREAM, "model": name}):
            status, _, content = running.post(body)
            assert status in {400, 404}
            assert len(content) < 10_000
        assert running.get(f"/v1/models/{name[:60_000]}")[0] == 404
        assert len(running.admin("GET", "/metrics")[1]) < 100_000
        assert not engine.calls
    assert "Traceback" not in caplog.text
