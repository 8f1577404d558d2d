"""Engines of the lab over real sockets."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from gpufleet.lab.simhost import EngineHost
from gpufleet.lab.vllm import engine_connection
from gpufleet.lab.vllm.engine import EngineServer, RunningEngine
from gpufleet.lab.vllm.engine_model import Phase
from gpufleet.lab.vllm.served_engines import ServedEngines
from gpufleet.lab.vllm.spec import EngineSpec, Mode
from gpufleet.redact import Secret

pytestmark = pytest.mark.wire

LOCAL = (("127.0.0.1", 0),)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "How are you?"}]}


@pytest.fixture
def server() -> Iterator[EngineServer]:
    with EngineServer() as made:
        yield made


def spec(**changes: object) -> EngineSpec:
    quick = {"model": "m", "load_seconds": 0.0, "token_seconds": 0.0, **changes}
    return EngineSpec(**quick)  # type: ignore[arg-type]  # fields by name


def until(condition: Callable[[], object]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("waited for 30 seconds in vain")


def url(running: RunningEngine) -> str:
    host, port = running.addresses[0]
    return f"http://{host}:{port}"


def listens(running: RunningEngine) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(running.addresses[0]) == 0


def started(server: EngineServer, **changes: object) -> RunningEngine:
    running = server.start(LOCAL, spec(**changes))
    until(lambda: listens(running))
    return running


def test_it_refuses_while_it_loads_and_then_answers(server):
    running = server.start(LOCAL, spec(load_seconds=0.3))
    assert server.state(running) is Phase.LOADING
    assert not listens(running)
    until(lambda: listens(running))
    assert server.state(running) is Phase.READY
    assert httpx.get(f"{url(running)}/health").status_code == 200
    assert "Application startup complete." in server.log(running)


def test_a_whole_answer_and_a_streamed_one_say_the_same(server):
    running = started(server)
    with httpx.Client(base_url=url(running)) as client:
        whole = client.post("/v1/chat/completions", json=CHAT)
        assert whole.headers["content-length"] == str(len(whole.content))
        with client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as streamed:
            assert streamed.headers["transfer-encoding"] == "chunked"
            lines = [line.removeprefix("data: ") for line in streamed.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    said = "".join(json.loads(line)["choices"][0]["delta"]["content"] for line in lines[:-1])
    assert said == whole.json()["choices"][0]["message"]["content"]
    assert abs(whole.json()["created"] - time.time()) < 3600


def test_keys_and_metrics(server):
    running = started(server, keys=(Secret("k"),))
    assert httpx.get(f"{url(running)}/v1/models").status_code == 401
    assert httpx.get(f"{url(running)}/v1/models", headers={"authorization": "Bearer k"}).status_code == 200
    page = httpx.get(f"{url(running)}/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "vllm:num_requests_running" in page.text


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place_at_once(server, stream):
    running = started(server, token_seconds=3600.0)
    host, port = running.addresses[0]
    body = json.dumps({**CHAT, "stream": stream}).encode()
    with socket.create_connection((host, port)) as client:
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        until(lambda: running.model.running == 1)
    until(lambda: running.model.running == 0)
    assert running.model.counters.finished["abort"] == 1


def test_requests_beyond_the_limit_wait_and_move_up(server):
    running = started(server, token_seconds=3600.0, max_num_seqs=1)
    body = json.dumps({**CHAT, "stream": True}).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )
    clients = [socket.create_connection(running.addresses[0]) for _ in range(3)]
    for client in clients:
        client.sendall(request)
    until(lambda: (running.model.running, running.model.waiting) == (1, 2))
    page = httpx.get(f"{url(running)}/metrics").text
    assert 'vllm:num_requests_waiting{engine="0",model_name="m"} 2.0' in page
    clients[0].close()
    until(lambda: (running.model.running, running.model.waiting) == (1, 1))
    clients[2].close()
    until(lambda: (running.model.running, running.model.waiting) == (1, 0))
    clients[1].close()
    until(lambda: running.model.running == 0)
    assert running.model.counters.finished["abort"] == 3


def test_pipelined_requests_are_answered_in_order_and_close_is_obeyed(server):
    running = started(server)
    with socket.create_connection(running.addresses[0]) as client:
        client.sendall(
            b"GET /version HTTP/1.1\r\nhost: x\r\n\r\nGET /nothing HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert [part.split(b"\r\n")[0] for part in answer.split(b"HTTP/1.1 ")[1:]] == [
        b"200 OK",
        b"404 Not Found",
    ]


@pytest.mark.parametrize("garbage", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n"])
def test_what_is_not_http_is_refused_and_closed(server, garbage):
    running = started(server)
    with socket.create_connection(running.addresses[0]) as client:
        client.sendall(garbage)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")


def post(body: bytes, *headers: bytes) -> bytes:
    lines = [b"POST /v1/chat/completions HTTP/1.1", b"host: x", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def test_a_client_that_asks_first_is_told_to_continue(server):
    running = started(server)
    body = json.dumps(CHAT).encode()
    with socket.create_connection(running.addresses[0]) as client:
        client.sendall(post(body, b"expect: 100-continue", b"connection: close"))
        assert client.recv(64) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(body)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_body_over_the_limit_is_refused(server, monkeypatch):
    monkeypatch.setattr(engine_connection, "BODY_LIMIT", 100)
    running = started(server)
    with socket.create_connection(running.addresses[0]) as client:
        client.sendall(post(b"x" * 101) + b"x" * 101)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_slow_reader_gets_every_byte_and_holds_nobody_up(server):
    running = started(server)
    body = json.dumps({**CHAT, "stream": True, "max_tokens": 20_000, "ignore_eos": True}).encode()
    with socket.create_connection(running.addresses[0]) as client:
        client.sendall(post(body, b"connection: close") + body)
        until(lambda: running.model.running == 1)
        assert httpx.get(f"{url(running)}/health").status_code == 200
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.count(b"data: {") == 20_001
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    until(lambda: running.model.counters.finished["length"] == 1)


def test_an_engine_that_hangs_is_healthy_and_silent(server):
    running = started(server, mode=Mode.HANG)
    assert httpx.get(f"{url(running)}/health").status_code == 200
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url(running)}/v1/chat/completions", json=CHAT, timeout=0.3)
    until(lambda: running.model.running == 0)


def test_a_killed_engine_resets_its_streams_and_refuses_afterwards(server):
    running = started(server, token_seconds=0.01)
    body = {**CHAT, "stream": True, "max_tokens": 30_000, "ignore_eos": True}
    with httpx.stream("POST", f"{url(running)}/v1/chat/completions", json=body) as streamed:
        chunks = streamed.iter_raw()
        next(chunks)
        address = running.addresses[0]
        server.stop(running, status=137)
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            list(chunks)
    with socket.socket() as probe:
        assert probe.connect_ex(address) != 0
    assert server.exit_code(running) == 137
    assert server.state(running) is Phase.EXITED


def test_a_crash_ends_before_it_listens(server):
    running = server.start(LOCAL, spec(mode=Mode.CRASH, load_seconds=0.1))
    until(lambda: server.exit_code(running) == 1)
    assert "No available memory for the cache blocks" in server.log(running)


def test_a_port_that_is_taken_ends_the_engine(server):
    first = started(server)
    second = server.start((first.addresses[0],), spec())
    until(lambda: server.exit_code(second) == 1)
    assert "Address already in use" in server.log(second)
    assert httpx.get(f"{url(first)}/health").status_code == 200


def test_modes_change_while_it_runs(server):
    running = started(server)
    server.change_mode(running, Mode.UNHEALTHY)
    until(lambda: httpx.get(f"{url(running)}/health").status_code == 503)


def test_many_engines_in_one_process(server):
    all_of_them = [started(server, served_names=(f"m{number}",)) for number in range(20)]
    names = [httpx.get(f"{url(running)}/v1/models").json()["data"][0]["id"] for running in all_of_them]
    assert names == [f"m{number}" for number in range(20)]


def test_a_restart_takes_the_same_port(server):
    running = started(server)
    httpx.get(f"{url(running)}/health")
    address = running.addresses[0]
    server.stop(running)
    again = server.start((address,), spec())
    until(lambda: listens(again))
    assert again.addresses[0] == address


def test_the_engine_host_of_simulated_hosts(server):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    engines: EngineHost = ServedEngines(server, spec())

    def ask(path: str, body: bytes = b"") -> tuple[int, bytes]:
        method = "POST" if body else "GET"
        status, _, pieces = engines.http(
            "c1", method, path, {"Authorization": "Bearer k"}, body, sleep=time.sleep
        )
        return status, b"".join(pieces)

    engines.launch("c1", ("vllm", "serve", "m"), {"VLLM_API_KEY": "k"}, (f"127.0.0.1:{port}",))
    until(lambda: httpx_answers(port))
    status, content = ask("/v1/models")
    assert (status, json.loads(content)["data"][0]["id"]) == (200, "m")
    assert ask("/v1/chat/completions", json.dumps({**CHAT, "stream": True}).encode())[1].endswith(
        b"data: [DONE]\n\n"
    )
    assert engines.alive("c1") is None
    engines.end("c1")
    assert engines.alive("c1") == 0
    with pytest.raises(ConnectionRefusedError):
        ask("/health")
    assert "Shutting down" in engines.logs("c1")


def httpx_answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
    except httpx.TransportError:
        return False


def test_a_container_that_is_no_engine_lives_and_says_nothing(server):
    engines = ServedEngines(server)
    engines.launch("c1", ("sleep", "infinity"), {}, ())
    assert (engines.alive("c1"), engines.logs("c1")) == (None, "")
    engines.end("c1")
    assert engines.alive("c1") == 0


def test_leaving_an_in_process_answer_is_an_abort(server):
    running = started(server, mode=Mode.HANG)
    engines = ServedEngines(server, engines={"c1": running})
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            raise TimeoutError

    status, _, pieces = engines.http(
        "c1", "POST", "/v1/chat/completions", {}, json.dumps(CHAT).encode(), sleep=sleep
    )
    assert status == 200
    with pytest.raises(TimeoutError):
        list(pieces)
    until(lambda: running.model.counters.finished["abort"] == 1)
