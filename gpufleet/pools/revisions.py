"""What a commit changed against the one before, from their definitions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpufleet.pools.record import PoolRecord

KEPT = 10
"""Revisions of a pool that are kept, the one that serves included."""

_SHOWN = 60


def flat(definition: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Every value of a definition by its dotted key; a list is one value."""
    found: dict[str, str] = {}
    for key, value in definition.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found.update(flat(value, f"{name}."))
        elif isinstance(value, list | tuple):
            found[name] = " ".join(str(item) for item in value)
        else:
            found[name] = str(value)
    return found


def changed(before: PoolRecord | None, after: PoolRecord) -> tuple[str, ...]:
    """`key: old -> new` for each value that differs; where the replicas are, when only that does."""
    if before is None:
        return ("first known",)
    then, now = flat(before.pool), flat(after.pool)
    lines = [
        f"{key}: {_short(then.get(key))} -> {_short(now.get(key))}"
        for key in sorted(then.keys() | now.keys())
        if then.get(key) != now.get(key)
    ]
    places = [{(one.host, one.slice, one.gpus) for one in record.endpoints} for record in (before, after)]
    if not lines and places[0] != places[1]:
        lines.append("where the replicas are")
    return tuple(lines) or ("nothing of the definition",)


def _short(value: str | None) -> str:
    if value is None:
        return "(default)"
    return value if len(value) <= _SHOWN else f"{value[: _SHOWN - 3]}..."
