"""A port of this machine that leads to an address as a host sees it, over the SSH connection to that host.

Each connection to the port is a channel of its own, opened when it is needed; a lost SSH connection is opened again by
the next one. Two threads carry a connection's bytes: this is for the members behind a jump host, not for thousands of
streams.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from gpufleet.errors import FleetError

_PIECE = 64 * 1024


class Stream(Protocol):
    """Bytes both ways."""

    def recv(self, nbytes: int) -> bytes:
        """At most so many; empty at the end."""
        ...

    def sendall(self, s: bytes) -> None:
        """All of them."""
        ...

    def close(self) -> None:
        """Both ways."""
        ...


@runtime_checkable
class Forwarding(Protocol):
    """A session that leads further than its host's shell."""

    def forward(self, host: str, port: int) -> Stream:
        """Raises `errors.HostUnreachable` when the host does not get there, or does not allow it."""
        ...


class Tunnel:
    """Listens on loopback from the start; `close` ends it and every connection.

    Args:
        reach: opens one stream to the far end; may raise `FleetError`.
        warn: told one line when the far end is not reached, and again only after it was.
    """

    def __init__(self, reach: Callable[[], Stream], warn: Callable[[str], None]) -> None:
        self._reach = reach
        self._warn = warn
        self._trouble = ""
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name=f"tunnel-{self.port}", daemon=True).start()

    def close(self) -> None:
        """Listen no more, cut what is open."""
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
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._carry, args=(sock,), daemon=True).start()

    def _carry(self, sock: socket.socket) -> None:
        with sock:
            try:
                stream = self._reach()
            except FleetError as error:
                if str(error) != self._trouble:
                    self._warn(str(error))
                self._trouble = str(error)
                return
            self._trouble = ""
            self._open.add(sock)
            there = threading.Thread(target=self._towards, args=(sock, stream), daemon=True)
            there.start()
            with contextlib.suppress(OSError, EOFError):
                while piece := stream.recv(_PIECE):
                    sock.sendall(piece)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            there.join()
            self._open.discard(sock)

    @staticmethod
    def _towards(sock: socket.socket, stream: Stream) -> None:
        """A client that closes leaves: the far end learns it at once."""
        with contextlib.suppress(OSError, EOFError):
            while piece := sock.recv(_PIECE):
                stream.sendall(piece)
        with contextlib.suppress(OSError, EOFError):
            stream.close()
