"""`gpufleet proxy` as a process: serves, says where, drains and ends with 0; refuses with 12."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.engines import CHAT_ANSWER, PATIENCE, engines
from tests.kit.engines import chat as ordinary
from tests.kit.proxies import CHAT, eventually, refuses, table, write

pytestmark = pytest.mark.wire
ROOT = Path(__file__).parents[2]
ASK = {"model": "m", "messages": []}


def command(state: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "gpufleet", "--state-dir", str(state), *words]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


def gpufleet(state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(state, *words),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        env=ENVIRONMENT,
    )


@contextmanager
def serving(state: Path, *words: str):
    """A proxy process and its two addresses."""
    process = subprocess.Popen(
        command(state, "proxy", "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    guard = threading.Timer(60, process.kill)
    guard.start()
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://(127\.0\.0\.1):(\d+)/v1, status at http://127\.0\.0\.1:(\d+)/", line)
        assert found, line
        yield process, int(found[2]), int(found[3])
    finally:
        guard.cancel()
        if process.poll() is None:
            process.kill()
        process.communicate()


def post(port: int, **fields: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("POST", CHAT, json.dumps(ASK), fields)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def test_serve_with_a_token_status_and_sigterm(tmp_path):
    with engines(ordinary) as (engine,):
        write(tmp_path / "routes.json", table(engine))
        key = gpufleet(tmp_path, "token", "create", "demo").stdout.strip()
        with serving(tmp_path) as (process, port, admin):
            assert post(port)[0] == 401
            assert post(port, Authorization=f"Bearer {key}") == (200, CHAT_ANSWER)
            status = json.loads(
                gpufleet(tmp_path, "proxy", "status", "--admin", f"127.0.0.1:{admin}", "-o", "json").stdout
            )
            assert status["pools"][0]["members"][0]["replica"] == "gpu-0/0"
            assert "gpu-0/0" in gpufleet(tmp_path, "proxy", "status", "--admin", f"127.0.0.1:{admin}").stdout
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
            assert key not in process.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_in_flight_ends_before_the_process(tmp_path, number):
    gate = threading.Event()

    def waiting(call):
        assert gate.wait(PATIENCE)
        call.answer()

    with engines(waiting) as (engine,):
        write(tmp_path / "routes.json", table(engine))
        with serving(tmp_path, "--allow-anonymous") as (process, port, _):
            answers = []
            asking = threading.Thread(target=lambda: answers.append(post(port)))
            asking.start()
            eventually(lambda: engine.calls)
            process.send_signal(number)
            eventually(lambda: refuses("127.0.0.1", port))
            assert process.poll() is None
            gate.set()
            asking.join(PATIENCE)
            assert answers == [(200, CHAT_ANSWER)]
            assert process.wait(PATIENCE) == 0


def test_a_second_signal_does_not_wait(tmp_path):
    body = json.dumps(ASK).encode()
    with engines(lambda call: call.engine.gone.append(call.wait_gone())) as (engine,):
        write(tmp_path / "routes.json", table(engine))
        with (
            serving(tmp_path, "--allow-anonymous") as (process, port, _),
            socket.create_connection(("127.0.0.1", port)) as client,
        ):
            client.sendall(
                b"POST %s HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\n\r\n%s"
                % (CHAT.encode(), len(body), body)
            )
            eventually(lambda: engine.calls)
            process.send_signal(signal.SIGINT)
            eventually(lambda: refuses("127.0.0.1", port))
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0
        eventually(lambda: engine.gone == [True])


def test_nothing_to_serve_is_12(tmp_path):
    ended = gpufleet(tmp_path, "proxy", "serve", "-o", "json")
    assert ended.returncode == 12
    assert json.loads(ended.stdout)["error"]["code"] == "cannot-serve"
    assert gpufleet(tmp_path, "proxy", "check").returncode == 12


def test_a_taken_port_is_12_and_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken, engines(ordinary) as (engine,):
        write(tmp_path / "routes.json", table(engine))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = gpufleet(tmp_path, "proxy", "serve", "--listen", address)
        assert ended.returncode == 12
        assert address in ended.stderr
        assert "Traceback" not in ended.stderr


def test_check_says_what_would_be_served(tmp_path):
    with engines(ordinary) as (engine,):
        write(tmp_path / "routes.json", table(engine))
        ended = json.loads(gpufleet(tmp_path, "proxy", "check", "-o", "json").stdout)
        (pool,) = ended["pools"]
        assert (pool["pool"], pool["algorithm"], pool["models"], pool["members"]) == (
            "chat",
            "round-robin",
            ["m"],
            1,
        )
        assert pool["endpoints"] == [
            {"replica": "gpu-0/0", "endpoint": engine.url, "weight": 1, "state": "active", "key": False}
        ]
        write(tmp_path / "routes.json", table(engine, algorithm="magic"))
        refused = gpufleet(tmp_path, "proxy", "check")
        assert refused.returncode == 12
        assert "`magic` is not one of" in refused.stderr


def test_status_without_a_proxy_is_12(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    ended = gpufleet(tmp_path, "proxy", "status", "--admin", f"127.0.0.1:{port}")
    assert ended.returncode == 12
    assert "proxy serve" in ended.stderr


@pytest.mark.parametrize("address", ["8080", "host", "127.0.0.1:99999", "::1:80"])
def test_an_address_that_is_none_is_a_usage_error(tmp_path, address):
    ended = gpufleet(tmp_path, "proxy", "serve", "--listen", address)
    assert ended.returncode == 2
    assert "--listen" in ended.stderr


def test_settings_of_a_file_and_options_that_win_over_it(tmp_path):
    with engines(ordinary) as (engine,):
        write(tmp_path / "routes.json", table(engine))
        config = tmp_path / "proxy.yaml"
        config.write_text(
            "version: 1\nlisten: 127.0.0.1:1\nadmin: '127.0.0.1:0'\nallow_anonymous: true\nworkers: 1\n"
            "timeouts: {first_byte: 60}\nhealth: {every: 1, eject_after: 9}\n"
        )
        with serving(tmp_path, "--config", str(config)) as (process, port, _admin):
            assert port != 1
            assert post(port)[0] == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        checked = json.loads(
            gpufleet(tmp_path, "-o", "json", "proxy", "check", "--config", str(config)).stdout
        )
        assert (checked["listen"], checked["config"]) == ("127.0.0.1:1", str(config))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("workers: 0", "workers"),
        ("listen: nowhere", "listen"),
        ("lissten: 127.0.0.1:1", "listen"),
        ("timeouts: {first_byte: soon}", "first_byte"),
        ("version: 2", "version"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path, line, why):
    config = tmp_path / "proxy.yaml"
    config.write_text(f"drain: 5\n{line}\n")
    ended = gpufleet(tmp_path, "proxy", "check", "--config", str(config))
    assert ended.returncode == 2
    assert f"{config}:2" in ended.stderr
    assert why in ended.stderr
    assert "Traceback" not in ended.stderr
