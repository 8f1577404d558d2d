"""Answers of the pool commands, as text and as JSON fields."""

from __future__ import annotations

from gpufleet.cli.console import Answer, table, warn
from gpufleet.cli.pool_wishes import base
from gpufleet.deploy import diff, outlook
from gpufleet.deploy.flow import Prepared
from gpufleet.deploy.plan import DeployPlan
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


def plan_answer(command: str, prepared: Prepared, *, check: bool, commands: bool = False) -> Answer:
    """What would be done; with `check`, exit code 3 when that is anything."""
    plan = prepared.plan
    code = ExitCode.CHANGES if check and prepared.changes else ExitCode.OK
    outcome = "changes" if prepared.changes else "no_change"
    lines = list(diff.lines(plan))
    if plan.bring_up.steps:
        lines += [f"  image: {image}" for image in outlook.images(plan)]
        lines += [
            f"  ports of {host}: {', '.join(map(str, used))}" for host, used in outlook.ports(plan).items()
        ]
    if prepared.changes:
        lines.append(f"  downtime: {outlook.downtime(plan)}")
        lines += [f"  {number}. {line}" for number, line in enumerate(outlook.order(plan), start=1)]
    else:
        lines.append("nothing to do")
    if commands:
        lines += _command_lines(plan)
    return Answer(
        command=command, outcome=outcome, exit=code, fields=_plan_fields(plan), text="\n".join(lines)
    )


def _plan_fields(plan: DeployPlan) -> dict[str, object]:
    sent = outlook.script(plan.bring_up.steps)
    steps = [
        {
            "host": step.host,
            "phase": step.phase,
            "title": step.title,
            "step": step.id,
            "after": sorted(step.after),
            "commands": list(sent.steps[step.id]),
            "undo": list(sent.undo[step.id]),
        }
        for step in plan.bring_up.steps
    ]
    return {
        "pool": plan.pool.name,
        "hosts": diff.rows(plan),
        "images": list(outlook.images(plan)),
        "carried": list(plan.carried),
        "ports": outlook.ports(plan),
        "downtime": outlook.downtime(plan),
        "order": list(outlook.order(plan)),
        "memory": [one.fields() for one in plan.memory],
        "steps": steps,
        "scripts": dict(sent.texts),
    }


def _command_lines(plan: DeployPlan) -> list[str]:
    """Each host's commands in the order of the plan, then the scripts that they name."""
    steps, sent = plan.bring_up.steps, outlook.script(plan.bring_up.steps)
    lines: list[str] = []
    for host in plan.bring_up.hosts:
        lines += ["", f"{host}:"]
        for step in steps:
            if step.host == host:
                lines.append(f"  # {step.title}")
                lines += [f"  {command}" for command in sent.steps[step.id]]
                lines += [f"  # undo: {command}" for command in sent.undo[step.id]]
    for name, text in sent.texts.items():
        lines += ["", f"{name}:", *(f"  {line}" for line in text.splitlines())]
    return lines


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
