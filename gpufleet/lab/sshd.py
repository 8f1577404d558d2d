"""Simulated hosts behind a real SSH server on loopback: one address a host, one process for all.

Theory of operation. One thread accepts for all hosts; each connection has paramiko's own thread; each command has
two, one that runs the script and one that sends what it prints, so that a client that does not read never holds a
host's lock. As with OpenSSH, a command whose client has gone runs on to its end, and closing a channel ends
nothing. A command's output is held back until its request was acknowledged: an answer that came before that would
close the channel under the client.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import paramiko
from paramiko.common import (
    AUTH_FAILED,
    AUTH_SUCCESSFUL,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_FAILED_CONNECT_FAILED,
    OPEN_SUCCEEDED,
    cMSG_CHANNEL_REQUEST,
)

from gpufleet.lab.faults import FaultScript, Kind
from gpufleet.lab.fleet import Fleet, LabHost
from gpufleet.lab.lab_files import PORT, LabFolder, write_files
from gpufleet.lab.ssh_exchange import Exchange, Rest

SESSIONS = 10
"""Channels that one connection may have, as OpenSSH's MaxSessions."""


@dataclass(slots=True)
class Door:
    """One simulated host and who is connected to it."""

    lab: LabHost
    key: paramiko.PKey
    listener: socket.socket | None = None
    connections: list[_Connection] = field(default_factory=list)
    commands: int = 0
    opens: int = 0


_LOG = logging.getLogger("gpufleet.lab.sshd")
_LOG.addHandler(logging.NullHandler())
_LOG.propagate = False  # paramiko calls it an error when a client leaves without a word

_TABLE = vars(paramiko.Transport)["_channel_handler_table"]  # see _Connection


def _number(channel: paramiko.Channel) -> int:
    return int(vars(channel)["chanid"])


def _handle_and_tell(channel: paramiko.Channel, message: paramiko.Message) -> None:
    _TABLE[ord(cMSG_CHANNEL_REQUEST)](channel, message)
    connection = channel.get_transport()
    event = connection.acknowledged.get(_number(channel)) if isinstance(connection, _Connection) else None
    if event is not None:
        event.set()


class _Connection(paramiko.Transport):
    """A server side that tells when a channel request was acknowledged.

    paramiko answers a request after its handler has returned, and offers no public way to wait for that; its table
    of handlers is the narrowest place to stand.
    """

    _channel_handler_table = {  # noqa: RUF012  paramiko's own class attribute
        **_TABLE,
        ord(cMSG_CHANNEL_REQUEST): _handle_and_tell,
    }

    _active_check_timeout = 5.0
    """Seconds between looks of an idle connection whether it was closed. paramiko's tenth of a second wakes
    hundreds of connections thousands of times a second; here `close` wakes the one that it closes."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.set_log_channel(_LOG.name)
        self.acknowledged: dict[int, threading.Event] = {}

    def close(self) -> None:
        """End it now."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        super().close()


class _Server(paramiko.ServerInterface):
    """What one connection may do."""

    def __init__(self, lab_server: LabServer, door: Door, connection: _Connection) -> None:
        self._lab_server = lab_server
        self._door = door
        self._connection = connection
        self._user = ""

    def get_allowed_auths(self, username: str) -> str:
        del username
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        known = username in self._door.lab.host.users
        if known and key.get_base64() == self._lab_server.client_key.get_base64():
            self._user = username
            return AUTH_SUCCESSFUL
        return AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if kind != "session":
            return OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED
        if len(self._connection.acknowledged) >= SESSIONS:
            return OPEN_FAILED_CONNECT_FAILED
        self._connection.acknowledged[chanid] = threading.Event()
        return OPEN_SUCCEEDED

    def check_channel_env_request(self, channel: paramiko.Channel, name: bytes, value: bytes) -> bool:
        del channel, name, value
        return False

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        number = _number(channel)
        exchange = Exchange(
            self._lab_server, self._door, channel, self._connection.acknowledged[number], self._user
        )
        text = command.decode("utf-8", "surrogateescape")
        self._lab_server.run_thread(lambda: self._serve(exchange, text, number))
        return True

    def _serve(self, exchange: Exchange, text: str, number: int) -> None:
        try:
            exchange.serve(text)
        finally:
            # One entry a channel that is at work: what is left is what counts against MaxSessions.
            self._connection.acknowledged.pop(number, None)


class LabServer:
    """SSH servers of a whole fleet. Use as a context manager, or call `close`."""

    def __init__(
        self, fleet: Fleet, folder: LabFolder, faults: FaultScript | None = None, *, port: int = PORT
    ) -> None:
        self.fleet = fleet
        self.folder = folder
        self.faults = faults or FaultScript()
        self.port = port
        self.stopping = threading.Event()
        self.client_key = paramiko.ECDSAKey.generate()
        self._threads: set[threading.Thread] = set()
        self._threads_lock = threading.Lock()
        self._doors = {lab.name: Door(lab, paramiko.ECDSAKey.generate()) for lab in fleet}
        self._selector = selectors.DefaultSelector()
        self._listening = threading.Thread(target=self._accept_all, daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def start(self) -> None:
        """Listen everywhere and write the folder's files; raises `OSError` when an address is taken."""
        try:
            for door in self._doors.values():
                door.lab.host.rest = Rest(self, door.lab)
                self._open(door)
        except OSError:
            self._close_listeners()
            raise
        self.folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.client_key.write_private_key_file(str(self.folder.key))
        keys = [
            (door.lab.host.address, door.key.get_name(), door.key.get_base64())
            for door in self._doors.values()
        ]
        write_files(self.folder, self.fleet, keys, self.port)
        self._listening.start()

    def close(self) -> None:
        """End connections and threads."""
        self.stopping.set()
        if self._listening.is_alive():
            self._listening.join()
        for door in self._doors.values():
            for process in list(door.lab.host.processes.values()):
                process.signal = 9
            self.cut(door.lab)
        self._close_listeners()
        self._selector.close()
        with self._threads_lock:
            left = tuple(self._threads)
        for thread in left:
            thread.join(5.0)

    def cut(self, lab: LabHost) -> None:
        """Every connection to a host ends without a word."""
        door = self._doors[lab.name]
        for connection in door.connections:
            connection.close()
        door.connections.clear()

    def run_thread(self, act: Callable[[], object]) -> threading.Thread:
        """A thread that `close` waits for."""
        thread = threading.Thread(target=lambda: self._run_listed(act), daemon=True)
        with self._threads_lock:
            self._threads.add(thread)
        thread.start()
        return thread

    def _run_listed(self, act: Callable[[], object]) -> None:
        try:
            act()
        finally:
            with self._threads_lock:
                self._threads.discard(threading.current_thread())

    def _open(self, door: Door) -> None:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((door.lab.host.address, self.port))
            listener.listen(128)
        except OSError:
            listener.close()
            raise
        door.listener = listener
        self._selector.register(listener, selectors.EVENT_READ, door)

    def _shut(self, door: Door) -> None:
        if door.listener is not None:
            self._selector.unregister(door.listener)
            door.listener.close()
            door.listener = None

    def _close_listeners(self) -> None:
        for door in self._doors.values():
            self._shut(door)

    def _accept_all(self) -> None:
        while not self.stopping.is_set():
            for key, _ in self._selector.select(0.2):
                self._accept(key.data)
            for door in self._doors.values():
                if not door.lab.dead and door.listener is not None:
                    continue
                with door.lab.lock:
                    alive = door.lab.check_power()
                if not alive:
                    self._shut(door)
                elif door.listener is None:
                    with contextlib.suppress(OSError):
                        self._open(door)

    def _accept(self, door: Door) -> None:
        if door.listener is None:
            return
        try:
            sock, _ = door.listener.accept()
        except OSError:
            return
        door.opens += 1
        if self.faults.due(door.lab.name, door.opens, "", {Kind.REFUSE}):
            sock.close()
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(sock)
        connection.add_server_key(door.key)
        door.connections = [one for one in door.connections if one.is_active()] + [connection]
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            connection.start_server(event=threading.Event(), server=_Server(self, door, connection))
