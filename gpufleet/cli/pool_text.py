"""Answers of the pool commands, as text and as JSON fields."""

from __future__ import annotations

from gpufleet.cli.console import Answer, table, warn
from gpufleet.cli.pool_wishes import base
from gpufleet.deploy import diff
from gpufleet.deploy.flow import Prepared
from gpufleet.deploy.tools import Done
from gpufleet.errors import ExitCode
from gpufleet.inventory.model import Inventory
from gpufleet.names import PoolName
from gpufleet.pools.store import PoolStore


def summary(inventory: Inventory, store: PoolStore, name: str) -> dict[str, object]:
    """One pool in a line."""
    pool, known = base(inventory, store, name, None), store.record(PoolName(name))
    served = next((route for route in store.routes().pools if route.name == name), None)
    return {
        "pool": name,
        "model": pool.model if pool else ", ".join(served.models) if served else "",
        "algorithm": served.algorithm if served else pool.algorithm if pool else "",
        "replicas": pool.replicas if pool else 0,
        "served": len(served.endpoints) if served else 0,
        "revision": known.revision if known else 0,
    }


def plan_answer(command: str, prepared: Prepared, *, check: bool) -> Answer:
    """What would be done; with `check`, exit code 3 when that is anything."""
    plan = prepared.plan
    steps = [
        {"host": step.host, "phase": step.phase, "title": step.title, "step": step.id}
        for step in plan.bring_up.steps
    ]
    fields = {"pool": plan.pool.name, "hosts": diff.rows(plan), "steps": steps}
    lines = diff.lines(plan) if prepared.changes else (*diff.lines(plan), "nothing to do")
    code = ExitCode.CHANGES if check and prepared.changes else ExitCode.OK
    outcome = "changes" if prepared.changes else "no_change"
    return Answer(command=command, outcome=outcome, exit=code, fields=fields, text="\n".join(lines))


def done_answer(command: str, name: str, done: Done) -> Answer:
    """What was done, leftovers as warnings."""
    for row in done.leftovers:
        warn(f"{row.where}: {row.message}")
    rows = [
        (str(row.get("replica", row["host"])), str(row["status"]), str(row.get("endpoint", "")))
        for row in done.hosts
    ]
    head = {
        "no_change": f"pool {name}: nothing to do",
        "committed": f"pool {name}: committed{f', run {done.run}' if done.run else ''}",
    }.get(done.outcome, f"pool {name}: {done.outcome}")
    text = f"{head}\n{table(('REPLICA', 'STATUS', 'ENDPOINT'), rows)}" if rows else head
    return Answer(command=command, outcome=done.outcome, fields={"pool": name, **done.fields()}, text=text)
