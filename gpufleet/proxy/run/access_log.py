"""The access log: one JSON object a line for each request, written by a thread, so that no client waits for a disk.

Every failure is written and a share of what went well. What is written never holds a key, a query or a body: names and
numbers only. When the buffer is full, because the disk is slower than the clients, lines are dropped and counted. A file
that was moved away (logrotate) is opened anew; several processes append whole lines to one file.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import os
import re
from pathlib import Path

import msgspec

from gpufleet.proxy.run.state import ProxyState
from gpufleet.proxy.wire.heads import RequestHead
from gpufleet.tokens.model import Principal

_LOG = logging.getLogger("gpufleet.proxy")
_PERIOD = 0.2
_MOST = 20_000
_TRACE = re.compile(rb"\ntraceparent:[ \t]*[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-", re.IGNORECASE)
_STANDARD_OUTPUT = 1


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. Times in milliseconds; `user` is the name of the key, never the key."""

    time: str
    request_id: str
    status: int
    method: str
    path: str
    user: str
    pool: str = ""
    endpoint: str = ""
    stream: bool = False
    duration_ms: float = 0.0
    first_byte_ms: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    trace_id: str = ""


class AccessLog:
    """Lines that wait, and the file they go to. `share` of the requests that went well is written, evenly."""

    def __init__(self, state: ProxyState, path: str, share: float) -> None:
        self._state = state
        self._path = path
        self._share = share
        self._owed = 0.0
        self._waiting: list[Line] = []
        self._descriptor = _STANDARD_OUTPUT if path == "-" else -1
        self._mark = (0, 0)
        self._trouble = ""
        self._epoch = state.wall - state.loop.time()
        """Seconds since 1970 when the loop's time was 0."""

    def open(self) -> None:
        """Raises `OSError`."""
        if self._path == "-":
            return
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        status = os.fstat(descriptor)
        self.close()
        self._descriptor, self._mark = descriptor, (status.st_dev, status.st_ino)

    def wants(self, status: int) -> bool:
        """Whether this request is to be written: asked once for each."""
        if status >= 400:
            return True
        self._owed += self._share
        if self._owed < 1.0:
            return False
        self._owed -= 1.0
        return True

    def note(  # noqa: PLR0917 - one call, in the order of the line
        self,
        head: RequestHead,
        request_id: bytes,
        status: int,
        pool: str = "",
        endpoint: str = "",
        stream: bool = False,  # noqa: FBT001, FBT002 - as in `state.Access`
        started: float | None = None,
        first_byte: float | None = None,
        tokens: dict[str, int] | None = None,
    ) -> None:
        """Keep one line; `started` and `first_byte` are the loop's time."""
        state = self._state
        if len(self._waiting) >= _MOST:
            state.metrics.access_dropped.add()
            return
        now = state.loop.time()
        known = state.directory.identify(head.fields, state.wall)
        trace = _TRACE.search(b"\n" + head.kept)
        self._waiting.append(
            Line(
                time=dt.datetime.fromtimestamp(self._epoch + now, dt.UTC).isoformat(timespec="milliseconds"),
                request_id=request_id.decode("latin-1"),
                status=status,
                method=head.method,
                path=head.target.split(b"?", 1)[0].decode("latin-1")[:200],
                user=known.name if isinstance(known, Principal) else "",
                pool=pool,
                endpoint=endpoint,
                stream=stream,
                duration_ms=round((now - started) * 1000, 3) if started is not None else 0.0,
                first_byte_ms=round((first_byte - started) * 1000, 3) if first_byte and started else None,
                prompt_tokens=(tokens or {}).get("prompt"),
                completion_tokens=(tokens or {}).get("completion"),
                trace_id=trace[1].decode("ascii") if trace is not None else "",
            )
        )

    async def write_for_ever(self) -> None:
        """What waits goes to the file, again and again."""
        while True:
            await asyncio.sleep(_PERIOD)
            if self._waiting:
                await asyncio.to_thread(self._write, self._take())

    def _take(self) -> list[Line]:
        """On the loop's thread, where lines are added."""
        lines, self._waiting = self._waiting, []
        return lines

    def flush(self) -> None:
        """Everything that waits, now."""
        self._write(self._take())

    def _write(self, lines: list[Line]) -> None:
        """A disk that is full is said once."""
        content = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        trouble = ""
        try:
            self._follow_rotation()
            while content:
                content = content[os.write(self._descriptor, content) :]
        except OSError as error:
            trouble = error.strerror or str(error)
            if trouble != self._trouble:
                _LOG.error("the access log cannot be written, lines are lost: %s: %s", self._path, trouble)
        self._trouble = trouble

    def _follow_rotation(self) -> None:
        if self._path == "-":
            return
        status = None
        with contextlib.suppress(FileNotFoundError):
            status = Path(self._path).stat()
        if status is None or (status.st_dev, status.st_ino) != self._mark:
            self.open()

    def close(self) -> None:
        """The file; standard output stays open."""
        if self._descriptor > _STANDARD_OUTPUT:
            os.close(self._descriptor)
            self._descriptor = -1
