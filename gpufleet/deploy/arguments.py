"""What an engine would refuse of a pool, as errors of the plan with the file and line of each, before any host is asked."""

from __future__ import annotations

from gpufleet.engine.flags import Fault
from gpufleet.engine.model import Engine
from gpufleet.located import Problems
from gpufleet.pools.model import Pool


def check(engine: Engine, pool: Pool) -> tuple[str, ...]:
    """What cannot be told of the pool's arguments, one line each.

    Raises:
        DocumentError: everything that the engine would refuse, each with its place; nothing was changed.
    """
    problems = Problems()
    told = collect(engine, pool, problems)
    problems.raise_if_any(f"the engine would refuse pool {pool.name}")
    return told


def collect(engine: Engine, pool: Pool, problems: Problems) -> tuple[str, ...]:
    """The same, with what the engine would refuse added to `problems`."""
    told: list[str] = []
    for fault in engine.faults(pool):
        place = _place(fault, pool)
        if fault.sure and pool.engine.lint == "strict":
            problems.add(place, fault.message, fault.hint)
        else:
            told.append(": ".join(part for part in (place, fault.message) if part) + _hint(fault))
    return tuple(told)


def _hint(fault: Fault) -> str:
    return f" ({fault.hint})" if fault.hint else ""


def _place(fault: Fault, pool: Pool) -> str:
    """`file:line` where it is known; arguments that a catalogue added have no line in the pool's file."""
    engine = pool.engine
    if fault.at is not None and len(engine.args_at) == len(engine.args) and engine.args_at[fault.at]:
        return engine.args_at[fault.at]
    written = pool.written_at.get(fault.key, "") if fault.key else ""
    return written or f"pool {pool.name}, {fault.key or 'engine.args'}"
