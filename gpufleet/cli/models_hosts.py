"""GPUs and slices of hosts as places that models are held against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from gpufleet.cli import wiring
from gpufleet.cli.console import warn
from gpufleet.cli.models_text import Place, slice_place
from gpufleet.cli.settings import Settings
from gpufleet.clock import SystemClock
from gpufleet.engine.boards import cuda_gib, named
from gpufleet.errors import FleetError, UsageError
from gpufleet.hosts.gather import gather
from gpufleet.hosts.model import GpuFact, HostFacts, Known
from gpufleet.inventory.model import Host, Inventory


def places_of(settings: Settings, hosts: Sequence[str], gpu: str, mig: str) -> tuple[Place, ...]:
    """Every kind of GPU and slice of these hosts once, or one of them that is named.

    Raises:
        UsageError: `HOST:INDEX` names none, or nothing of the profile is there.
        FleetError: the one host that was asked for does not answer.
    """
    inventory = wiring.load_inventory(settings)
    host_name, _, index = gpu.rpartition(":")
    chosen = wiring.select(inventory, [host_name] if host_name else list(hosts))
    found: dict[str, Place] = {}
    for facts in _facts(settings, inventory, chosen, alone=bool(host_name)):
        gpus = facts.gpus.value if isinstance(facts.gpus, Known) else ()
        for one in gpus:
            if index and index not in {str(one.index), one.uuid, "all"}:
                continue
            for place in _of_gpu(one, mig):
                found.setdefault(place.name, place)
    if not found:
        what = f"slice {mig}" if mig else "GPU"
        raise UsageError(
            f"no {what} was found on {', '.join(host.name for host in chosen)}",
            hints=("`gpufleet hosts facts` shows what is there",),
        )
    return tuple(found.values())


def _facts(
    settings: Settings, inventory: Inventory, chosen: Sequence[Host], *, alone: bool
) -> Iterator[HostFacts]:
    with closing(wiring.transport(inventory, settings)) as sessions:
        answers = gather(sessions, chosen, clock=SystemClock(), forks=settings.forks)
    for name, answer in answers.items():
        if isinstance(answer, HostFacts):
            yield answer
        elif alone and isinstance(answer, FleetError):
            raise answer
        else:
            warn(f"{name}: not reached: {answer.summary}")


def _of_gpu(gpu: GpuFact, mig: str) -> Iterator[Place]:
    if not isinstance(gpu.memory_total_mib, Known):
        return
    board = named(gpu.name)
    capability = board.capability if board else None
    if gpu.mig.current != Known(True):
        if not mig:
            total = board.total_gib if board else cuda_gib(gpu.memory_total_mib.value)
            yield Place(name=gpu.name, memory_gib=total, capability=capability)
        return
    for one in gpu.mig.instances.value if isinstance(gpu.mig.instances, Known) else ():
        if isinstance(one.memory_mib, Known) and mig in {"", one.profile}:
            name = f"{one.profile} of {gpu.name}"
            yield slice_place(name, one.memory_mib.value, gpu.memory_total_mib.value, capability)
