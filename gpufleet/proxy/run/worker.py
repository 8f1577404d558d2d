"""One of several processes that serve one port: told by its supervisor what to serve, obeying it until it goes.

It has sockets and no admin address; what it has in flight stands on the board, and what the others have it reads there.
Signals of the terminal are the supervisor's. When the supervisor dies it drains and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import os
import signal
import socket
from typing import Any

import msgspec

from gpufleet.errors import FleetError
from gpufleet.proxy.config import ProxyConfig
from gpufleet.proxy.decide.metrics import Family
from gpufleet.proxy.run.board import Board
from gpufleet.proxy.run.desk import drain, members
from gpufleet.proxy.run.metrics_page import families
from gpufleet.proxy.run.process import run_loop
from gpufleet.proxy.run.server import Started, serve
from gpufleet.proxy.run.state import ProxyState

_LOG = logging.getLogger("gpufleet.proxy")
CONNECTION = 3
"""The descriptor on which a worker hears its supervisor."""
LARGEST_LINE = 64 * 1024 * 1024
LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"
_PERIOD = 0.01
"""Seconds between two looks at the board: how old another worker's counts may be."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """With the board's memory and the listening sockets, the first that a worker hears."""

    config: ProxyConfig
    row: int
    rows: int
    drained: list[tuple[str, str]] = []
    level: int = logging.INFO


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """`report`, `drain`, `undrain`, `reload`, `stop` (twice to hurry), `hand_over`."""

    do: str
    pool: str = ""
    replica: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to every order."""

    families: list[Family] = []
    members: dict[str, Any] = {}
    row: dict[str, Any] | None = None


def main() -> None:
    """Of a worker's process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=CONNECTION)
    content, descriptors, _, _ = socket.recv_fds(connection, mmap.PAGESIZE * 64, 64)
    assignment = msgspec.json.decode(content, type=Assignment)
    logging.basicConfig(level=assignment.level, format=LOG_FORMAT)
    memory, *listening = descriptors
    board = Board(memory, assignment.rows, assignment.row)
    os.close(memory)
    sockets = [socket.socket(fileno=descriptor) for descriptor in listening]
    for sock in sockets:
        sock.setblocking(False)
    with contextlib.suppress(KeyboardInterrupt):
        run_loop(_work(assignment, connection, board, sockets))


async def _work(
    assignment: Assignment, connection: socket.socket, board: Board, sockets: list[socket.socket]
) -> None:
    connection.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=connection)
    tasks: list[asyncio.Task[None]] = []

    def on_started(started: Started) -> None:
        started.state.fleet.drained.update(assignment.drained)
        started.state.fleet.refresh()
        tasks.append(started.state.loop.create_task(_share(started.state, board)))
        tasks.append(started.state.loop.create_task(_obey(started, reader, writer)))

    try:
        await serve(assignment.config, on_started=on_started, given={"listen": sockets})
    except FleetError as error:
        _LOG.error("worker %d cannot serve: %s", assignment.row, error)
    finally:
        for task in tasks:
            task.cancel()
        writer.close()


async def _share(state: ProxyState, board: Board) -> None:
    """For ever, tell the others what is in flight here, and count what is in flight there."""
    while True:
        board.write(state.fleet.counts())
        counts = board.others()
        if counts is not None:
            state.fleet.count_elsewhere(counts)
        await asyncio.sleep(_PERIOD)


async def _obey(started: Started, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each order in turn; the first answer, to none, says that this worker serves."""
    writer.write(_line(Report()))
    while line := await reader.readline():
        order = msgspec.json.decode(line, type=Order)
        writer.write(_line(_carry_out(started, order)))
    started.stop()  # the supervisor is gone, and with it whoever would tell us to end


def _carry_out(started: Started, order: Order) -> Report:
    state = started.state
    match order.do:
        case "report":
            return Report(families=families(state), members=members(state, own=True))
        case "drain" | "undrain":
            return Report(row=drain(state, order.pool, order.replica, wanted=order.do == "drain", own=True))
        case "reload":
            started.reload()
        case "hand_over":
            started.hand_over()
        case _:
            started.stop()
    return Report()


def _line(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value) + b"\n"


if __name__ == "__main__":
    main()
