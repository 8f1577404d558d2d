"""The tables of malformed and borderline messages, said to a proxy over real sockets."""

from __future__ import annotations

import json

import pytest

from tests.kit.engines import engines
from tests.kit.http1_table import BODY_LIMIT, requests, responses
from tests.kit.proxies import eventually, proxy, table

pytestmark = pytest.mark.wire
REFUSED = [row for row in requests() if row.answer.removeprefix("> ") in {"400", "413", "417", "431"}]
ANSWERS = responses()


def test_every_refused_request_is_answered_and_its_connection_closed(tmp_path):
    assert len(REFUSED) > 200
    with (
        engines(lambda call: call.answer()) as (engine,),
        proxy(tmp_path, table(engine), body_limit=BODY_LIMIT) as running,
    ):
        for row in REFUSED:
            with running.dial() as client:
                client.send(row.message)
                answer = client.rest()
            assert answer.startswith(b"HTTP/1.1 %s " % row.answer[-3:].encode()), row.name
            assert answer.count(b"\r\nx-request-id: ") == 1, row.name
            assert b"\r\nConnection: close\r\n" in answer, row.name
        assert engine.calls == []
        eventually(lambda: running.started.state.buffered == 0)


@pytest.mark.parametrize("uvloop", [True, False])
def test_what_an_engine_says_reaches_the_client_whole_or_never_looks_so(tmp_path, uvloop):
    def said(call):
        call.send(ANSWERS[json.loads(call.body)["user"]].message)
        call.sock.close()

    with engines(said) as (engine,), proxy(tmp_path, table(engine), uvloop=uvloop) as running:
        for number, row in enumerate(ANSWERS):
            status, _, rest = row.answer.partition(":")
            _, _, end = rest.rpartition(":")
            with running.dial() as client:
                client.ask({"model": "m", "user": number}, fields=b"Connection: close\r\n")
                answer = client.rest()
            wanted = b"502" if status == "?" else status.encode()
            assert answer.startswith(b"HTTP/1.1 " + wanted), row.name
            head, _, body = answer.partition(b"\r\n\r\n")
            if b"\r\nTransfer-Encoding: chunked" in head and status != "?":
                whole = b"0\r\n" in body and body.endswith(b"\r\n\r\n")
            elif b"\r\nContent-Length: " in head:
                whole = len(body) == int(head.split(b"\r\nContent-Length: ")[1].split(b"\r\n")[0])
            else:
                continue
            assert whole == (end not in {"open", "bad"}), row.name
        eventually(lambda: running.in_flight() == [0])
