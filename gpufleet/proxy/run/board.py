"""What the processes of one proxy have in flight, in memory that all of them see.

Each process writes one row and nobody else writes it; the last row is the supervisor's, for what a proxy that was taken
over still has. A row is a number that is odd while it is written, the length of its content, and the content; a reader
who sees an odd number, or another one behind the content than in front of it, keeps what it read before. So nobody
waits for anybody, and a process that dies while it writes harms nobody: its row is cleared by whoever sees it die.
"""

from __future__ import annotations

import mmap
import os
import struct

import msgspec

from gpufleet.proxy.run.handover import Count

_ROW = 256 * 1024
_HEAD = struct.Struct("<QQ")


class Board:
    """One process's view. `row` is the one that it writes."""

    def __init__(self, descriptor: int, rows: int, row: int) -> None:
        self._memory = mmap.mmap(descriptor, rows * _ROW)
        self._rows = rows
        self._row = row
        self._written: list[Count] = []
        self._marks = [0] * rows
        self._read: list[list[Count]] = [[] for _ in range(rows)]

    @staticmethod
    def make(rows: int) -> int:
        """A descriptor of fresh memory, which ends with the last process that holds it."""
        descriptor = os.memfd_create("gpufleet-proxy", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, rows * _ROW)
        return descriptor

    def write(self, counts: list[Count]) -> None:
        """What this process has in flight now."""
        if counts != self._written:
            self._write(self._row, counts)
            self._written = counts

    def clear(self, row: int) -> None:
        """The process of this row is dead: what it had in flight is not any more."""
        self._write(row, [])

    def _write(self, row: int, counts: list[Count]) -> None:
        content = msgspec.msgpack.encode(counts)
        start = row * _ROW
        if len(content) > _ROW - _HEAD.size:
            content = msgspec.msgpack.encode(
                []
            )  # 4,000 busy members: each process then balances by its own counts
        number, _ = _HEAD.unpack_from(self._memory, start)
        number += 1 + (number & 1)
        _HEAD.pack_into(self._memory, start, number, len(content))
        self._memory[start + _HEAD.size : start + _HEAD.size + len(content)] = content
        _HEAD.pack_into(self._memory, start, number + 1, len(content))

    def others(self) -> list[Count] | None:
        """What all other processes have, summed by member; None when nothing has changed since it was asked last."""
        changed = False
        for row in range(self._rows):
            if row != self._row:
                changed = self._look(row) or changed
        if not changed:
            return None
        sums: dict[tuple[str, str], int] = {}
        for row, counts in enumerate(self._read):
            if row != self._row:
                for id_, url, number in counts:
                    sums[id_, url] = sums.get((id_, url), 0) + number
        return [(*identity, number) for identity, number in sums.items()]

    def _look(self, row: int) -> bool:
        start = row * _ROW
        number, length = _HEAD.unpack_from(self._memory, start)
        if number == self._marks[row] or number & 1:
            return False
        content = self._memory[start + _HEAD.size : start + _HEAD.size + length]
        if _HEAD.unpack_from(self._memory, start)[0] != number:
            return False
        self._marks[row] = number
        self._read[row] = msgspec.msgpack.decode(content, type=list[Count])
        return True

    def close(self) -> None:
        """The memory stays for the others."""
        self._memory.close()
