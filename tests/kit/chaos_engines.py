"""Engines that carry out plans: real listeners in the test's own loop that close, reset, stall, lie and die on demand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.kit.chaos_plans import Act, Attempt, Phase, Plan, answer

GARBAGE = b"\x00\xff\x16\x03\x01 garbage \r\n\r\n zz\r\n"
_NO_LINGER = struct.pack("ii", 1, 0)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with a RST."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@dataclass(eq=False)
class Listener:
    """Accepts by itself: an `asyncio.Server` that is closed while it accepts leaks what it accepted."""

    serve: Serve
    port: int = 0
    accepting: set[asyncio.Task[Any]] = field(default_factory=set)
    _sock: socket.socket | None = None

    @property
    def listens(self) -> bool:
        return self._sock is not None

    def open(self) -> None:
        self._sock = socket.create_server(("127.0.0.1", self.port), backlog=1000)
        self._sock.setblocking(False)
        self.port = self._sock.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._sock, self._accept)

    def close(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()

    async def end(self) -> None:
        self.close()
        await asyncio.gather(*self.accepting, return_exceptions=True)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            assert self._sock is not None
            sock, _ = self._sock.accept()
            sock.setblocking(False)
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader, self.serve)
            task = loop.create_task(loop.connect_accepted_socket(lambda: protocol, sock))
            self.accepting.add(task)
            task.add_done_callback(self.accepting.discard)


@dataclass(eq=False)
class ChaosEngine:
    """One member; `plans` is what the requests that carry a number mean."""

    plans: Mapping[int, Plan]
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    spoilt: list[str] = field(default_factory=list)
    """Requests that did not arrive as they were sent."""
    deaths: int = 0
    _rising: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.listener = Listener(self._serve)
        self.listener.open()

    @property
    def port(self) -> int:
        return self.listener.port

    def kill(self) -> None:
        """As by SIGKILL: nothing listens, and every connection is reset; back after a moment."""
        if not self.listener.listens:
            return
        self.listener.close()
        self.deaths += 1
        for writer in tuple(self.writers):
            reset(writer)
        self._rising = asyncio.create_task(self._rise())

    async def _rise(self) -> None:
        await asyncio.sleep(0.05)
        self.listener.open()

    async def stop(self) -> None:
        if self._rising is not None:
            await self._rising
        await self.listener.end()
        for writer in tuple(self.writers):
            reset(writer)
        while self.tasks:
            await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.writers.add(writer)
        try:
            kept = False
            while await self._one(reader, writer, kept=kept):
                kept = True
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.writers.discard(writer)
            self.tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, kept: bool) -> bool:
        """Read and answer one request; True when the connection may serve another."""
        head = await reader.readuntil(b"\r\n\r\n")
        fields = {
            line.partition(b":")[0].lower(): line.partition(b":")[2].strip()
            for line in head.split(b"\r\n")[1:-2]
        }
        length = int(fields.get(b"content-length", b"0"))
        if b"x-plan" not in fields:
            await reader.readexactly(length)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")  # a probe or a trial
            return True
        plan = self.plans.get(int(fields[b"x-plan"]))
        if plan is None:
            return False  # its client left long ago
        good = len(plan.attempts) >= plan.faulty
        attempt = Attempt(kept)
        plan.attempts.append(attempt)
        act = None if good else plan.act
        if act is not None and plan.phase is Phase.REQUEST_HEAD:
            plan.arrived.set()
            if await self._strike(plan, act, reader, writer):
                return False
        if act is not None and plan.phase is Phase.REQUEST_BODY:
            await reader.readexactly(length // 2)
            plan.arrived.set()
            if await self._strike(plan, act, reader, writer):
                return False
            await reader.readexactly(length - length // 2)
        else:
            body = await reader.readexactly(length)
            if body != plan.request_body():
                self.spoilt.append(f"{plan}: the body arrived changed: {body[:80]!r}")
        plan.arrived.set()
        return await self._answer(plan, attempt, reader, writer, good=good)

    async def _answer(
        self,
        plan: Plan,
        attempt: Attempt,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        good: bool,
    ) -> bool:
        wire, marks, _ = answer(plan, good=good)
        attempt.status = 200 if good else plan.status
        attempt.head = marks[Phase.AFTER_HEAD]
        place = len(wire) if good or plan.act is None else marks.get(plan.phase, len(wire))
        for start in range(0, place, 65536):
            if writer.transport.is_closing():
                return False  # killed meanwhile: nothing more leaves
            writer.write(wire[start : min(place, start + 65536)])
            attempt.sent = min(place, start + 65536)
            await writer.drain()
        if not good and plan.act is not None and plan.phase in marks:
            if await self._strike(plan, plan.act, reader, writer) or writer.transport.is_closing():
                return False
            for start in range(place, len(wire), max(1, (len(wire) - place) // 4)):
                writer.write(wire[start : start + max(1, (len(wire) - place) // 4)])
                attempt.sent = len(wire)
                await asyncio.sleep(0.002)
        await writer.drain()
        return b"\r\nContent-Length:" in wire or b"\r\nTransfer-Encoding:" in wire

    async def _strike(
        self, plan: Plan, act: Act, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """True when that was the end of the connection."""
        if act is Act.SLOW:
            await asyncio.sleep(0.01)
            return False
        await writer.drain()
        if act is Act.RESET:
            reset(writer)
        elif act is Act.KILL:
            self.kill()
            reset(writer)  # it may be dead already
        elif act is Act.GARBAGE:
            writer.write(GARBAGE)
            await writer.drain()
        elif (
            act is Act.STALL and plan.phase is not Phase.BEHIND
        ):  # there it would stall another plan's request
            plan.stalls += 1
            with contextlib.suppress(ConnectionError):
                while await reader.read(65536):
                    pass
            plan.seen_gone += 1
            plan.gone_at = asyncio.get_running_loop().time()
        return True


async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A member that closes whatever it accepts."""
    writer.close()


async def cut_off(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The same by a reset."""
    reset(writer)
