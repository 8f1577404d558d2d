"""Facts -> free slots, and for everything that is not free the reason.

A GPU is free when we know that nothing is on it: no container that runs or could be restarted at any moment, no
process, no memory in use above what an idle driver takes. What we could not read makes it unusable, never free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpufleet.deploy.placement.api import UNKNOWN_ISLAND, WHOLE, Slot
from gpufleet.deploy.placement.shares import room_left, share_of, unshared_mib
from gpufleet.hosts import cdi
from gpufleet.hosts.model import ContainerFact, Fact, GpuFact, HostFacts, Known, MigInstance, Unknown
from gpufleet.names import GpuUuid, HostName

IDLE_MEMORY_MIB = 1024
"""Memory in use that counts as an idle driver's own."""

HOLDING = frozenset({"running", "restarting", "paused", "removing"})
"""Container states in which its GPUs are taken; a created one holds nothing, nor does an exited one that stays so."""

NO_NVLINK = "no NVLink"
"""The island of GPUs that are linked by PCIe alone."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A GPU, slice or host that cannot be used, and why."""

    host: HostName
    what: str
    reason: str


NO_ONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Room:
    """What is free on some hosts, and what is not."""

    free: tuple[Slot, ...]
    taken: tuple[Taken, ...]


def holds(container: ContainerFact, gpu: GpuFact, instance: MigInstance | None = None) -> bool:
    """Whether a container was given this GPU, or this slice of it."""
    names = {"all", str(gpu.uuid), str(gpu.index)}
    slices = {instance.uuid} if instance else _slice_uuids(gpu)
    by_place = (
        f"{gpu.index}:"  # `0:1`, a slice by its place: which one is not known, so all of the GPU's are held
    )
    return any(
        device in names or device in slices or device.startswith(by_place) for device in container.devices
    )


def _slice_uuids(gpu: GpuFact) -> set[str]:
    match gpu.mig.instances:
        case Known(instances):
            return {instance.uuid for instance in instances}
        case Unknown():
            return set()


def find(
    facts: Iterable[HostFacts], releasing: frozenset[str] = NO_ONE, idle: frozenset[str] = NO_ONE
) -> Room:
    """Free slots of these hosts.

    Args:
        facts: hosts.
        releasing: full ids of containers that will be stopped: what they hold counts as free.
        idle: full ids of stopped containers that will be removed before anything could start them again.
    """
    free: list[Slot] = []
    taken: list[Taken] = []
    for host in facts:
        room = _on_host(host, releasing, idle)
        free += room.free
        taken += room.taken
    return Room(tuple(free), tuple(taken))


def _on_host(host: HostFacts, releasing: frozenset[str], idle: frozenset[str]) -> Room:
    match (host.gpus, host.containers):
        case (Unknown(reason), _):
            return Room((), (Taken(host.host, "GPUs", f"could not be read: {reason}"),))
        case (_, Unknown(reason)):
            return Room((), (Taken(host.host, "containers", f"could not be read: {reason}"),))
        case (Known(gpus), Known(containers)):
            if not gpus:
                return Room((), (Taken(host.host, "GPUs", "there are none"),))
            holding = tuple(one for one in containers if one.id not in idle and (_up(one) or comes_back(one)))
            islands = islands_of(gpus)
            rooms = [_named(host, _on_gpu(host.host, gpu, holding, releasing)) for gpu in gpus]
            return Room(
                tuple(replace(slot, island=islands[slot.gpu]) for room in rooms for slot in room.free),
                tuple(taken for room in rooms for taken in room.taken),
            )
    raise AssertionError("a fact is known or unknown")


def _on_gpu(
    host: HostName, gpu: GpuFact, containers: tuple[ContainerFact, ...], releasing: frozenset[str]
) -> Room:
    name = f"GPU {gpu.index}"
    match gpu.mig.current:
        case Unknown(reason):
            return Room((), (Taken(host, name, f"its MIG mode could not be read: {reason}"),))
        case Known(True):
            return _slices(host, gpu, containers, releasing)
        case Known():
            pass
    if gpu.mig.pending == Known(True):
        return Room((), (Taken(host, name, "MIG is switched on at the next reset"),))
    holders = [one for one in containers if holds(one, gpu)]
    stay = [one for one in holders if one.id not in releasing]
    for holder in stay:
        if share_of(holder) is None:
            return Room((), (Taken(host, name, _held_by(holder)),))
    reason = unshared_mib(gpu, holders) if holders else _stranger(gpu)
    if reason:
        return Room((), (Taken(host, name, reason),))
    room = room_left(stay)
    if room <= 0:
        return Room(
            (), (Taken(host, name, f"replicas share all of it: {', '.join(one.name for one in stay)}"),)
        )
    memory = gpu.memory_total_mib.value if isinstance(gpu.memory_total_mib, Known) else None
    shared = tuple(
        Taken(host, f"{WHOLE - room} % of {name}", f"container {one.name} has a share of it")
        for one in stay[:1]
    )
    return Room(
        (Slot(host=host, gpu=gpu.uuid, device=gpu.uuid, index=gpu.index, memory_mib=memory, room=room),),
        shared,
    )


def _named(host: HostFacts, room: Room) -> Room:
    """The same, without what the host's runtime could not be asked for by name."""
    if not (isinstance(host.runtime, Known) and host.runtime.value.names_devices and room.free):
        return room
    named = cdi.names(host)
    if isinstance(named, Unknown):
        reason = f"whether the CDI specification names it is not known: {named.reason}"
        return Room((), (*room.taken, *(Taken(host.host, _slot_name(slot), reason) for slot in room.free)))
    missing = tuple(
        Taken(host.host, _slot_name(slot), f"the CDI specification does not name {slot.device}: {cdi.FIX}")
        for slot in room.free
        if slot.device not in named.value
    )
    return Room(tuple(slot for slot in room.free if slot.device in named.value), (*room.taken, *missing))


def _slot_name(slot: Slot) -> str:
    return f"slice {slot.profile} of GPU {slot.index}" if slot.profile else f"GPU {slot.index}"


def _up(container: ContainerFact) -> bool:
    return container.state in HOLDING


def comes_back(container: ContainerFact) -> bool:
    """Whether a stopped container starts again by itself when the runtime or the host does.

    Docker starts one with the policy `always` even when somebody stopped it; one with `unless-stopped` that ended by
    itself is `restarting`, and stays stopped when somebody stopped it.
    """
    return container.state in {"exited", "dead"} and container.restart_policy == "always"


def _held_by(container: ContainerFact) -> str:
    if _up(container):
        return f"container {container.name} holds it"
    return f"container {container.name} is stopped and starts again with the runtime (restart policy always)"


def islands_of(gpus: Iterable[GpuFact]) -> Mapping[GpuUuid, str]:
    """The island of each GPU: those that NVLink joins, directly or over others; those without any; the unknown."""
    links = {gpu.uuid: gpu.nvlink for gpu in gpus}
    found: dict[GpuUuid, str] = {}
    for start, linked in links.items():
        match linked:
            case Unknown():
                found[start] = UNKNOWN_ISLAND
            case Known(peers) if not peers:
                found[start] = NO_NVLINK
            case Known():
                if start in found:
                    continue
                waiting = [start]
                while waiting:
                    gpu = waiting.pop()
                    found[gpu] = f"NVLink {start}"
                    joined = links[gpu]
                    if isinstance(joined, Known):
                        waiting += [peer for peer in joined.value if peer in links and peer not in found]
    return found


def _stranger(gpu: GpuFact) -> str:
    """Who is on a GPU that no container was given; empty when nobody is."""
    match gpu.processes:
        case Unknown(reason):
            return f"its processes could not be read: {reason}"
        case Known((process, *_)):
            return f"process {process.pid} ({process.name}) is on it"
        case Known():
            pass
    match gpu.memory_used_mib:
        case Unknown(reason):
            return f"its memory use could not be read: {reason}"
        case Known(used) if used > IDLE_MEMORY_MIB:
            return f"{used} MiB are in use by nobody we can see"
        case Known():
            pass
    return ""


def _slices(
    host: HostName, gpu: GpuFact, containers: tuple[ContainerFact, ...], releasing: frozenset[str]
) -> Room:
    """Slices of a GPU in MIG mode."""
    name = f"GPU {gpu.index}"
    match gpu.mig.instances:
        case Unknown(reason):
            return Room((), (Taken(host, name, f"its slices could not be read: {reason}"),))
        case Known(()):
            return Room((), (Taken(host, name, "MIG is enabled and no slice is cut"),))
        case Known(instances):
            free: list[Slot] = []
            taken: list[Taken] = []
            for instance in instances:
                reason = _slice_taken(gpu, instance, containers, releasing)
                if reason:
                    taken.append(Taken(host, f"slice {instance.profile} of {name}", reason))
                else:
                    free.append(_slot(host, gpu, instance))
            return Room(tuple(free), tuple(taken))
    raise AssertionError("a fact is known or unknown")


def _slice_taken(
    gpu: GpuFact, instance: MigInstance, containers: tuple[ContainerFact, ...], releasing: frozenset[str]
) -> str:
    holders = [one for one in containers if holds(one, gpu, instance)]
    for holder in holders:
        if holder.id not in releasing:
            return _held_by(holder)
    if holders:
        return ""
    match gpu.processes:
        case Unknown(reason):
            return f"the GPU's processes could not be read: {reason}"
        case Known(processes):
            for process in processes:
                if process.gi is None:
                    return (
                        f"process {process.pid} ({process.name}) is on this GPU, on which slice is not known"
                    )
                if isinstance(instance.gi, Unknown) or instance.gi.value == process.gi:
                    return f"process {process.pid} ({process.name}) is on it"
    return ""


def _slot(host: HostName, gpu: GpuFact, instance: MigInstance) -> Slot:
    return Slot(
        host=host,
        gpu=gpu.uuid,
        device=instance.uuid,
        index=gpu.index,
        profile=instance.profile,
        start=_or(instance.start, 0),
        memory_mib=instance.memory_mib.value if isinstance(instance.memory_mib, Known) else None,
    )


def _or(fact: Fact[int], otherwise: int) -> int:
    return fact.value if isinstance(fact, Known) else otherwise


def free_ports(facts: HostFacts, first: int, last: int) -> tuple[int, ...] | Unknown:
    """TCP ports in the range that nothing listens on and no container, running or not, was given."""
    if isinstance(facts.listening, Unknown):
        return Unknown(f"listening ports could not be read: {facts.listening.reason}")
    if isinstance(facts.containers, Unknown):
        return Unknown(f"containers could not be read: {facts.containers.reason}")
    used = set(facts.listening.value) | {port for one in facts.containers.value for port in one.ports}
    return tuple(port for port in range(first, last + 1) if port not in used)
