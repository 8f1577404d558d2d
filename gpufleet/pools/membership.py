"""Changes of a pool that need no host: algorithm, weights, draining. Pool -> pool, endpoints -> route."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from gpufleet.names import ReplicaId
from gpufleet.pools.model import Endpoint, Member, MemberState, Pool
from gpufleet.pools.routes import EndpointRoute, PoolRoute, RouteTable


def set_weights(pool: Pool, weights: Mapping[ReplicaId, int]) -> Pool:
    """The same pool with these weights; other members keep theirs."""
    return _with(
        pool, {replica: replace(member(pool, replica), weight=weight) for replica, weight in weights.items()}
    )


def set_adapters(pool: Pool, load: Mapping[str, str], unload: Sequence[str]) -> Pool:
    """The same pool with these adapters more and those fewer."""
    kept = {name: path for name, path in pool.lora.items() if name not in unload}
    return replace(pool, lora=dict(sorted((kept | dict(load)).items())))


def set_state(pool: Pool, replicas: Sequence[ReplicaId], state: MemberState) -> Pool:
    """The same pool with these members draining or active."""
    return _with(pool, {replica: replace(member(pool, replica), state=state) for replica in replicas})


def added(pool: Pool, one: Member, *, own: bool) -> Pool:
    """The same pool with a container that runs already; `own`: it was removed, and is a replica of the pool again."""
    more = replace(pool, replicas=pool.replicas + 1) if own else pool
    return _with(more, {one.replica: one})


def removed(pool: Pool, replica: ReplicaId) -> Pool:
    """The same pool without a member that runs on: its own one is left alone from now on and not replaced."""
    known = member(pool, replica)
    if known.container:
        return replace(pool, members=tuple(one for one in pool.members if one.replica != replica))
    fewer = replace(pool, replicas=max(0, pool.replicas - 1))
    return _with(fewer, {replica: replace(known, state=MemberState.REMOVED)})


def member(pool: Pool, replica: ReplicaId) -> Member:
    """What was set for a replica; the defaults when nothing was."""
    for known in pool.members:
        if known.replica == replica:
            return known
    return Member(replica=replica)


def _with(pool: Pool, changed: Mapping[ReplicaId, Member]) -> Pool:
    """Members in the order of their names; one that is as by default needs no entry."""
    members = {known.replica: known for known in pool.members} | dict(changed)
    kept = [known for known in members.values() if known != Member(replica=known.replica)]
    return replace(pool, members=tuple(sorted(kept, key=lambda known: known.replica)))


def route(
    pool: Pool, endpoints: Sequence[Endpoint], *, key: str | None, health: str, metrics: str
) -> PoolRoute:
    """What the data plane is told of a pool."""
    left = {known.replica for known in pool.members if known.state is MemberState.REMOVED}
    kept = (endpoint for endpoint in endpoints if endpoint.replica not in left)
    ordered = sorted(kept, key=lambda endpoint: endpoint.replica)
    return PoolRoute(
        name=pool.name,
        algorithm=pool.algorithm,
        models=(pool.public_name, *sorted(pool.lora)),
        endpoints=tuple(
            EndpointRoute(
                id=endpoint.replica,
                url=endpoint.url,
                weight=member(pool, endpoint.replica).weight,
                state=member(pool, endpoint.replica).state.value,
                key=key if endpoint.key is None else endpoint.key or None,
                health=health,
                metrics=metrics,
            )
            for endpoint in ordered
        ),
    )


def with_pool(table: RouteTable, pool: PoolRoute) -> RouteTable:
    """The table with this pool in place of the one of that name."""
    others = tuple(known for known in table.pools if known.name != pool.name)
    return _pools(table, (*others, pool))


def shifted(
    table: RouteTable, head: PoolRoute, before: Sequence[EndpointRoute], after: Sequence[EndpointRoute]
) -> RouteTable:
    """The table with the members `before` of one pool in the state `after`; members are told apart by address.

    Doing it twice changes nothing more, and with `before` and `after` exchanged it is undone. `head` says the pool's
    name, models and algorithm, without members. A pool of which nothing is left is taken out.
    """
    known = next((pool for pool in table.pools if pool.name == head.name), head)
    going = {one.url for one in (*before, *after)}
    members = (*(one for one in known.endpoints if one.url not in going), *after)
    if not members:
        return without_pool(table, head.name)
    ordered = tuple(sorted(members, key=lambda one: (one.id, one.url)))
    return with_pool(
        table,
        PoolRoute(name=head.name, algorithm=head.algorithm, models=head.models, endpoints=ordered),
    )


def without_members(table: RouteTable, gone: Callable[[str, str], bool]) -> RouteTable:
    """The table without the members that are `gone`, asked with pool and address; a pool may have none left."""
    pools = (
        (pool, tuple(one for one in pool.endpoints if not gone(pool.name, one.url))) for pool in table.pools
    )
    return _pools(table, tuple(msgspec.structs.replace(pool, endpoints=left) for pool, left in pools))


def without_pool(table: RouteTable, name: str) -> RouteTable:
    """The table without that pool."""
    return _pools(table, tuple(known for known in table.pools if known.name != name))


def _pools(table: RouteTable, pools: tuple[PoolRoute, ...]) -> RouteTable:
    return RouteTable(
        version=table.version,
        generation=table.generation,
        written_at=table.written_at,
        pools=tuple(sorted(pools, key=lambda pool: pool.name)),
    )
