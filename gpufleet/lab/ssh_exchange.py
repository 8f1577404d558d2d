"""One command of one SSH client on a simulated host: its standard input, its run, its answer, and what goes wrong.

Two threads serve it: one runs the script and one sends what it prints, so that a client that does not read never
holds the host's lock.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Protocol, TypeAlias

from gpufleet.lab.faults import LINK, Fault, FaultScript, Kind
from gpufleet.lab.fleet import LabHost
from gpufleet.lab.shell.call import DeadlinePassed, PowerCut
from gpufleet.lab.shell.run import run_shell
from gpufleet.lab.shell.streams import Reader, byte_text
from gpufleet.lab.simhost import Killed
from gpufleet.remote.framing import OFFER_END

SLICE = 0.1
"""Seconds between looks for a signal while a program waits."""
_EXEC = "exec /bin/sh -s"
_OFFER_END = OFFER_END.encode()


class Channel(Protocol):
    """What is needed of an SSH channel."""

    def recv(self, nbytes: int, /) -> bytes: ...
    def sendall(self, s: bytes, /) -> None: ...
    def sendall_stderr(self, s: bytes, /) -> None: ...
    def send_exit_status(self, status: int, /) -> None: ...
    def close(self) -> None: ...


class Desk(Protocol):
    """A host as seen from its connections."""

    lab: LabHost
    commands: int


class Bench(Protocol):
    """The server that all hosts share."""

    faults: FaultScript
    stopping: threading.Event

    def cut(self, lab: LabHost) -> None:
        """End every connection of a host."""
        ...

    def run_thread(self, act: Callable[[], object]) -> threading.Thread:
        """A thread that the server waits for at its end."""
        ...


_Letter: TypeAlias = tuple[bool, bytes]
"""Whether it is of standard error, and what was printed."""


class _Outbox:
    """A stream of one command, on its way to the client."""

    def __init__(self, letters: queue.SimpleQueue[_Letter | None], *, error: bool) -> None:
        self._letters = letters
        self._error = error

    def write(self, text: str) -> None:
        """Queue it; never waits."""
        if text:
            self._letters.put((self._error, text.encode("latin-1")))


class _ChannelReader(Reader):
    """Standard input as it comes; the host is free for others meanwhile."""

    __slots__ = ("_channel", "_ended", "_lock")

    def __init__(self, channel: Channel, lock: threading.Lock) -> None:
        super().__init__()
        self._channel = channel
        self._lock = lock
        self._ended = False

    def _fetch(self) -> None:
        self._lock.release()
        try:
            content = self._channel.recv(1 << 16)
        except OSError:
            content = b""
        finally:
            self._lock.acquire()
        self._ended = not content
        self.text = self.text[self.at :] + content.decode("latin-1")
        self.at = 0

    def rest(self) -> str:
        while not self._ended:
            self._fetch()
        return super().rest()

    def take(self, count: int) -> str:
        pieces = [super().take(count)]
        while not self._ended and (missing := count - sum(map(len, pieces))) > 0:
            self._fetch()
            pieces.append(super().take(missing))
        return "".join(pieces)

    def line(self) -> str | None:
        while not self._ended and "\n" not in self.text[self.at :]:
            self._fetch()
        return super().line()


class _OfferReader(_ChannelReader):
    """A frame in braces, of which a shell reads all before it runs any, and what is sent behind it as it is asked for."""

    __slots__ = ("_frame",)

    def __init__(self, channel: Channel, lock: threading.Lock, frame: str) -> None:
        super().__init__(channel, lock)
        self._frame = frame

    def rest(self) -> str:
        if self._frame:
            frame, self._frame = self._frame, ""
            return frame
        return super().rest()


class Exchange:
    """One command of one client."""

    def __init__(
        self,
        bench: Bench,
        door: Desk,
        channel: Channel,
        acknowledged: threading.Event,
        user: str,
    ) -> None:
        self._bench = bench
        self._door = door
        self.channel = channel
        self._acknowledged = acknowledged
        self._user = user
        self._letters: queue.SimpleQueue[_Letter | None] = queue.SimpleQueue()

    def serve(self, text: str) -> None:
        """Run it, faults included, and answer."""
        stdin = b""
        if text.strip() == _EXEC:
            while not stdin.endswith(_OFFER_END) and (chunk := self._receive()):
                stdin += chunk
        with self._door.lab.lock:
            self._door.commands += 1
            seen = f"{text}\n{stdin.decode('utf-8', 'replace')}"
            due = self._bench.faults.due(self._door.lab.name, self._door.commands, seen)
            for fault in due:
                if fault.kind not in LINK:
                    self._door.lab.strike(fault)
        link = [fault for fault in due if fault.kind in LINK]
        if any(fault.kind in {Kind.LOSE_BEFORE, Kind.LATE} for fault in link):
            self._bench.cut(self._door.lab)
            return
        if any(fault.kind is Kind.HANG for fault in link):
            self._bench.stopping.wait()
            return
        sender = self._bench.run_thread(self._send)
        code = self._run(text, stdin, link)
        self._letters.put(None)
        if any(fault.kind in {Kind.LOSE_AFTER, Kind.POWER_OFF} for fault in link):
            return
        sender.join()
        with contextlib.suppress(OSError, EOFError):
            if code is not None:
                self.channel.send_exit_status(code)
            self.channel.close()

    def _receive(self) -> bytes:
        try:
            return self.channel.recv(1 << 16)
        except OSError:
            return b""

    def _run(self, text: str, stdin: bytes, link: list[Fault]) -> int | None:
        """Exit status; None when a signal ended it or the power went."""
        lab = self._door.lab
        slow = sum(fault.seconds for fault in link if fault.kind is Kind.SLOW)
        power = next((fault for fault in link if fault.kind is Kind.POWER_OFF), None)
        lost = any(fault.kind is Kind.LOSE_AFTER for fault in link)
        self._bench.stopping.wait(slow)
        out, err = _Outbox(self._letters, error=False), _Outbox(self._letters, error=True)
        with self._door.lab.lock:
            if not lost:
                out.write(byte_text(lab.host.users[self._user].noise))
            reader = self._reader(stdin)
            if lost:
                self._bench.cut(self._door.lab)
            try:
                ended = run_shell(
                    lab.host,
                    text,
                    reader,
                    user=self._user,
                    streams=(out, err),
                    fuse=power.after if power else None,
                )
            except (PowerCut, DeadlinePassed):
                ended = None
            if power is not None:
                lab.power_off(power.seconds)
                self._bench.cut(self._door.lab)
        return None if ended is None or ended.killed else ended.code

    def _reader(self, stdin: bytes) -> Reader:
        if stdin.endswith(_OFFER_END):
            return _OfferReader(self.channel, self._door.lab.lock, byte_text(stdin))
        return Reader(byte_text(stdin)) if stdin else _ChannelReader(self.channel, self._door.lab.lock)

    def _send(self) -> None:
        """Send what was printed, in order, once the request was acknowledged."""
        self._acknowledged.wait(10.0)
        letter = self._letters.get()
        while letter is not None:
            (error, content), known, letter = self._gathered(letter)
            with contextlib.suppress(OSError, EOFError):  # when the client has gone, the command runs on
                (self.channel.sendall_stderr if error else self.channel.sendall)(content)
            if not known:
                letter = self._letters.get()

    def _gathered(self, first: _Letter) -> tuple[_Letter, bool, _Letter | None]:
        """All that is there of one stream in one piece, as from a pipe; whether what follows is known, and that."""
        error, pieces = first[0], [first[1]]
        try:
            while (following := self._letters.get_nowait()) is not None and following[0] == error:
                pieces.append(following[1])
        except queue.Empty:
            return (error, b"".join(pieces)), False, None
        return (error, b"".join(pieces)), True, following


class Rest:
    """Lets real time pass while other sessions use the host."""

    def __init__(self, bench: Bench, lab: LabHost) -> None:
        self._bench = bench
        self._lab = lab

    def __call__(self, seconds: float, pids: tuple[int, ...]) -> None:
        host = self._lab.host
        end = host.clock.monotonic() + seconds
        self._lab.lock.release()
        try:
            while (left := end - host.clock.monotonic()) > 0:
                self._bench.stopping.wait(min(left, SLICE))
                host.check_signals(pids)
                if self._bench.stopping.is_set():
                    raise Killed(9)
        finally:
            self._lab.lock.acquire()
