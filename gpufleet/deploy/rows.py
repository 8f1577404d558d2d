"""What became of each replica and host, for people and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpufleet.change.flow import Change
from gpufleet.deploy.plan import DeployPlan
from gpufleet.engine import diagnose
from gpufleet.errors import FleetError
from gpufleet.names import HostName


def fix_of(reason: str) -> str:
    """What to do about what a host said, when its cause is known."""
    cause = diagnose.first_cause(reason)
    return cause.fix if cause is not None else ""


def explain(error: FleetError, plan: DeployPlan) -> None:
    """Give the rows of a failed change what they lack: the replicas of the host, and the fix of a known cause."""
    fields = error.fields.get("hosts") if isinstance(error.fields, Mapping) else None
    if not isinstance(fields, list):
        return
    replicas: dict[str, list[str]] = {}
    for one in plan.start:
        replicas.setdefault(one.host, []).append(one.replica)
    fixes: dict[str, str] = {}
    for row in fields:
        fix = "" if row.get("hint") else fix_of(str(row.get("reason", "")))
        if fix:
            row["hint"] = fixes[str(row["host"])] = fix
        row["replica"] = ", ".join(replicas.get(str(row["host"]), ()))
    error.rows = tuple(
        replace(row, hint=fixes[row.where]) if row.where in fixes and not row.hint else row
        for row in error.rows
    )
    error.hints = tuple(dict.fromkeys((*fixes.values(), *error.hints)))


def served(plan: DeployPlan) -> tuple[Mapping[str, object], ...]:
    return tuple(
        {
            "host": one.host,
            "status": "unchanged",
            "phase": "",
            "reason": "",
            "hint": "",
            "duration_s": None,
            "replica": one.replica,
            "gpu": ",".join(one.gpus),
            "slice": one.slice or None,
            "endpoint": one.url,
        }
        for one in plan.endpoints
    )


def rows(plan: DeployPlan, change: Change | None) -> tuple[Mapping[str, object], ...]:
    """One row a replica, with what the change says of its host; then hosts that only lose something."""
    of_host = {row.host: row.fields() for row in change.rows} if change else {}
    started = {one.replica for one in plan.start}
    started |= {one.replica for one in plan.keep if any(step.host == one.host for step in plan.adapters)}
    replicas = [
        {**row, **of_host.get(HostName(str(row["host"])), {})} if row["replica"] in started else row
        for row in served(plan)
    ]
    listed = {row["host"] for row in replicas}
    return (*replicas, *(fields for host, fields in of_host.items() if host not in listed))
