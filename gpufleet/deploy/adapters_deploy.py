"""A deploy and the adapters of replicas that stay: what their engines have is made what the pool says, in the same change.

So an adapter that was loaded while a replica ran never makes it start again, and one that was lost, because the runtime
started the container anew, comes back with the next deploy. Loading comes at once; unloading comes last, once every
replica that the strategy brings is published, because until then the old names are served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpufleet.change.model import Step
from gpufleet.deploy.adapters import Member, load_step, unload_step, withdrawn_first
from gpufleet.deploy.adapters_asked import asked, members_of
from gpufleet.deploy.fingerprint import fingerprint
from gpufleet.deploy.plan import DeployPlan
from gpufleet.deploy.spec import ADAPTERS_LABEL
from gpufleet.deploy.tools import Tools
from gpufleet.engine.adapters import Loaded
from gpufleet.errors import ErrorRow, PreflightFailed
from gpufleet.hosts.model import HostFacts
from gpufleet.names import HostName, ReplicaId, StepId
from gpufleet.pools.model import Pool
from gpufleet.pools.routes import PoolRoute

WHERE = "`gpufleet pool drift` asks again"


def with_adapters(
    tools: Tools, plan: DeployPlan, before: Pool | None, facts: Mapping[HostName, HostFacts]
) -> DeployPlan:
    """The plan with the adapters of what stays; `before`: the pool by its record.

    Raises:
        PreflightFailed: an engine does not tell what it has, and the pool's adapters are others than they were.
    """
    able = {one.replica for one in plan.keep if ADAPTERS_LABEL in one.container.labels}
    added = [one for one in plan.endpoints if one.container and one.host in facts and plan.pool.lora]
    staying = [one for one in plan.endpoints if one.replica in able]
    if not staying and not added:
        return plan
    found, _ = members_of(tools, plan.pool.name, (*staying, *added), facts)
    has = asked(tools, found)
    _tell_of_unknown(tools, plan.pool, before, found, has)
    _tell_of_added(tools, plan.pool, [one for one in found if one.present.replica not in able], has)
    served = next((route for route in tools.store.routes().pools if route.name == plan.pool.name), None)
    ours = [one for one in found if one.present.replica in able]
    steps = adapter_steps(ours, has, plan.pool.lora, served, frozenset(one.id for one in plan.bring_up.steps))
    if not steps:
        return plan
    bring_up = replace(plan.bring_up, steps=(*plan.bring_up.steps, *steps))
    return replace(
        plan,
        bring_up=replace(bring_up, fingerprint=fingerprint({host: facts[host] for host in bring_up.hosts})),
        adapters=steps,
    )


def adapter_steps(
    members: Sequence[Member],
    has: Mapping[ReplicaId, tuple[Loaded, ...] | str],
    wanted: Mapping[str, str],
    served: PoolRoute | None,
    rest: frozenset[StepId],
) -> tuple[Step, ...]:
    """What each member lacks or has too much; an adapter from another place is unloaded and loaded from there."""
    loads: list[Step] = []
    unloads: list[Step] = []
    moved: list[Step] = []
    gone: set[str] = set()
    for member in members:
        told = has[member.present.replica]
        places = (
            {one.name: one.root for one in told if one.adapter} if not isinstance(told, str) else dict(wanted)
        )
        loads += [load_step(member, name, path) for name, path in wanted.items() if name not in places]
        for name, path in places.items():
            if wanted.get(name) == path:
                continue
            unloads.append(unload_step(member, name, path))
            gone.add(name)
            if name in wanted:
                again = load_step(member, name, wanted[name])
                moved.append(replace(again, after=frozenset({unloads[-1].id})))
    last = frozenset((*rest, *(step.id for step in loads)))
    unloads = [replace(step, after=last) for step in unloads]
    return (*loads, *withdrawn_first(tuple(unloads), served, sorted(gone)), *moved)


def _tell_of_unknown(
    tools: Tools,
    pool: Pool,
    before: Pool | None,
    found: Sequence[Member],
    has: Mapping[ReplicaId, tuple[Loaded, ...] | str],
) -> None:
    """An engine that cannot be asked is believed to be as it was; when it should become another, that is no answer."""
    rows = tuple(
        ErrorRow(one.present.host, f"{one.present.replica}: {told}", WHERE)
        for one in found
        if isinstance(told := has[one.present.replica], str)
    )
    if rows and (before is None or before.lora != pool.lora):
        raise PreflightFailed("members do not tell which adapters they have; nothing was changed", rows=rows)
    for row in rows:
        tools.warn(f"{row.message}: its adapters are not known, and are left as they are")


def _tell_of_added(
    tools: Tools,
    pool: Pool,
    found: Sequence[Member],
    has: Mapping[ReplicaId, tuple[Loaded, ...] | str],
) -> None:
    """A deploy does not touch members that were added; what they lack is told."""
    for one in found:
        told = has[one.present.replica]
        if isinstance(told, str):
            continue
        places = {item.name for item in told}
        for name, path in pool.lora.items():
            if name not in places:
                tools.warn(
                    f"{one.present.replica} was added to the pool and has no adapter {name}: "
                    f"`gpufleet pool set {pool.name} --load-adapter {name}={path}` loads it there"
                )
