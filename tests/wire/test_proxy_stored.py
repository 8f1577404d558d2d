"""Stored responses: back to the member that holds them, and to nobody else's hands."""

from __future__ import annotations

import http.client
import json

import pytest

from gpufleet.proxy.run.stored import StoredResponses
from gpufleet.tokens.model import Principal
from tests.kit.engines import PATIENCE, Call, engines
from tests.kit.proxies import eventually, proxy, table

pytestmark = pytest.mark.wire
RESPONSES = "/v1/responses"


class Storing:
    """An engine that stores what it answered; ids carry its name. A stream comes in pieces of one byte."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0

    def __call__(self, call: Call) -> None:
        if not call.head.startswith(b"POST /v1/responses HTTP"):
            call.answer(b'{"id":"resp_x","by":"%s"}' % self.name.encode())
            return
        self.count += 1
        body = b'{"id":"resp_%s-%d","object":"response"}' % (self.name.encode(), self.count)
        if b'"stream": true' not in call.body:
            call.answer(body)
            return
        call.start_stream()
        for sign in b'event: response.created\ndata: {"response":%s}\n\n' % body:
            call.chunk(bytes((sign,)))
        call.send(b"0\r\n\r\n")


def call(running, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", running.started.listen.port, timeout=PATIENCE)
    connection.request(method, path, None if body is None else json.dumps(body))
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, answer.headers, content


@pytest.mark.parametrize("stream", [False, True])
def test_a_stored_response_is_asked_of_the_member_that_holds_it(tmp_path, stream):
    with (
        engines(Storing("a"), Storing("b"), Storing("c")) as members,
        proxy(tmp_path, table(*members)) as running,
    ):
        made = [
            running.post({"model": "m", "input": "hi", "stream": stream}, RESPONSES)[1]["x-gpufleet-endpoint"]
            for _ in range(6)
        ]
        assert len(set(made)) == 3
        for number, endpoint in enumerate(made):
            name = f"resp_{'abc'[int(endpoint[4])]}-{number // 3 + 1}"
            for method, path in (
                ("GET", f"{RESPONSES}/{name}"),
                ("GET", f"/pools/chat{RESPONSES}/{name}?include=x"),
                ("POST", f"{RESPONSES}/{name}/cancel"),
                ("DELETE", f"{RESPONSES}/{name}"),
            ):
                status, fields, content = call(running, method, path)
                assert (status, fields["x-gpufleet-endpoint"]) == (200, endpoint)
                assert json.loads(content)["by"] == name[5]
            for _ in range(2):  # what goes on from it has to be there too
                body = {"model": "m", "input": "and", "previous_response_id": name}
                assert running.post(body, RESPONSES)[1]["x-gpufleet-endpoint"] == endpoint
        assert b"GET /v1/responses/resp_a-1?include=x HTTP/1.1\r\n" in b"".join(
            one.head for one in members[0].calls
        )
        eventually(lambda: running.in_flight() == [0, 0, 0])


def test_a_response_that_nobody_is_known_to_hold(tmp_path):
    with engines(Storing("a")) as (engine,), proxy(tmp_path, table(engine)) as running:
        status, _, content = call(running, "GET", f"{RESPONSES}/resp_none")
        assert (status, json.loads(content)["error"]["code"]) == (404, "response_not_found")
        assert running.post({"model": "m", "previous_response_id": "resp_none"}, RESPONSES)[0] == 200
        assert running.post({"model": "m", "previous_response_id": 5}, RESPONSES)[0] == 200
        for method, path, wanted in (
            ("POST", f"{RESPONSES}/resp_a-1", 405),
            ("GET", f"{RESPONSES}/resp_a-1/cancel", 405),
            ("HEAD", f"{RESPONSES}/resp_a-1", 405),
            ("GET", f"{RESPONSES}/other-1", 404),
            ("GET", f"{RESPONSES}/resp_a-1/more", 404),
            ("GET", f"{RESPONSES}/resp_..%2Fx", 404),
            ("GET", f"/pools/other{RESPONSES}/resp_a-1", 404),
        ):
            assert call(running, method, path)[0] == wanted, (method, path)
        assert len(engine.calls) == 2
        engine.close()
        assert call(running, "GET", f"{RESPONSES}/resp_a-1")[0] == 503


def test_only_its_owner_finds_a_response():
    stored = StoredResponses()
    mine, mate = Principal(name="k1", tenant="t"), Principal(name="k2", tenant="t")
    alone, other = Principal(name="k1"), Principal(name="k2")
    stored.note("resp_1", "chat", "h/0", mine)
    assert stored.find("resp_1", mate) == stored.find("resp_1", mine) is not None
    assert stored.find("resp_1", alone) is None
    stored.note("resp_2", "chat", "h/0", alone)
    assert stored.find("resp_2", other) is None
    stored.note("resp_1", "chat", "h/1", other)  # an engine that says another's id takes nothing away
    assert stored.find("resp_1", other) is None
    assert stored.find("resp_1", mine) is not None


def test_old_ones_are_forgotten(monkeypatch):
    monkeypatch.setattr("gpufleet.proxy.run.stored.LIMIT", 3)
    stored, who = StoredResponses(), Principal(name="k")
    for number in range(5):
        stored.note(f"resp_{number}", "chat", "h/0", who)
    assert len(stored) == 3
    assert stored.find("resp_1", who) is None
    assert stored.find("resp_4", who) is not None
