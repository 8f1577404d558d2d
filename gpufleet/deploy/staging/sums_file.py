"""Checksums of files on this machine that were read before, so that a plan and its deploy read 100 GB once.

An entry counts while the file has the size, the time and the inode that it had; what was written in the last seconds
is read again, because a clock may not tell two writes apart. A host compares every file anyway: a wrong entry costs a
refused copy, never a wrong one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gpufleet import whole_file

NAME = "weights-sums.json"
MOST = 5000
"""Entries that are kept, the newest."""

FRESH_NS = 2_000_000_000
"""A file that was written so shortly before it was read is not remembered."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """What a file was when it was read."""

    size: int
    mtime_ns: int
    inode: int
    check: str


class Sums:
    """Remembered checksums by absolute path. Nothing is remembered without a state directory."""

    def __init__(self, state_dir: Path | None) -> None:
        self._path = state_dir / NAME if state_dir is not None else None
        self._known: dict[str, Entry] = {}
        if self._path is not None:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                self._known = msgspec.json.decode(self._path.read_bytes(), type=dict[str, Entry])

    def of(self, path: Path) -> str:
        """The checksum of a file that is as it was; empty when it is not known."""
        seen, entry = path.stat(), self._known.get(str(path))
        same = entry is not None and (entry.size, entry.mtime_ns, entry.inode) == (
            seen.st_size,
            seen.st_mtime_ns,
            seen.st_ino,
        )
        return entry.check if same and entry is not None else ""

    def keep(self, found: Mapping[Path, str], now_ns: int) -> None:
        """Remember what was read; a state directory that cannot be written only costs the next reading."""
        for path, check in found.items():
            seen = path.stat()
            if now_ns - seen.st_mtime_ns > FRESH_NS:
                self._known.pop(str(path), None)
                self._known[str(path)] = Entry(seen.st_size, seen.st_mtime_ns, seen.st_ino, check)
        if self._path is None or not found:
            return
        kept = dict(list(self._known.items())[-MOST:])
        with contextlib.suppress(OSError):
            whole_file.write(self._path, msgspec.json.encode(kept))
