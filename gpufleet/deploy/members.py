"""Members of a pool that it did not start itself: where they are by the facts of their hosts.

A running container cannot be given labels, so the pool's definition remembers it by name (`members: HOST/N:
{container: NAME}`), and its record by id. No deploy stops such a container.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpufleet.deploy.placement.slots import holds
from gpufleet.deploy.replicas import Present, replicas_of, service_address, url_of
from gpufleet.errors import ErrorRow, Refused, UsageError
from gpufleet.hosts.model import ContainerFact, HostFacts, Known
from gpufleet.inventory.model import Host
from gpufleet.names import GpuUuid, HostName, ReplicaId
from gpufleet.pools.model import Endpoint, Member, MemberState, Pool


def present(pool: Pool, facts: Iterable[HostFacts]) -> tuple[Present, ...]:
    """The pool's own replicas as hosts have them, without those that were removed and run on."""
    left = {one.replica for one in pool.members if one.state is MemberState.REMOVED}
    return tuple(one for one in replicas_of(pool.name, facts) if one.replica not in left)


def reserved(pool: Pool) -> tuple[ReplicaId, ...]:
    """Numbers that no new replica may take: those of members that are not started by the pool."""
    return tuple(one.replica for one in pool.members if one.container or one.state is MemberState.REMOVED)


def refuse_empty(pool: Pool) -> None:
    """Raises UsageError for a pool that asks for no replica and has no member either."""
    if not pool.replicas and not any(member.container for member in pool.members):
        raise UsageError(
            f"pool {pool.name} asks for no replica: it would serve nothing",
            hints=(f"gpufleet pool scale {pool.name} N", f"gpufleet pool delete {pool.name}"),
        )


def host_of(replica: ReplicaId) -> HostName:
    """The host in `HOST/N`."""
    return HostName(replica.rpartition("/")[0])


def added(
    pool: Pool,
    facts: Mapping[HostName, HostFacts],
    declared: Mapping[HostName, Host],
    recorded: Sequence[Endpoint],
) -> tuple[Endpoint, ...]:
    """The endpoints of members that were added; one whose host cannot be asked stays as it was recorded.

    Raises:
        Refused: a member's container is not on its host, and was never seen there.
    """
    before = {endpoint.replica: endpoint for endpoint in recorded}
    found: list[Endpoint] = []
    lost: list[ErrorRow] = []
    for member in pool.members:
        if not member.container or member.state is MemberState.REMOVED:
            continue
        host = facts.get(host_of(member.replica))
        one = container(host, member.container) if host is not None else None
        if host is not None and one is not None and (one.ports or member.port):
            found.append(endpoint_of(member, one, host, declared[host.host]))
        elif host is None and member.replica in before:
            found.append(before[member.replica])
        else:
            why = f"there is no container {member.container} with a published port for {member.replica}"
            lost.append(ErrorRow(host_of(member.replica), why))
    if lost:
        raise Refused(
            f"{len(lost)} member(s) of pool {pool.name} are not there; nothing was changed",
            rows=tuple(lost),
            hints=(f"gpufleet pool remove {pool.name} HOST/N takes a member out of the pool",),
        )
    return tuple(found)


def container(host: HostFacts, word: str) -> ContainerFact | None:
    """The container that a name, an id or the beginning of one means; None when none or several do."""
    known = host.containers.value if isinstance(host.containers, Known) else ()
    exact = [one for one in known if word in {one.name, one.id}]
    near = exact or [one for one in known if len(word) >= 4 and one.id.startswith(word)]
    return near[0] if len(near) == 1 else None


def endpoint_of(member: Member, one: ContainerFact, facts: HostFacts, host: Host) -> Endpoint:
    """Where a container that was added is reached, and what it runs on."""
    gpus, cut = _devices(one, facts)
    return Endpoint(
        replica=member.replica,
        host=facts.host,
        url=url_of(service_address(host), member.port or one.ports[0]),
        gpus=gpus,
        slice=cut,
        container=one.id,
        key=member.key,
    )


def _devices(one: ContainerFact, facts: HostFacts) -> tuple[tuple[GpuUuid, ...], str]:
    """Its GPUs by UUID, however it was given them, and its slice when it holds just one."""
    gpus = facts.gpus.value if isinstance(facts.gpus, Known) else ()
    held = tuple(gpu for gpu in gpus if holds(one, gpu))
    slices = [
        (gpu, instance)
        for gpu in held
        if isinstance(gpu.mig.instances, Known)
        for instance in gpu.mig.instances.value
        if instance.uuid in one.devices
    ]
    if len(slices) == 1:
        gpu, instance = slices[0]
        start = instance.start.value if isinstance(instance.start, Known) else "?"
        return (gpu.uuid,), f"{gpu.uuid} {instance.profile} {start}"
    return tuple(gpu.uuid for gpu in held), ""
