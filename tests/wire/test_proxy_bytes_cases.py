"""What went wrong in other proxies, case by case: a published bug report each, and what is right."""

from __future__ import annotations

import gzip
import threading

import pytest

from tests.kit.engines import engines
from tests.kit.proxies import eventually, proxy, table

pytestmark = pytest.mark.wire
ASK = {"model": "m", "input": "hi"}
STREAM = (
    b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"resp_1","usage":'
    b'{"input_tokens":12,"output_tokens":5,"total_tokens":17}}}\n\n'
)
CUTS = [
    1,
    STREAM.index(b"usage") + 2,
    STREAM.index(b"input_to") + 8,
    STREAM.index(b"12") + 1,
    len(STREAM) - 1,
]


def test_case_01_an_event_that_comes_in_two_chunks_is_passed_on_at_once_and_counted(tmp_path):
    heard = threading.Semaphore(0)
    cuts = iter(CUTS)

    def two(call):
        cut = next(cuts)
        call.start_stream()
        call.chunk(STREAM[:cut])
        assert heard.acquire(timeout=20)  # the first half is with the client before the second is said
        call.chunk(STREAM[cut:])
        call.send(b"0\r\n\r\n")

    with engines(two) as (engine,), proxy(tmp_path, table(engine)) as running:
        for number, cut in enumerate(CUTS, start=1):
            with running.dial() as client:
                client.ask({**ASK, "stream": True}, "/v1/responses")
                client.until(b"\r\n\r\n")
                client.until(b"%x\r\n%s\r\n" % (cut, STREAM[:cut]))
                heard.release()
                client.until(b"%x\r\n%s\r\n0\r\n\r\n" % (len(STREAM) - cut, STREAM[cut:]))
            eventually(lambda: running.in_flight() == [0])
            page = running.admin("GET", "/metrics")[1]
            counted = [float(line.rpartition(" ")[2]) for line in page.splitlines() if is_tokens(line)]
            assert sorted(counted) == [5.0 * number, 12.0 * number], (cut, counted)


def is_tokens(line: str) -> bool:
    return line.startswith("gpufleet_proxy_tokens_total{")


@pytest.mark.parametrize("order", [0, 1])
def test_case_03_an_answer_with_both_framings_has_one_and_such_a_request_is_refused(tmp_path, order):
    both = [b"Transfer-Encoding: chunked\r\n", b"Content-Length: 0\r\n"]
    lines = b"".join(both[order:] + both[:order])

    def framed(call):
        call.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n%s\r\n" % lines
            + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
        )

    with engines(framed) as (engine,), proxy(tmp_path, table(engine)) as running, running.dial() as client:
        client.ask(ASK, "/v1/responses")
        head = client.until(b"\r\n\r\n").lower()
        assert head.count(b"transfer-encoding: chunked") == 1
        assert b"content-length" not in head
        assert client.until(b"0\r\n\r\n") == b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
        client.send(b"POST /v1/responses HTTP/1.1\r\nHost: p\r\n%s\r\n0\r\n\r\n" % lines)
        assert client.rest().startswith(b"HTTP/1.1 400 ")
        assert len(engine.calls) == 1


@pytest.mark.parametrize("kind", [b"application/json", b"text/event-stream"])
def test_case_04_compressed_bytes_keep_their_label(tmp_path, kind):
    plain = b'{"ok":true}' if kind == b"application/json" else b'data: {"ok":true}\n\ndata: [DONE]\n\n'
    packed = gzip.compress(plain)

    def zipped(call):
        call.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s"
            % (kind, len(packed), packed)
        )

    with engines(zipped) as (engine,), proxy(tmp_path, table(engine)) as running:
        _, fields, body = running.post(ASK, "/v1/responses", **{"Accept-Encoding": "gzip"})
        assert (fields["content-encoding"], fields["content-length"]) == ("gzip", str(len(packed)))
        assert body == packed
        assert b"\r\nAccept-Encoding: gzip" in engine.calls[0].head


def test_case_20_an_upload_passes_with_its_own_bytes_boundary_and_fields(tmp_path):
    body = b"".join(
        b'--XX\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n' % part
        for part in (
            (b"file", b'; filename="a.wav"', bytes(range(256)) * 300),
            (b"model", b"", b"m"),
            (b"timestamp_granularities[]", b"", b"word"),
            (b"unknown", b"", b"kept"),
        )
    )
    body += b"--XX--\r\n"
    with engines(lambda call: call.answer()) as (engine,), proxy(tmp_path, table(engine)) as running:
        fields = {"Content-Type": "multipart/form-data; boundary=XX", "X-Custom": "kept"}
        assert running.post(body, "/v1/audio/transcriptions", **fields)[0] == 200
        call = engine.calls[0]
        assert call.body == body
        assert b"language" not in call.body
        assert b"\r\ncontent-type: multipart/form-data; boundary=XX" in call.head
        assert b"\r\nX-Custom: kept" in call.head
