"""Engines behind TLS: verified, or not asked."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl

import pytest

from gpufleet.pools.routes import EndpointRoute, PoolRoute, RouteTable
from gpufleet.proxy.decide.health import HealthRules
from gpufleet.proxy.run.member import split_url
from gpufleet.proxy.run.tls import members_context
from tests.kit.certificates import certificate
from tests.kit.engines import CHAT_ANSWER, ScriptedEngine, chat
from tests.kit.proxies import eventually, proxy

pytestmark = pytest.mark.wire
ASK = {"model": "m", "messages": []}


class TlsEngine(ScriptedEngine):
    """Its connections are wrapped; a handshake that fails ends them."""

    context: ssl.SSLContext

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            super()._serve(self.context.wrap_socket(sock, server_side=True))
        sock.close()


def routes(url: str) -> RouteTable:
    return RouteTable(
        generation=1,
        pools=(PoolRoute(name="chat", models=("m",), endpoints=(EndpointRoute(id="h/0", url=url),)),),
    )


@pytest.fixture
def engine(tmp_path, monkeypatch):
    public, private = certificate(tmp_path, "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(public))
    members_context.cache_clear()
    made = TlsEngine(chat)
    made.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.context.load_cert_chain(public, private)
    yield made
    made.close()
    members_context.cache_clear()


@pytest.mark.parametrize("uvloop", [True, False])
def test_an_engine_behind_tls_serves_short_long_and_streamed(tmp_path, engine, uvloop):
    rules = HealthRules(every=0.05)
    with proxy(tmp_path, routes(f"https://localhost:{engine.port}"), uvloop=uvloop, health=rules) as running:
        for _ in range(3):
            assert running.post(ASK)[2] == CHAT_ANSWER
        large = json.dumps({**ASK, "pad": "x" * 3_000_000}).encode()
        assert running.post(large)[0] == 200
        assert engine.calls[-1].body == large
        assert running.post({**ASK, "stream": True})[2].endswith(b"data: [DONE]\n\n")
        assert engine.connections == 1
        eventually(
            lambda: running.admin("GET", "/admin/members")[1]["pools"][0]["members"][0]["health"] == "up"
        )


@pytest.mark.parametrize("wrong", ["name", "authority"])
def test_an_engine_whose_certificate_is_not_good_is_not_asked(tmp_path, engine, monkeypatch, wrong):
    if wrong == "authority":
        (tmp_path / "other").mkdir()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate(tmp_path / "other", "localhost")[0]))
        members_context.cache_clear()
    host = "127.0.0.1" if wrong == "name" else "localhost"
    with proxy(tmp_path, routes(f"https://{host}:{engine.port}")) as running:
        assert running.post(ASK)[0] == 503
    assert engine.calls == []


def test_where_a_member_is():
    assert split_url("https://Host.lan") == ("host.lan", 443)
    assert split_url("http://Host.lan") == ("host.lan", 80)
    assert split_url("https://[::1]:8443/") == ("::1", 8443)
    for wrong in ("ftp://h:1", "https://h:0", "https://u@h", "https://h/x", "httpss://h"):
        with pytest.raises(ValueError, match="https://HOST:PORT"):
            split_url(wrong)
