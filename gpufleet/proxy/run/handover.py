"""One proxy takes over from another that runs: the port, the drained members, and the counts of what is in flight.

    old: OFFERING --another process asks--> sends its listening sockets, offers on
                  --"ready"---------------> HANDED OVER: accepts no more, ends what it has, tells its counts
                  --it goes without a word-> OFFERING: the new one could not start, nothing has changed
    new: takes the sockets, reads routes and tokens, accepts, says "ready"; then adds the old one's counts to its own

Both accept for a moment, from one queue, so no client is lost. The path is a Unix socket that only its owner opens, and
whoever asks must be of the same user, or root.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from gpufleet.errors import CannotServe
from gpufleet.proxy.run.sockets import Sockets

_READY = b"ready\n"
_PATIENCE = 10.0
"""Seconds that a proxy may take to hand over its sockets."""
_PERIOD = 0.05
"""Seconds between two looks at the counts that the old proxy tells."""
_LARGEST = 1024 * 1024
_MOST_SOCKETS = 64

Count = tuple[str, str, int]
"""Member id, its address, requests in flight."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What goes with the sockets: the purpose of each in order, (pool, replica) that an operator drains, and counts."""

    purposes: list[str]
    drained: list[tuple[str, str]] = []
    counts: list[Count] = []


class Taken:
    """The new proxy's side."""

    def __init__(self, connection: socket.socket, sockets: Sockets, offer: Offer) -> None:
        self._connection = connection
        self.sockets = sockets
        self.offer = offer

    def close(self) -> None:
        """Without `ready` before: the old one goes on."""
        self._connection.close()
        for found in self.sockets.values():
            for sock in found:
                sock.close()

    async def follow(self, loop: asyncio.AbstractEventLoop, on_counts: Callable[[list[Count]], None]) -> None:
        """Say that we serve, then pass on what the old one still has, until it has nothing."""
        connection = self._connection
        try:
            connection.setblocking(False)
            await loop.sock_sendall(connection, _READY)
            unread = b""
            while received := await loop.sock_recv(connection, 65536):
                *lines, unread = (unread + received).split(b"\n")
                for line in lines:
                    on_counts(msgspec.json.decode(line, type=list[Count]))
        except (OSError, msgspec.MsgspecError):
            pass  # it was killed: then it has nothing in flight either
        finally:
            on_counts([])
            connection.close()


def take(path: Path) -> Taken | None:
    """Ask the proxy at `path` for its sockets; None when none runs there. Raises `CannotServe`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.settimeout(_PATIENCE)
    try:
        with _short(path) as name:
            connection.connect(name)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError as error:
        connection.close()
        raise CannotServe(f"the proxy that runs cannot be asked: {error.strerror}", where=str(path)) from None
    try:
        content, descriptors, _, _ = socket.recv_fds(connection, _LARGEST, _MOST_SOCKETS)
        found = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        offer = msgspec.json.decode(content, type=Offer)
    except (OSError, msgspec.MsgspecError) as error:
        connection.close()
        raise CannotServe(
            f"the proxy that runs did not hand over its sockets: {error}",
            where=str(path),
            hints=("it may be stopping already; start again without --take-over when it has ended",),
        ) from None
    sockets: Sockets = {}
    for purpose, sock in zip(offer.purposes, found, strict=True):
        sock.setblocking(False)
        sockets.setdefault(purpose, []).append(sock)
    return Taken(connection, sockets, offer)


class Handover:
    """The old proxy's side: listens at `path` until somebody took over."""

    def __init__(
        self,
        path: Path,
        *,
        describe: Callable[[], tuple[Offer, list[socket.socket]]],
        on_taken: Callable[[], None],
        counts: Callable[[], list[Count]],
    ) -> None:
        self._path = path
        self._describe = describe
        self._on_taken = on_taken
        self._counts = counts
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._mark = 0
        self.taken = False

    def open(self) -> None:
        """Listen; whatever stood at the path is replaced. Raises `OSError`."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        self._listener.setblocking(False)
        with _short(fresh) as name:
            self._listener.bind(name)
        fresh.chmod(0o600)  # before anybody can connect
        self._listener.listen(8)
        self._mark = fresh.stat().st_ino
        fresh.replace(self._path)

    async def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """For ever, until it is handed over; then until whoever took over goes or this process ends."""
        while not self.taken:
            connection, _ = await loop.sock_accept(self._listener)
            with connection, contextlib.suppress(OSError):
                connection.setblocking(False)
                if not _same_user(connection):
                    continue
                offer, sockets = self._describe()
                content = msgspec.json.encode(offer)
                socket.send_fds(connection, [content], [sock.fileno() for sock in sockets])
                if await self._until_ready(loop, connection):
                    self.taken = True
                    self._on_taken()
                    await self._tell(loop, connection)

    @staticmethod
    async def _until_ready(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> bool:
        received = b""
        while len(received) < len(_READY):
            piece = await loop.sock_recv(connection, 64)
            if not piece:
                return False
            received += piece
        return received == _READY

    async def _tell(self, loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
        before: list[Count] | None = None
        while True:
            counts = self._counts()
            if counts != before:
                await loop.sock_sendall(connection, msgspec.json.encode(counts) + b"\n")
                before = counts
            await asyncio.sleep(_PERIOD)

    def close(self) -> None:
        """The path goes too, unless another proxy's socket stands there."""
        self._listener.close()
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._mark:
                self._path.unlink()


def _same_user(connection: socket.socket) -> bool:
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return user in {0, os.getuid()}


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """The path as at most 107 bytes, which is all that a Unix socket's name may have: by way of its open folder."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
