"""The access log, trace context, and what one request leaves behind in figures."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import threading

import pytest

from gpufleet.errors import CannotServe
from gpufleet.tokens.model import Principal, issue
from gpufleet.tokens.store import TokenStore
from tests.kit.engines import PATIENCE, chat, engines
from tests.kit.proxies import CHAT, eventually, proxy, table

pytestmark = pytest.mark.wire
ASK = {"model": "m", "messages": []}
USAGE = b'"usage":{"prompt_tokens":12,"total_tokens":15,"completion_tokens":3}'


def lines(path):
    content = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in content.splitlines()]


READ = threading.Event()


def counts(call):
    """An answer with usage, whole or streamed; in the stream it is cut in the middle of the figure."""
    if b'"stream": true' not in call.body:
        call.answer(b'{"object":"chat.completion","choices":[],' + USAGE + b"}")
        return
    call.start_stream()
    call.event("one")
    assert READ.wait(PATIENCE)
    event = b'data: {"choices":[],' + USAGE + b"}\n\n"
    call.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head, tail = event[:-12], event[-12:]
    call.send(b"%x\r\n%s" % (len(event), head))
    threading.Event().wait(0.02)
    call.send(tail + b"\r\n")
    call.end_stream()


def test_a_line_says_who_asked_what_of_whom_and_never_a_secret(tmp_path):
    secret, token = issue(Principal(name="alice"), now=1.0, lifetime=None, random_bytes=os.urandom)
    TokenStore(tmp_path / "tokens.db").add(token)
    log = tmp_path / "access.jsonl"
    key = secret.reveal()
    with (
        engines(counts) as (engine,),
        proxy(tmp_path, table(engine), allow_anonymous=False, access_log=str(log), trace=True) as running,
    ):
        good = {"Authorization": f"Bearer {key}", "x-request-id": "mine-1"}
        assert running.post(ASK, f"{CHAT}?api_key=do-not-log", **good)[0] == 200
        READ.clear()
        with running.dial() as client:
            fields = f"Authorization: Bearer {key}\r\nx-request-id: mine-2\r\n"
            asked = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
            client.ask(asked, fields=fields.encode())
            client.until(b"one")
            READ.set()
            client.until(b"\r\n0\r\n\r\n")
        assert running.post(ASK, Authorization="Bearer wrong-secret-key")[0] == 401
        assert running.post({"model": "nobody"}, **good)[0] == 404
        assert running.get("/v1/models", **good)[0] == 200
        eventually(lambda: len(lines(log)) == 5)
        page = running.admin("GET", "/metrics")[1]
    whole, streamed, refused, unknown, models = lines(log)
    assert (whole["user"], whole["request_id"], whole["status"]) == ("alice", "mine-1", 200)
    assert (whole["method"], whole["path"], whole["pool"], whole["endpoint"]) == (
        "POST",
        CHAT,
        "chat",
        "gpu-0/0",
    )
    assert (whole["prompt_tokens"], whole["completion_tokens"]) == (12, 3)
    assert whole["duration_ms"] > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", whole["time"])
    assert (streamed["stream"], streamed["status"]) == (True, 200)
    assert (streamed["prompt_tokens"], streamed["completion_tokens"]) == (12, 3)
    assert 0 < streamed["first_byte_ms"] <= streamed["duration_ms"]
    assert (refused["status"], refused["user"]) == (401, "")
    assert (unknown["status"], models["path"]) == (404, "/v1/models")
    assert key not in log.read_text()
    assert "secret" not in log.read_text()
    assert "do-not-log" not in log.read_text()
    assert 'tokens_total{pool="chat",endpoint="gpu-0/0",kind="prompt"} 24' in page
    assert 'tokens_total{pool="chat",endpoint="gpu-0/0",kind="completion"} 6' in page
    assert 'inter_token_seconds_count{pool="chat"} 1' in page
    sent = re.search(rb"traceparent: 00-([0-9a-f]{32})-[0-9a-f]{16}-01", engine.calls[0].head)
    assert sent is not None
    assert whole["trace_id"] == sent[1].decode()


@pytest.mark.parametrize("trace", [True, False])
def test_a_trace_that_the_client_began_travels_on(tmp_path, trace):
    given = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-00"
    log = tmp_path / "access.jsonl"
    with (
        engines(chat) as (engine,),
        proxy(tmp_path, table(engine), access_log=str(log), trace=trace) as running,
    ):
        running.post(ASK, traceparent=given, tracestate="vendor=1")
        running.post(ASK)
        eventually(lambda: len(lines(log)) == 2)
    assert engine.calls[0].head.lower().count(b"traceparent:") == 1
    assert given.encode() in engine.calls[0].head
    assert b"vendor=1" in engine.calls[0].head
    assert engine.calls[1].head.lower().count(b"traceparent:") == int(trace)
    assert lines(log)[0]["trace_id"] == given[3:35]


def test_a_share_of_the_good_ones_and_every_failure(tmp_path):
    log = tmp_path / "access.jsonl"
    with (
        engines(chat) as (engine,),
        proxy(tmp_path, table(engine), access_log=str(log), access_share=0.25) as running,
    ):
        for _ in range(20):
            running.post(ASK)
        for _ in range(3):
            running.post({"model": "nobody"})
    statuses = [line["status"] for line in lines(log)]  # the end writes what still waits
    assert (statuses.count(200), statuses.count(404)) == (5, 3)


def test_a_file_that_was_moved_away_is_opened_anew(tmp_path):
    log = tmp_path / "access.jsonl"
    with engines(chat) as (engine,), proxy(tmp_path, table(engine), access_log=str(log)) as running:
        running.post(ASK)
        eventually(lambda: len(lines(log)) == 1)
        log.rename(tmp_path / "access.jsonl.1")
        running.post(ASK)
        eventually(lambda: len(lines(log)) == 1)
    assert len(lines(tmp_path / "access.jsonl.1")) == 1


def test_a_disk_that_is_full_stops_nobody(tmp_path, caplog):
    with engines(chat) as (engine,), proxy(tmp_path, table(engine), access_log="/dev/full") as running:
        for _ in range(3):
            assert running.post(ASK)[0] == 200
            eventually(lambda: "the access log cannot be written" in caplog.text)
        assert caplog.text.count("the access log cannot be written") == 1


def test_a_log_that_cannot_be_opened_is_said_at_once(tmp_path):
    with (
        engines(chat) as (engine,),
        pytest.raises(CannotServe, match="access log"),
        proxy(tmp_path, table(engine), access_log=str(tmp_path / "none" / "log")),
    ):
        pass
