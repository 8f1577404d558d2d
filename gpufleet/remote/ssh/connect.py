"""One hop: from nothing to a connection whose host key was checked and that has logged in.

Every failure is an error that names the hop, and nothing is left open behind it: a connection that is not closed
keeps a slot on the server until its login grace time ends, and a few of those lock everybody out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import subprocess  # noqa: TID251 a ProxyCommand of ssh_config is a program
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, cast

import paramiko

from gpufleet.clock import Clock
from gpufleet.errors import HostKeyChanged, HostKeyUnknown, HostUnreachable
from gpufleet.redact import scrub
from gpufleet.remote.environment import without_referred
from gpufleet.remote.ssh import known_hosts
from gpufleet.remote.ssh.auth import KeyRing, agent_keys, authenticate
from gpufleet.remote.ssh.known_hosts_file import KnownHostsFiles
from gpufleet.remote.ssh.options import SshOptions
from gpufleet.remote.ssh.quiet import QuietConnection
from gpufleet.remote.target import Target

HANDSHAKES_AT_ONCE = 5
"""To one address; sshd's MaxStartups begins to refuse at 10 that have not logged in."""

CIPHERS = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "aes128-ctr",
    "aes192-ctr",
    "aes256-ctr",
)
"""What OpenSSH offers by itself, without chacha20, which paramiko lacks. The authenticated ones first: beside a
stream cipher paramiko compares each packet's code byte by byte in Python, a fifth of what a login costs."""
ATTEMPTS = 3
KEEPALIVE = 15
PEER_DEAD_AFTER_MS = 30_000
"""TCP_USER_TIMEOUT. paramiko's keepalive only sends; this is what notices a dead peer."""

# Whatever paramiko has to say comes back as exceptions; its logger would print tracebacks of refused logins.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedKey:
    """The key a server shows before anybody logs in.

    Attributes:
        host, port: what its line in known_hosts is written under.
        fingerprint: `SHA256:...`.
    """

    host: str
    port: int
    key_type: str
    key: bytes
    fingerprint: str


class _RefusingSessions(Exception):
    """The server closed the connection before its banner."""


class _ProxyCommand:
    """The standard streams of a program as a socket; ended and reaped when it is closed."""

    def __init__(self, command: str, ours: socket.socket, theirs: socket.socket) -> None:
        self._socket = ours
        self._said = ""
        self._lock = threading.Lock()
        self._closed = False  # paramiko looks at this attribute of its sockets
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 closed in close()
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=self._errors,
            env=without_referred(os.environ),
            start_new_session=True,
        )
        self.recv = ours.recv
        self.send = ours.send
        self.settimeout = ours.settimeout

    def complaint(self) -> str:
        """The last line that the program wrote to standard error, for a message; known once it is closed."""
        return f": {scrub(self._said)[:200]}" if self._said else ""

    def close(self) -> None:
        with self._lock:  # paramiko closes from its own thread and from ours
            if self._closed:
                return
            self._closed = True
            self._socket.close()
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            self._errors.seek(0)
            self._said = self._errors.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
            self._errors.close()


Wire: TypeAlias = "socket.socket | paramiko.Channel | _ProxyCommand"
"""What paramiko reads from and writes to."""


class Connector:
    """Makes connections; knows the limits that count across them. Safe to use from several threads."""

    def __init__(
        self, *, clock: Clock, dice: random.Random, keyring: KeyRing, warn: Callable[[str], None]
    ) -> None:
        self._clock = clock
        self._dice = dice
        self._keyring = keyring
        self._warn = warn
        self.known_hosts = KnownHostsFiles(warn)
        self._gates: dict[str, threading.BoundedSemaphore] = {}
        self._lock = threading.Lock()

    def connect(
        self, options: SshOptions, target: Target, through: paramiko.Transport | None, place: str
    ) -> paramiko.Transport:
        """A connection that is logged in; raises `HostUnreachable` or one of its kinds."""
        for warning in options.warnings:
            self._warn(f"{target.name}: {warning}")
        with agent_keys(options) as agent:
            # Before connecting: a key that cannot be opened must cost no attempt.
            offers = self._keyring.offers(options, target, agent)
            with self._handshake(options, target, through, place) as (connection, keep):
                self._check_host_key(connection, options, target, place)
                authenticate(connection, options, offers, target, place)
                connection.set_keepalive(KEEPALIVE)
                keep.append(connection)
                return connection

    def offered_key(
        self, options: SshOptions, target: Target, through: paramiko.Transport | None, place: str
    ) -> OfferedKey:
        """The host key, unchecked, for a person to compare; nothing is logged into."""
        with self._handshake(options, target, through, place) as (connection, _):
            key = connection.get_remote_server_key()
            host, port = _key_name(options)
            return OfferedKey(
                host=host,
                port=port,
                key_type=key.get_name(),
                key=key.asbytes(),
                fingerprint=known_hosts.fingerprint(key.asbytes()),
            )

    def is_known(self, options: SshOptions, offered: OfferedKey) -> bool:
        """Whether known_hosts holds this very key."""
        entries = self.known_hosts.entries(options.known_hosts)
        verdict = known_hosts.lookup(entries, offered.host, offered.port, offered.key_type, offered.key)
        return isinstance(verdict, known_hosts.Matches)

    @contextlib.contextmanager
    def _handshake(
        self, options: SshOptions, target: Target, through: paramiko.Transport | None, place: str
    ) -> Iterator[tuple[paramiko.Transport, list[paramiko.Transport]]]:
        """A connection after its key exchange, closed at the end of the block unless it was put into the list."""
        for attempt in range(1, ATTEMPTS + 1):
            with self._gate(options.address):
                try:
                    connection = self._negotiate(options, target, through, place)
                except _RefusingSessions:
                    if attempt == ATTEMPTS:
                        raise _refusing(target, place) from None
                else:
                    keep: list[paramiko.Transport] = []
                    try:
                        yield connection, keep
                    finally:
                        if connection not in keep:
                            connection.close()
                    return
            # Outside the gate, so that others may try meanwhile.
            self._clock.sleep(self._dice.uniform(0.2, 1.0) * 2**attempt)

    def _negotiate(
        self, options: SshOptions, target: Target, through: paramiko.Transport | None, place: str
    ) -> paramiko.Transport:
        wire = _open_wire(options, target, through, place)
        connection: paramiko.Transport | None = None
        try:
            connection = QuietConnection(cast("socket.socket", wire))
            connection.banner_timeout = options.connect_timeout
            connection.handshake_timeout = options.connect_timeout
            connection.auth_timeout = options.connect_timeout
            connection.channel_timeout = options.connect_timeout
            self._narrow(connection, options)
            _start(connection, options.connect_timeout)
        except (paramiko.SSHException, EOFError, OSError) as wrong:
            _close(connection, wire)
            raise _negotiation_failed(wrong, options, target, place, wire) from None
        except BaseException:
            _close(connection, wire)
            raise
        return connection

    def _narrow(self, connection: paramiko.Transport, options: SshOptions) -> None:
        """Offer no old ciphers, and the types of the keys that are known of this host first."""
        security = connection.get_security_options()
        security.ciphers = tuple(name for name in CIPHERS if name in security.ciphers)
        host, port = _key_name(options)
        entries = self.known_hosts.entries(options.known_hosts)
        security.key_types = known_hosts.preferred_algorithms(entries, host, port, tuple(security.key_types))

    def _check_host_key(
        self, connection: paramiko.Transport, options: SshOptions, target: Target, place: str
    ) -> None:
        key = connection.get_remote_server_key()
        host, port = _key_name(options)
        entries = self.known_hosts.entries(options.known_hosts)
        verdict = known_hosts.lookup(entries, host, port, key.get_name(), key.asbytes())
        if isinstance(verdict, known_hosts.Matches):
            return
        raise _key_refused(verdict, options, target, place, key)

    def _gate(self, address: str) -> threading.BoundedSemaphore:
        with self._lock:
            return self._gates.setdefault(address, threading.BoundedSemaphore(HANDSHAKES_AT_ONCE))


def _start(connection: paramiko.Transport, timeout: float) -> None:
    connection.start_client(timeout=2 * timeout)
    if not connection.initial_kex_done:
        # start_client comes back without a word when its time is over.
        raise TimeoutError


def _key_name(options: SshOptions) -> tuple[str, int]:
    """Under which name known_hosts holds the key; an alias stands alone, without the port."""
    if options.host_key_alias:
        return options.host_key_alias, known_hosts.DEFAULT_PORT
    return options.hostname, options.port


def _open_wire(options: SshOptions, target: Target, through: paramiko.Transport | None, place: str) -> Wire:
    if through is not None:
        return _open_tunnel(options, target, through, place)
    if options.proxy_command:
        ours, theirs = socket.socketpair()
        with theirs:
            # The command is the operator's own text from ssh_config, and ssh runs it in the same way.
            return _ProxyCommand(options.proxy_command, ours, theirs)
    try:
        wire = socket.create_connection((options.hostname, options.port), options.connect_timeout)
    except OSError as wrong:
        raise _no_connection(wrong, options, target, place) from None
    # paramiko sets neither; without NODELAY each command costs 40 ms more.
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, PEER_DEAD_AFTER_MS)
    return wire


def _open_tunnel(
    options: SshOptions, target: Target, through: paramiko.Transport, place: str
) -> paramiko.Channel:
    try:
        return through.open_channel(
            "direct-tcpip",
            (options.hostname, options.port),
            ("127.0.0.1", 0),
            timeout=options.connect_timeout,
        )
    except paramiko.ChannelException as wrong:
        why = (
            "it does not allow forwarding (AllowTcpForwarding, PermitOpen)"
            if wrong.code == 1
            else f"it cannot connect to {options.address}"
        )
        raise HostUnreachable(
            f"{place} was not reached through its jump host: {why}",
            where=target.name,
            hints=("try on the jump host: ssh -p " + f"{options.port} {options.hostname}",),
        ) from None
    except (paramiko.SSHException, EOFError, OSError):
        raise HostUnreachable(
            f"{place} was not reached through its jump host within {options.connect_timeout:g} s",
            where=target.name,
        ) from None


def _no_connection(wrong: OSError, options: SshOptions, target: Target, place: str) -> HostUnreachable:
    if isinstance(wrong, socket.gaierror):
        return HostUnreachable(
            f"the name {options.hostname} of {place} cannot be resolved",
            where=target.name,
            hints=("correct `address`, or add the name to DNS or /etc/hosts",),
        )
    if isinstance(wrong, ConnectionRefusedError):
        return HostUnreachable(
            f"{place} refuses connections",
            where=target.name,
            hints=("is sshd running there, and on this port?",),
        )
    if isinstance(wrong, TimeoutError):
        return HostUnreachable(
            f"{place} did not answer within {options.connect_timeout:g} s",
            where=target.name,
            hints=("is the host up, and does a firewall allow this port?",),
        )
    return HostUnreachable(
        f"{place} was not reached: {wrong.strerror or type(wrong).__name__}", where=target.name
    )


def _negotiation_failed(
    wrong: Exception, options: SshOptions, target: Target, place: str, wire: Wire
) -> HostUnreachable | _RefusingSessions:
    text = str(wrong)
    if isinstance(wire, _ProxyCommand):
        return HostUnreachable(
            f"{place} was not reached through its ProxyCommand{wire.complaint()}",
            where=target.name,
            hints=("run the command of ssh_config by hand",),
        )
    if isinstance(wrong, TimeoutError):
        return HostUnreachable(f"{place} did not finish the key exchange in time", where=target.name)
    if "protocol banner" in text:
        if isinstance(wrong.__context__, TimeoutError):
            return HostUnreachable(
                f"{place} accepted the connection and said nothing within {options.connect_timeout:g} s",
                where=target.name,
                hints=("sshd hangs or the machine is out of memory; look at its console",),
            )
        return _RefusingSessions()
    if isinstance(wrong, (EOFError, ConnectionError)):
        return _RefusingSessions()
    if isinstance(wrong, paramiko.ssh_exception.IncompatiblePeer):
        return HostUnreachable(f"{place} and gpufleet share no algorithm: {text}", where=target.name)
    return HostUnreachable(
        f"{place} does not speak SSH as expected: {text.splitlines()[0][:200]}", where=target.name
    )


def _refusing(target: Target, place: str) -> HostUnreachable:
    return HostUnreachable(
        f"sshd on {place} is refusing new sessions (MaxStartups)",
        where=target.name,
        hints=(
            "others may be logging in at the same time: try again with fewer hosts at once (--forks)",
            "OpenSSH 9.8 and later also refuse an address for some time after failed logins (PerSourcePenalties)",
        ),
    )


def _key_refused(
    verdict: known_hosts.Verdict, options: SshOptions, target: Target, place: str, key: paramiko.PKey
) -> HostUnreachable:
    host, port = _key_name(options)
    shown = known_hosts.fingerprint(key.asbytes())
    trust = f"gpufleet hosts trust {target.name} --fingerprint {shown}"
    if isinstance(verdict, known_hosts.Revoked):
        return HostKeyChanged(
            f"the host key of {place}, {shown}, is revoked by {verdict.entry.place}",
            where=target.name,
            hints=("do not go on; ask whoever revoked it",),
        )
    if isinstance(verdict, known_hosts.Changed):
        held = known_hosts.fingerprint(verdict.entry.key)
        return HostKeyChanged(
            f"the host key of {place} has changed: {verdict.entry.place} holds {held}, the host shows {shown}",
            where=target.name,
            hints=(
                "if nobody has reinstalled the host, somebody may be listening: do not go on",
                f"forget the old key: {known_hosts.removal_command(verdict.entry, host, port)}",
                f"then accept the new one on purpose: {trust}",
            ),
        )
    others = verdict.others if isinstance(verdict, known_hosts.NotKnown) else ()
    known_as = f"; it is known by its {others[0].key_type} key alone ({others[0].place})" if others else ""
    return HostKeyUnknown(
        f"no known_hosts entry holds the {key.get_name()} key of {place}, {shown}{known_as}",
        where=target.name,
        hints=(f"compare the fingerprint with the host's own, then: {trust}",),
    )


def _close(connection: paramiko.Transport | None, wire: Wire) -> None:
    if connection is not None:
        connection.close()
    wire.close()
