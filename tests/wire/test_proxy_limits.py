"""What the listener refuses, and how politely: too many clients, too slow ones, too much of everything, bad TLS."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl

import pytest

from gpufleet.errors import CannotServe
from gpufleet.proxy.decide.deadline import Timeouts
from tests.kit.certificates import certificate
from tests.kit.engines import PATIENCE, chat, engines
from tests.kit.proxies import CHAT, eventually, proxy, table

pytestmark = pytest.mark.wire
ASK = {"model": "m", "messages": []}


@contextlib.contextmanager
def tls(running, trusted, name="proxy.test", protocols=("http/1.1",)):
    context = ssl.create_default_context(cafile=str(trusted))
    context.set_alpn_protocols(list(protocols))
    address = (running.started.listen.host, running.started.listen.port)
    with (
        socket.create_connection(address, timeout=PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname=name) as sock,
    ):
        yield sock


def ask(sock, body=ASK):
    content = json.dumps(body).encode()
    sock.sendall(
        b"POST %s HTTP/1.1\r\nHost: p\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
        % (CHAT.encode(), len(content), content)
    )
    return b"".join(iter(lambda: sock.recv(65536), b""))


@pytest.mark.parametrize("uvloop", [True, False])
def test_tls_and_a_renewed_certificate(tmp_path, caplog, uvloop):
    public, private = certificate(tmp_path, "proxy.test")
    old = tmp_path / "old.pem"
    old.write_bytes(public.read_bytes())
    with (
        engines(chat) as (engine,),
        proxy(
            tmp_path, table(engine), certificate=str(public), private_key=str(private), uvloop=uvloop
        ) as running,
    ):
        with tls(running, old, protocols=("h2", "http/1.1")) as sock:
            assert sock.selected_alpn_protocol() == "http/1.1"
            answer = ask(sock, {**ASK, "stream": True})
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"[DONE]" in answer
        with running.dial() as plain:  # who speaks without TLS gets no answer and does no harm
            plain.send(b"GET /v1/models HTTP/1.1\r\nHost: p\r\n\r\n")
            assert b"HTTP" not in plain.rest()
        private.write_bytes(b"no key")
        eventually(lambda: "new certificate refused, the old one stays" in caplog.text)
        with tls(running, old) as sock:
            assert ask(sock).startswith(b"HTTP/1.1 200")
        certificate(tmp_path, "proxy.test")

        def renewed():
            try:
                with tls(running, public) as sock:
                    return ask(sock).startswith(b"HTTP/1.1 200")
            except ssl.SSLError:
                return False

        eventually(renewed)


@pytest.mark.parametrize(
    ("break_", "why"),
    [
        (lambda public, private: public.unlink(), "No such file"),
        (lambda public, private: private.unlink(), "No such file"),
        (lambda public, private: public.write_bytes(b"nonsense"), "cannot be used"),
        (lambda public, private: private.write_bytes(b"nonsense"), "cannot be used"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_said_at_once(tmp_path, break_, why):
    public, private = certificate(tmp_path, "proxy.test")
    break_(public, private)
    with (
        engines(chat) as (engine,),
        pytest.raises(CannotServe, match=why),
        proxy(tmp_path, table(engine), certificate=str(public), private_key=str(private)),
    ):
        pass


def test_an_encrypted_key_asks_nobody(tmp_path):
    public, private = certificate(tmp_path, "proxy.test", password=b"secret")
    with (
        engines(chat) as (engine,),
        pytest.raises(CannotServe, match="encrypted"),
        proxy(tmp_path, table(engine), certificate=str(public), private_key=str(private)),
    ):
        pass


def test_one_connection_too_many_is_refused_politely(tmp_path):
    with (
        engines(chat) as (engine,),
        proxy(tmp_path, table(engine), connection_limit=3) as running,
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(running.dial()) for _ in range(3)]
        eventually(lambda: len(running.started.state.clients) == 3)
        with running.dial() as fourth:
            fourth.ask(ASK)
            answer = fourth.rest()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 1\r\n" in answer
            assert b"Connection: close\r\n" in answer
        for client in clients:  # those that are in are served
            client.ask(ASK)
            client.until(b"[]}")
        clients[0].sock.close()
        eventually(lambda: len(running.started.state.clients) < 3)
        assert running.post(ASK)[0] == 200
        assert "gpufleet_proxy_connections_refused_total 1" in running.admin("GET", "/metrics")[1]


def test_slow_clients_are_told_and_let_go(tmp_path):
    limits = Timeouts(head=0.1)
    with engines(chat) as (engine,), proxy(tmp_path, table(engine), timeouts=limits) as running:
        for beginning in (
            b"POST",
            b"POST %s HTTP/1.1\r\nHost: p\r\nX-Slow: " % CHAT.encode(),
            b"POST %s HTTP/1.1\r\nHost: p\r\nContent-Length: 50\r\n\r\n{" % CHAT.encode(),
            b"POST %s HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{" % CHAT.encode(),
            b"POST %s HTTP/1.1\r\nHost: p\r\nContent-Length: 5000000\r\n\r\n{" % CHAT.encode(),
        ):
            with running.dial() as client:
                client.send(beginning)
                assert client.rest().startswith(b"HTTP/1.1 408 ")
        eventually(lambda: running.started.state.buffered == 0)
    assert not engine.calls


def test_much_of_everything(tmp_path):
    with engines(chat) as (engine,), proxy(tmp_path, table(engine), body_limit=1_000_000) as running:

        def answer(*pieces):
            with running.dial() as client:
                with contextlib.suppress(ConnectionError):
                    for piece in pieces:
                        client.send(piece)
                return client.rest()[:13]

        head = b"POST %s HTTP/1.1\r\nHost: p\r\n" % CHAT.encode()
        assert answer(head + b"X-Large: " + b"a" * 1_000_000 + b"\r\n\r\n") == b"HTTP/1.1 431 "
        assert answer(head + b"X: y\r\n" * 200_000 + b"\r\n") == b"HTTP/1.1 431 "
        # Before the body is read, and without a 100 that would ask for it.
        assert answer(head + b"Content-Length: 1000001\r\nExpect: 100-continue\r\n\r\n") == b"HTTP/1.1 413 "
        assert answer(head + b"Content-Length: 1000001\r\n\r\n", b"x" * 1_000_001) == b"HTTP/1.1 413 "
        chunk = b"%x\r\n%s\r\n" % (200_000, b" " * 200_000)
        assert answer(head + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 6) == b"HTTP/1.1 413 "
        assert answer(b"GET /v1/" + b"a" * 1_000_000) == b"HTTP/1.1 431 "
        assert running.post(ASK)[0] == 200


LONG = b"m" * 900_000


@pytest.mark.parametrize(
    ("body", "statuses"),
    [
        (b'{"model":"' + LONG + b'","messages":[]}', {400, 404}),
        (b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", {200, 400}),
        (b"[" * 100_000 + b"]" * 100_000, {400}),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, {400}),
        (b"[" * 500_000, {400}),
        (b'{"model":"\xff\xfe","messages":[]}', {400}),
        (b'{"model":"m","messages":["\xc3\x28"]}', {200, 400}),
        (b'{"model":"\\ud800"}', {400, 404}),
        (b'{"model":"a\\u0000\\r\\nX-Evil: 1"}', {400, 404}),
        (b'{"model":12}', {400}),
        (b'{"model":null}', {400}),
        (b"", {400}),
        (b"\xff" * 1000, {400}),
        (b'{"model":"m","model":"n"}', {200, 400, 404}),
    ],
)
def test_strange_bodies_are_answered_and_harm_nobody(tmp_path, caplog, body, statuses):
    with engines(chat) as (engine,), proxy(tmp_path, table(engine), allow_anonymous=True) as running:
        status, fields, content = running.post(body)
        assert status in statuses
        assert "x-evil" not in fields
        if status != 200:
            assert set(json.loads(content)["error"]) == {"message", "type", "param", "code"}
            assert len(content) < 10_000
        assert running.post(ASK)[0] == 200
        assert 'pool="m' not in running.admin("GET", "/metrics")[1]
    assert "Traceback" not in caplog.text


def test_a_pool_with_no_member_is_served_as_empty(tmp_path):
    with engines(chat) as (engine,):
        routes = table(engine, endpoints=())
    with proxy(tmp_path, routes) as running:
        status, fields, body = running.post(ASK)
        assert (status, b"Pool has no healthy members" in body) == (503, True)
        assert fields["retry-after"]
        assert running.get("/v1/models")[1]["data"][0]["id"] == "m"


HTTP2_SETTINGS = b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + b"\x00\x03\x00\x00\x00\x80" * 3
TLS_ALERT = b"\x15\x03\x01\x00\x02\x02\x46"


@pytest.mark.parametrize(
    "words",
    [
        HTTP2_SETTINGS,
        TLS_ALERT,
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x00" * 100,
        b"HTTP/0.9 200 OK\r\n\r\n",
        b"OK\n",
    ],
    ids=["http2", "tls", "ssh", "zeros", "http0.9", "words"],
)
@pytest.mark.parametrize("stream", [True, False])
def test_members_that_speak_something_else(tmp_path, words, stream, caplog):
    with engines(lambda call: call.send(words)) as (engine,), proxy(tmp_path, table(engine)) as running:
        status, _, body = running.post({**ASK, "stream": stream})
        assert status == 502
        assert json.loads(body)["error"]["type"] == "upstream_error"
        eventually(lambda: running.started.state.in_flight == 0)
    assert "Traceback" not in caplog.text
