"""Taking a pool away: drain and stop every replica or none, unpublish, then remove; and the end of runs that others resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpufleet.change.flow import Change, run_change
from gpufleet.change.model import HERE, Plan, Step
from gpufleet.change.records import journal_file
from gpufleet.deploy import commit
from gpufleet.deploy.audit import Line, audited
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.emptying import Emptying
from gpufleet.deploy.fingerprint import fingerprint
from gpufleet.deploy.flow import forget_elsewhere
from gpufleet.deploy.replicas import LABEL, Present, held_by, replicas_of
from gpufleet.deploy.retire import Retired, copy_routes, retire, try_again
from gpufleet.deploy.steps import stop_step
from gpufleet.deploy.survey import survey
from gpufleet.deploy.tools import Done, Tools, former_hosts, recheck, settle_old_runs, warn_of_leases
from gpufleet.engine.vllm import STOP_TIMEOUT
from gpufleet.errors import ErrorRow, FleetError, PreflightFailed, Refused
from gpufleet.hosts.model import HostFacts, Known, Unknown
from gpufleet.inventory.model import Host
from gpufleet.names import HostName, PoolName, ReplicaId, RunId, StepId
from gpufleet.pools import record
from gpufleet.pools.model import GateWish
from gpufleet.pools.record import PoolRecord

FORCE = "`gpufleet pool delete --force`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A pool that is to go. `lines`: what becomes of each of its members, for people."""

    pool: PoolName
    plan: Plan
    gone: tuple[Present, ...]
    facts: Mapping[HostName, HostFacts]
    run: RunId
    lines: tuple[str, ...]


def prepare_deletion(
    tools: Tools,
    name: PoolName,
    hosts: Sequence[Host],
    *,
    command: str,
    keep: bool = False,
    force: bool = False,
    drain: bool = True,
) -> Deletion:
    """Look for the pool's replicas on these hosts and on those of its record; plan to stop them all.

    Args:
        tools: as ever.
        name: the pool.
        hosts: where to look beside the hosts of its record.
        command: as typed.
        keep: stop nothing, only take the pool away.
        force: stop containers that were added too, and forget replicas on hosts that the inventory lost.
        drain: take the members out of the routes and let them finish first.

    Raises:
        Refused: a replica runs on a host that the inventory does not have any more, or serves another pool.
        PreflightFailed: a host does not tell what runs there.
    """
    known = tools.store.record(name)
    if known is not None and not keep and not force:
        _refuse_lost(tools, name, known)
    everywhere = (*hosts, *former_hosts(tools, known, hosts))
    facts = survey(tools.change.transport, everywhere, clock=tools.change.clock, forks=tools.change.forks)
    present = replicas_of(name, facts.values())
    if not keep and not force:
        _refuse_unseen(facts)
        _refuse_shared(tools, name, present)
    strangers = _added(known, facts) if known is not None else ()
    gone = () if keep else (*present, *(strangers if force else ()))
    steps = _steps(tools, known, name, gone, facts, drain=drain)
    plan = Plan(
        title=f"delete pool {name}",
        command=command,
        steps=steps,
        fingerprint=fingerprint({step.host: facts[step.host] for step in steps if step.host != HERE}),
        context=commit.delete_context(
            name, gone, tools.inventory.hosts, tools.engine, kept=keep and bool(present)
        ),
    )
    return Deletion(
        pool=name,
        plan=plan,
        gone=gone,
        facts=facts,
        run=journal_file.new_run_id(tools.change.clock),
        lines=_lines(present, strangers, gone),
    )


def _lines(
    present: Sequence[Present], strangers: Sequence[Present], gone: Sequence[Present]
) -> tuple[str, ...]:
    """What becomes of each member, for people."""
    return tuple(
        f"  {'-' if one in gone else '='} {one.replica}  container {one.container.name}"
        f"{', which gpufleet did not start' if one in strangers else ''}"
        f"{'' if one in gone else ', runs on'}"
        for one in (*present, *strangers)
    )


def _steps(
    tools: Tools,
    known: PoolRecord | None,
    name: PoolName,
    gone: Sequence[Present],
    facts: Mapping[HostName, HostFacts],
    *,
    drain: bool,
) -> tuple[Step, ...]:
    """Take them out of the routes, let them finish, stop them; nothing at all when none of them is up."""
    dialects = {
        host: Dialect.of(seen.runtime.value)
        for host, seen in facts.items()
        if isinstance(seen.runtime, Known)
    }
    up = [one for one in gone if one.up and one.host in dialects]
    if not up:
        return ()
    drains: list[Step] = []
    waits: dict[str, frozenset[StepId]] = {}
    if drain:
        pools = tools.store.routes().pools
        place = Emptying(
            served=next((pool for pool in pools if pool.name == name), None),
            elsewhere=tuple(pool for pool in pools if pool.name != name),
            hosts=tools.inventory.hosts,
            dialects=dialects,
            engine=tools.engine,
            gate=record.pool_of(known).gate if known is not None else GateWish(),
        )
        drains, waits = place.steps(gone)
    stops = (
        stop_step(one, dialects[one.host], STOP_TIMEOUT, waits.get(one.container.id, frozenset()))
        for one in up
    )
    return (*drains, *stops)


def _refuse_lost(tools: Tools, name: PoolName, known: PoolRecord) -> None:
    """Raises Refused for replicas that nobody could stop: their host left the inventory while they run."""
    items = (*known.endpoints, *known.orphans)
    lost = [item for item in items if item.host not in tools.inventory.hosts and not item.container]
    if lost:
        raise Refused(
            f"pool {name} has {len(lost)} replica(s) on hosts that are no longer in the inventory; nothing was changed",
            rows=tuple(ErrorRow(item.host, f"{item.replica} runs there by the record") for item in lost),
            hints=(
                "put the hosts back into the inventory, so that their containers are removed too",
                f"or forget them: gpufleet pool delete {name} --force",
            ),
        )


def _refuse_unseen(facts: Mapping[HostName, HostFacts]) -> None:
    """Raises PreflightFailed for hosts whose containers are not known: a replica there would be left behind."""
    rows = tuple(
        ErrorRow(name, f"its containers are not known: {host.containers.reason}")
        for name, host in facts.items()
        if isinstance(host.containers, Unknown)
    )
    if rows:
        raise PreflightFailed(
            f"{len(rows)} of {len(facts)} hosts do not tell what runs there; nothing was changed",
            rows=rows,
            hints=("`gpufleet hosts check` says what is wrong", f"what runs there is forgotten by {FORCE}"),
        )


def _refuse_shared(tools: Tools, name: PoolName, present: Sequence[Present]) -> None:
    """Raises Refused for replicas that serve other pools too: those would lose them."""
    ours = {one.container.id: one for one in present}
    rows = [
        ErrorRow(
            ours[item.container].host, f"{ours[item.container].replica} serves pool {other} as {item.replica}"
        )
        for other in tools.store.names()
        if other != name and (known := tools.store.record(other)) is not None
        for item in known.endpoints
        if item.container in ours
    ]
    if rows:
        raise Refused(
            f"{len(rows)} replica(s) of pool {name} serve other pools; nothing was changed",
            rows=tuple(rows),
            hints=(
                "take them out there with `gpufleet pool remove`",
                f"or stop them all the same with {FORCE}",
            ),
        )


def _added(known: PoolRecord, facts: Mapping[HostName, HostFacts]) -> tuple[Present, ...]:
    """Containers that were added to the pool and that no pool started; replicas of other pools are not ours to stop."""
    found: list[Present] = []
    for item in known.endpoints:
        host = facts.get(HostName(item.host)) if item.container else None
        containers = host.containers.value if host and isinstance(host.containers, Known) else ()
        found += [
            Present(replica=ReplicaId(item.replica), host=HostName(item.host), container=one)
            for one in containers
            if one.id == item.container and not one.labels.get(f"{LABEL}.pool")
        ]
    return tuple(found)


def delete(tools: Tools, deletion: Deletion) -> Done:
    """Stop every replica or none; then take the routes away and remove the containers."""
    hosts = tuple(sorted({one.host for one in deletion.gone}))
    line = Line(command=deletion.plan.command, pool=deletion.pool, hosts=hosts, run=deletion.run)
    with audited(tools, line):
        return _deleted(tools, deletion)


def _deleted(tools: Tools, deletion: Deletion) -> Done:
    settle_old_runs(tools, deletion.facts)
    change: Change | None = None
    finish = commit.finish_commit(tools.store)
    if deletion.plan.steps:
        change = run_change(
            deletion.plan,
            tools.change,
            on_commit=finish,
            run=deletion.run,
            recheck=recheck(tools, deletion.plan, deletion.facts),
        )
    else:
        finish(deletion.run, deletion.plan.context)
    run = change.run if change else ""
    forget_elsewhere(tools, deletion.pool, deletion.gone)
    retired = retire(
        commit.retirees_of(deletion.plan.context),
        deletion.facts,
        tools.change,
        title=f"remove pool {deletion.pool}",
        again=try_again(run),
    )
    warn_of_leases(tools, change)
    copy_routes(tools.store, {one.host for one in deletion.gone}, tools.change, tools.warn)
    return Done(
        outcome="committed",
        run=run or next(iter(retired.runs), ""),
        generation=tools.store.routes().generation,
        hosts=tuple(_row(one, change) for one in deletion.gone),
        leftovers=retired.leftovers,
    )


def _row(one: Present, change: Change | None) -> Mapping[str, object]:
    """What became of one replica; one that was down already had nothing to be stopped."""
    found = next((row.fields() for row in change.rows if row.host == one.host), None) if change else None
    plain = {"host": one.host, "status": "done", "phase": "", "reason": "", "hint": "", "duration_s": None}
    return {**(found or plain), **held_by(one), "endpoint": ""}


def retire_after(tools: Tools, context: Mapping[str, str]) -> Retired:
    """The last part for a run that was resumed: remove what its context says is to go, copy the routes."""
    retirees = commit.retirees_of(context)
    names = {HostName(one.host) for one in retirees}
    hosts = tuple(host for name, host in tools.inventory.hosts.items() if name in names)
    try:
        facts = survey(tools.change.transport, hosts, clock=tools.change.clock, forks=tools.change.forks)
    except FleetError as error:
        tools.warn(f"what is no longer needed was not removed: {error}")
        return Retired()
    settle_old_runs(tools, facts)
    gone = frozenset(one.container for one in retirees)
    commit.forget_containers(tools.store, gone, tools.engine, but=PoolName(context.get("pool", "")))
    title = f"retire what pool {context.get('pool', '')} no longer needs"
    again = "run the same command again once the host answers"
    retired = retire(retirees, facts, tools.change, title=title, again=again)
    copy_routes(tools.store, names, tools.change, tools.warn)
    return retired
