"""What a whole process is given before it serves: a fast loop, rare collections, many open files."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import resource
from collections.abc import Callable, Coroutine
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
"""mallopt(3)."""
_LARGE: Final = 320 * 1024
"""Bytes from which a block goes back to the kernel when it is freed; the largest read of the loop stays below."""


def run_loop(main: Coroutine[object, object, None]) -> None:
    """Run to the end in this process."""
    gc.set_threshold(50_000, 50, 50)  # long-lived state, short-lived requests without cycles
    _allow_many_connections()
    _keep_large_blocks_apart()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main)


def _allow_many_connections() -> None:
    """Two sockets a stream: the usual soft limit of 1,024 files would end at 500 streams."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _keep_large_blocks_apart() -> None:
    """Bodies of all sizes between small objects would leave holes for ever: glibc learns from the first large block
    that is freed to cut the next ones out of its heap. A threshold that is set is not learnt anew.
    """
    with contextlib.suppress(AttributeError, OSError):  # musl and others have no such thing
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)


def tidy() -> None:
    """Free what is young and dead: failures leave cycles, and collections that count alone come an hour apart."""
    gc.collect(1)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The fast loop, uvloop, where it is installed: steadier tails and cheaper uploads; asyncio's own loop elsewhere."""
    try:
        import uvloop  # noqa: PLC0415 - it does not exist on every platform
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
