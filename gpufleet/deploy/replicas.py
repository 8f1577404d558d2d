"""Replicas: those that hosts have, those that are to come, and where either is reached."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpufleet.deploy.placement.api import WHOLE, Placed
from gpufleet.deploy.placement.slots import HOLDING
from gpufleet.hosts.model import ContainerFact, HostFacts, Known
from gpufleet.inventory.model import Connection, Host
from gpufleet.names import GpuUuid, HostName, PoolName, ReplicaId
from gpufleet.pools.model import Endpoint

LABEL = "gpufleet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """A replica that a host has now, running or not."""

    replica: ReplicaId
    host: HostName
    container: ContainerFact

    @property
    def number(self) -> int:
        """Its number on that host."""
        return int(self.replica.rpartition("/")[2])

    @property
    def up(self) -> bool:
        """Whether it holds its GPU."""
        return self.container.state in HOLDING


@dataclass(frozen=True, slots=True, kw_only=True)
class New:
    """A replica to be started. `tail` tells its steps from those of another pool's replica of the same number."""

    replica: ReplicaId
    placed: Placed
    port: int
    tail: str = ""

    @property
    def number(self) -> int:
        """Its number on that host."""
        return int(self.replica.rpartition("/")[2])

    @property
    def host(self) -> HostName:
        return self.placed.host


def replicas_of(pool: PoolName, facts: Iterable[HostFacts]) -> tuple[Present, ...]:
    """Containers that carry the pool's labels, in the order of their names."""
    found: list[Present] = []
    for host in facts:
        containers = host.containers.value if isinstance(host.containers, Known) else ()
        for container in containers:
            replica = container.labels.get(f"{LABEL}.replica", "")
            if container.labels.get(f"{LABEL}.pool") == pool and re.fullmatch(r".+/\d+", replica):
                found.append(Present(replica=ReplicaId(replica), host=host.host, container=container))
    return tuple(sorted(found, key=lambda one: (one.host, one.number, one.container.id)))


def named_image(container: ContainerFact) -> str:
    """The image as the pool wrote it, also when the container was started by digest."""
    written = container.labels.get(f"{LABEL}.image", "")
    return written.partition("@")[0] if written else container.image


def bind_address(host: Host) -> str | None:
    """The address that replicas are published on; None when only a name is known, and all are used."""
    service = service_address(host)
    try:
        ipaddress.ip_address(service.partition("%")[0])
    except ValueError:
        return None
    return service


def open_hosts(hosts: Iterable[Host]) -> str:
    """One line about hosts whose replicas would listen on every address; empty when there is none."""
    names = [host.name for host in hosts if bind_address(host) is None]
    if not names:
        return ""
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return (
        f"replicas on {shown} are published on every address of the host, because only a name is known: "
        "set `service_address` to the address that the proxy uses"
    )


def service_address(host: Host) -> str:
    """Where the proxy reaches replicas of a host."""
    if host.service_address:
        return host.service_address
    return "127.0.0.1" if host.connection is Connection.LOCAL else host.address.host


def url_of(address: str, port: int) -> str:
    """`http://address:port`, IPv6 in brackets."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def slice_label(placed: Placed) -> str:
    """`gpufleet.slice`: GPU UUIDs, or GPU UUID, profile and start of a slice."""
    first = placed.slots[0]
    if first.profile:
        return f"{first.gpu} {first.profile} {first.start}"
    return ",".join(slot.gpu for slot in placed.slots)


def endpoint_of(present: Present, host: Host) -> Endpoint:
    labels = present.container.labels
    words = labels.get(f"{LABEL}.slice", "").split()
    return Endpoint(
        replica=present.replica,
        host=present.host,
        url=url_of(service_address(host), present.container.ports[0]),
        gpus=tuple(GpuUuid(uuid) for uuid in words[0].split(",")) if words else (),
        slice=" ".join(words) if len(words) > 1 else "",
        revision=labels.get(f"{LABEL}.revision", ""),
    )


def held_by(present: Present) -> dict[str, object]:
    """A replica and the GPUs or the slice that it holds or held, as rows have them."""
    words = present.container.labels.get(f"{LABEL}.slice", "").split()
    return {
        "replica": present.replica,
        "gpu": words[0] if words else "",
        "slice": " ".join(words) if len(words) > 1 else None,
    }


def endpoint(new: New, host: Host, revision: int) -> Endpoint:
    return Endpoint(
        replica=new.replica,
        host=new.host,
        url=url_of(service_address(host), new.port),
        gpus=tuple(dict.fromkeys(slot.gpu for slot in new.placed.slots)),
        slice=slice_label(new.placed) if new.placed.slots[0].profile else "",
        revision=str(revision),
    )


def slot_name(placed: Placed) -> str:
    """For people: `GPU 3`, `GPUs 0+1`, `45 % of GPU 3`, `a 3g.40gb slice of GPU 0`."""
    first = placed.slots[0]
    if placed.share < WHOLE:
        return f"{placed.share} % of GPU {first.index}"
    if first.profile:
        return f"a {first.profile} slice of GPU {first.index}"
    numbers = "+".join(str(slot.index) for slot in placed.slots)
    return f"GPU {numbers}" if len(placed.slots) == 1 else f"GPUs {numbers}"
