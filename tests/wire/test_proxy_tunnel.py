"""Members behind SSH: real OpenSSH, real forwards, and the whole command in front of them."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

import pytest

from gpufleet.cli.proxy_reach import Reach
from gpufleet.errors import CannotServe, HostUnreachable
from gpufleet.names import HostName
from gpufleet.pools.routes import decode, encode
from gpufleet.remote.ssh.transport import SshTransport
from gpufleet.remote.tunnel import Forwarding, Tunnel
from tests.kit.engines import PATIENCE, chat, engines
from tests.kit.proxies import eventually, proxy, table, write

pytestmark = pytest.mark.wire
ASK = {"model": "m", "messages": []}


@contextlib.contextmanager
def hosts(server, names=("gpu-0", "gpu-1")):
    targets = {HostName(name): server.target(name) for name in names}
    with contextlib.closing(SshTransport(targets)) as transport:
        yield transport


def test_a_stream_and_a_departure_pass_through_a_tunnel(tmp_path, sshd):
    left = threading.Event()

    def script(call):
        if b"stay" not in call.body:
            chat(call)
            return
        call.start_stream()
        call.event("one")
        if call.wait_gone():
            left.set()

    routes = tmp_path / "source.json"
    target = tmp_path / "led.json"
    with engines(script) as (engine,), hosts(sshd) as transport:
        routes.write_bytes(encode(table(engine)))
        reach = Reach(transport, routes, routes_from="", tunnel=True, target=target)
        with contextlib.closing(reach):
            reach.start()
            led = decode(target.read_bytes())
            (endpoint,) = led.pools[0].endpoints
            assert endpoint.url.startswith("http://127.0.0.1:")
            assert endpoint.url != engine.url
            with proxy(tmp_path, led) as running:
                status, _, body = running.post({**ASK, "stream": True})
                assert (status, body.count(b"data:")) == (200, 4)
                assert running.post({**ASK, "filler": "x" * 1_000_000})[0] == 200
                with running.dial() as client:
                    client.ask({**ASK, "stream": True, "stay": 1})
                    client.until(b"one")
                assert left.wait(PATIENCE)  # who leaves is seen by the engine, through SSH too
            routes.write_bytes(encode(table(engine, generation=2, endpoints=())))
            eventually(lambda: decode(target.read_bytes()).generation == 2)
            with pytest.raises(OSError, match="refused"):
                socket.create_connection(
                    ("127.0.0.1", int(endpoint.url.rpartition(":")[2])), timeout=PATIENCE
                )
        assert len(engine.calls) == 3


def test_routes_come_from_a_host(tmp_path, sshd, monkeypatch):
    home = tmp_path / "home"
    (home / ".gpufleet").mkdir(parents=True)
    target = tmp_path / "taken.json"
    with engines(chat) as (engine,), hosts(sshd) as transport:
        reach = Reach(transport, tmp_path / "none", routes_from="gpu-1", tunnel=False, target=target)
        reach_command = f'cat "{home}/.gpufleet/routes.json"'
        monkeypatch.setattr(
            "gpufleet.cli.proxy_reach._READ", reach_command
        )  # not the home of whoever runs this
        monkeypatch.setattr("gpufleet.cli.proxy_reach._PERIOD", 0.05)
        with contextlib.closing(reach):
            with pytest.raises(CannotServe, match="no route table on this host"):
                reach.start()
            write(home / ".gpufleet" / "routes.json", table(engine))
            reach.start()
            assert decode(target.read_bytes()) == table(engine)
            write(home / ".gpufleet" / "routes.json", table(engine, generation=7))
            eventually(lambda: decode(target.read_bytes()).generation == 7)
            write(home / ".gpufleet" / "routes.json", b"{")
            write(home / ".gpufleet" / "routes.json", table(engine, generation=8))
            eventually(lambda: decode(target.read_bytes()).generation == 8)


def test_a_far_end_that_is_not_there_is_said_once(sshd):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    said: list[str] = []
    with hosts(sshd) as transport:
        session = transport.open(HostName("gpu-0"))
        assert isinstance(session, Forwarding)
        with pytest.raises(HostUnreachable, match="was not reached from this host"):
            session.forward("127.0.0.1", port)
        with contextlib.closing(Tunnel(lambda: session.forward("127.0.0.1", port), said.append)) as tunnel:
            for _ in range(3):
                address = ("127.0.0.1", tunnel.port)
                with (
                    socket.create_connection(address, timeout=PATIENCE) as client,
                    contextlib.suppress(ConnectionResetError),
                ):
                    assert client.recv(1) == b""
    assert len(said) == 1
    assert json.dumps(said[0]).isprintable()
