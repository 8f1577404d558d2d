"""What could join a pool, as rows for programs and as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpufleet.cli.console import table
from gpufleet.deploy.adoption import Candidate
from gpufleet.pools.model import Pool


def candidate_row(one: Candidate, pool: Pool | None) -> dict[str, object]:
    """One container; `joins`: whether it could, None when that is not known."""
    joins: bool | None = None
    if pool is not None and one.models is not None:
        joins = pool.public_name in one.models and pool.name not in one.pools
    return {
        "host": one.host,
        "container": one.container.name,
        "replica": one.replica,
        "pool": one.pool,
        "in_pools": list(one.pools),
        "port": one.port,
        "gpu": list(one.container.devices),
        "models": None if one.models is None else list(one.models),
        "reason": one.why,
        "joins": joins,
    }


def candidates_text(
    rows: Sequence[Mapping[str, object]],
    room: Sequence[Mapping[str, object]],
    taken: Sequence[Mapping[str, object]],
) -> str:
    """For people."""

    def words(value: object) -> str:
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value or "")

    lines = ["running:" if rows else "running: nothing with a GPU and a published port"]
    if rows:
        cells = [
            (
                f"{row['host']}/{row['container']}",
                words(row["port"]),
                words(row["models"]) or str(row["reason"]),
                words(row["in_pools"]),
                "unknown" if row["joins"] is None else "yes" if row["joins"] else "no",
            )
            for row in rows
        ]
        lines.append(table(("CONTAINER", "PORT", "SERVES", "IN POOLS", "CAN JOIN"), cells))
    lines.append("free:" if room else "free: nothing")
    if room:
        places = [
            (
                str(row["host"]),
                str(row["gpu"]),
                str(row["profile"] or "whole GPU"),
                str(row["memory_mib"] or "?"),
            )
            for row in room
        ]
        lines.append(table(("HOST", "GPU", "WHAT", "MIB"), places))
    lines += [f"taken: {row['host']} {row['what']}: {row['reason']}" for row in taken]
    return "\n".join(lines)
