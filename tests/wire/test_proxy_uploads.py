"""Large bodies over real sockets: whole, in order, counted, and gone when their client is."""

from __future__ import annotations

import gc
import json

import pytest

from gpufleet.proxy.decide.deadline import Timeouts
from gpufleet.proxy.run.upload import UPLOAD_FROM, BodyBuffers, Upload
from tests.kit.engines import CHAT_ANSWER, engines
from tests.kit.engines import chat as ordinary
from tests.kit.proxies import CHAT, eventually, proxy, table

pytestmark = pytest.mark.wire
SIZES = (UPLOAD_FROM // 2, UPLOAD_FROM + 1000, 1_100_000, 5_000_000, 400_000)


def big(size: int, number: int) -> bytes:
    return json.dumps({"model": "m", "n": number, "image": f"{number}" * size}).encode()


@pytest.mark.parametrize("uvloop", [True, False])
def test_bodies_of_all_sizes_on_one_connection_with_requests_behind_them(tmp_path, uvloop):
    """The small request that comes in the same piece as a body's last bytes is not lost, and buffers do not mix."""

    def echo(call):
        call.answer(call.body)

    with (
        engines(echo) as (engine,),
        proxy(tmp_path, table(engine), uvloop=uvloop) as running,
        running.dial() as client,
    ):
        for number, size in enumerate(SIZES):
            body = big(size, number)
            client.ask_raw(body)
            client.ask({"model": "m", "user": f"u{number}"})
            client.until(b"\r\n\r\n")
            assert client.exactly(len(body)) == body
            client.until(b"\r\n\r\n")
            assert f"u{number}".encode() in client.until(b"}")
        eventually(lambda: running.started.state.buffered == 0)


@pytest.mark.parametrize("uvloop", [True, False])
def test_a_client_that_leaves_during_its_upload_leaves_nothing_behind(tmp_path, uvloop):
    with engines(ordinary) as (engine,), proxy(tmp_path, table(engine), uvloop=uvloop) as running:
        state = running.started.state
        for _ in range(3):
            with running.dial() as client:
                client.send(
                    b"POST %s HTTP/1.1\r\nHost: p\r\nContent-Length: 9000000\r\n\r\n" % CHAT.encode()
                    + b"x" * 2_000_000
                )
                eventually(lambda: state.buffered == 2_000_000)
            eventually(lambda: state.buffered == 0 and not state.clients)
        assert running.post(big(3_000_000, 1))[2] == CHAT_ANSWER
    assert len(engine.calls) == 1


@pytest.mark.parametrize("uvloop", [True, False])
def test_a_body_of_a_client_that_left_waits_for_no_collection(tmp_path, uvloop):
    """Collections are rare in a proxy: what refers to itself would stay for minutes, and with it its buffer."""
    head = b"POST %s HTTP/1.1\r\nHost: p\r\nContent-Length: 9000000\r\n\r\n" % CHAT.encode()

    def uploads() -> int:
        return sum(isinstance(thing, Upload) for thing in gc.get_objects())

    with engines(ordinary) as (engine,), proxy(tmp_path, table(engine), uvloop=uvloop) as running:
        gc.collect()
        gc.disable()
        try:
            with running.dial() as client:
                client.send(head + b"x" * 2_000_000)
                eventually(lambda: running.started.state.buffered == 2_000_000)
                assert uploads() == 1
            eventually(lambda: uploads() == 0, "the body is gone with its client")
        finally:
            gc.enable()


def test_an_upload_that_stops_is_answered_408(tmp_path):
    with (
        engines(ordinary) as (engine,),
        proxy(tmp_path, table(engine), timeouts=Timeouts(head=0.2)) as running,
        running.dial() as client,
    ):
        client.send(b"POST %s HTTP/1.1\r\nHost: p\r\nContent-Length: 900000\r\n\r\nxx" % CHAT.encode())
        assert client.rest().startswith(b"HTTP/1.1 408 ")
        eventually(lambda: running.started.state.buffered == 0)
    assert not engine.calls


def test_an_upload_is_sent_again_whole_when_its_first_member_cannot(tmp_path):
    def busy(call):
        call.answer(b"{}", b"503 Service Unavailable")

    def echo(call):
        call.answer(call.body)

    with engines(busy, echo) as (first, second), proxy(tmp_path, table(first, second)) as running:
        body = big(2_500_000, 7)
        assert running.post(body)[2] == body
    assert first.calls[0].body == second.calls[0].body == body


def test_more_uploads_than_may_be_held_are_refused(tmp_path):
    with (
        engines(ordinary) as (engine,),
        proxy(tmp_path, table(engine), buffered_limit=1_500_000) as running,
        running.dial() as one,
        running.dial() as two,
    ):
        head = b"POST %s HTTP/1.1\r\nHost: p\r\nContent-Length: 1000000\r\n\r\n" % CHAT.encode()
        two.send(head + b"x" * 400_000)
        eventually(lambda: running.started.state.buffered == 400_000)
        one.send(head + b"x" * 999_999)
        eventually(lambda: running.started.state.buffered == 1_399_999)
        two.send(b"x" * 300_000)
        assert two.rest().startswith(b"HTTP/1.1 503 ")
        eventually(lambda: running.started.state.buffered == 999_999)


def test_buffers_are_used_again_and_bounded():
    buffers = BodyBuffers()
    assert buffers.find(1) is None
    small, large, huge = bytearray(10), bytearray(1000), bytearray(40 * 1024 * 1024)
    for buffer in (small, large, huge):
        buffers.give_back(buffer)
    assert buffers.find(11) is large
    assert buffers.find(11) is None
    assert buffers.find(10) is small
    assert buffers.find(1) is None
