"""What a whole process is given before it serves: a fast loop, rare collections, many open files."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
from collections.abc import Callable, Coroutine


def run_loop(main: Coroutine[object, object, None]) -> None:
    """Run to the end in this process."""
    gc.set_threshold(50_000, 50, 50)  # long-lived state, short-lived requests without cycles
    _allow_many_connections()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main)


def _allow_many_connections() -> None:
    """Two sockets a stream: the usual soft limit of 1,024 files would end at 500 streams."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The fast loop, uvloop, where it is installed: steadier tails and cheaper uploads; asyncio's own loop elsewhere."""
    try:
        import uvloop  # noqa: PLC0415 - it does not exist on every platform
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
