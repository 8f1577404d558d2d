"""What the threads that use one connection share: its places, and what was said already."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from gpufleet.remote.exchange import Deadline


class Slots:
    """How many commands run at once on one connection; learns a lower limit from a host that refuses."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def one(self, deadline: Deadline) -> Iterator[bool]:
        """A slot for the length of the block; False when none came free in time."""
        with self._changed:
            free = self._changed.wait_for(lambda: self._used < self._limit, deadline.left())
            self._used += free
        try:
            yield free
        finally:
            with self._changed:
                self._used -= free
                self._changed.notify_all()

    def after_refusal(self, deadline: Deadline) -> bool:
        """Wait until fewer run than do now, or a moment; whether the refused command was the only one."""
        with self._changed:
            now = self._used
            alone = now <= 1
            self._limit = max(1, min(self._limit, now - 1))
            moment = min(deadline.left(), 0.25 if alone else 1.0)
            self._changed.wait_for(lambda: self._used < now, moment)
            return alone


class Once:
    """Passes each line on once."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, line: str) -> None:
        with self._lock:
            new = line not in self._seen
            self._seen.add(line)
        if new:
            self._warn(line)
