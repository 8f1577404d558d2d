"""Hosts over SSH: sessions, the jump connections they share, and what each failure means.

A session has one connection and at most eight commands on it at a time, as sshd allows ten sessions a connection.
A command is never sent twice: when the connection dies under it the outcome is `Lost(sent=True)`. Only a *new*
command on a dead connection opens it again, once.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import threading
from collections.abc import Callable, Mapping

import paramiko

from gpufleet.clock import Clock, SystemClock
from gpufleet.errors import FleetError, HostUnreachable, SelectionError
from gpufleet.names import HostName
from gpufleet.redact import scrub
from gpufleet.remote.command import Command
from gpufleet.remote.ending import end_command
from gpufleet.remote.exchange import Deadline, Ended, Received, exchange
from gpufleet.remote.files import put_command
from gpufleet.remote.framing import EXEC_REQUEST, Unframed, frame, unframe
from gpufleet.remote.offer import STALL, Offer, with_trouble
from gpufleet.remote.result import Exit, Lost, Outcome
from gpufleet.remote.ssh.auth import AskPassphrase, KeyRing
from gpufleet.remote.ssh.config import SshConfig
from gpufleet.remote.ssh.connect import Connector, OfferedKey
from gpufleet.remote.ssh.options import SshOptions
from gpufleet.remote.ssh.sharing import Once, Slots
from gpufleet.remote.target import Target

COMMANDS_AT_ONCE = 8
"""On one connection; OpenSSH's MaxSessions is 10, and ending a command needs one more."""

PATIENCE_WHEN_ALONE = 12
"""Refusals, a quarter of a second apart, after which a connection without other commands counts as closed to us."""


class SshTransport:
    """Opens sessions over SSH. Safe to use from several threads.

    Args:
        targets: every host that may be opened.
        warn: told one line at a time of what is odd and stops nothing.
        ask_passphrase: how to ask a person; None never asks.
    """

    def __init__(
        self,
        targets: Mapping[HostName, Target],
        *,
        clock: Clock | None = None,
        dice: random.Random | None = None,
        warn: Callable[[str], None] = lambda _line: None,
        ask_passphrase: AskPassphrase | None = None,
        config: SshConfig | None = None,
    ) -> None:
        self._targets = targets
        self._clock = clock or SystemClock()
        self._warn = Once(warn)
        self._config = config or SshConfig()
        self._connector = Connector(
            clock=self._clock, dice=dice or random.Random(), keyring=KeyRing(ask_passphrase), warn=self._warn
        )
        self._jumps: dict[tuple[SshOptions, ...], _Jump] = {}
        self._sessions: set[SshSession] = set()
        self._lock = threading.Lock()

    def open(self, host: HostName) -> SshSession:
        """A session that is logged in."""
        target = self._target(host)
        route = self._config.route(target)
        session = SshSession(target, lambda: self._connect(route, target), self._clock, self._warn)
        session.connect()
        with self._lock:
            self._sessions.add(session)
        return session

    def offered_key(self, host: HostName) -> OfferedKey:
        """The host key, unchecked, of the first hop to this host whose key is not known; the host's own if all are.

        So a bastion's key is trusted before that of the hosts behind it: until then nobody can look further.
        """
        target = self._target(host)
        route = self._config.route(target)
        hop = 1
        while True:
            part = route[:hop]
            through = self._jump(part[:-1], target)
            offered = self._connector.offered_key(part[-1], target, through, _place(part))
            if hop == len(route) or not self._connector.is_known(part[-1], offered):
                return offered
            hop += 1

    def known_hosts_files(self, host: HostName) -> tuple[str, ...]:
        """The files that are believed for this host; a new key goes into the first."""
        return self._config.route(self._target(host))[-1].known_hosts

    def close(self) -> None:
        """Close every session and every jump connection."""
        with self._lock:
            sessions, self._sessions = self._sessions, set()
            jumps, self._jumps = self._jumps, {}
        for session in sessions:
            session.close()
        for route in sorted(jumps, key=len, reverse=True):
            jumps[route].close()

    def _target(self, host: HostName) -> Target:
        target = self._targets.get(host)
        if target is None:
            raise SelectionError(f"there is no host {host}")
        return target

    def _connect(self, route: tuple[SshOptions, ...], target: Target) -> paramiko.Transport:
        through = self._jump(route[:-1], target)
        return self._connector.connect(route[-1], target, through, _place(route))

    def _jump(self, route: tuple[SshOptions, ...], target: Target) -> paramiko.Transport | None:
        """The connection to the last hop of this route, shared by all hosts behind it; None for no route."""
        if not route:
            return None
        with self._lock:
            jump = self._jumps.setdefault(route, _Jump())

        def connect() -> paramiko.Transport:
            through = self._jump(route[:-1], target)
            return self._connector.connect(route[-1], target, through, _place(route))

        return jump.get(connect, target)


class SshSession:
    """An open way to one host. Safe to use from several threads.

    Attributes:
        noisy: a login here printed text before our first byte.
    """

    def __init__(
        self,
        target: Target,
        connect: Callable[[], paramiko.Transport],
        clock: Clock,
        warn: Callable[[str], None],
    ) -> None:
        self.noisy = False
        self._target = target
        self._connect = connect
        self._clock = clock
        self._warn = warn
        self._connection: paramiko.Transport | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._slots = Slots(COMMANDS_AT_ONCE)

    def connect(self) -> paramiko.Transport:
        """The connection, opened again when it has died; raises `HostUnreachable` or one of its kinds."""
        with self._lock:
            if self._closed:
                raise HostUnreachable("the session is closed", where=self._target.name)
            if self._connection is None or not self._connection.is_active():
                if self._connection is not None:
                    self._connection.close()
                self._connection = None
                self._connection = self._connect()
            return self._connection

    def run(self, command: Command) -> Outcome:
        """Run to the end or to the deadline."""
        deadline = Deadline.after(self._clock, command.timeout)
        with self._slots.one(deadline) as free:
            if not free:
                return self._lost(
                    f"no free session on the connection within {command.timeout:g} s", sent=False
                )
            try:
                channel = self._channel(deadline)
            except FleetError as wrong:
                return self._lost(wrong.summary, sent=False)
            with contextlib.closing(channel):
                return self._on(channel, command, deadline)

    def put(self, content: bytes, path: str, mode: int) -> Outcome:
        """Write a file whole."""
        return self.run(put_command(content, path, mode))

    def forward(self, host: str, port: int) -> paramiko.Channel:
        """Bytes to an address as this host sees it; raises `HostUnreachable`."""
        try:
            connection = self.connect()
            return connection.open_channel(
                "direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=connection.channel_timeout
            )
        except (paramiko.SSHException, EOFError, OSError) as wrong:
            refused = isinstance(wrong, paramiko.ChannelException) and wrong.code == 1
            raise HostUnreachable(
                f"{host}:{port} was not reached from this host"
                + (": it does not allow forwarding (AllowTcpForwarding, PermitOpen)" if refused else ""),
                where=self._target.name,
            ) from None

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _channel(self, deadline: Deadline) -> paramiko.Channel:
        """A channel that is ready for a frame. Nothing was sent yet, so this may be tried again."""
        fresh, refused_alone = False, 0
        while True:
            connection = self.connect()
            try:
                return _exec_channel(connection, min(deadline.left(), connection.channel_timeout))
            except _SessionRefused:
                # A session that has just ended may still count on the host, so even alone it is tried again.
                refused_alone += self._slots.after_refusal(deadline)
                if refused_alone > PATIENCE_WHEN_ALONE or deadline.left() <= 0:
                    raise HostUnreachable(
                        "the host refuses another session on this connection (MaxSessions)",
                        where=self._target.name,
                    ) from None
            except (paramiko.SSHException, EOFError, OSError):
                if connection.is_active():
                    raise HostUnreachable(
                        "the host refuses to run commands, or did not answer in time", where=self._target.name
                    ) from None
                if fresh:
                    raise HostUnreachable("the connection was lost", where=self._target.name) from None
                fresh = True

    def _on(self, channel: paramiko.Channel, command: Command, deadline: Deadline) -> Outcome:
        marker = f"gpufleet-{secrets.token_hex(12)}"
        try:
            text = frame(command, marker, sudo_password=self._target.sudo_password)
        except FleetError as unresolved:
            # The password is a reference that is followed when it is first needed, which is here.
            return self._lost(unresolved.summary, sent=False)
        offer = Offer(command.files, marker) if command.files else None
        received = exchange(channel, text, marker, deadline, offer)
        seen = unframe(bytes(received.stdout), bytes(received.stderr), marker, become=command.become)
        if seen.noise and seen.pid is not None:
            self.noisy = True
            self._warn(
                f"{self._target.name}: the host prints text on a login without a terminal; scp and sftp will fail"
            )
        if seen.exit is not None:
            return with_trouble(seen.exit, offer)
        if received.ended is Ended.STALLED:
            how = self._end(seen, command)
            return self._lost(f"the host took no byte of a file for {STALL:g} s; {how}", sent=True)
        if received.ended is Ended.DEADLINE:
            how = self._end(seen, command)
            return self._lost(f"no answer within {command.timeout:g} s; {how}", sent=received.sent)
        return self._cut(channel, received, seen, marker)

    def _cut(self, channel: paramiko.Channel, received: Received, seen: Unframed, marker: str) -> Lost:
        """The streams ended without our end line."""
        connection = channel.get_transport()
        if not connection.is_active():
            return self._lost("the connection was lost", sent=received.sent)
        if seen.pid is None and marker in seen.preamble:
            # Not quoted: the script may hold secrets.
            return self._lost("the login shell prints our script instead of running it", sent=received.sent)
        if seen.pid is None:
            said = f": {seen.preamble.splitlines()[-1][:200]}" if seen.preamble else ""
            return self._lost(f"the login shell did not run our script{said}", sent=received.sent)
        return self._lost("the remote shell was ended before it could answer", sent=received.sent)

    def _end(self, seen: Unframed, command: Command) -> str:
        """End the remote process over a channel of its own; says how that went."""
        pids = tuple(pid for pid in (seen.pid, seen.root_pid) if pid is not None)
        if not pids:
            return "the remote process was not found and may still be running"
        ending = end_command(pids, become=command.become)
        deadline = Deadline.after(self._clock, ending.timeout)
        try:
            # Not through the slots: it is one session more, and the command it ends holds one.
            answer = self._ending(self.connect(), ending, deadline)
        except _SessionRefused:
            try:
                with contextlib.closing(self._connect()) as another:
                    answer = self._ending(another, ending, deadline)
            except (FleetError, _SessionRefused, paramiko.SSHException, EOFError, OSError):
                answer = None
        except (FleetError, paramiko.SSHException, EOFError, OSError):
            answer = None
        if answer is not None and answer.ok:
            return "the remote process was ended"
        return "the remote process could not be ended and may still be running"

    def _ending(self, connection: paramiko.Transport, ending: Command, deadline: Deadline) -> Exit | None:
        marker = f"gpufleet-{secrets.token_hex(12)}"
        with contextlib.closing(_exec_channel(connection, min(5.0, deadline.left()))) as channel:
            text = frame(ending, marker, sudo_password=self._target.sudo_password)
            received = exchange(channel, text, marker, deadline)
        return unframe(bytes(received.stdout), bytes(received.stderr), marker, become=ending.become).exit

    def _lost(self, reason: str, *, sent: bool) -> Lost:
        return Lost(reason=scrub(reason), sent=sent)


class _Jump:
    """One jump connection. Many wait for one attempt, and all get its answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: paramiko.Transport | None = None
        self._attempts = 0
        self._failure: HostUnreachable | None = None

    def get(self, connect: Callable[[], paramiko.Transport], target: Target) -> paramiko.Transport:
        """The live connection, made now if need be."""
        seen = self._attempts
        with self._lock:
            if self._connection is not None and self._connection.is_active():
                return self._connection
            if self._failure is not None and self._attempts > seen:
                # It failed while we waited; asking again would cost every host behind it another timeout.
                failure = self._failure
                raise type(failure)(failure.summary, where=target.name, hints=failure.hints)
            self._failure = None
            try:
                self._connection = connect()
            except HostUnreachable as wrong:
                self._failure = wrong
                raise
            finally:
                self._attempts += 1
            return self._connection

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()


class _SessionRefused(Exception):
    """The host opens no further session on this connection."""


def _exec_channel(connection: paramiko.Transport, timeout: float) -> paramiko.Channel:
    try:
        channel = connection.open_session(timeout=max(timeout, 0.001))
    except paramiko.SSHException as wrong:
        # paramiko keeps one exception a connection: of several refused at once, one gets the right kind.
        if connection.is_active() and not str(wrong).startswith("Timeout"):
            raise _SessionRefused from None
        raise
    # paramiko waits for the answer to an exec request without a timeout; closing the channel ends the wait.
    watch = threading.Timer(max(timeout, 0.001), channel.close)
    watch.daemon = True
    watch.start()
    try:
        channel.exec_command(EXEC_REQUEST)
    except BaseException:
        channel.close()
        raise
    finally:
        watch.cancel()
    return channel


def _place(route: tuple[SshOptions, ...]) -> str:
    """The last hop of this route, for messages."""
    hop = route[-1]
    if hop.is_jump:
        return f"jump host {hop.user}@{hop.address}"
    return f"{hop.address} (behind {route[-2].address})" if len(route) > 1 else hop.address
