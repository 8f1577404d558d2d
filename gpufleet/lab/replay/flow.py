"""Several policies on the same traffic, best first."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpufleet.errors import UsageError
from gpufleet.lab.replay import baselines, traces, workloads
from gpufleet.lab.replay.model import Engines, Outcome, Trace
from gpufleet.lab.replay.simulate import replay

REQUESTS = 4000
"""Of a workload that is made here, unless another number is asked for."""


def traffic(source: str, *, first: int | None, speed_up: float, seed: int) -> Trace:
    """A workload by its name, or the trace in a file. Raises `UsageError`."""
    if source in workloads.WORKLOADS:
        trace = workloads.make(source, first or REQUESTS, seed)
    else:
        path = Path(source)
        try:
            text = path.read_bytes()
        except OSError as error:
            raise UsageError(
                f"the trace cannot be read: {error.strerror}",
                where=source,
                hints=(f"name a file, or one of: {', '.join(workloads.WORKLOADS)}",),
            ) from None
        trace = traces.parse(str(path), text, first=first)
    return trace.scaled(speed_up) if speed_up != 1.0 else trace


def policies(wanted: Sequence[str]) -> tuple[str, ...]:
    """Names that are known, all of them when none is wanted. Raises `UsageError`."""
    known = baselines.names()
    for name in wanted:
        if name not in known:
            raise UsageError(f"there is no policy `{name}`", hints=(f"one of: {', '.join(known)}",))
    return tuple(dict.fromkeys(wanted)) or known


def compare(
    names: Sequence[str], trace: Trace, engines: Engines, *, seed: int, timer: Callable[[], float]
) -> Iterator[Outcome]:
    """One policy after the other, each from an empty pool with the same dice."""
    for name in names:
        yield replay(
            name=name,
            policy=baselines.make(name, trace.block_tokens),
            trace=trace,
            engines=engines,
            dice=random.Random(seed),
            timer=timer,
        )
