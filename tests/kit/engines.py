"""Engines that do exactly what a test says, on real sockets: slow, cut, lying, hanging, resetting."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

CHAT_ANSWER = b'{"id":"chatcmpl-1","object":"chat.completion","choices":[]}'
PATIENCE = 20.0
"""Seconds that anything may take before a test gives up; nothing here waits that long when all is well."""


@dataclass
class Call:
    """One request as it arrived, and the socket to answer on."""

    engine: ScriptedEngine
    sock: socket.socket
    head: bytes
    body: bytes

    def send(self, content: bytes) -> None:
        self.sock.sendall(content)

    def answer(self, body: bytes = CHAT_ANSWER, status: bytes = b"200 OK", fields: bytes = b"") -> None:
        self.send(
            b"HTTP/1.1 %s\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s"
            % (status, fields, len(body), body)
        )

    def start_stream(self) -> None:
        self.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

    def event(self, word: str) -> None:
        self.chunk(b"data: " + json.dumps({"choices": [{"delta": {"content": word}}]}).encode() + b"\n\n")

    def chunk(self, content: bytes) -> None:
        self.send(b"%x\r\n%s\r\n" % (len(content), content))

    def end_stream(self) -> None:
        self.chunk(b"data: [DONE]\n\n")
        self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def wait_gone(self) -> bool:
        """True when the proxy closed this connection."""
        self.sock.settimeout(PATIENCE)
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False


def chat(call: Call) -> None:
    """An ordinary engine: a whole answer, or three words of a stream."""
    if b'"stream":true' not in call.body.replace(b" ", b""):
        call.answer()
        return
    call.start_stream()
    for word in ("one", "two", "three"):
        call.event(word)
    call.end_stream()


@dataclass
class ScriptedEngine:
    """Answers /health and /metrics by itself; every other request goes to `script`, one thread a connection."""

    script: Callable[[Call], None] = chat
    healthy: bool = True
    page: bytes | None = None
    calls: list[Call] = field(default_factory=list)
    gone: list[bool] = field(default_factory=list)
    connections: int = 0

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Refuse new connections and cut those that are open."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in tuple(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        self._open.add(sock)
        counted = False
        buffer = b""
        with contextlib.suppress(OSError), sock:
            while True:
                while b"\r\n\r\n" not in buffer:
                    received = sock.recv(65536)
                    if not received:
                        return
                    buffer += received
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                length = next(
                    (
                        int(line[15:])
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-length:")
                    ),
                    0,
                )
                while len(buffer) < length:
                    buffer += sock.recv(262144)
                call = Call(self, sock, head, buffer[:length])
                buffer = buffer[length:]
                if head.startswith(b"GET /health"):
                    call.answer(b"", b"200 OK" if self.healthy else b"503 Service Unavailable")
                    continue
                if head.startswith(b"GET /metrics"):
                    call.answer(self.page or b"", b"404 Not Found" if self.page is None else b"200 OK")
                    continue
                if not counted:
                    counted, self.connections = True, self.connections + 1
                self.calls.append(call)
                self.script(call)
        self._open.discard(sock)


@contextlib.contextmanager
def engines(*scripts: Callable[[Call], None]) -> Iterator[list[ScriptedEngine]]:
    """One engine for each script."""
    made = [ScriptedEngine(script) for script in scripts]
    try:
        yield made
    finally:
        for engine in made:
            engine.close()
