"""The same messages said to nginx and HAProxy: what both refuse is refused here too.

Both run on loopback in front of an engine of the suite, from configurations of their own; the services that Debian's
packages bring have no part in it. Where both let a message through and it is refused here, the reason stands in
`STRICTER`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.engines import Call, ScriptedEngine, engines
from tests.kit.http1_table import Row, requests
from tests.kit.proxies import RawClient, eventually

PATHS = "/usr/sbin:/usr/local/sbin:" + os.environ.get("PATH", "")
NGINX, HAPROXY = shutil.which("nginx", path=PATHS), shutil.which("haproxy", path=PATHS)
pytestmark = [
    pytest.mark.wire,
    pytest.mark.skipif(NGINX is None or HAPROXY is None, reason="nginx and haproxy are not both installed"),
]

STRICTER = {
    "absolute URL": re.compile(rb"[A-Z]+ https?://"),
    "an unknown method": re.compile(rb"(?:GETT|BREW|G{30}) "),
    "a field that may stand once": re.compile(rb"(?is).*\r\n(authorization|content-type|expect):.*\r\n\1:"),
    "an empty line that is no CRLF": re.compile(rb"(?s)[\r\n]|.*[^\r]\n"),
    "a sign that is no part of a Host": re.compile(
        rb"(?s).*\r\nHost:[^\r]*[^\x21-\x7e\r ][^\r]*\r|.*\r\nHost: ?[^\r]*[@#?:,\\\[/ ]"
    ),
    "an expectation nobody knows": re.compile(rb"(?s).*\r\nExpect:"),
    "a byte that is no text in a field": re.compile(rb"(?s).*[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"),
    "a blank behind a coding or a chunk's size": re.compile(rb"(?s).*(?:chunked|\n5)[ \t]+\r\n"),
    "a line of the framing over 1 KiB, or a size of more than 15 digits": re.compile(
        rb"(?s).*(?:[x0y]{1000}|\n0{15}5\r)"
    ),
    "a trailer that is no field": re.compile(rb"(?s).*\r\n0\r\n.+\r\n\r\n"),
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def running(command: list[str], port: int, folder: Path) -> Iterator[int]:
    """A server in the foreground, ended by its own pid."""
    log = folder / f"{Path(command[0]).name}.log"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
        try:
            eventually(lambda: server.poll() is not None or listens(port))
            assert server.poll() is None, log.read_text()
            yield port
        finally:
            server.terminate()


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def nginx(folder: Path, engine: ScriptedEngine) -> tuple[list[str], int]:
    port = free_port()
    temporary = "\n".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(f"""
daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr crit;
events {{ worker_connections 256; }}
http {{
  access_log off; {temporary}
  client_max_body_size 64; large_client_header_buffers 4 64k; client_body_timeout 2s; client_header_timeout 2s;
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://127.0.0.1:{engine.port}; proxy_http_version 1.1; }}
  }}
}}
""")
    return [str(NGINX), "-p", str(folder), "-c", str(folder / "nginx.conf")], port


def haproxy(folder: Path, engine: ScriptedEngine) -> tuple[list[str], int]:
    port = free_port()
    (folder / "haproxy.cfg").write_text(f"""
global
  tune.bufsize 98304
defaults
  mode http
  timeout connect 5s
  timeout client 2s
  timeout server 5s
  timeout http-request 2s
  option http-buffer-request
frontend front
  bind 127.0.0.1:{port}
  default_backend engine
backend engine
  server engine 127.0.0.1:{engine.port}
""")
    return [str(HAPROXY), "-db", "-f", str(folder / "haproxy.cfg")], port


def first_status(port: int, message: bytes) -> int:
    """Of the first final answer; 400 when the server closes without one, 0 when it waits for more."""
    with RawClient(socket.create_connection(("127.0.0.1", port), timeout=0.7)) as client:
        try:
            client.send(message)
            while True:
                head = client.until(b"\r\n\r\n")
                status = int(head.split(b" ", 2)[1])
                if status >= 200:
                    return status
        except TimeoutError:
            return 0
        except (OSError, AssertionError):
            return 400


def refuses(status: int) -> bool:
    return status in {400, 408, 413, 414, 417, 422, 431, 501, 505}


def first(row: Row) -> str:
    """What the table says of the first message."""
    words = [word for word in row.answer.split() if word != ">"]
    return words[0] if words else "?"


def test_what_both_refuse_is_refused_and_what_is_refused_alone_has_its_reason(tmp_path):
    def ok(call: Call) -> None:
        call.answer(b"{}")

    rows = [row for row in requests() if first(row) != "?"]
    with engines(ok) as (engine,), contextlib.ExitStack() as servers:
        ports = [
            servers.enter_context(running(*make(tmp_path, engine), tmp_path)) for make in (nginx, haproxy)
        ]
        agreed, alone, looser, used = 0, [], [], set()
        for row in rows:
            theirs = [refuses(first_status(port, row.message)) for port in ports]
            ours = first(row)[0] != "+"
            agreed += theirs[0] == theirs[1] == ours
            if all(theirs) and not ours:
                looser.append(row.name)
            if not any(theirs) and ours:
                reasons = {reason for reason, rule in STRICTER.items() if rule.match(row.message)}
                used |= reasons
                alone += [] if reasons else [row.name]
    assert looser == []
    assert alone == []
    assert used == set(STRICTER)
    assert agreed >= 150
