"""The use case of `models stage`: weights on hosts as one change, without a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from gpufleet.change.flow import Tools as ChangeTools
from gpufleet.change.flow import run_change
from gpufleet.change.model import Plan
from gpufleet.change.records import journal_file
from gpufleet.deploy.staging import survey
from gpufleet.deploy.staging.give import Giving, Spot
from gpufleet.deploy.staging.steps import Staging
from gpufleet.deploy.staging.word import forget_word, keep_word, new_word
from gpufleet.names import HostName, RunId

STAGE = "models-stage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Weights that somebody may now confirm."""

    staging: Staging
    hosts: tuple[HostName, ...]
    plan: Plan
    run: RunId

    @property
    def changes(self) -> bool:
        """Whether any host would be touched."""
        return bool(self.plan.steps)


def plan_of(
    staging: Staging,
    hosts: Sequence[HostName],
    tools: ChangeTools,
    *,
    command: str,
    image: str = "",
    spots: Mapping[HostName, Spot] = MappingProxyType({}),
) -> Prepared:
    """The plan that brings a revision to hosts; with an image that has Python they give to each other."""
    run = journal_file.new_run_id(tools.clock)
    if image:
        giving = Giving(image=image, word=new_word(tools.state_dir, run), spots=spots)
        staging = replace(staging, giving=giving)
    plan = Plan(
        title=f"stage {staging.listing.source.shown}",
        command=command,
        steps=staging.steps(hosts, run),
        context={"use": STAGE, "path": staging.path},
    )
    return Prepared(staging=staging, hosts=tuple(hosts), plan=plan, run=run)


def carry_out(tools: ChangeTools, prepared: Prepared) -> tuple[RunId | None, list[Mapping[str, object]]]:
    """Stage on every host or on none: of a copy that failed only what is whole stays. Rows, one a host.

    Raises:
        RolledBack, RollbackIncomplete, InDoubt, LeaseHeld and what else `run_change` raises.
    """
    planned = survey.rows(prepared.staging, prepared.hosts)
    if not prepared.changes:
        return None, planned
    giving = prepared.staging.giving
    if giving is not None:
        keep_word(tools.state_dir, prepared.run, giving.word)
    change = run_change(prepared.plan, tools, on_commit=lambda _run, _context: None, run=prepared.run)
    forget_word(tools.state_dir, prepared.run)
    done = {row.host: row.fields() for row in change.rows}
    return change.run, [{**row, **done.get(HostName(str(row["host"])), {})} for row in planned]
