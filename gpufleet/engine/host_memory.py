"""How much of the host's own memory a replica takes: KV cache and weights that were moved out of the GPU.

The memory verdict counts it against the host, and a container's memory limit must hold it.
"""

from __future__ import annotations

from gpufleet.engine.flags import Fault, value_of
from gpufleet.pools.model import Pool

HEADROOM_GIB = 4.0
"""What the engine's own processes take beside that; a rule of thumb, so going below it is only said."""

SMALLEST_LIMIT = 6 * 2**20
"""Bytes: what Docker refuses to go below ("Minimum memory limit allowed is 6MB")."""

_UNITS = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def bytes_of(text: str) -> int | None:
    """A size in a runtime's notation (`64g`, `512m`, plain bytes) in bytes; None when it is none."""
    number, unit = text[:-1], text[-1:].lower()
    if text.isascii() and text.isdigit():
        return int(text)
    return int(number) * _UNITS[unit] if number.isascii() and number.isdigit() and unit in _UNITS else None


def host_memory_gib(pool: Pool, devices: int) -> float:
    """GiB of the host's memory that one replica of `pool` on `devices` GPUs reserves.

    `kv_offload` and `--kv-offloading-size` count all GPUs together, `--cpu-offload-gb` each GPU (vLLM 0.33,
    `vllm/config/cache.py` and `vllm/config/offload.py`).
    """
    return cache_gib(pool) + _number(value_of(pool.engine.args, "cpu-offload-gb")) * devices


def cache_gib(pool: Pool) -> float:
    """GiB of the host's memory that hold KV cache, all GPUs of a replica together."""
    return pool.kv_offload or _number(value_of(pool.engine.args, "kv-offloading-size"))


def _number(text: str | None) -> float:
    try:
        return max(0.0, float(text or 0.0))
    except ValueError:
        return 0.0


def memory_faults(pool: Pool, devices: int) -> tuple[Fault, ...]:
    """Whether the container's memory limit holds what the replica reserves."""
    limit = bytes_of(pool.limits.memory or "")
    if limit is None:
        return ()
    if limit < SMALLEST_LIMIT:
        return (Fault(message="`memory` is below 6 MiB, the least a runtime takes", key="limits.memory"),)
    reserved, gib = host_memory_gib(pool, devices), limit / 2**30
    if not reserved:
        return ()
    if gib <= reserved:
        return (
            Fault(
                message=f"`memory: {pool.limits.memory}` does not hold the {reserved:g} GiB that are moved to the host",
                hint=f"raise it to {reserved + HEADROOM_GIB:.0f}g or more, or lower kv_offload",
                key="limits.memory",
            ),
        )
    if gib < reserved + HEADROOM_GIB:
        return (
            Fault(
                message=f"`memory: {pool.limits.memory}` leaves the engine {gib - reserved:g} GiB beside what is moved to the host",
                hint=f"{reserved + HEADROOM_GIB:.0f}g is safer",
                key="limits.memory",
                sure=False,
            ),
        )
    return ()
