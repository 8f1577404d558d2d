"""One GPU as MIG sees it: what it may hold, what it holds, and who sits on each slice.

The host's own tables are the truth. A GPU whose instances or placements could not be read is Unknown: no plan is
made for it, since a slice that was not seen would be taken for free room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpufleet.hosts.model import (
    ContainerFact,
    Fact,
    GpuFact,
    GpuInstanceFact,
    Known,
    MigInstance,
    Unknown,
)
from gpufleet.hosts.probes.mig_tables import Offer
from gpufleet.mig.model import Geometry, Placed, Profile

T = TypeVar("T")

RUNNING = frozenset({"running", "restarting", "paused"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSlice:
    """A GPU instance with its compute instances.

    Attributes:
        gi: GPU instance id, as the host gave it.
        cis: compute instance ids; none for an instance that only takes room.
        uuids: one a compute instance, in the order of `cis`.
        containers: names of the containers bound to it that run.
        processes: pids on it.
        resting: names of the containers bound to it that do not run: their next start needs this slice.
    """

    placed: Placed
    gi: int
    cis: tuple[int, ...]
    uuids: tuple[str, ...]
    memory_mib: Fact[int]
    containers: tuple[str, ...]
    processes: tuple[int, ...]
    resting: tuple[str, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether somebody uses it, or is made for it."""
        return bool(self.containers or self.processes or self.resting)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGpu:
    """One GPU: the facts, its geometry, and its slices in the order of their starts.

    Attributes:
        on: whether MIG is on now; `pending` whether it will be after a reset.
        whole: containers that hold the GPU as a whole; `resting` those that would once they are started.
    """

    gpu: GpuFact
    geometry: Geometry
    slices: tuple[SeenSlice, ...]
    on: bool
    pending: bool
    whole: tuple[str, ...]
    resting: tuple[str, ...] = ()

    @property
    def placed(self) -> tuple[Placed, ...]:
        """The slices without who uses them."""
        return tuple(one.placed for one in self.slices)

    @property
    def busy(self) -> frozenset[Placed]:
        """Slices that somebody uses."""
        return frozenset(one.placed for one in self.slices if one.busy)


def geometry_of(gpu: GpuFact, offered: Sequence[Offer]) -> Geometry:
    """The host's own tables of one GPU."""
    profiles = tuple(
        Profile(
            name=one.row.name,
            id=one.row.id,
            total=one.row.total,
            memory_gib=one.row.gib,
            starts=one.placement.starts,
            size=one.placement.size,
            engines=one.row.engines,
        )
        for one in offered
    )
    slots = max((start + one.size for one in profiles for start in one.starts), default=0)
    return Geometry(board=gpu.name, slots=slots, profiles=profiles)


def see(
    gpu: GpuFact, offered: Fact[Sequence[Offer]], containers: Fact[Sequence[ContainerFact]]
) -> Fact[SeenGpu]:
    """Everything about one GPU, or the first thing that could not be read; Unknown for a GPU that cannot be cut."""
    mig = gpu.mig
    if mig.capable == Known(False):
        return Unknown(f"{gpu.name} cannot be cut into slices")
    for fact in (
        mig.capable,
        mig.current,
        mig.pending,
        mig.instances,
        mig.gpu_instances,
        offered,
        gpu.processes,
    ):
        if isinstance(fact, Unknown):
            return fact
    if isinstance(containers, Unknown):
        return Unknown(f"who uses the slices is not known: {containers.reason}")
    users = containers.value
    current, pending = _value(mig.current), _value(mig.pending)
    found = _slices(gpu, _value(mig.gpu_instances), _value(mig.instances), users)
    if isinstance(found, Unknown):
        return found
    geometry = geometry_of(gpu, _value(offered))
    if not geometry.profiles:
        return Unknown(f"{gpu.name} offers no profiles")
    return Known(
        SeenGpu(
            gpu=gpu,
            geometry=geometry,
            slices=found.value,
            on=current,
            pending=pending,
            whole=_bound(users, {"all", gpu.uuid, str(gpu.index)}, running=True),
            resting=_bound(users, {"all", gpu.uuid, str(gpu.index)}, running=False),
        )
    )


def _slices(
    gpu: GpuFact,
    instances: Sequence[GpuInstanceFact],
    devices: Sequence[MigInstance],
    containers: Sequence[ContainerFact],
) -> Fact[tuple[SeenSlice, ...]]:
    by_instance: dict[int, list[MigInstance]] = {one.gi: [] for one in instances}
    # A runtime takes `GPU:DEVICE` too, with the numbers of `nvidia-smi -L`, in whose order the slices come.
    numbered = {device.uuid: f"{gpu.index}:{number}" for number, device in enumerate(devices)}
    for device in devices:
        if isinstance(device.gi, Unknown):
            return Unknown(f"slice {device.uuid}: {device.gi.reason}")
        if device.gi.value not in by_instance:
            return Unknown(f"slice {device.uuid} is on GPU instance {device.gi.value}, which is not listed")
        by_instance[device.gi.value].append(device)
    found: list[SeenSlice] = []
    for one in instances:
        members = by_instance[one.gi]
        uuids = tuple(device.uuid for device in members)
        names = {*uuids, *(numbered[uuid] for uuid in uuids)}
        found.append(
            SeenSlice(
                placed=Placed(one.start, one.size, one.profile),
                gi=one.gi,
                cis=tuple(device.ci.value for device in members if isinstance(device.ci, Known)),
                uuids=uuids,
                memory_mib=members[0].memory_mib if members else Unknown("no compute instance shows it"),
                containers=_bound(containers, names, running=True),
                resting=_bound(containers, names, running=False),
                processes=_pids(gpu, one.gi),
            )
        )
    return Known(tuple(sorted(found, key=lambda one: one.placed)))


def _bound(containers: Sequence[ContainerFact], names: set[str], *, running: bool) -> tuple[str, ...]:
    """Names of the containers that were given one of these devices, those that run or those that do not."""
    return tuple(
        one.name for one in containers if (one.state in RUNNING) == running and names & set(one.devices)
    )


def _pids(gpu: GpuFact, gi: int) -> tuple[int, ...]:
    if isinstance(gpu.processes, Unknown):
        return ()
    return tuple(one.pid for one in gpu.processes.value if one.gi == gi)


def _value(fact: Fact[T]) -> T:
    """The value of a fact that was looked at already."""
    if isinstance(fact, Unknown):
        raise TypeError(fact.reason)
    return fact.value
