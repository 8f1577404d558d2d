"""Pool + facts -> what stays, comes and goes, and the plan that brings it up.

*Bring up* pulls everywhere, stops what has to make room (and keeps it), starts, asks the gate, and settles the
restart policies; each of its steps can be undone. Then the route table is published, which commits. *Retire*
(`deploy.retire`) removes what is no longer wanted; it never rolls anything back.

A vLLM engine takes its whole slice, so old and new rarely fit side by side. The new replicas go on free slots when
there are enough (`alongside`); otherwise the old ones make room (`in place`): they are stopped, not removed, so
that an undo starts them again.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gpufleet.change.model import Plan
from gpufleet.deploy.arguments import check
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.placement.api import Demand, Placement, TooFew, placers
from gpufleet.deploy.placement.slots import HOLDING, Taken, find, free_ports
from gpufleet.deploy.replicas import LABEL, New, Present, endpoint, endpoint_of, replicas_of
from gpufleet.deploy.staging.steps import Staging, staged_first
from gpufleet.deploy.staging.wish import served_from
from gpufleet.deploy.steps import Launch, bring_up
from gpufleet.engine.model import Engine, EngineContainer
from gpufleet.engine.vllm import devices_of
from gpufleet.errors import ErrorRow, Unplaceable
from gpufleet.hosts.model import HostFacts, Known, Unknown
from gpufleet.inventory.model import Host
from gpufleet.names import HostName, ReplicaId, RunId
from gpufleet.pools.model import Endpoint, Pool
from gpufleet.redact import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Everything a plan is made from, beside the hosts.

    Attributes:
        key: the engines' key; None starts them without one.
        revision: number of the commit this will be.
        command: as typed, for `change list`.
        staging: weights that are brought to the hosts first, or None.
    """

    pool: Pool
    run: RunId
    revision: int
    engine: Engine
    key: Secret[str] | None
    command: str
    staging: Staging | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployPlan:
    """What would be done.

    Attributes:
        bring_up: everything that can be undone.
        endpoints: where the pool is served afterwards.
        keep, start, gone: replicas that stay, come, and are removed once the new is published.
        stopped_first: containers that make room, by full id.
        spec: hash of all that a replica's container is made from.
    """

    pool: Pool
    spec: str
    bring_up: Plan
    endpoints: tuple[Endpoint, ...]
    keep: tuple[Present, ...]
    start: tuple[New, ...]
    gone: tuple[Present, ...]
    stopped_first: frozenset[str]

    @property
    def changes(self) -> bool:
        """Whether any host would be touched."""
        return bool(self.start or self.gone)


def make(wish: Wish, hosts: Sequence[Host], facts: Mapping[HostName, HostFacts]) -> DeployPlan:
    """The plan for `wish` on the selected `hosts`; `facts` may hold more hosts that have replicas of the pool.

    Raises:
        Unplaceable: with the reasons of every host, and how many replicas would fit.
        DocumentError: the engine would refuse what the pool says of it.
    """
    check(wish.engine, wish.pool)
    declared = {host.name: host for host in hosts}
    usable = {name: facts[name] for name in declared if name in facts}
    present = replicas_of(wish.pool.name, facts.values())
    keep = _kept(wish, present, declared)
    rest = tuple(one for one in present if one not in keep)
    placement, stopped = _placed(wish, usable, declared, keep=keep, rest=rest)
    start = _numbered(placement, keep, usable, declared)
    return _assembled(wish, declared, facts, keep=keep, start=start, gone=rest, stopped=stopped)


def _container(wish: Wish) -> EngineContainer:
    pool = served_from(wish.pool, wish.staging.path) if wish.staging is not None else wish.pool
    return wish.engine.container(pool, key=wish.key, devices=devices_of(pool))


def spec_of(wish: Wish) -> str:
    """Hash of all that a replica's container is made from; two with the same hash are interchangeable.

    Secrets enter by their reference, the engine's key by a digest of its value: another key is another container.
    """
    container, limits, wanted = _container(wish), wish.pool.limits, wish.pool.slice
    parts = (
        container.image,
        container.entrypoint,
        container.arguments,
        sorted(
            (key, value.reference if isinstance(value, Secret) else value)
            for key, value in wish.pool.engine.env.items()
        ),
        hashlib.sha256(wish.key.reveal().encode()).hexdigest() if wish.key is not None else "",
        [(mount.source, mount.target) for mount in container.mounts],
        (
            limits.memory,
            limits.cpus,
            limits.shm,
            *([limits.memlock] if limits.memlock != "unlimited" else []),
        ),
        (wanted.gpus, wanted.mig, wanted.memory_gib),
    )
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def _kept(wish: Wish, present: Sequence[Present], declared: Mapping[HostName, Host]) -> tuple[Present, ...]:
    """Running replicas that are as they should be, no more than are wanted, spread as evenly as they are."""
    spec = spec_of(wish)
    good = [
        one
        for one in present
        if one.container.state == "running"
        and one.container.labels.get(f"{LABEL}.spec") == spec
        and one.host in declared
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
) -> tuple[Placement, frozenset[str]]:
    """Slots for what is missing, and the containers that must stop first."""
    missing = wish.pool.replicas - len(keep)
    if missing <= 0:
        return (), frozenset()
    counts: dict[HostName, int] = defaultdict(int)
    for one in keep:
        counts[one.host] += 1
    demand = demand_of(wish.pool, missing, counts)
    place = placers()["best-fit"]
    open_hosts, shut = _with_ports(facts, declared)
    alongside = find(open_hosts)
    found = place(demand, alongside.free)
    if not isinstance(found, TooFew):
        return found, frozenset()
    releasing = frozenset(one.container.id for one in rest if one.up)
    in_place = find(open_hosts, releasing)
    found = place(demand, in_place.free)
    if isinstance(found, TooFew):
        raise _unplaceable(wish.pool, found.fits + len(keep), (*in_place.taken, *shut), demand)
    chosen = {slot.device for placed in found for slot in placed.slots}
    free = {slot.device for slot in alongside.free}
    return found, _in_the_way(rest, facts, chosen - free, releasing)


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


def _in_the_way(
    rest: Sequence[Present], facts: Mapping[HostName, HostFacts], devices: set[str], releasing: frozenset[str]
) -> frozenset[str]:
    """Containers that hold a device which a new replica takes."""
    stopped: set[str] = set()
    for one in rest:
        if one.container.id not in releasing or one.host not in facts:
            continue
        still_there = find((facts[one.host],), releasing - {one.container.id})
        if devices & _devices_of(one.host, facts) - {slot.device for slot in still_there.free}:
            stopped.add(one.container.id)
    return frozenset(stopped)


def _devices_of(host: HostName, facts: Mapping[HostName, HostFacts]) -> set[str]:
    """Every device of a host, by the UUID the runtime is told."""
    gpus = facts[host].gpus
    found: set[str] = set()
    for gpu in gpus.value if isinstance(gpus, Known) else ():
        instances = gpu.mig.instances.value if isinstance(gpu.mig.instances, Known) else ()
        found |= {gpu.uuid, *(instance.uuid for instance in instances)}
    return found


def _unplaceable(pool: Pool, fits: int, taken: Sequence[Taken], demand: Demand) -> Unplaceable:
    what = (
        f"a {demand.profile} slice"
        if demand.profile
        else f"{pool.slice.memory_gib} GiB"
        if demand.memory_mib
        else "a GPU"
        if demand.devices == 1
        else f"{demand.devices} GPUs of one host"
    )
    reasons: dict[HostName, list[str]] = defaultdict(list)
    for one in taken:
        reasons[one.host].append(f"{one.what}: {one.reason}")
    rows = tuple(ErrorRow(host, "; ".join(lines)) for host, lines in sorted(reasons.items()))
    nearest = (
        f"{fits} would fit: --replicas {fits}" if fits else "nothing of this kind is free on these hosts"
    )
    return Unplaceable(
        f"pool {pool.name} wants {pool.replicas} replicas with {what} each, and {fits} fit",
        rows=rows,
        hints=(nearest, "`gpufleet hosts facts` shows what holds the GPUs"),
    )


def _numbered(
    placement: Placement,
    keep: Sequence[Present],
    facts: Mapping[HostName, HostFacts],
    declared: Mapping[HostName, Host],
) -> tuple[New, ...]:
    """A number and a port for each new replica: the smallest free ones of its host."""
    numbers: dict[HostName, set[int]] = defaultdict(set)
    for one in keep:
        numbers[one.host].add(one.number)
    ports: dict[HostName, list[int]] = {}
    start: list[New] = []
    for placed in placement:
        host = declared[placed.host]
        if placed.host not in ports:
            found = free_ports(facts[placed.host], host.ports.first, host.ports.last)
            ports[placed.host] = [] if isinstance(found, Unknown) else list(found)
        if not ports[placed.host]:
            raise Unplaceable(
                f"{placed.host} has not enough free ports from {host.ports.first} to {host.ports.last}",
                where=host.declared_at,
                hints=("widen the host's `ports`",),
            )
        number = next(n for n in range(10_000) if n not in numbers[placed.host])
        numbers[placed.host].add(number)
        start.append(
            New(replica=ReplicaId(f"{placed.host}/{number}"), placed=placed, port=ports[placed.host].pop(0))
        )
    return tuple(start)


def _assembled(
    wish: Wish,
    declared: Mapping[HostName, Host],
    facts: Mapping[HostName, HostFacts],
    *,
    keep: tuple[Present, ...],
    start: tuple[New, ...],
    gone: tuple[Present, ...],
    stopped: frozenset[str],
) -> DeployPlan:
    dialects = {
        name: Dialect.of(host.runtime.value)
        for name, host in facts.items()
        if isinstance(host.runtime, Known)
    }
    pool = wish.pool
    launch = Launch(
        pool=pool,
        run=wish.run,
        revision=wish.revision,
        spec=spec_of(wish),
        container=_container(wish),
        health=wish.engine.health_path,
        key=wish.key,
    )
    making_room = tuple(one for one in gone if one.container.id in stopped)
    steps = bring_up(launch, declared, dialects, start, making_room)
    if wish.staging is not None:
        steps = staged_first(wish.staging.steps(sorted({one.host for one in start}), wish.run), steps)
    return DeployPlan(
        pool=pool,
        spec=launch.spec,
        bring_up=Plan(
            title=f"deploy pool {pool.name}, revision {wish.revision}",
            command=wish.command,
            steps=steps,
            fingerprint=fingerprint({step.host: facts[step.host] for step in steps}),
        ),
        endpoints=_endpoints(wish, declared, keep, start),
        keep=keep,
        start=start,
        gone=gone,
        stopped_first=stopped,
    )


def _endpoints(
    wish: Wish, declared: Mapping[HostName, Host], keep: Sequence[Present], start: Sequence[New]
) -> tuple[Endpoint, ...]:
    """Where the pool is served once the plan is carried out, in the order of replicas."""
    found = [endpoint_of(one, declared[one.host]) for one in keep]
    found += [endpoint(one, declared[one.host], wish.revision) for one in start]
    return tuple(sorted(found, key=lambda one: one.replica))


def fingerprint(facts: Mapping[HostName, HostFacts]) -> str:
    """Hash of what a plan rests on: boot, containers, GPUs and slices; not of what moves by itself."""
    parts: list[object] = []
    for name, host in sorted(facts.items()):
        boot = host.boot_id.value if isinstance(host.boot_id, Known) else "unknown"
        containers = host.containers.value if isinstance(host.containers, Known) else ()
        gpus = host.gpus.value if isinstance(host.gpus, Known) else ()
        parts.append(
            (
                name,
                boot,
                sorted((one.id, one.state in HOLDING, sorted(one.labels.items())) for one in containers),
                sorted(
                    (
                        gpu.uuid,
                        sorted(one.uuid for one in gpu.mig.instances.value)
                        if isinstance(gpu.mig.instances, Known)
                        else "unknown",
                    )
                    for gpu in gpus
                ),
            )
        )
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]
