"""Load and unload adapters on all members of a pool as one change: look, plan, apply, publish.

An adapter is published once every member has it, and taken out of the routes before the first member loses it: as a
step of the same change, so that whoever undoes or resumes it puts the routes right as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gpufleet.change.flow import run_change
from gpufleet.change.model import HERE, Plan, Step
from gpufleet.deploy import commit
from gpufleet.deploy.adapters import Member, load_step, unload_step, withdrawn_first
from gpufleet.deploy.adapters_asked import asked, members_of
from gpufleet.deploy.audit import Line, audited
from gpufleet.deploy.fingerprint import fingerprint
from gpufleet.deploy.members import host_of
from gpufleet.deploy.retire import copy_routes
from gpufleet.deploy.survey import survey
from gpufleet.deploy.tools import Done, Tools, recheck, settle_old_runs, warn_of_leases
from gpufleet.engine.adapters import Loaded, reachable
from gpufleet.errors import ErrorRow, PreflightFailed, UsageError
from gpufleet.hosts.model import HostFacts
from gpufleet.located import did_you_mean
from gpufleet.names import HostName, PoolName, ReplicaId, RunId
from gpufleet.pools import membership, record
from gpufleet.pools.mistakes import adapter_mistake
from gpufleet.pools.model import Pool
from gpufleet.pools.record import PoolRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """What would be loaded and unloaded.

    Attributes:
        routes_change: whether the names that the pool is served under change.
    """

    pool: Pool
    plan: Plan
    load: Mapping[str, str]
    unload: tuple[str, ...]
    facts: Mapping[HostName, HostFacts]
    routes_change: bool

    @property
    def changes(self) -> bool:
        """Whether anything would be done."""
        return bool(self.plan.steps) or self.routes_change


def prepare_adapters(
    tools: Tools, name: PoolName, load: Mapping[str, str], unload: Sequence[str], *, command: str
) -> Adapters:
    """Look at every member and plan; nothing is changed.

    Raises:
        UsageError: the pool is not deployed, takes no adapters, or they are wrong.
        PreflightFailed: a member does not run, or has another adapter of that name.
    """
    known = tools.store.record(name)
    if known is None:
        raise UsageError(f"pool {name} is not deployed", hints=(f"gpufleet pool deploy {name}",))
    pool = record.pool_of(known)
    _refuse(pool, load, unload)
    facts = _facts(tools, known)
    members = _members(tools, pool, known, facts)
    steps = _steps(members, _asked(tools, members), load, {gone: pool.lora[gone] for gone in unload})
    served = next((route for route in tools.store.routes().pools if route.name == name), None)
    steps = withdrawn_first(steps, served, unload)
    altered = membership.set_adapters(pool, load, unload)
    plan = Plan(
        title=f"adapters of pool {name}",
        command=command,
        steps=steps,
        fingerprint=fingerprint({step.host: facts[step.host] for step in steps if step.host != HERE}),
        context={
            "use": commit.ADAPTERS,
            "pool": name,
            "load": msgspec.json.encode(dict(load)).decode(),
            "unload": msgspec.json.encode(list(unload)).decode(),
        },
    )
    return Adapters(
        pool=pool,
        plan=plan,
        load=dict(load),
        unload=tuple(unload),
        facts=facts,
        routes_change=altered.lora != pool.lora,
    )


def carry_out_adapters(tools: Tools, adapters: Adapters) -> Done:
    """All members or none.

    Raises:
        RolledBack, RollbackIncomplete, InDoubt, LeaseHeld, StalePlan and what else `run_change` raises.
    """
    if not adapters.changes:
        return Done(outcome="no_change", generation=tools.store.routes().generation)
    line = Line(command=adapters.plan.command, pool=adapters.pool.name, hosts=adapters.plan.hosts)
    with audited(tools, line):
        done = _carried_out(tools, adapters)
        line.run = RunId(done.run)
    return done


def _carried_out(tools: Tools, adapters: Adapters) -> Done:
    finish = commit.finish_commit(tools.store)
    if not adapters.plan.steps:
        finish(RunId(""), adapters.plan.context)
        return Done(outcome="committed", generation=tools.store.routes().generation)
    settle_old_runs(tools, adapters.facts)
    change = run_change(
        adapters.plan,
        tools.change,
        on_commit=finish,
        recheck=recheck(tools, adapters.plan, adapters.facts),
    )
    warn_of_leases(tools, change)
    copy_routes(tools.store, set(adapters.plan.hosts), tools.change, tools.warn)
    rows = tuple(row.fields() for row in change.rows)
    generation = tools.store.routes().generation
    return Done(outcome="committed", run=change.run, generation=generation, hosts=rows)


def _refuse(pool: Pool, load: Mapping[str, str], unload: Sequence[str]) -> None:
    if not pool.takes_adapters:
        raise UsageError(
            f"the engines of pool {pool.name} were started without adapters",
            hints=("set `lora` or `lora_from` in the pool and deploy it once",),
        )
    for name, path in load.items():
        mistake = adapter_mistake(name, path)
        if mistake or name == pool.public_name:
            raise UsageError(mistake or f"`{name}` is the name of the model itself")
        if pool.lora.get(name, path) != path:
            raise UsageError(
                f"adapter {name} is loaded from {pool.lora[name]}",
                hints=("unload it first, or use another name",),
            )
        if not reachable(pool, path):
            raise UsageError(
                f"the containers of pool {pool.name} cannot see {path}",
                hints=("put it below the pool's `lora_from`, or add it to `lora` and deploy the pool",),
            )
    for name in unload:
        if name not in pool.lora:
            known = did_you_mean(name, pool.lora) or f"it has: {', '.join(sorted(pool.lora)) or 'none'}"
            raise UsageError(f"pool {pool.name} has no adapter {name}", hints=(known,))


def _facts(tools: Tools, known: PoolRecord) -> dict[HostName, HostFacts]:
    names = sorted({HostName(item.host) for item in known.endpoints})
    lost = [name for name in names if name not in tools.inventory.hosts]
    if lost:
        raise UsageError(
            f"{', '.join(lost)} has members of this pool and is not in the inventory",
            hints=("an adapter is loaded on all members or on none",),
        )
    hosts = tuple(tools.inventory.hosts[name] for name in names)
    return survey(tools.change.transport, hosts, clock=tools.change.clock, forks=tools.change.forks)


def _members(
    tools: Tools, pool: Pool, known: PoolRecord, facts: Mapping[HostName, HostFacts]
) -> Sequence[Member]:
    """Every member, or an error that names those that do not run."""
    found, rows = members_of(tools, pool.name, record.endpoints_of(known), facts)
    if rows:
        raise PreflightFailed(
            f"{len(rows)} of {len(known.endpoints)} members of pool {pool.name} do not run; nothing was changed",
            rows=tuple(rows),
        )
    return found


def _asked(tools: Tools, members: Sequence[Member]) -> dict[ReplicaId, tuple[Loaded, ...]]:
    """What every engine has now, or an error that names those that do not tell."""
    found: dict[ReplicaId, tuple[Loaded, ...]] = {}
    rows: list[ErrorRow] = []
    for replica, told in asked(tools, members).items():
        if isinstance(told, str):
            rows.append(
                ErrorRow(host_of(replica), f"{replica}: {told}", f"gpufleet hosts check {host_of(replica)}")
            )
        else:
            found[replica] = told
    if rows:
        raise PreflightFailed(
            "members do not tell which adapters they have; nothing was changed", rows=tuple(rows)
        )
    return found


def _steps(
    members: Sequence[Member],
    has: Mapping[ReplicaId, tuple[Loaded, ...]],
    load: Mapping[str, str],
    unload: Mapping[str, str],
) -> tuple[Step, ...]:
    """What each member lacks or has too much; an adapter of that name from elsewhere is refused."""
    steps: list[Step] = []
    rows: list[ErrorRow] = []
    for member in members:
        places = {one.name: one.root for one in has[member.present.replica]}
        for name, path in load.items():
            if name not in places:
                steps.append(load_step(member, name, path))
            elif places[name] != path:
                text = f"{member.present.replica} has adapter {name} from {places[name]} already"
                rows.append(ErrorRow(member.present.host, text, "unload it first, or use another name"))
        steps += [unload_step(member, name, path) for name, path in unload.items() if name in places]
    if rows:
        raise PreflightFailed("another adapter has that name; nothing was changed", rows=tuple(rows))
    return tuple(steps)
