"""What makes a deploy known once every step is done, from nothing but the context in its journal.

So a run that was interrupted while it published is finished by whoever resumes it, in another process or later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from gpufleet.change.flow import OnCommit
from gpufleet.change.records import journal_file
from gpufleet.change.records.journal import Opened
from gpufleet.deploy.plan import DeployPlan
from gpufleet.deploy.replicas import Present, bind_address, url_of
from gpufleet.engine.model import Engine
from gpufleet.errors import FleetError, Refused, UsageError
from gpufleet.inventory.model import Host
from gpufleet.names import HostName, PoolName, ReplicaId, RunId
from gpufleet.pools import document, membership, record
from gpufleet.pools.model import Endpoint, Pool
from gpufleet.pools.record import PoolRecord
from gpufleet.pools.store import PoolStore

DEPLOY = "pool-deploy"
DELETE = "pool-delete"
ADAPTERS = "pool-adapters"
PERSIST = "mig-persist"
RECUT = "mig-recut"


class Retiree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A container that is to go after the commit."""

    host: str
    container: str
    name: str
    replica: str
    metrics: str = ""
    busy: str = ""


class Moved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A replica of a pool that is on another slice from now on; `slice` as `gpufleet.slice` has it."""

    pool: str
    url: str
    gpu: str
    slice: str


def recut_context(*, moved: Sequence[Moved], lost: Sequence[str], before: str, retire: str) -> dict[str, str]:
    """The context of a change of layout.

    `lost`: addresses of members that are stopped for good, `before`: the former layout, for `mig restore`.
    """
    return {
        "use": RECUT,
        "moved": msgspec.json.encode(list(moved)).decode(),
        "lost": msgspec.json.encode(list(lost)).decode(),
        "before": before,
        "retire": retire,
    }


def deploy_context(
    plan: DeployPlan,
    hosts: Mapping[HostName, Host],
    *,
    revision: int,
    run: RunId,
    at: str,
    engine: Engine,
    key: str,
    boots: Mapping[HostName, str],
    orphans: Sequence[record.EndpointRecord],
    by: str = "",
    pulled: str = "",
) -> dict[str, str]:
    """The context of a deploy's plan.

    `boots`: boot ids of the hosts that were looked at, `orphans`: replicas elsewhere, `pulled`: what the replicas run.
    """
    served = {endpoint.host for endpoint in plan.endpoints}
    written = PoolRecord(
        revision=revision,
        run=run,
        written_at=at,
        pool=document.from_model(plan.pool),
        endpoints=record.endpoint_records(plan.endpoints),
        spec=plan.spec,
        pulled=pulled,
        by=by,
        boots={host: boot for host, boot in sorted(boots.items()) if host in served},
        orphans=tuple(orphans),
    )
    return {
        "use": DEPLOY,
        "pool": plan.pool.name,
        "record": record.encode(written).decode(),
        "key": key,
        "health": engine.health_path,
        "metrics": engine.metrics_path,
        "retire": retirees(plan.gone, hosts, engine),
    }


def delete_context(
    pool: PoolName, gone: Sequence[Present], hosts: Mapping[HostName, Host], engine: Engine, *, kept: bool
) -> dict[str, str]:
    """The context of a plan that takes a pool away; `kept`: its containers run on and need their key."""
    context = {"use": DELETE, "pool": pool, "retire": retirees(gone, hosts, engine)}
    return {**context, "kept": "yes"} if kept else context


def retirees(gone: Sequence[Present], hosts: Mapping[HostName, Host], engine: Engine) -> str:
    """Containers that are to go, as text, with the page that tells when they have nothing left to do."""
    found: list[Retiree] = []
    for one in gone:
        page = ""
        if one.up and one.container.ports and one.host in hosts:
            address = bind_address(hosts[one.host]) or "127.0.0.1"
            page = url_of(address, one.container.ports[0]) + engine.metrics_path
        found.append(
            Retiree(one.host, one.container.id, one.container.name, one.replica, page, engine.busy_metrics)
        )
    return msgspec.json.encode(found).decode()


def retirees_of(context: Mapping[str, str]) -> tuple[Retiree, ...]:
    """The other way."""
    return msgspec.json.decode(context.get("retire", "[]"), type=tuple[Retiree, ...])


def finish_commit(store: PoolStore) -> OnCommit:
    """What a deploy or a delete does when every step is done; doing it twice changes nothing more."""

    def finish(run: RunId, context: Mapping[str, str]) -> None:
        match context.get("use"):
            case "pool-deploy":
                written = record.decode(context["record"].encode())
                publish(
                    store,
                    record.pool_of(written),
                    record.endpoints_of(written),
                    key=context["key"] or None,
                    health=context["health"],
                    metrics=context["metrics"],
                )
                store.remember(PoolName(context["pool"]), written)
                store.save(PoolName(context["pool"]), written)
            case "pool-delete":
                name = context["pool"]
                store.publish(lambda table: membership.without_pool(table, name))
                store.forget(PoolName(name), key=not context.get("kept"))
            case "pool-adapters":
                keep_adapters(store, context)
            case "mig-recut":
                keep_recut(store, context)
            case "mig-persist":
                pass  # files on the host are known by being there
            case "models-stage":
                pass  # weights on hosts are known by being there
            case "retire":
                pass  # what it removes was unpublished before it began
            case other:
                raise FleetError(f"run {run} was made by something this gpufleet does not know: {other}")

    return finish


def begin(store: PoolStore, pool: Pool, engine: Engine, *, at: str) -> int:
    """A pool without members; the generation it is in. Raises Refused when there is one of that name."""
    with store.alone():
        if store.record(pool.name) is not None:
            raise Refused(f"pool {pool.name} is there already", hints=(f"gpufleet pool show {pool.name}",))
        store.save(pool.name, PoolRecord(revision=0, written_at=at, pool=document.from_model(pool)))
        return publish(store, pool, (), key=None, health=engine.health_path, metrics=engine.metrics_path)


def publish(
    store: PoolStore,
    pool: Pool,
    endpoints: Sequence[Endpoint],
    *,
    key: str | None,
    health: str,
    metrics: str,
) -> int:
    """Put the pool into the route table; the generation it is in."""
    route = membership.route(pool, endpoints, key=key, health=health, metrics=metrics)
    return store.publish(lambda table: membership.with_pool(table, route)).generation


def keep_adapters(store: PoolStore, context: Mapping[str, str]) -> None:
    """Write down and publish the adapters that all members have from now on."""
    name = PoolName(context["pool"])
    load = msgspec.json.decode(context["load"], type=dict[str, str])
    unload = msgspec.json.decode(context["unload"], type=list[str])
    with store.alone():
        known = store.record(name)
        if known is None:  # the pool was taken away meanwhile, or another machine took the run up
            return
        pool = membership.set_adapters(record.pool_of(known), load, unload)
        store.save(name, msgspec.structs.replace(known, pool=document.from_model(pool)))
        _show_adapters(store, name)


def keep_recut(store: PoolStore, context: Mapping[str, str]) -> None:
    """Write down which slices the members have now, and take those that are no more out of the routes."""
    moved = {one.url: one for one in msgspec.json.decode(context["moved"], type=list[Moved])}
    lost = frozenset(msgspec.json.decode(context["lost"], type=list[str]))
    with store.alone():
        for name in store.names():
            known = store.record(name)
            items = known.endpoints if known is not None else ()
            kept = tuple(_recut(item, moved.get(item.url), name) for item in items if item.url not in lost)
            written = tuple(item for item in kept if item is not None)
            if known is not None and written != items:
                store.save(name, msgspec.structs.replace(known, endpoints=written))
    owners = {url: one.pool for url, one in moved.items()}

    def gone(pool: str, url: str) -> bool:
        return url in lost or owners.get(url, pool) != pool

    store.publish(lambda table: membership.without_members(table, gone))


def _recut(item: record.EndpointRecord, moved: Moved | None, pool: PoolName) -> record.EndpointRecord | None:
    """One member as it is now; None in a pool to which the container that was replaced had been added."""
    if moved is None:
        return item
    if moved.pool != pool or item.container:
        return None
    return msgspec.structs.replace(item, gpus=(moved.gpu,), slice=moved.slice)


def _show_adapters(store: PoolStore, name: PoolName) -> None:
    """Publish a deployed pool with the adapters of its record."""
    known = store.record(name)
    served = next((pool for pool in store.routes().pools if pool.name == name), None)
    if known is None or served is None:
        return
    shown = record.pool_of(known)
    route = msgspec.structs.replace(served, models=(shown.public_name, *sorted(shown.lora)))
    store.publish(lambda table: membership.with_pool(table, route))


Alter: TypeAlias = Callable[[Pool, tuple[Endpoint, ...]], tuple[Pool, tuple[Endpoint, ...]]]
"""A change of what is said of a pool: its definition and its endpoints."""


def rewrite(
    store: PoolStore, name: PoolName, alter: Alter, engine: Engine, *, meanwhile: bool = False
) -> int:
    """Change what is said of a pool that was created or deployed, hosts untouched; the generation it is in.

    `meanwhile`: also while a run changes the pool.

    Raises:
        UsageError: the pool is not deployed.
        Refused: a run changes it.
    """
    if not meanwhile:
        _refuse_under_way(store, name)
    with store.alone():
        known = store.record(name)
        if known is None:
            raise UsageError(f"pool {name} is not deployed", hints=(f"gpufleet pool deploy {name}",))
        pool, endpoints = alter(record.pool_of(known), record.endpoints_of(known))
        served = next((route.endpoints for route in store.routes().pools if route.name == name), ())
        own = next((one.key for one in served if one.key and not _is_added(known, one.id)), None)
        generation = publish(
            store,
            pool,
            endpoints,
            key=own or _key_of(store, name),
            health=engine.health_path,
            metrics=engine.metrics_path,
        )
        written = msgspec.structs.replace(
            known, pool=document.from_model(pool), endpoints=record.endpoint_records(endpoints)
        )
        if written != known:
            store.save(name, written)
    return generation


def _refuse_under_way(store: PoolStore, name: PoolName) -> None:
    """Raises Refused while a change of this pool is open: what is said now would be published over its routes, and lost."""
    for run in journal_file.summaries(store.directory):
        first = run.records[0].body if run.records else None
        if run.ending or not isinstance(first, Opened) or first.plan.context.get("pool") != name:
            continue
        if run.busy:
            raise Refused(
                f"pool {name} is being changed by run {run.run}; nothing was changed",
                hints=("run the command again after it", f"gpufleet change show {run.run}"),
            )
        raise Refused(
            f"pool {name} was being changed by run {run.run}, whose process is gone; nothing was changed",
            hints=run.ways_out,
        )


def _is_added(known: PoolRecord, replica: str) -> bool:
    return any(item.container and item.replica == replica for item in known.endpoints)


def _key_of(store: PoolStore, name: PoolName) -> str | None:
    key = store.key(name)
    return key.reference if key is not None else None


def forget_containers(
    store: PoolStore, gone: frozenset[str], engine: Engine, *, but: PoolName
) -> tuple[str, ...]:
    """Take containers that went away out of every other pool that they were added to; `POOL HOST/N` of each."""
    told: list[str] = []
    for name in store.names():
        known = store.record(name) if name != but else None
        lost = [item for item in known.endpoints if item.container in gone] if known else []
        for item in lost:
            rewrite(store, name, without(ReplicaId(item.replica)), engine, meanwhile=True)
            told.append(f"{name} {item.replica}")
    return tuple(told)


def without(replica: ReplicaId) -> Alter:
    """Take one member out of a pool; its container runs on."""

    def alter(pool: Pool, endpoints: tuple[Endpoint, ...]) -> tuple[Pool, tuple[Endpoint, ...]]:
        return membership.removed(pool, replica), tuple(one for one in endpoints if one.replica != replica)

    return alter
