"""The machine gpufleet runs on, for `connection: local`: the same frame, through `/bin/sh -s` of our own."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import subprocess  # noqa: TID251 running commands here is what this module is for
import threading
from collections.abc import Iterator, Mapping
from typing import IO, cast

from gpufleet.clock import Clock, SystemClock
from gpufleet.errors import FleetError, SelectionError
from gpufleet.names import HostName
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.ending import end_command
from gpufleet.remote.environment import without_secrets
from gpufleet.remote.exchange import Deadline, Ended, Received
from gpufleet.remote.files import put_command
from gpufleet.remote.framing import finished, frame, unframe
from gpufleet.remote.offer import Offer, with_trouble
from gpufleet.remote.result import Lost, Outcome
from gpufleet.remote.target import Target

_CHUNK = 1 << 16


class LocalTransport:
    """Opens sessions on this machine under the names of the hosts that ask for it."""

    def __init__(self, targets: Mapping[HostName, Target], *, clock: Clock | None = None) -> None:
        self._targets = targets
        self._clock = clock or SystemClock()

    def open(self, host: HostName) -> LocalSession:
        """A session; there is nothing that could refuse it."""
        if host not in self._targets:
            raise SelectionError(f"there is no host {host}")
        return LocalSession(self._clock, sudo_password=self._targets[host].sudo_password)

    def close(self) -> None:
        """Nothing is kept open."""


class LocalSession:
    """Runs commands here. Safe to use from several threads."""

    def __init__(self, clock: Clock, *, sudo_password: Secret[str] | None = None) -> None:
        self._clock = clock
        self._sudo_password = sudo_password
        self._closed = threading.Event()

    def run(self, command: Command) -> Outcome:
        """Run to the end or to the deadline."""
        if self._closed.is_set():
            return Lost(reason="the session is closed", sent=False)
        marker = f"gpufleet-{secrets.token_hex(12)}"
        try:
            text = frame(command, marker, sudo_password=self._sudo_password)
        except FleetError as unresolved:
            # The password is a reference that is followed when it is first needed, which is here.
            return Lost(reason=unresolved.summary, sent=False)
        deadline = Deadline.after(self._clock, command.timeout)
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-s"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=without_secrets(os.environ),
                start_new_session=True,  # so that a deadline can end the whole group
            )
        except OSError as wrong:
            return Lost(reason=f"/bin/sh cannot be started here: {wrong.strerror}", sent=False)
        offer = Offer(command.files, marker) if command.files else None
        with _reaped(process):
            received = _pump(process, text, marker, deadline, offer)
            seen = unframe(bytes(received.stdout), bytes(received.stderr), marker, become=command.become)
            if seen.exit is not None:
                return with_trouble(seen.exit, offer)
            if received.ended is not Ended.DEADLINE:
                return Lost(reason="the shell was ended before it could answer", sent=True)
            how = "the remote process was ended"
            if seen.root_pid is not None and command.become:
                # What runs as root cannot be signalled by us; ask as root. Reaped meanwhile: a dead child that
                # nobody has waited for still counts as a member of its group.
                threading.Thread(target=process.wait, daemon=True).start()
                outcome = self.run(end_command((process.pid, seen.root_pid), become=True))
                how = (
                    how
                    if getattr(outcome, "ok", False)
                    else "the remote process could not be ended and may still be running"
                )
            _end_group(process)
        return Lost(reason=f"no answer within {command.timeout:g} s; {how}", sent=True)

    def put(self, content: bytes, path: str, mode: int) -> Outcome:
        """Write a file whole."""
        return self.run(put_command(content, path, mode))

    def close(self) -> None:
        """Later commands are refused; those that run go on."""
        self._closed.set()


class _reaped(contextlib.AbstractContextManager[None]):  # noqa: N801 reads as a verb where it is used
    """Closes the pipes of a process and waits for it; ends its group when the block was left by an exception."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def __exit__(self, kind: object, _value: object, _trace: object) -> None:
        if kind is not None:
            _end_group(self._process)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                cast("IO[bytes]", stream).close()
        self._process.wait()


def _pump(
    process: subprocess.Popen[bytes], text: bytes, marker: str, deadline: Deadline, offer: Offer | None
) -> Received:
    received = Received(sent=True)
    outgoing = _Outgoing(text, offer)
    stdin, stdout, stderr = (
        cast("IO[bytes]", item) for item in (process.stdin, process.stdout, process.stderr)
    )
    with selectors.DefaultSelector() as selector:
        for stream in (stdin, stdout, stderr):
            os.set_blocking(stream.fileno(), False)
        selector.register(stdin, selectors.EVENT_WRITE)
        selector.register(stdout, selectors.EVENT_READ, received.stdout)
        selector.register(stderr, selectors.EVENT_READ, received.stderr)
        while finished(received.stdout, marker) + finished(received.stderr, marker) < 2:
            if deadline.left() <= 0:
                received.ended = Ended.DEADLINE
                return received
            if stdout.fileno() not in _open(selector) and stderr.fileno() not in _open(selector):
                received.ended = Ended.CLOSED
                return received
            for key, _ in selector.select(min(deadline.left(), 1.0)):
                if key.data is not None:
                    _read(selector, key)
                else:
                    outgoing.write(selector, stdin)
            outgoing.answer(selector, stdin, received)
    received.ended = Ended.ANSWERED
    return received


def _open(selector: selectors.BaseSelector) -> set[int]:
    return {key.fd for key in selector.get_map().values()}


def _read(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    chunk = os.read(key.fd, _CHUNK)
    if chunk:
        key.data.extend(chunk)
    else:
        selector.unregister(key.fileobj)


class _Outgoing:
    """What goes to standard input: the frame, and behind it what the script asks for."""

    def __init__(self, text: bytes, offer: Offer | None) -> None:
        self._text = text
        self._offer = offer
        self._pieces: Iterator[bytes] = iter(())

    def write(self, selector: selectors.BaseSelector, stdin: IO[bytes]) -> None:
        """A part of it; at its end the stream is closed, or waits for the next question."""
        try:
            self._text = self._text[os.write(stdin.fileno(), self._text[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._text, self._pieces, self._offer = b"", iter(()), None
        self._text = self._text or next(self._pieces, b"")
        if self._text:
            return
        selector.unregister(stdin)
        if self._offer is None or self._offer.trouble:
            stdin.close()

    def answer(self, selector: selectors.BaseSelector, stdin: IO[bytes], received: Received) -> None:
        """Look for a question when nothing is on its way."""
        if self._offer is None or self._text or stdin.closed:
            return
        wanted = self._offer.wanted(received.stdout)
        if wanted is None:
            return
        self._pieces = self._offer.pieces(*wanted)
        self._text = next(self._pieces, b"")
        if self._text:
            selector.register(stdin, selectors.EVENT_WRITE)
        elif self._offer.trouble:
            stdin.close()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """TERM to the whole group, KILL to what is left of it three seconds later."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3)
        os.killpg(process.pid, signal.SIGKILL)
