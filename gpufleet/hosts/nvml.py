"""GPUs of this machine from NVML, for `connection: local`: the same facts as nvidia-smi's text gives.

Functions, structures and error codes as nvidia-ml-py 13 wraps them (nvml.h of CUDA 13). Profiles are asked for by
NVML's own numbers 0 to 17, which are not those that nvidia-smi prints and takes; what comes back holds the printed
one as `id`. Without rights NVML tells the slices and not the GPU instances: each value is Known or Unknown by itself,
so that nvidia-smi's text can stand in for it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

from gpufleet.hosts.model import (
    Fact,
    GpuFact,
    GpuInstanceFact,
    GpuProcess,
    Known,
    MigFact,
    MigInstance,
    Unknown,
)
from gpufleet.hosts.probes.mig_tables import Engines, Offer, PlacementRow, ProfileRow
from gpufleet.names import GpuUuid

Value = TypeVar("Value")
MIB = 1024 * 1024
NO_INSTANCE = 0xFFFFFFFF
"""What stands for the GPU instance of a process that is on none."""


def gpus() -> Fact[tuple[GpuFact, ...]]:
    """GPUs of this machine; Unknown when the library is absent or does not answer."""
    library = _library()
    return library if isinstance(library, Unknown) else read(library.value)


def offers() -> Fact[Mapping[int, tuple[Offer, ...]]]:
    """What each GPU of this machine can be cut into, by index; nothing for one that cannot."""
    library = _library()
    if isinstance(library, Unknown):
        return library
    nvml = library.value
    return _session(
        nvml,
        lambda: {
            index: tuple(_offers(nvml, nvml.nvmlDeviceGetHandleByIndex(index), index))
            for index in range(nvml.nvmlDeviceGetCount())
        },
    )


def read(nvml: Any) -> Fact[tuple[GpuFact, ...]]:
    """All that a loaded library tells."""
    return _session(nvml, lambda: tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())))


def merged(ours: GpuFact, text: GpuFact) -> GpuFact:
    """One GPU: what NVML knows, and what nvidia-smi's text knows where NVML does not."""
    return replace(_known(ours, text, frozenset({"mig"})), mig=_known(ours.mig, text.mig, frozenset()))


def _known(ours: Value, text: Value, whole: frozenset[str]) -> Value:
    instead = {
        one.name: getattr(text, one.name)
        for one in fields(ours)  # type: ignore[arg-type]  # both are facts, which are dataclasses
        if one.name not in whole and isinstance(getattr(ours, one.name), Unknown)
    }
    return replace(ours, **instead)  # type: ignore[type-var]  # likewise


def _library() -> Fact[Any]:
    try:
        import pynvml  # noqa: PLC0415  # 30 ms that only this path pays
    except ImportError:
        return Unknown("nvidia-ml-py is not installed")
    return Known(pynvml)


def _session(nvml: Any, question: Callable[[], Value]) -> Fact[Value]:
    """Ask between init and shutdown: a handle that stays open keeps others from changing slices."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Unknown(f"NVML: {error}")
    try:
        return Known(question())
    except nvml.NVMLError as error:
        return Unknown(f"NVML: {error}")
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> GpuFact:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(question: Callable[[Any], Value]) -> Fact[Value]:
        return _ask(nvml, lambda: question(handle))

    return GpuFact(
        index=index,
        uuid=GpuUuid(_text(nvml.nvmlDeviceGetUUID(handle))),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        bus_id=_text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        memory_total_mib=ask(lambda gpu: int(_memory(nvml, gpu).total) // MIB),
        memory_used_mib=ask(lambda gpu: int(_memory(nvml, gpu).used) // MIB),
        temperature_c=ask(lambda gpu: int(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))),
        utilization_pct=ask(lambda gpu: int(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)),
        driver=_ask(nvml, lambda: _text(nvml.nvmlSystemGetDriverVersion())),
        mig=_mig(nvml, handle),
        processes=ask(lambda gpu: tuple(_processes(nvml, gpu))),
        nvlink=Unknown("how GPUs are linked is read with nvidia-smi alone"),
    )


def _memory(nvml: Any, handle: Any) -> Any:
    """Without what the driver keeps for itself, as nvidia-smi counts; drivers before R510 count it as used."""
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NotSupported):
        return nvml.nvmlDeviceGetMemoryInfo(handle)


def _ask(nvml: Any, question: Callable[[], Value]) -> Fact[Value]:
    try:
        return Known(question())
    except nvml.NVMLError as error:
        return Unknown(f"NVML: {error}")


def _mig(nvml: Any, handle: Any) -> MigFact:
    try:
        current, pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError_NotSupported:
        off: Fact[bool] = Known(False)
        return MigFact(capable=off, current=off, pending=off, instances=Known(()), gpu_instances=Known(()))
    except nvml.NVMLError as error:
        reason = Unknown(f"NVML: {error}")
        return MigFact(capable=reason, current=reason, pending=reason, instances=reason, gpu_instances=reason)
    instances: Fact[tuple[GpuInstanceFact, ...]] = Known(())
    slices: Fact[tuple[MigInstance, ...]] = Known(())
    if current:
        instances = _ask(nvml, lambda: tuple(sorted(_instances(nvml, handle), key=lambda one: one.start)))
        placed = {one.gi: one for one in instances.value} if isinstance(instances, Known) else {}
        slices = _ask(nvml, lambda: tuple(_slices(nvml, handle, placed)))
    return MigFact(
        capable=Known(True),
        current=Known(bool(current)),
        pending=Known(bool(pending)),
        instances=slices,
        gpu_instances=instances,
    )


def _profiles(nvml: Any, handle: Any) -> Iterator[Any]:
    """Every kind of GPU instance of this GPU."""
    for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            yield nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=2)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue  # another board's


def _instances(nvml: Any, handle: Any) -> Iterator[GpuInstanceFact]:
    for profile in _profiles(nvml, handle):
        found = (nvml.c_nvmlGpuInstance_t * int(profile.instanceCount))()
        count = ctypes.c_uint(0)
        nvml.nvmlDeviceGetGpuInstances(handle, profile.id, found, ctypes.byref(count))
        for at in range(count.value):
            seen = nvml.nvmlGpuInstanceGetInfo(found[at])
            yield GpuInstanceFact(
                gi=int(seen.id),
                profile=_profile(profile),
                start=int(seen.placement.start),
                size=int(seen.placement.size),
            )


def _slices(nvml: Any, handle: Any, placed: Mapping[int, GpuInstanceFact]) -> Iterator[MigInstance]:
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except nvml.NVMLError_NotFound:
            continue
        yield _slice(nvml, device, placed)


def _slice(nvml: Any, device: Any, placed: Mapping[int, GpuInstanceFact]) -> MigInstance:
    gi = _ask(nvml, lambda: int(nvml.nvmlDeviceGetGpuInstanceId(device)))
    row = placed.get(gi.value) if isinstance(gi, Known) else None
    hidden = Unknown("NVML: where this slice is may be read by root alone")
    name = _text(nvml.nvmlDeviceGetName(device)).rpartition("MIG ")[2]
    part = name.partition("c.")[0] + "c." if "c." in name else ""
    return MigInstance(
        uuid=_text(nvml.nvmlDeviceGetUUID(device)),
        profile=f"{part}{row.profile}" if row else name,
        gi=gi,
        ci=_ask(nvml, lambda: int(nvml.nvmlDeviceGetComputeInstanceId(device))),
        start=Known(row.start) if row else hidden,
        size=Known(row.size) if row else hidden,
        memory_mib=_ask(nvml, lambda: int(_memory(nvml, device).total) // MIB),
    )


def _offers(nvml: Any, handle: Any, index: int) -> Iterator[Offer]:
    """The rows of `-lgip` and `-lgipp`; none for a GPU that cannot be cut."""
    for profile in _profiles(nvml, handle):
        number = int(profile.id)
        count = ctypes.c_uint(0)
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, number, None, ctypes.byref(count))
        places = (nvml.c_nvmlGpuInstancePlacement_t * max(1, count.value))()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, number, places, ctypes.byref(count))
        starts = tuple(sorted(int(places[at].start) for at in range(count.value)))
        if not starts:
            continue
        row = ProfileRow(
            gpu=index,
            name=_profile(profile),
            id=number,
            free=int(nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, number)),
            total=int(profile.instanceCount),
            gib=round(int(profile.memorySizeMB) / 1024, 2),
            p2p=bool(profile.isP2pSupported),
            engines=Engines(
                sm=int(profile.multiprocessorCount),
                copy=int(profile.copyEngineCount),
                decoders=int(profile.decoderCount),
                encoders=int(profile.encoderCount),
                jpeg=int(profile.jpegCount),
                optical_flow=int(profile.ofaCount),
            ),
        )
        yield Offer(row, PlacementRow(gpu=index, id=number, starts=starts, size=int(places[0].size)))


def _processes(nvml: Any, handle: Any) -> Iterator[GpuProcess]:
    """Those that compute and those that draw; one that does both is one process."""
    seen: set[tuple[int, int | None, int | None]] = set()
    listed = [*nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    listed += nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
    for one in listed:
        gi, ci = _number(one.gpuInstanceId), _number(one.computeInstanceId)
        if (key := (int(one.pid), gi, ci)) in seen:
            continue
        seen.add(key)
        name = _ask(nvml, partial(_process_name, nvml, int(one.pid)))
        memory: Fact[int] = Unknown("NVML does not tell the memory of this process")
        yield GpuProcess(
            pid=int(one.pid),
            name=name.value if isinstance(name, Known) else "",
            memory_mib=Known(int(one.usedGpuMemory) // MIB) if one.usedGpuMemory else memory,
            gi=gi,
            ci=ci,
        )


def _process_name(nvml: Any, pid: int) -> str:
    return _text(nvml.nvmlSystemGetProcessName(pid))


def _number(value: int | None) -> int | None:
    """The id of an instance; None for a process that is on none."""
    return None if value is None or int(value) == NO_INSTANCE else int(value)


def _profile(info: Any) -> str:
    """`1g.10gb+me`, as `-lgip` prints it."""
    return _text(info.name).removeprefix("MIG ").strip()


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
