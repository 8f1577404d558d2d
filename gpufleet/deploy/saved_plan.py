"""Saved plans on disk, and whether one still says what would be done now."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from gpufleet import __version__, whole_file
from gpufleet.change.records.document import PlanRecord, plan_record
from gpufleet.deploy import diff, document
from gpufleet.deploy.document import SavedPlan
from gpufleet.deploy.flow import Prepared
from gpufleet.deploy.footing import footing, moved
from gpufleet.deploy.plan import PULLED
from gpufleet.deploy.tools import Tools
from gpufleet.errors import DocumentError, ErrorRow, StalePlan, UsageError
from gpufleet.hosts.model import HostFacts
from gpufleet.located import Located, Problems
from gpufleet.names import HostName
from gpufleet.pools import record
from gpufleet.pools.document import from_model, to_model
from gpufleet.pools.model import Pool

AGAIN = "look at the difference with `gpufleet pool plan`, and save it again"


def _refuse_other_file(path: Path) -> None:
    """Raises UsageError when something that is no saved plan would be written over."""
    if path.is_file():
        with suppress(OSError), path.open("rb") as file:
            start = file.read(4096)
            if not start or document.is_plan(start):
                return
    elif not path.exists():
        return
    raise UsageError(
        "there is another file, which a plan does not write over",
        where=str(path),
        hints=("name another file",),
    )


def save(tools: Tools, prepared: Prepared, path: Path) -> None:
    """Write a plan for `pool deploy --plan`, readable by its owner alone.

    Raises:
        UsageError: the place cannot be written.
    """
    _refuse_other_file(path)
    saved = SavedPlan(
        schema=document.SCHEMA,
        gpufleet=__version__,
        made_at=tools.change.clock.now().isoformat(timespec="seconds"),
        made_by=tools.change.operator,
        pool=from_model(prepared.plan.pool),
        record=_remembered(tools, prepared.plan.pool),
        footing={host: footing(facts) for host, facts in prepared.facts.items()},
        rows=diff.rows(prepared.plan),
        plan=_lasting(prepared),
    )
    try:
        whole_file.write(path, document.encode(saved))
    except OSError as error:
        raise UsageError(
            f"the plan was not saved: {(error.strerror or str(error)).lower()}", where=str(path)
        ) from error


def load(path: Path) -> tuple[SavedPlan, Pool]:
    """A saved plan and the pool it is for.

    Raises:
        UsageError: the file cannot be read.
        DocumentError: it is no saved plan of this version, whole and unchanged.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the saved plan cannot be read: {(error.strerror or str(error)).lower()}",
            where=str(path),
            hints=("`gpufleet pool plan ... --save PLAN.JSON` writes one",),
        ) from error
    saved = document.decode(content, str(path), version=__version__)
    problems = Problems()
    pool = to_model(Located.of(saved.pool, str(path)), problems, empty=True)
    problems.raise_if_any("the saved plan is wrong")
    if pool is None:
        raise DocumentError("the saved plan holds no pool", where=str(path))
    return saved, pool


def stands(saved: SavedPlan, path: Path) -> Callable[[Mapping[HostName, HostFacts]], None]:
    """A look at fresh facts: raises StalePlan with what moved on which host."""

    def check(facts: Mapping[HostName, HostFacts]) -> None:
        rows = moved(saved.footing, {host: footing(found) for host, found in facts.items()})
        if rows:
            hosts = dict.fromkeys(row.where for row in rows)
            raise StalePlan(
                f"{len(hosts)} host(s) moved since this plan was saved at {saved.made_at}; nothing was changed",
                where=str(path),
                rows=rows,
                hints=(AGAIN,),
            )

    return check


def image_of(saved: SavedPlan) -> str:
    """What the plan runs, as a registry knows it, or by its id; empty when it starts nothing."""
    return saved.plan.context.get(PULLED, "")


def refuse_other(tools: Tools, prepared: Prepared, saved: SavedPlan, path: Path) -> None:
    """Raises StalePlan when what would be done now is not what the plan says, though no host moved."""
    rows: tuple[ErrorRow, ...] = ()
    known = _remembered(tools, prepared.plan.pool)
    if saved.record and known and saved.record != known:
        rows = (ErrorRow("", "the pool was deployed, set or drained since; its record is another one"),)
    if not rows:
        rows = _other_steps(saved.plan, _lasting(prepared))
    if not rows and (saved.pool, saved.rows) != (from_model(prepared.plan.pool), diff.rows(prepared.plan)):
        rows = (ErrorRow("", "the replicas would be others: weights, addresses or numbers differ"),)
    if rows:
        raise StalePlan(
            "what would be done is no longer what this plan says; nothing was changed",
            where=str(path),
            rows=rows,
            hints=(AGAIN,),
        )


def _remembered(tools: Tools, pool: Pool) -> str:
    known = tools.store.record(pool.name)
    return "" if known is None else hashlib.sha256(record.encode(known)).hexdigest()[:32]


def _lasting(prepared: Prepared) -> PlanRecord:
    """The steps without what is another word in each run: its id, the key's place and digest, the command."""
    run, key = prepared.run, prepared.key.reference
    spec = "gpufleet.spec="

    def lasting(value: Any) -> Any:
        if isinstance(value, str):
            value = value.replace(run, "RUN")
            value = value.replace(key, "KEY") if key else value
            value = f"{value[: -len(run[-6:])]}RUN" if value.endswith(f"-{run[-6:]}") else value
            value = value.replace(f"gpufleet-give-{run[-6:]}-", "gpufleet-give-RUN-")
            return f"{spec}SPEC" if value.startswith(spec) else value
        if isinstance(value, Mapping):
            return {name: lasting(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [lasting(item) for item in value]
        return value

    plain = lasting(msgspec.to_builtins(plan_record(prepared.plan.bring_up)))
    return msgspec.convert({**plain, "command": "", "fingerprint": ""}, PlanRecord)


def _other_steps(then: PlanRecord, now: PlanRecord) -> tuple[ErrorRow, ...]:
    """The first step of each host that is not as it was."""
    before, after = {step.id: step for step in then.steps}, {step.id: step for step in now.steps}
    rows: dict[str, ErrorRow] = {}
    for step in (*then.steps, *now.steps):
        found, wanted = after.get(step.id), before.get(step.id)
        if found == wanted or step.host in rows:
            continue
        how = "would not be done now" if found is None else "is new" if wanted is None else "is another one"
        rows[step.host] = ErrorRow(step.host, f"step `{step.title}` {how}")
    if not rows and then != now:
        return (ErrorRow("", "the plan as a whole is another one"),)
    return tuple(rows[host] for host in sorted(rows))
