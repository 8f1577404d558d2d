"""Ctrl-C and its like during a change: once means undo, twice means stop at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def counted(press: Callable[[], object]) -> Iterator[None]:
    """Call `press` for each signal instead of dying of it; only the main thread can ask for that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        del number, frame
        press()

    # What the caller had ignored stays ignored: `nohup` means that a closed terminal is no reason to undo.
    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in heeded}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
