"""known_hosts files on disk: read for every connection, and one line added on purpose."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from gpufleet.paths import expanded
from gpufleet.remote.ssh.known_hosts import Entry, Parsed, parse


class KnownHostsFiles:
    """The entries of several files, each read once. Safe to use from several threads.

    A file that does not exist has no entries. One that cannot be read is warned of: it may hold a revoked key,
    but a host whose key is found nowhere else is refused all the same.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._files: dict[Path, tuple[Entry, ...]] = {}
        self._lock = threading.Lock()

    def entries(self, paths: tuple[str, ...]) -> tuple[Entry, ...]:
        """All entries of all files, in this order."""
        return tuple(entry for path in paths for entry in self._of(expanded(path)))

    def _of(self, path: Path) -> tuple[Entry, ...]:
        with self._lock:
            if path not in self._files:
                found = self._read(path)
                self._files[path] = found.entries
                for warning in found.warnings:
                    self._warn(warning)
            return self._files[path]

    @staticmethod
    def _read(path: Path) -> Parsed:
        try:
            return parse(path.read_text(encoding="utf-8", errors="replace"), str(path))
        except (FileNotFoundError, NotADirectoryError):
            return Parsed(())
        except OSError as wrong:
            return Parsed((), (f"{path}: cannot be read ({wrong.strerror}), its host keys are not known",))


def add_line(path: Path, line: str) -> None:
    """Add one line to a known_hosts file: a whole new file beside it, fsync, rename; 0600 when it is new."""
    path = Path(os.path.realpath(expanded(path)))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        before, mode = path.read_bytes(), path.stat().st_mode & 0o777
    except FileNotFoundError:
        before, mode = b"", 0o600
    if before and not before.endswith(b"\n"):
        before += b"\n"
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(before + line.encode("utf-8") + b"\n")
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(mode)
        Path(name).rename(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
