"""Listening sockets: bound here, handed over by systemd, or given by the proxy that ran before.

A listening socket and its queue of clients live as long as any process holds it. So a socket that is passed on, and
not bound anew, loses nobody: clients that wait in the queue are accepted by whoever holds it next. SO_REUSEPORT would
make a second queue instead, and whoever waits in the first is reset when it closes.

The variables LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES and NOTIFY_SOCKET are those of sd_listen_fds(3) and sd_notify(3).
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import MutableMapping

from gpufleet.errors import CannotServe
from gpufleet.proxy.config import Address

BACKLOG = 4096
_FIRST = 3
_NO_LINGER = struct.pack("ii", 1, 0)
_PURPOSES = ("listen", "admin")
Sockets = dict[str, list[socket.socket]]
"""By purpose, `listen` or `admin`."""


def bind(address: Address, copies: int = 1) -> list[socket.socket]:
    """Every address that the name has, each so many times. Raises `CannotServe` with the reason and what to do."""
    found: list[socket.socket] = []
    try:
        port = address.port
        for copy in range(copies):
            for family, kind, protocol, _, place in _resolved(address):
                if copy == 0 and copies > 1:
                    # Without SO_REUSEPORT first: with it, a stranger's port could be shared without a word.
                    with socket.socket(family, kind, protocol) as probe:
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        probe.bind((place[0], port, *place[2:]))
                sock = socket.socket(family, kind, protocol)
                found.append(sock)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if copies > 1:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.setblocking(False)
                sock.bind((place[0], port, *place[2:]))
                sock.listen(BACKLOG)
                port = sock.getsockname()[1]  # port 0: the others take the number that the first got
    except OSError as error:
        for sock in found:
            sock.close()
        taken = error.errno == errno.EADDRINUSE
        raise CannotServe(
            "the port is in use" if taken else f"cannot listen: {error.strerror or error}",
            where=str(address),
            hints=(
                "stop what listens there, or choose another address with --listen and --admin",
                "with --take-over, a proxy that runs there hands its port to this one",
            ),
        ) from None
    return found


def _resolved(address: Address) -> list[tuple[int, int, int, str, tuple[str, int, *tuple[int, ...]]]]:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys(found))  # type: ignore[arg-type]  # places of IP sockets begin with host and port


def reset(transport: asyncio.Transport) -> None:
    """Close by a reset, which no reader takes for an end. `abort` alone closes in order when nothing is unsent."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0 and sock.family in {socket.AF_INET, socket.AF_INET6}:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


def fits(sock: socket.socket, address: Address) -> bool:
    """Whether it listens where it is asked for."""
    if sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return True  # systemd may listen on a path; there is nothing to compare
    host, port = sock.getsockname()[:2]
    try:
        hosts = {place[4][0] for place in _resolved(address)}
    except OSError:
        return False
    return address.port in {0, port} and host in hosts


def inherited(environ: MutableMapping[str, str]) -> Sockets:
    """What systemd passes, by the names `listen` and `admin`; without names the first and the second.

    The variables are removed, so that no child takes them for its own. Raises `CannotServe` for what is no listening
    stream socket.
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isascii() or not count.isdigit():
        return {}
    found: Sockets = {}
    for number in range(int(count)):
        name = names[number] if number < len(names) else ""
        purpose = name if name in _PURPOSES else _PURPOSES[min(number, 1)]
        found.setdefault(purpose, []).append(_adopted(_FIRST + number, name))
    return found


def _adopted(descriptor: int, name: str) -> socket.socket:
    try:
        sock: socket.socket | None = socket.socket(fileno=descriptor)
    except OSError:
        sock = None
    if sock is None or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise CannotServe(
            f"descriptor {descriptor} that systemd passed is no listening socket",
            where=name or "LISTEN_FDS",
            hints=("use ListenStream= in the socket unit, and Accept=no",),
        )
    os.set_inheritable(descriptor, False)
    sock.setblocking(False)
    return sock


def notify(environ: MutableMapping[str, str], text: str) -> None:
    """Tell systemd (`READY=1`, `STOPPING=1`, `MAINPID=...`); nothing happens where nobody listens."""
    path = environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.sendto(text.encode(), "\0" + path[1:] if path[0] == "@" else path)
        except OSError:
            return  # a service without its supervisor still serves
