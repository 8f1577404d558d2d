"""The route table on disk: read it, and see when another generation lies there."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpufleet.pools.routes import RouteTable, decode


class RoutesUnreadable(Exception):
    """No route table can be read there; the text says why."""


class RoutesFile:
    """One path, looked at again and again."""

    __slots__ = ("_seen", "path")

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._seen: tuple[int, int, int] | None = None

    def changed(self) -> bool:
        """Another file lies there than at the last `read`. A missing file is no change: the old table stays."""
        mark = self._mark()
        return mark is not None and mark != self._seen

    def read(self) -> RouteTable:
        """Raises `RoutesUnreadable`; the same content is then not tried again until it changes."""
        self._seen = self._mark()
        try:
            return decode(self.path.read_bytes())
        except FileNotFoundError:
            raise RoutesUnreadable("there is no route table yet") from None
        except OSError as error:
            raise RoutesUnreadable(f"it cannot be read: {error.strerror}") from None
        except (msgspec.MsgspecError, ValueError) as error:
            raise RoutesUnreadable(f"it is not a route table: {error}") from None

    def _mark(self) -> tuple[int, int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
