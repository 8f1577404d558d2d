"""Pool + facts -> what stays, comes and goes, and the plan that brings it up.

*Bring up* pulls everywhere, stops what has to make room (and keeps it), starts, asks the gate, and settles the
restart policies; each of its steps can be undone. Then the route table is published, which commits. *Retire*
(`deploy.retire`) removes what is no longer wanted; it never rolls anything back.

A vLLM engine takes its whole slice, so old and new rarely fit side by side. The new replicas go on free slots when
there are enough (`alongside`); otherwise the old ones make room (`in place`): they are stopped, not removed, so
that an undo starts them again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpufleet.change.model import Plan, Step
from gpufleet.deploy import members, spec
from gpufleet.deploy.arguments import check
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.fingerprint import fingerprint
from gpufleet.deploy.numbers import numbered
from gpufleet.deploy.pin import Pin
from gpufleet.deploy.placement import nearest
from gpufleet.deploy.placement.api import WHOLE, Demand, Placement, TooFew, placers
from gpufleet.deploy.placement.gently import gently
from gpufleet.deploy.placement.handover import in_the_way
from gpufleet.deploy.placement.slots import Room, Taken, find, free_ports
from gpufleet.deploy.replicas import LABEL, New, Present, endpoint, endpoint_of
from gpufleet.deploy.rollout import Stage, bring_up, route_of
from gpufleet.deploy.staging.carry import Carry
from gpufleet.deploy.staging.steps import Staging, with_weights
from gpufleet.deploy.staging.wish import served_from
from gpufleet.deploy.steps import Launch
from gpufleet.deploy.strategy import Swap, Wave, swaps, waves
from gpufleet.deploy.verdict import Judgement
from gpufleet.engine.model import Engine, EngineContainer
from gpufleet.engine.vllm import devices_of
from gpufleet.errors import ErrorRow, Unplaceable, UsageError
from gpufleet.hosts.model import HostFacts, Known, Unknown
from gpufleet.inventory.model import Host
from gpufleet.names import HostName, ReplicaId, RunId
from gpufleet.pools import membership
from gpufleet.pools.model import Endpoint, Pool
from gpufleet.pools.routes import PoolRoute
from gpufleet.redact import Secret

PULLED = "pulled"
"""In the context of a plan that is saved: the image, so that the plan can be made again with the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Everything a plan is made from, beside the hosts.

    Attributes:
        key: the engines' key; None starts them without one.
        revision: number of the commit this will be.
        command: as typed, for `change list`.
        staging: weights that are brought to the hosts first, or None.
        image: what the image's tag meant when this was asked; None leaves the tag.
        carry: the image from host to host, where no registry gives it; None when all can pull it.
        served: the pool's route as it is published now; None when there is none.
        added: members that run already and are not the pool's own.
        elsewhere: other pools as they are published.
    """

    pool: Pool
    run: RunId
    revision: int
    engine: Engine
    key: Secret[str] | None
    command: str
    staging: Staging | None = None
    image: Pin | None = None
    carry: Carry | None = None
    served: PoolRoute | None = None
    added: tuple[Endpoint, ...] = ()
    elsewhere: tuple[PoolRoute, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployPlan:
    """What would be done.

    Attributes:
        bring_up: everything that can be undone.
        endpoints: where the pool is served afterwards.
        keep, start, gone: replicas that stay, come, and are removed once the new is published.
        stopped_first: containers that make room, by full id.
        waves: in which order; see `strategy`.
        spec: hash of all that a replica's container is made from.
        memory: whether each new replica fits its GPU or slice.
        pulled: the image with its digest where that is known, else as it is named to the runtime.
        runs: the image as it is named to the runtime.
        carried: who takes the image from which host, and why, one line a host.
        adapters: the steps of `bring_up` that load and unload adapters of replicas that stay.
    """

    pool: Pool
    spec: str
    pulled: str
    bring_up: Plan
    endpoints: tuple[Endpoint, ...]
    keep: tuple[Present, ...]
    start: tuple[New, ...]
    gone: tuple[Present, ...]
    stopped_first: frozenset[str]
    waves: tuple[Wave, ...] = ()
    memory: tuple[Judgement, ...] = ()
    adapters: tuple[Step, ...] = ()
    runs: str = ""
    carried: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether any host would be touched."""
        return bool(self.start or self.gone or self.adapters)


def make(wish: Wish, hosts: Sequence[Host], facts: Mapping[HostName, HostFacts]) -> DeployPlan:
    """The plan for `wish` on the selected `hosts`; `facts` may hold more hosts that have replicas of the pool.

    Raises:
        Unplaceable: with the reasons of every host, and how many replicas would fit.
        DocumentError: the engine would refuse what the pool says of it.
    """
    check(wish.engine, wish.pool)
    declared = {host.name: host for host in hosts}
    usable = {name: facts[name] for name in declared if name in facts}
    present = members.present(wish.pool, facts.values())
    keep = _kept(wish, present, declared)
    rest = tuple(one for one in present if one not in keep)
    placement, held = _placed(wish, usable, declared, keep=keep, rest=rest)
    together = wish.pool.strategy.kind != "all-at-once" and any(route_of(wish.served, one) for one in rest)
    heirs = [
        [one for one in rest if one.container.id in ids and one.host == placed.host] if together else []
        for placed, ids in zip(placement, held, strict=True)
    ]
    # Old and new stand in the route table together, so no two may have the same number.
    own = (*keep, *rest) if together else keep
    reserved = members.reserved(wish.pool)
    start = numbered(placement, own, heirs, usable, declared, reserved=reserved)
    return _assembled(wish, declared, facts, keep=keep, swapped=swaps(start, rest, held), gone=rest)


def _served(wish: Wish) -> Pool:
    """The pool with its weights where hosts have them."""
    return served_from(wish.pool, wish.staging.path) if wish.staging is not None else wish.pool


def _pinned(wish: Wish) -> EngineContainer:
    """The container with its image by digest; the digest is no part of the spec, so that learning it changes nothing."""
    pool = _served(wish)
    container = wish.engine.container(pool, key=wish.key, devices=devices_of(pool))
    return container if wish.image is None else replace(container, image=wish.image.reference)


def spec_of(wish: Wish) -> str:
    """See `spec.spec_of`."""
    return spec.spec_of(wish.engine, _served(wish), wish.key)


def _moved(wish: Wish, present: Present) -> bool:
    """Whether the tag means another image by now than it did when a replica was started; unknown is no."""
    then, now = present.container.labels.get(f"{LABEL}.image", ""), wish.image
    return bool(then and now is not None and now.label and then != now.label)


def _kept(wish: Wish, present: Sequence[Present], declared: Mapping[HostName, Host]) -> tuple[Present, ...]:
    """Running replicas that are as they should be, no more than are wanted, spread as evenly as they are."""
    wanted, pool = spec_of(wish), _served(wish)
    good = [
        one
        for one in present
        if one.container.state == "running"
        and one.container.labels.get(f"{LABEL}.spec") == wanted
        and spec.can_serve_adapters(pool, one.container.labels)
        and one.host in declared
        and not _moved(wish, one)
        and one.container.ports
    ]
    first_of: dict[ReplicaId, Present] = {}
    for one in good:
        first_of.setdefault(one.replica, one)
    ordered = sorted(first_of.values(), key=lambda one: (one.number, one.host))
    kept = ordered[: wish.pool.replicas]
    return tuple(sorted(kept, key=lambda one: (one.host, one.number)))


def _placed(
    wish: Wish,
    facts: Mapping[HostName, HostFacts],
    declared: Mapping[HostName, Host],
    *,
    keep: Sequence[Present],
    rest: Sequence[Present],
) -> tuple[Placement, tuple[frozenset[str], ...]]:
    """Slots for what is missing, and for each the containers that must stop first."""
    missing = wish.pool.replicas - len(keep)
    if missing <= 0:
        return (), ()
    counts: dict[HostName, int] = defaultdict(int)
    for one in keep:
        counts[one.host] += 1
    demand = demand_of(wish.pool, missing, counts)
    demand = replace(demand, racks={name: host.labels.get("rack", "") for name, host in declared.items()})
    place = placers()[wish.pool.placement]
    open_hosts, shut = _with_ports(facts, declared)
    idle = frozenset(one.container.id for one in rest if not one.up)
    alongside = find(open_hosts, idle=idle)
    found = place(demand, alongside.free)
    if not isinstance(found, TooFew):
        return found, (frozenset(),) * len(found)
    releasing = frozenset(one.container.id for one in rest if one.up)
    in_place = find(open_hosts, releasing, idle)
    found = gently(place, demand, alongside.free, in_place.free)
    if isinstance(found, TooFew):
        room = replace(in_place, taken=(*in_place.taken, *shut))
        raise _unplaceable(wish.pool, found.fits + len(keep), open_hosts, room, demand)
    return found, in_the_way(open_hosts, found, releasing, idle)


def demand_of(pool: Pool, replicas: int, present: Mapping[HostName, int]) -> Demand:
    """What the pool's `slice` asks of a placement."""
    wanted = pool.slice
    memory = None if wanted.memory_gib is None else int(wanted.memory_gib * 1024)
    single = wanted.mig is not None or memory is not None
    return Demand(
        replicas=replicas,
        devices=1 if single else wanted.gpus,
        profile=wanted.mig,
        memory_mib=memory,
        share=wanted.share or WHOLE,
        across=wanted.across,
        present=dict(present),
    )


def _with_ports(
    facts: Mapping[HostName, HostFacts], declared: Mapping[HostName, Host]
) -> tuple[tuple[HostFacts, ...], tuple[Taken, ...]]:
    """Hosts whose free ports and runtime are known, and the others with the reason."""
    usable: list[HostFacts] = []
    shut: list[Taken] = []
    for name, host in facts.items():
        ports = free_ports(host, declared[name].ports.first, declared[name].ports.last)
        if isinstance(host.runtime, Unknown):
            shut.append(Taken(name, "container runtime", host.runtime.reason))
        elif isinstance(ports, Unknown):
            shut.append(Taken(name, "ports", ports.reason))
        elif not ports:
            shut.append(Taken(name, "ports", "none is free in the host's range"))
        else:
            usable.append(host)
    return tuple(usable), tuple(shut)


def _unplaceable(
    pool: Pool, fits: int, facts: Sequence[HostFacts], room: Room, demand: Demand
) -> Unplaceable:
    near = (
        nearest.fewer(fits),
        *nearest.smaller(demand, room.free),
        *nearest.in_the_way(demand, facts),
        *nearest.uncut(demand, room),
    )
    error = Unplaceable(
        f"pool {pool.name} wants {pool.replicas} replicas with {nearest.wanted(demand)} each, and {fits} fit",
        rows=tuple(ErrorRow(host, "; ".join(lines)) for host, lines in nearest.reasons(demand, room).items()),
        hints=(*(one.text for one in near), "`gpufleet hosts facts` shows what holds the GPUs"),
    )
    error.fields = {"nearest": [one.row() for one in near]}
    return error


def _assembled(
    wish: Wish,
    declared: Mapping[HostName, Host],
    facts: Mapping[HostName, HostFacts],
    *,
    keep: tuple[Present, ...],
    swapped: tuple[Swap, ...],
    gone: tuple[Present, ...],
) -> DeployPlan:
    pool = wish.pool
    start = tuple(new for swap in swapped for new in swap.start)
    endpoints = _endpoints(wish, declared, keep, start)
    stage = Stage(
        launch=launch_of(wish),
        engine=wish.engine,
        declared=declared,
        dialects=_dialects(facts),
        served=wish.served,
        carry=wish.carry,
        elsewhere=wish.elsewhere,
        beside=tuple(
            one for one in (*keep, *gone) if one.up and one.container.ports and one.host in declared
        ),
        routes=membership.route(
            pool,
            endpoints,
            key=wish.key.reference if wish.key is not None else None,
            health=wish.engine.health_path,
            metrics=wish.engine.metrics_path,
        ),
    )
    serving = frozenset(one.container.id for one in gone if one.up and stage.route_of(one) is not None)
    order = waves(pool.strategy, pool.replicas, swapped, serving, _surplus(gone, swapped))
    _check_names(wish, order)
    hosts, image = sorted({one.host for one in start}), stage.launch.container.image
    steps = with_weights(wish.staging, image, hosts, wish.run, bring_up(stage, order))
    pulled = wish.image.lasting if wish.image is not None else image
    plan = Plan(
        title=f"deploy pool {pool.name}, revision {wish.revision}",
        command=wish.command,
        steps=steps,
        context={PULLED: pulled} if start else {},
    )
    return DeployPlan(
        pool=pool,
        spec=stage.launch.spec,
        pulled=pulled,
        runs=image,
        carried=wish.carry.lines(hosts) if wish.carry is not None else (),
        bring_up=replace(plan, fingerprint=fingerprint({host: facts[host] for host in plan.hosts})),
        endpoints=endpoints,
        keep=keep,
        start=start,
        gone=gone,
        stopped_first=frozenset(one.container.id for wave in order for one in wave.stopped),
        waves=order,
    )


def launch_of(wish: Wish) -> Launch:
    """What all new replicas have in common."""
    return Launch(
        pool=wish.pool,
        run=wish.run,
        revision=wish.revision,
        spec=spec_of(wish),
        container=_pinned(wish),
        image_label=wish.image.label if wish.image is not None else "",
        health=wish.engine.health_path,
        key=wish.key,
    )


def _dialects(facts: Mapping[HostName, HostFacts]) -> dict[HostName, Dialect]:
    """How each runtime that is known is spoken to."""
    return {
        name: Dialect.of(host.runtime.value)
        for name, host in facts.items()
        if isinstance(host.runtime, Known)
    }


def _surplus(gone: Sequence[Present], swapped: Sequence[Swap]) -> list[Present]:
    """Old replicas that run and that no new one takes the place of."""
    paired = {one.container.id for swap in swapped for one in (*swap.stopped, *swap.leaving)}
    return [one for one in gone if one.up and one.container.id not in paired]


def _check_names(wish: Wish, order: Sequence[Wave]) -> None:
    """Raises UsageError when old and new would serve together under different names."""
    served, name = wish.served, wish.pool.public_name
    names = (name, *sorted(wish.pool.lora))
    together = len(order) > 1 or any(wave.watched for wave in order)
    if served is not None and together and not set(served.models) <= set(names):
        raise UsageError(
            f"clients of pool {wish.pool.name} use the name {', '.join(served.models)}, and the new replicas "
            f"would answer to {', '.join(names)} only",
            hints=(
                f"keep the name: `served_name: {served.models[0]}`" if served.models else "",
                "or change all at once: --strategy all-at-once, or blue-green without --observe",
            ),
        )


def _endpoints(
    wish: Wish, declared: Mapping[HostName, Host], keep: Sequence[Present], start: Sequence[New]
) -> tuple[Endpoint, ...]:
    """Where the pool is served once the plan is carried out, in the order of replicas."""
    found = [endpoint_of(one, declared[one.host]) for one in keep]
    found += [endpoint(one, declared[one.host], wish.revision) for one in start]
    found += wish.added
    return tuple(sorted(found, key=lambda one: one.replica))
