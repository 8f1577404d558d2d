"""The use cases of a pool: look, plan, apply, publish, retire.

    prepared = prepare(tools, pool, command="pool deploy chat")     # looks, changes nothing
    ... show diff.lines(prepared.plan), ask ...
    deployed = carry_out(tools, prepared)                           # all of it or nothing

Between the two nothing is locked: the leases are taken by the change, and under them the hosts are looked at once
more. When they moved, the plan is stale and nothing is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gpufleet.change.flow import Change, run_change
from gpufleet.change.model import Plan
from gpufleet.change.records import journal_file
from gpufleet.deploy import commit, meanwhile, members
from gpufleet.deploy.adapters_deploy import with_adapters
from gpufleet.deploy.arguments import check
from gpufleet.deploy.audit import Line, audited
from gpufleet.deploy.catalogue import filled
from gpufleet.deploy.elsewhere import make_or_look
from gpufleet.deploy.measure import remember, seen
from gpufleet.deploy.pinning import pin
from gpufleet.deploy.plan import DeployPlan, Wish
from gpufleet.deploy.replicas import Present, open_hosts, replicas_of
from gpufleet.deploy.retire import copy_routes, retire, try_again
from gpufleet.deploy.rows import explain, rows, served
from gpufleet.deploy.staging.word import forget_word, keep_word, new_word
from gpufleet.deploy.survey import glance, preflight, survey
from gpufleet.deploy.tools import (
    Done,
    Tools,
    former_hosts,
    recheck,
    resolved,
    settle_old_runs,
    warn_of_leases,
)
from gpufleet.deploy.verdict import doubts, judge, question_of, refuse
from gpufleet.deploy.weights import staging_of, word_of
from gpufleet.errors import FleetError, InDoubt, RollbackIncomplete
from gpufleet.hosts.model import HostFacts, Known
from gpufleet.inventory.model import Host
from gpufleet.inventory.select import select
from gpufleet.models.load import catalogue
from gpufleet.models.model import Entry
from gpufleet.names import HostName, PoolName, RunId
from gpufleet.pools import document, membership, record
from gpufleet.pools.model import Pool
from gpufleet.redact import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plan that somebody may now confirm.

    Attributes:
        routes_change: whether the published route would differ, even when no host is touched.
        facts: what it rests on.
        key: the engines' key; on disk once the plan is carried out.
        word: opens the hosts that give weights to others, likewise; None when nothing is staged.
        orphans: replicas by the record on hosts that could not be looked at.
    """

    plan: DeployPlan
    run: RunId
    revision: int
    facts: Mapping[HostName, HostFacts]
    routes_change: bool
    key: Secret[str]
    word: Secret[str] | None = None
    orphans: tuple[record.EndpointRecord, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether carrying it out would do anything."""
        return self.plan.changes or self.routes_change


def prepare(
    tools: Tools,
    pool: Pool,
    *,
    command: str,
    stands: Callable[[Mapping[HostName, HostFacts]], None] = lambda _facts: None,
    ignore_memory: bool = False,
    pulled: str = "",
) -> Prepared:
    """Look at the hosts and plan. Nothing is written, here or there: a key that the pool lacks is only thought up.

    `stands` is asked about the facts before anything is planned; a saved plan refuses those that moved.
    `ignore_memory` goes on although the model does not fit; `pulled` is the image as an earlier plan resolved it.

    Raises:
        SelectionError, HostUnreachable, PreflightFailed, Unplaceable, MemoryTooSmall, SecretUnresolved: no change.
    """
    models = catalogue(tools.inventory)
    pool = filled(pool, models)
    chosen = _chosen(tools, pool)
    known = tools.store.record(pool.name)
    pool = resolved(tools, _with_members(pool, known))
    members.refuse_empty(pool)
    key = tools.store.key(pool.name) or tools.store.new_key(pool.name)
    facts = _seen(tools, chosen, former_hosts(tools, known, chosen, pool))
    stands(facts)
    preflight(chosen, facts)
    run = journal_file.new_run_id(tools.change.clock)
    staging = staging_of(tools, pool, chosen, facts, run)
    word = word_of(staging) or new_word(tools.change.state_dir, run)
    image, carry = pin(tools, pool, chosen, facts, word=word, pulled=pulled)
    published = tools.store.routes().pools
    wish = Wish(
        pool=pool,
        run=run,
        revision=_next_revision(known, replicas_of(pool.name, facts.values())),
        engine=tools.engine,
        key=key,
        command=command,
        staging=staging,
        image=image,
        carry=carry,
        served=next((route for route in published if route.name == pool.name), None),
        elsewhere=tuple(route for route in published if route.name != pool.name),
        added=members.added(pool, facts, tools.inventory.hosts, record.endpoints_of(known) if known else ()),
    )
    made = make_or_look(tools, wish, chosen, facts)
    plan = _weighed(tools, made, models, facts, refuses=not ignore_memory)
    plan = with_adapters(tools, plan, record.pool_of(known) if known else None, facts)
    _tell_of_open_runs(tools, plan, facts)
    return Prepared(
        plan=plan,
        run=run,
        revision=_revision_of(known, plan, wish.revision),
        facts=facts,
        routes_change=_routes_differ(tools, plan, key.reference),
        key=key,
        word=word if staging is not None or carry is not None else None,
        orphans=orphans_of(known, facts),
    )


def _seen(tools: Tools, chosen: Sequence[Host], former: Sequence[Host]) -> dict[HostName, HostFacts]:
    """Facts of the chosen hosts, all of them, and of those that had replicas and answer."""
    transport, clock, forks = tools.change.transport, tools.change.clock, tools.change.forks
    facts = survey(transport, chosen, clock=clock, forks=forks)
    return facts | glance(transport, former, clock=clock, forks=forks, warn=tools.warn)


def _weighed(
    tools: Tools,
    plan: DeployPlan,
    models: Mapping[str, Entry],
    facts: Mapping[HostName, HostFacts],
    *,
    refuses: bool,
) -> DeployPlan:
    """The plan with its memory verdicts; refused when one is no, and told where one is not sure."""
    question = question_of(tools.engine, plan.pool, models, lambda place: seen(tools, plan.pool, place))
    judged = judge(question, plan.start, facts)
    if refuses:
        refuse(plan.pool, judged, "--ignore-memory")
    for line in doubts(judged):
        tools.warn(line)
    return replace(plan, memory=judged)


def _chosen(tools: Tools, pool: Pool) -> tuple[Host, ...]:
    """The hosts that the pool asks for; what cannot be told of its arguments, and which hosts are open, is said."""
    for line in check(tools.engine, pool):
        tools.warn(line)
    chosen = select(tools.inventory, pool.hosts, where=pool.hosts_at)
    if line := open_hosts(chosen):
        tools.warn(line)
    return chosen


def carry_out(tools: Tools, prepared: Prepared) -> Done:
    """Apply the plan, publish, retire.

    Raises:
        RolledBack, RollbackIncomplete, InDoubt, LeaseHeld, StalePlan and what else `run_change` raises.
    """
    plan = prepared.plan
    touched = {*plan.bring_up.hosts, *(one.host for one in plan.gone)} & set(tools.inventory.hosts)
    line = Line(
        command=plan.bring_up.command,
        pool=plan.pool.name,
        hosts=tuple(sorted(touched)),
        run=prepared.run,
        revision=prepared.revision,
    )
    with audited(tools, line):
        done = _carried_out(tools, prepared)
        line.result = done.outcome
    return done


def _carried_out(tools: Tools, prepared: Prepared) -> Done:
    plan = prepared.plan
    if not prepared.changes:
        return Done(outcome="no_change", generation=tools.store.routes().generation, hosts=served(plan))
    settle_old_runs(tools, prepared.facts)
    meanwhile.refuse(_open_runs(tools, plan, prepared.facts))
    if not plan.bring_up.steps:
        involved = {one.host for one in (*plan.keep, *plan.gone)} | {one.host for one in plan.endpoints}
        meanwhile.refuse_leases(
            involved, prepared.facts, partial(journal_file.died_here, tools.change.state_dir)
        )
    tools.store.keep_key(plan.pool.name, prepared.key)
    known = tools.store.record(plan.pool.name)
    context = commit.deploy_context(
        plan,
        tools.inventory.hosts,
        revision=prepared.revision,
        run=prepared.run,
        at=tools.change.clock.now().isoformat(timespec="seconds"),
        engine=tools.engine,
        key=prepared.key.reference,
        boots=boots_of(prepared.facts),
        by=tools.change.operator,
        orphans=prepared.orphans,
        pulled=plan.pulled if plan.start or known is None else known.pulled,
    )
    change: Change | None = None
    if plan.bring_up.steps:
        change = _applied(tools, replace(plan.bring_up, context=context), prepared)
    else:
        commit.finish_commit(tools.store)(prepared.run, context)
    run = change.run if change else ""
    forget_elsewhere(tools, plan.pool.name, plan.gone)
    retired = retire(
        commit.retirees_of(context),
        prepared.facts,
        tools.change,
        title=f"retire what pool {plan.pool.name} no longer needs",
        again=try_again(run),
    )
    warn_of_leases(tools, change)
    touched = {*plan.bring_up.hosts, *(one.host for one in plan.gone)}
    copy_routes(tools.store, touched, tools.change, tools.warn)
    remember(tools, plan, prepared.run, prepared.facts)
    return Done(
        outcome="committed",
        run=run or next(iter(retired.runs), ""),
        generation=tools.store.routes().generation,
        hosts=rows(plan, change),
        leftovers=retired.leftovers,
    )


def _open_runs(
    tools: Tools, plan: DeployPlan, facts: Mapping[HostName, HostFacts]
) -> dict[str, list[Present]]:
    """Replicas that would stay and whose run is not over; what this machine knows to be over is not looked at."""
    over = {one.run for one in journal_file.summaries(tools.change.state_dir) if one.ending}
    return meanwhile.of_open_runs(plan.keep, facts, over)


def _revision_of(known: record.PoolRecord | None, plan: DeployPlan, next_one: int) -> int:
    """A commit that starts nothing and defines nothing new is no revision of its own."""
    same = known is not None and not plan.start and known.pool == document.from_model(plan.pool)
    return known.revision if known is not None and same else next_one


def _tell_of_open_runs(tools: Tools, plan: DeployPlan, facts: Mapping[HostName, HostFacts]) -> None:
    over = {one.run for one in journal_file.summaries(tools.change.state_dir) if one.ending}
    for run, started in meanwhile.of_open_runs((*plan.keep, *plan.gone), facts, over).items():
        names = ", ".join(one.replica for one in started)
        tools.warn(
            f"run {run}, which started {names}, is not over: this plan cannot be carried out until it is"
            f" (gpufleet change resume {run}, or undo)"
        )


def forget_elsewhere(tools: Tools, name: PoolName, gone: Sequence[Present]) -> None:
    """A container that is about to go serves no pool it was added to: nothing may be sent to it while it is removed."""
    containers = frozenset(one.container.id for one in gone)
    for told in commit.forget_containers(tools.store, containers, tools.engine, but=name):
        tools.warn(f"pool {told} was a container that goes now; it is taken out of that pool")


def orphans_of(
    known: record.PoolRecord | None, facts: Mapping[HostName, HostFacts]
) -> tuple[record.EndpointRecord, ...]:
    """The pool's own replicas on hosts that could not be looked at: nobody stopped them."""
    items = (*known.endpoints, *known.orphans) if known is not None else ()
    return tuple(item for item in items if item.host not in facts and not item.container)


def boots_of(facts: Mapping[HostName, HostFacts]) -> dict[HostName, str]:
    """Boot ids that could be read."""
    return {name: host.boot_id.value for name, host in facts.items() if isinstance(host.boot_id, Known)}


def _applied(tools: Tools, plan: Plan, prepared: Prepared) -> Change:
    if prepared.word is not None:
        keep_word(tools.change.state_dir, prepared.run, prepared.word)
    try:
        change = run_change(
            plan,
            tools.change,
            on_commit=commit.finish_commit(tools.store),
            run=prepared.run,
            recheck=recheck(tools, plan, prepared.facts),
        )
    except FleetError as error:
        explain(error, prepared.plan)
        if not isinstance(error, InDoubt | RollbackIncomplete):  # nobody takes this run up again
            forget_word(tools.change.state_dir, prepared.run)
        raise
    forget_word(tools.change.state_dir, prepared.run)
    return change


def _with_members(pool: Pool, known: record.PoolRecord | None) -> Pool:
    """What the definition does not say of a member stays as `pool set` and `pool drain` left it."""
    if known is None:
        return pool
    former = {member.replica: member for member in record.pool_of(known).members}
    kept = former | {member.replica: member for member in pool.members}
    return replace(pool, members=tuple(kept[name] for name in sorted(kept)))


def _next_revision(known: record.PoolRecord | None, present: Sequence[Present]) -> int:
    labels = [one.container.labels.get("gpufleet.revision", "") for one in present]
    seen = [int(label) for label in labels if label.isascii() and label.isdigit() and len(label) < 10]
    return max([0, known.revision if known else 0, *seen]) + 1


def _routes_differ(tools: Tools, plan: DeployPlan, key: str) -> bool:
    wanted = membership.route(
        plan.pool,
        plan.endpoints,
        key=key or None,
        health=tools.engine.health_path,
        metrics=tools.engine.metrics_path,
    )
    return wanted not in tools.store.routes().pools
