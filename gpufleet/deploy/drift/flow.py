"""The use case of `pool drift`: look at the hosts of some pools, into their replicas and at the route table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gpufleet.change.reach import Reach
from gpufleet.deploy.adapters_asked import asked, members_of
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.drift.compare import compare
from gpufleet.deploy.drift.inside import HostInside, look, parse
from gpufleet.deploy.drift.model import BLIND, UNKNOWN, Asked, Finding, Seen
from gpufleet.deploy.tools import Tools
from gpufleet.engine.adapters import Loaded
from gpufleet.errors import UsageError
from gpufleet.hosts.gather import gather
from gpufleet.hosts.model import HostFacts, Known, Unknown
from gpufleet.inventory.model import Host
from gpufleet.names import HostName, PoolName, ReplicaId
from gpufleet.pools import membership
from gpufleet.pools.model import Endpoint, Pool
from gpufleet.pools.record import PoolRecord, endpoints_of, pool_of
from gpufleet.pools.routes import PoolRoute
from gpufleet.remote.fanout import fanout
from gpufleet.remote.result import Lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Drifted:
    """One pool: its findings, what could not be looked at, what can never be, and the boot ids seen now."""

    pool: PoolName
    replicas: int
    findings: tuple[Finding, ...]
    unknown: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    boots: Mapping[str, str]


def drift(
    tools: Tools, names: Sequence[PoolName], selected: Mapping[PoolName, Sequence[Host]]
) -> tuple[Drifted, ...]:
    """Compare these pools with the fleet; `selected`: hosts that their definitions name beside those of the record.

    Raises:
        UsageError: a pool was never deployed.
    """
    records = {name: _record(tools, name) for name in names}
    wanted = {host.name: host for hosts in selected.values() for host in hosts}
    for record in records.values():
        for item in record.endpoints:
            host = tools.inventory.hosts.get(HostName(item.host))
            if host is not None:
                wanted[host.name] = host
    answers = gather(
        tools.change.transport, tuple(wanted.values()), clock=tools.change.clock, forks=tools.change.forks
    )
    hosts: dict[HostName, HostFacts | str] = {
        name: answer if isinstance(answer, HostFacts) else str(answer.summary)
        for name, answer in answers.items()
    }
    return tuple(_one(tools, name, records[name], hosts) for name in names)


def _record(tools: Tools, name: PoolName) -> PoolRecord:
    known = tools.store.record(name)
    if known is None:
        raise UsageError(f"pool {name} is not deployed", hints=(f"gpufleet pool deploy {name}",))
    return known


def _one(
    tools: Tools, name: PoolName, record: PoolRecord, hosts: Mapping[HostName, HostFacts | str]
) -> Drifted:
    pool, endpoints = pool_of(record), endpoints_of(record)
    image = tools.engine.container(pool, key=None, devices=1).image
    places = {endpoint.host for endpoint in endpoints}
    seen = {host: facts for host, facts in hosts.items() if host in places} | {
        host: "it is not in the inventory any more" for host in places if host not in hosts
    }
    # A host that the definition names and that has no replica yet is looked at for strangers of the pool.
    seen |= {host: facts for host, facts in hosts.items() if isinstance(facts, HostFacts)}
    served = next((route for route in tools.store.routes().pools if route.name == name), None)
    found = compare(
        Asked(
            pool=name,
            image=image,
            spec=record.spec,
            endpoints=endpoints,
            boots=record.boots,
            route=membership.route(pool, endpoints, key=None, health="", metrics=""),
            lora=pool.lora if pool.takes_adapters else None,
        ),
        Seen(
            hosts=seen,
            inside=_inside(tools, name, image, endpoints, seen),
            route=_without_keys(served),
            others=_adopted_elsewhere(tools, name),
            pools=frozenset(tools.store.names()),
            adapters=_adapters(tools, pool, endpoints, seen),
        ),
    )
    return Drifted(
        pool=name,
        replicas=len(endpoints),
        findings=tuple(one for one in found if one.code not in {UNKNOWN, BLIND}),
        unknown=tuple(one for one in found if one.code == UNKNOWN),
        notes=tuple(one for one in found if one.code == BLIND),
        boots={
            host: facts.boot_id.value
            for host, facts in seen.items()
            if host in places and isinstance(facts, HostFacts) and isinstance(facts.boot_id, Known)
        },
    )


def _adopted_elsewhere(tools: Tools, name: PoolName) -> frozenset[str]:
    """Containers that gpufleet did not start and that another pool's record knows."""
    records = (tools.store.record(other) for other in tools.store.names() if other != name)
    return frozenset(
        item.container for record in records if record for item in record.endpoints if item.container
    )


def _without_keys(route: PoolRoute | None) -> PoolRoute | None:
    if route is None:
        return None
    bare = [msgspec.structs.replace(one, key=None, health="", metrics="") for one in route.endpoints]
    return msgspec.structs.replace(route, endpoints=tuple(bare))


def _inside(
    tools: Tools,
    pool: PoolName,
    image: str,
    endpoints: Sequence[Endpoint],
    hosts: Mapping[HostName, HostFacts | str],
) -> dict[HostName, HostInside | str]:
    """Ask the running replicas of every host at once."""
    adopted = {endpoint.container for endpoint in endpoints if endpoint.container}
    reach = Reach(tools.change.transport, tools.change.clock)

    def ask(host: HostName) -> HostInside | str:
        facts = hosts[host]
        if not isinstance(facts, HostFacts) or not isinstance(facts.containers, Known):
            return "its containers are not known"
        if isinstance(facts.runtime, Unknown):
            return facts.runtime.reason
        running = [
            one.id
            for one in facts.containers.value
            if one.state == "running" and (one.labels.get("gpufleet.pool") == pool or one.id in adopted)
        ]
        outcome = reach.insist(host, look(Dialect.of(facts.runtime.value), image, running))
        return outcome.reason if isinstance(outcome, Lost) else parse(outcome.stdout)

    places = sorted({endpoint.host for endpoint in endpoints} & hosts.keys())
    try:
        answers = fanout(places, ask, forks=tools.change.forks)
    finally:
        reach.close()
    return {
        host: answer if isinstance(answer, HostInside | str) else answer.summary
        for host, answer in answers.items()
    }


def _adapters(
    tools: Tools, pool: Pool, endpoints: Sequence[Endpoint], hosts: Mapping[HostName, HostFacts | str]
) -> Mapping[ReplicaId, tuple[Loaded, ...] | str]:
    """Which adapters the running members have; nobody is asked when the pool takes none."""
    facts = {name: host for name, host in hosts.items() if isinstance(host, HostFacts)}
    there = [one for one in endpoints if one.host in facts] if pool.takes_adapters else []
    return asked(tools, members_of(tools, pool.name, there, facts)[0])


def accept_boots(tools: Tools, drifted: Drifted) -> bool:
    """Take the boots seen now for known, when all else is as asked; whether anything was written."""
    if any(one.code != "booted" for one in drifted.findings) or drifted.unknown:
        return False
    record = _record(tools, drifted.pool)
    boots = {**record.boots, **drifted.boots}
    if boots == record.boots:
        return False
    tools.store.save(drifted.pool, msgspec.structs.replace(record, boots=boots))
    return True
