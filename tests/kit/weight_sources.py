"""HTTP servers that behave like sources of weights: the hub with its storage host, and their troubles."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def blob_id(content: bytes) -> str:
    """What git calls this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@dataclass
class Served:
    """What a server has and how it behaves.

    Attributes:
        files: content by path.
        token: wanted from whoever asks; empty lets everybody in.
        gated: the token's owner may list and not read.
        cut: bytes after which an answer is broken off, as often as it says; by path.
        held: paths whose answer stops after a byte, until the event is set.
        ranges: whether a part may be asked for.
        asked: method, path and headers of every request.
    """

    files: dict[str, bytes]
    token: str = ""
    gated: bool = False
    cut: dict[str, list[int]] = field(default_factory=dict)
    held: dict[str, threading.Event] = field(default_factory=dict)
    ranges: bool = True
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    storage: str = ""
    url: str = ""

    def reads(self, path: str) -> int:
        """How often a file was asked for by GET."""
        return sum(
            method == "GET" and unquote(urlsplit(where).path).endswith(f"/{path}")
            for method, where, _ in self.asked
        )


class _Base(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Served

    def log_message(self, _form: str, *args: object) -> None:
        """Nothing is printed."""

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def give(self, path: str, content: bytes) -> None:
        """A file, whole or from an offset, broken off when it is to be."""
        start, status = 0, 200
        asked = self.headers.get("range", "")
        if asked.startswith("bytes=") and self.served.ranges:
            first, _, last = asked[6:].partition("-")
            start, status = int(first), 206
            if start >= len(content):
                self.answer(416)
                return
            content = content[: int(last) + 1] if last else content
        body = content[start:]
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        if status == 206:
            self.send_header("content-range", f"bytes {start}-{start + len(body) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if path in self.served.held:
            self.wfile.write(body[:1])
            self.wfile.flush()
            self.served.held[path].wait(60)
            self.close_connection = True
            return
        cuts = self.served.cut.get(path)
        if cuts:
            self.wfile.write(body[: cuts.pop(0)])
            self.wfile.flush()
            self.close_connection = True
            return
        self.wfile.write(body)


class _Storage(_Base):
    """Where the hub redirects to; it must never see the hub's token."""

    def do_GET(self) -> None:
        self.served.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        path = unquote(urlsplit(self.path).path)[1:]
        if path not in self.served.files:
            self.answer(404)
        else:
            self.give(path, self.served.files[path])

    do_HEAD = do_GET  # noqa: N815  the name that http.server calls


class _Hub(_Base):
    """`/api/models/org/name/...` and `/org/name/resolve/COMMIT/PATH`."""

    def do_GET(self) -> None:
        served = self.served
        served.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        told = self.headers.get("authorization", "")
        if served.token and told != f"Bearer {served.token}":
            self.answer(401, b'{"error":"Invalid username or password."}')
            return
        if not path.startswith(("/api/models/org/name/", "/org/name/resolve/")):
            self.answer(404 if served.token else 401, b"{}", X_Error_Code="RepoNotFound")
        elif path.startswith("/api/models/org/name/revision/"):
            if path.rpartition("/")[2] not in {"main", COMMIT}:
                self.answer(404, b"{}", X_Error_Code="RevisionNotFound")
            else:
                self.answer(200, json.dumps({"sha": COMMIT, "gated": "auto"}).encode())
        elif path.startswith("/api/models/org/name/tree/"):
            self._tree(parse_qs(parts.query))
        else:
            self._resolve(path.partition(f"/resolve/{COMMIT}/")[2])

    do_HEAD = do_GET  # noqa: N815  the name that http.server calls

    def _tree(self, query: dict[str, list[str]]) -> None:
        """Two pages, so that the second is asked for."""
        names = sorted(self.served.files)
        half = len(names) // 2
        page = names[half:] if "cursor" in query else names[:half]
        entries = [{"type": "directory", "path": "sub", "oid": "0" * 40, "size": 0}]
        for name in page:
            content = self.served.files[name]
            entry: dict[str, object] = {
                "type": "file",
                "path": name,
                "size": len(content),
                "oid": blob_id(content),
            }
            if name.endswith((".safetensors", ".bin")):
                entry |= {
                    "lfs": {
                        "oid": hashlib.sha256(content).hexdigest(),
                        "size": len(content),
                        "pointerSize": 130,
                    }
                }
            entries.append(entry)
        link = {} if "cursor" in query else {"Link": f'<{self.served.url}{self.path}&cursor=2>; rel="next"'}
        self.answer(200, json.dumps(entries).encode(), **link)

    def _resolve(self, path: str) -> None:
        content = self.served.files.get(path)
        if self.served.gated:
            self.answer(403, b"Access to model org/name is restricted", X_Error_Code="GatedRepo")
        elif content is None:
            self.answer(404, b"", X_Error_Code="EntryNotFound")
        elif path.endswith((".safetensors", ".bin")) and self.served.storage:
            self.answer(302, b"", Location=f"{self.served.storage}/{path}?signature=abc")
        else:
            self.give(path, content)


@contextmanager
def _serving(kind: type[_Base], served: Served) -> Iterator[Served]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (kind,), {"served": served}))
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def hub(files: dict[str, bytes], **more: object) -> Iterator[tuple[Served, Served]]:
    """A hub with the model `org/name`, and the storage that it redirects to."""
    with _serving(_Storage, Served(files=dict(files))) as storage:
        served = Served(files=dict(files), storage=storage.url, **more)  # type: ignore[arg-type]  # fields by name
        with _serving(_Hub, served):
            yield served, storage


@contextmanager
def plain(files: dict[str, bytes], **more: object) -> Iterator[Served]:
    """Files at an address, as a neighbour or a bucket gives them."""
    with _serving(_Storage, Served(files=dict(files), **more)) as served:  # type: ignore[arg-type]  # fields by name
        yield served
