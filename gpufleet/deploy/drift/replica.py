"""One replica: its container, image, slice and what it sees of its GPUs, against what was asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpufleet.deploy.commands import WHEN_READY
from gpufleet.deploy.drift.inside import HostInside
from gpufleet.deploy.drift.model import BLIND, UNKNOWN, Asked, Finding
from gpufleet.deploy.replicas import LABEL, named_image
from gpufleet.engine.adapters import Loaded
from gpufleet.hosts.model import ContainerFact, GpuFact, HostFacts, Known, Unknown
from gpufleet.pools.model import Endpoint


def container_of(
    asked: Asked, endpoint: Endpoint, containers: Sequence[ContainerFact]
) -> ContainerFact | None:
    """The container of a replica: by id when it was adopted, by its labels otherwise, the right revision first."""
    if endpoint.container:
        return next((one for one in containers if one.id == endpoint.container), None)
    named = [
        one
        for one in containers
        if (one.labels.get(f"{LABEL}.pool"), one.labels.get(f"{LABEL}.replica"))
        == (asked.pool, endpoint.replica)
    ]
    named.sort(
        key=lambda one: (one.labels.get(f"{LABEL}.revision") != endpoint.revision, one.state != "running")
    )
    return named[0] if named else None


def replica(
    asked: Asked,
    endpoint: Endpoint,
    one: ContainerFact | None,
    facts: HostFacts,
    *,
    inside: HostInside | str,
    adapters: tuple[Loaded, ...] | str = "it was not asked",
) -> Iterator[Finding]:
    """Everything of one replica that is not as asked."""
    if one is None:
        yield asked.of(endpoint, "container-gone", "its container is gone", want="running", have="none")
        yield from _slice(asked, endpoint, None, facts)
        return
    if one.state == "restarting":
        how = f"its container restarts again and again ({one.restart_count} times so far)"
        fix = f"gpufleet pool logs {asked.pool} shows why"
        yield asked.of(endpoint, "container-restarting", how, want="running", have="restarting", fix=fix)
    elif one.state != "running":
        how = f"its container is {one.state}, exit status {one.exit_code}"
        yield asked.of(endpoint, "container-stopped", how, want="running", have=one.state)
    port = int(endpoint.url.rpartition(":")[2])
    if port not in one.ports:
        have = ", ".join(map(str, one.ports)) or "none"
        yield asked.of(endpoint, "port", "it publishes another port", want=str(port), have=have)
    if not endpoint.container:
        yield from _as_started(asked, endpoint, one)
    yield from _slice(asked, endpoint, one, facts)
    if one.state == "running":
        yield from _handles(asked, endpoint, one, inside)
        if asked.lora is not None:
            yield from _adapters(asked, endpoint, asked.lora, adapters)


def _as_started(asked: Asked, endpoint: Endpoint, one: ContainerFact) -> Iterator[Finding]:
    """What gpufleet itself gave the container."""
    spec, revision = one.labels.get(f"{LABEL}.spec", ""), one.labels.get(f"{LABEL}.revision", "")
    if revision != endpoint.revision:
        message = "its container is of another revision"
        yield asked.of(endpoint, "revision", message, want=endpoint.revision, have=revision or "none")
    elif asked.spec and spec != asked.spec:
        message = "its container was started from another definition"
        yield asked.of(endpoint, "spec", message, want=asked.spec, have=spec or "none")
    if named_image(one) != asked.image:
        yield asked.of(endpoint, "image", "it runs another image", want=asked.image, have=named_image(one))
    if one.restart_policy != WHEN_READY:
        message = "its restart policy is another one: it may not come back by itself"
        yield asked.of(endpoint, "restart-policy", message, want=WHEN_READY, have=one.restart_policy)


def _slice(
    asked: Asked, endpoint: Endpoint, one: ContainerFact | None, facts: HostFacts
) -> Iterator[Finding]:
    """The GPUs, or the slice with its profile and placement."""
    if isinstance(facts.gpus, Unknown):
        yield asked.of(endpoint, UNKNOWN, f"its GPUs could not be read: {facts.gpus.reason}")
        return
    gpus = {gpu.uuid: gpu for gpu in facts.gpus.value}
    for uuid in endpoint.gpus:
        gpu = gpus.get(uuid)
        if gpu is None:
            fix = f"gpufleet hosts facts {endpoint.host}"
            yield asked.of(
                endpoint,
                "gpu-gone",
                "its GPU is not on the host any more",
                want=uuid,
                have="none",
                fix=fix,
            )
        elif isinstance(gpu.mig.current, Unknown) or isinstance(gpu.mig.instances, Unknown):
            yield asked.of(endpoint, UNKNOWN, f"MIG of GPU {gpu.index} could not be read")
        elif endpoint.slice:
            yield from _placement(asked, endpoint, one, gpu)
        elif gpu.mig.current.value:
            message = f"GPU {gpu.index} is in MIG mode, and the replica was given all of it"
            yield asked.of(endpoint, "slice", message, want="whole GPU", have="MIG mode")


def _placement(
    asked: Asked, endpoint: Endpoint, one: ContainerFact | None, gpu: GpuFact
) -> Iterator[Finding]:
    _, profile, start = endpoint.slice.split()
    instances = gpu.mig.instances.value if isinstance(gpu.mig.instances, Known) else ()
    have = ", ".join(f"{item.profile}@{_number(item.start)}" for item in instances) or "none"
    want = f"{profile}@{start}"
    same = [item for item in instances if (item.profile, _number(item.start)) == (profile, start)]
    if not same:
        message = f"its slice of GPU {gpu.index} is not there any more"
        fix = f"gpufleet mig show {endpoint.host}:{gpu.index}"
        yield asked.of(endpoint, "slice", message, want=want, have=have, fix=fix)
    elif one is not None and not any(item.uuid in one.devices for item in same):
        message = f"its slice of GPU {gpu.index} was cut anew: the container holds one that is gone"
        yield asked.of(endpoint, "slice", message, want=same[0].uuid, have=", ".join(one.devices) or "none")


def _number(fact: object) -> str:
    return str(fact.value) if isinstance(fact, Known) else "?"


def _handles(
    asked: Asked, endpoint: Endpoint, one: ContainerFact, inside: HostInside | str
) -> Iterator[Finding]:
    """Whether the container still reaches its GPUs."""
    if isinstance(inside, str):
        yield asked.of(endpoint, UNKNOWN, f"nobody could look inside: {inside}")
        return
    view = inside.containers.get(one.id)
    if view is None or view.devices is None:
        why = view.why if view else "it was not asked"
        code = BLIND if view and view.blind else UNKNOWN
        yield asked.of(endpoint, code, f"nobody could look inside: {why}")
        return
    wanted = {device for device in one.devices if device.startswith(("GPU-", "MIG-"))}
    if view.lost or wanted - view.devices:
        yield asked.of(
            endpoint,
            "gpu-lost",
            f"its GPU cannot be reached inside the container: {view.lost or 'it is not listed'}",
            want=", ".join(sorted(wanted)) or "its GPU",
            have=", ".join(sorted(view.devices)) or "none",
            fix="the container must be created anew; a restart may not repair it: "
            f"`docker rm -f {one.name}` on {endpoint.host}, then `gpufleet pool deploy {asked.pool}`",
        )


def _adapters(
    asked: Asked, endpoint: Endpoint, wanted: Mapping[str, str], told: tuple[Loaded, ...] | str
) -> Iterator[Finding]:
    """What its engine serves beside the model: one that the runtime started again has what it was first started with."""
    if isinstance(told, str):
        yield asked.of(endpoint, UNKNOWN, f"its adapters are not known: {told}")
        return
    places = {one.name: one.root for one in told if one.adapter}
    for name in sorted({*wanted, *places}):
        want, have = wanted.get(name, "none"), places.get(name, "none")
        if want == have:
            continue
        if have == "none":
            message = f"it has no adapter {name}: requests for it fail there"
        elif want == "none":
            message = f"it has adapter {name}, which nobody asked for"
        else:
            message = f"it has adapter {name} from another place"
        fix = ""
        if endpoint.container:  # no deploy touches a member that was added
            fix = f"gpufleet pool set {asked.pool} --load-adapter {name}={want}"
            if have != "none":
                fix = f"unload {name} at that engine yourself: {endpoint.replica} was added to the pool"
        yield asked.of(endpoint, "adapter", message, want=want, have=have, fix=fix)
