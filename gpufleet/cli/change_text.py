"""Runs and leases as JSON fields and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpufleet.change.flow import Change
from gpufleet.change.leases.lease import Answer as LeaseAnswer
from gpufleet.change.machine import State, leftovers
from gpufleet.change.records.journal import Opened, opening, replay
from gpufleet.change.records.journal_file import RunSummary
from gpufleet.change.rows import host_rows
from gpufleet.cli.console import Answer, table
from gpufleet.deploy.rows import fix_of
from gpufleet.errors import ErrorRow
from gpufleet.names import HostName
from gpufleet.redact import MASK, Secret

OUTCOMES = {"committed": "committed", "undone": "rolled_back"}
OVER = frozenset(OUTCOMES)


def state_of(summary: RunSummary) -> str:
    """`running`, `interrupted`, `unreadable`, or how it ended: `committed`, `undone`, `stuck`."""
    if summary.problem:
        return "unreadable"
    if summary.busy:
        return "running"
    return summary.ending or "interrupted"


def run_fields(summary: RunSummary) -> dict[str, Any]:
    """One run of `change list`."""
    fields: dict[str, Any] = {"run": summary.run, "state": state_of(summary)}
    if summary.problem:
        return {**fields, "problem": summary.problem}
    first = summary.records[0]
    if isinstance(first.body, Opened):
        fields |= {
            "started_at": first.at,
            "operator": first.body.operator,
            "command": first.body.plan.command,
            "title": first.body.plan.title,
            "hosts": list(first.body.hosts),
        }
    return {**fields, "next": list(ways_out(summary))}


def ways_out(summary: RunSummary) -> tuple[str, ...]:
    """The commands that finish a run; none for one that is over or at work."""
    match state_of(summary):
        case "interrupted":
            return summary.ways_out
        case "stuck":
            return (f"gpufleet change undo {summary.run}",)
        case _:
            return ()


def run_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """`change list` for people."""
    if not runs:
        return "no runs"
    rows = [
        (
            str(run["run"]),
            str(run["state"]),
            str(run.get("operator", "")),
            str(len(run["hosts"])) if "hosts" in run else "",
            str(run.get("title", run.get("problem", ""))),
        )
        for run in runs
    ]
    lines = [table(("RUN", "STATE", "OPERATOR", "HOSTS", "WHAT"), rows)]
    lines += [f"{run['state']}: {run['run']}: {' or '.join(run['next'])}" for run in runs if run.get("next")]
    return "\n".join(lines)


def details(summary: RunSummary) -> dict[str, Any]:
    """`change show`. Raises JournalError for a journal that tells an impossible story."""
    fields = run_fields(summary)
    fields["over"] = summary.ending in OVER
    if summary.problem:
        return fields
    head = opening(summary.records, _unseen)
    state = replay(summary.records, head.plan)
    return fields | {
        "hosts": [{**row.fields(), "hint": row.hint or fix_of(row.reason)} for row in host_rows(state, {})],
        "phase": state.phase.value,
        "cause": _cause(state),
        "steps": [
            {
                "step": step.id,
                "host": step.host,
                "title": step.title,
                "phase": step.phase,
                "state": state.phase_of(step.id).value,
                "reason": state.statuses[step.id].reason,
            }
            for step in head.plan.steps
        ],
        "left": [step.id for step in leftovers(state)] if summary.ending != "committed" else [],
    }


def _unseen(reference: str) -> Secret[str]:
    """A secret nobody is going to use: showing a run needs none."""
    return Secret(MASK, reference=reference)


def _cause(state: State) -> str:
    return state.cause.reason if state.cause else ""


def details_text(fields: Mapping[str, Any]) -> str:
    """`change show` for people."""
    lines = [f"run {fields['run']}: {fields['state']}"]
    if "problem" in fields:
        return "\n".join([*lines, fields["problem"]])
    lines += [
        f"  {name}: {fields[name]}"
        for name in ("title", "operator", "started_at", "cause")
        if fields.get(name)
    ]
    rows = [
        (
            step["host"],
            step["title"],
            step["state"].replace("_", " "),
            step["reason"].splitlines()[0] if step["reason"] else "",
        )
        for step in fields["steps"]
    ]
    lines.append(table(("HOST", "STEP", "STATE", "REASON"), rows))
    lines += [f"{row['host']}: hint: {row['hint']}" for row in fields["hosts"] if row["hint"]]
    lines += [f"next: {command}" for command in fields.get("next", [])]
    return "\n".join(lines)


def taken_up(command: str, change: Change, leftovers: Sequence[ErrorRow]) -> Answer:
    """What `resume` and `undo` answer when the run came to a good end."""
    fields = change.fields()
    if leftovers:
        fields["leftovers"] = [
            {"host": row.where, "message": row.message, "hint": row.hint} for row in leftovers
        ]
    ending = change.ending.value
    lines = [f"run {change.run} is {ending.replace('_', ' ')}"]
    for row in change.rows:
        if row.status == "undone" and row.phase == "drain" and row.reason:
            lines += [f"  {row.reason}", *([f"  next: {row.hint}"] if row.hint else [])]
    text = "\n".join(lines)
    return Answer(command=command, outcome=OUTCOMES[ending], fields=fields, text=text)


def holder_line(host: HostName, answer: LeaseAnswer) -> str:
    """Who holds a lease, for the person who is about to break it."""
    holder = answer.holder
    if holder is None:
        return f"{host}: {answer.standing}"
    beat = "" if holder.age is None else f", last heartbeat {holder.age} s ago"
    first = f"{host}: {answer.standing} by {holder.who}: {holder.operation}, run {holder.run}{beat}"
    if not answer.open_run:
        return first
    return (
        f"{first}\nits run acted on this host and is not over: `gpufleet change resume {holder.run}` or "
        f"`gpufleet change undo {holder.run}` ends it properly"
    )


def unlocked(host: HostName, answer: LeaseAnswer) -> Answer:
    """What `unlock` answers."""
    holder = answer.holder
    row: dict[str, object] = {"host": host, "status": "free", "open_run": answer.open_run}
    if holder is not None:
        row |= {"holder": holder.who, "run": holder.run, "operation": holder.operation}
    text = f"the lease of {host} is broken"
    return Answer(command="change unlock", fields={"hosts": [row]}, text=text)
