"""A pool against what is seen of it: every replica, then boots, images, strangers and the route table.

Asked for is the pool's record: the definition as it was deployed, and where each replica was put. Seen are the hosts,
a look into each running container, and the route table. A fact that could not be read is neither as asked nor not:
it is *unknown*, listed apart and never counted as drift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpufleet.deploy.drift.inside import HostInside
from gpufleet.deploy.drift.model import UNKNOWN, Asked, Finding, Seen
from gpufleet.deploy.drift.replica import container_of
from gpufleet.deploy.drift.replica import replica as of_replica
from gpufleet.deploy.placement.slots import HOLDING
from gpufleet.deploy.replicas import LABEL, named_image
from gpufleet.hosts.model import ContainerFact, HostFacts, Known, Unknown
from gpufleet.names import HostName
from gpufleet.pools.routes import PoolRoute


def compare(asked: Asked, seen: Seen) -> tuple[Finding, ...]:
    """Every difference, replicas first, in the order of hosts."""
    found: list[Finding] = []
    ours: set[str] = set()
    for endpoint in asked.endpoints:
        facts = seen.hosts.get(endpoint.host, "it was not looked at")
        if isinstance(facts, str):
            found.append(asked.of(endpoint, UNKNOWN, facts, fix=f"gpufleet hosts check {endpoint.host}"))
        elif isinstance(facts.containers, Unknown):
            found.append(
                asked.of(endpoint, UNKNOWN, f"its containers could not be read: {facts.containers.reason}")
            )
        else:
            one = container_of(asked, endpoint, facts.containers.value)
            if one is not None:
                ours.add(one.id)
            found += of_replica(
                asked,
                endpoint,
                one,
                facts,
                inside=seen.inside.get(endpoint.host, "it was not asked"),
                adapters=seen.adapters.get(endpoint.replica, "it was not asked"),
            )
    found += _boots(asked, seen)
    found += _images(asked, seen, ours)
    found += _strangers(asked, seen, ours)
    found += _routes(asked, seen.route)
    return tuple(found)


def _boots(asked: Asked, seen: Seen) -> Iterator[Finding]:
    for host, boot in sorted(asked.boots.items()):
        facts = seen.hosts.get(HostName(host))
        if not isinstance(facts, HostFacts):
            continue
        match facts.boot_id:
            case Unknown(reason):
                yield asked.at(host, "", UNKNOWN, f"its boot id could not be read: {reason}")
            case Known(now) if now != boot:
                fix = f"when all else is as asked: gpufleet pool drift {asked.pool} --accept-boots"
                message = "the host was booted since the deploy"
                yield asked.at(host, "", "booted", message, want=boot, have=now, fix=fix)
            case _:
                pass


def _images(asked: Asked, seen: Seen, ours: set[str]) -> Iterator[Finding]:
    """Replicas whose image is not the one that the same name means to their host, or to the other replicas."""
    running: dict[str, tuple[HostName, ContainerFact]] = {}
    for host, facts in seen.hosts.items():
        if isinstance(facts, HostFacts) and isinstance(facts.containers, Known):
            running |= {
                one.id: (host, one)
                for one in facts.containers.value
                if one.id in ours
                and named_image(one) == asked.image
                and one.labels.get(f"{LABEL}.pool") == asked.pool
            }
    usual = Counter(_bare(one.image_id) for _, one in running.values()).most_common(1)
    for host, one in running.values():
        inside = seen.inside.get(host)
        here = _bare(inside.image) if isinstance(inside, HostInside) else ""
        mine = _bare(one.image_id)
        message = other = ""
        if here and mine != here:
            message, other = f"{asked.image} means another image on this host by now", here
        elif usual and mine != usual[0][0]:
            message, other = "the other replicas run another image of the same name", usual[0][0]
        if message:
            fix = "name the image by its digest: NAME@sha256:..."
            replica = one.labels.get(f"{LABEL}.replica", "")
            yield asked.at(host, replica, "image-digest", message, want=other, have=mine, fix=fix)


def _bare(image: str) -> str:
    return image.removeprefix("sha256:")


def _strangers(asked: Asked, seen: Seen, ours: set[str]) -> Iterator[Finding]:
    """Containers on the pool's hosts that nobody asked for: of this pool, of a pool unknown here, or on its GPUs."""
    hosts = {endpoint.host for endpoint in asked.endpoints}
    for host, facts in sorted(seen.hosts.items()):
        if not isinstance(facts, HostFacts) or not isinstance(facts.containers, Known):
            continue
        for one in facts.containers.value:
            pool = one.labels.get(f"{LABEL}.pool", "")
            if one.id in ours or one.id in seen.others:
                continue
            replica, have = one.labels.get(f"{LABEL}.replica", ""), f"{one.name} ({one.state})"
            if pool == asked.pool:
                code, fix = "not-asked-for", f"gpufleet pool deploy {asked.pool}"
                message = f"container {one.name} carries the pool's labels and is no replica of it"
            elif pool and pool not in seen.pools and host in hosts:
                code, fix = "not-asked-for", f"docker inspect {one.name} on {host} says whose it is"
                message = f"container {one.name} is of pool {pool}, which this machine does not know"
            elif not pool and host in hosts and one.state in HOLDING and one.devices:
                code, fix = "foreign", f"gpufleet pool candidates {asked.pool}"
                message = f"container {one.name} holds {', '.join(one.devices)} and is not gpufleet's"
            else:
                continue
            yield asked.at(host, replica, code, message, want="none", have=have, fix=fix)


def _routes(asked: Asked, seen: PoolRoute | None) -> Iterator[Finding]:
    """The route table against the record."""

    def wrong(replica: str, message: str, want: str, have: str) -> Finding:
        host, fix = replica.rpartition("/")[0], f"gpufleet pool deploy {asked.pool}"
        return asked.at(host, replica, "routes", message, want=want, have=have, fix=fix)

    if seen is None:
        if asked.route.endpoints:
            yield wrong("", "the pool is not in the route table", "served", "none")
        return
    for name in ("algorithm", "models"):
        want, have = getattr(asked.route, name), getattr(seen, name)
        if want != have:
            yield wrong("", f"the route table has another {name.rstrip('s')}", _words(want), _words(have))
    wanted = {one.id: one for one in asked.route.endpoints}
    served = {one.id: one for one in seen.endpoints}
    for replica in sorted({*wanted, *served}):
        if replica not in served:
            yield wrong(replica, "it is not in the route table", wanted[replica].url, "none")
        elif replica not in wanted:
            yield wrong(
                replica, "the route table has it and the record does not", "none", served[replica].url
            )
        else:
            for name in ("url", "weight", "state"):
                want, have = getattr(wanted[replica], name), getattr(served[replica], name)
                if want != have:
                    yield wrong(replica, f"the route table has another {name}", str(want), str(have))


def _words(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else ", ".join(value)
