"""GPUs of this machine from NVML, for `connection: local` when there is no nvidia-smi to ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gpufleet.hosts.model import Fact, GpuFact, GpuProcess, Known, MigFact, MigInstance, Unknown
from gpufleet.names import GpuUuid

Value = TypeVar("Value")
MIB = 1024 * 1024


def gpus() -> Fact[tuple[GpuFact, ...]]:
    """GPUs of this machine; Unknown when the library is absent or does not answer."""
    try:
        import pynvml  # noqa: PLC0415  # 30 ms that only this path pays
    except ImportError:
        return Unknown("nvidia-ml-py is not installed")
    return read(pynvml)


def read(nvml: Any) -> Fact[tuple[GpuFact, ...]]:
    """All that a loaded library tells."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Unknown(f"NVML: {error}")
    try:
        return Known(tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())))
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
        memory_total_mib=ask(lambda gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).total) // MIB),
        memory_used_mib=ask(lambda gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).used) // MIB),
        temperature_c=ask(lambda gpu: int(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))),
        utilization_pct=ask(lambda gpu: int(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)),
        driver=_ask(nvml, lambda: _text(nvml.nvmlSystemGetDriverVersion())),
        mig=_mig(nvml, handle),
        processes=ask(lambda gpu: tuple(map(_process, nvml.nvmlDeviceGetComputeRunningProcesses(gpu)))),
    )


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
    slices: Fact[tuple[MigInstance, ...]] = Known(())
    if current:
        slices = _ask(nvml, lambda: _slices(nvml, handle))
    return MigFact(
        capable=Known(True),
        current=Known(bool(current)),
        pending=Known(bool(pending)),
        instances=slices,
        gpu_instances=Unknown("GPU instances are read with nvidia-smi alone") if current else Known(()),
    )


def _slices(nvml: Any, handle: Any) -> tuple[MigInstance, ...]:
    found: list[MigInstance] = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except nvml.NVMLError_NotFound:
            continue
        found.append(_slice(nvml, handle, device))
    return tuple(found)


def _slice(nvml: Any, handle: Any, device: Any) -> MigInstance:
    instance = _ask(nvml, lambda: int(nvml.nvmlDeviceGetGpuInstanceId(device)))
    place = _ask(nvml, lambda: _placement(nvml, handle, instance))
    return MigInstance(
        uuid=_text(nvml.nvmlDeviceGetUUID(device)),
        profile=_text(nvml.nvmlDeviceGetName(device)).rpartition("MIG ")[2],
        gi=instance,
        ci=_ask(nvml, lambda: int(nvml.nvmlDeviceGetComputeInstanceId(device))),
        start=Known(place.value[0]) if isinstance(place, Known) else place,
        size=Known(place.value[1]) if isinstance(place, Known) else place,
        memory_mib=_ask(nvml, lambda: int(nvml.nvmlDeviceGetMemoryInfo(device).total) // MIB),
    )


def _placement(nvml: Any, handle: Any, instance: Fact[int]) -> tuple[int, int]:
    if isinstance(instance, Unknown):
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_FOUND)
    seen = nvml.nvmlGpuInstanceGetInfo(nvml.nvmlDeviceGetGpuInstanceById(handle, instance.value))
    return int(seen.placement.start), int(seen.placement.size)


def _process(seen: Any) -> GpuProcess:
    used = seen.usedGpuMemory
    memory: Fact[int] = Unknown("NVML does not tell the memory of this process")
    return GpuProcess(pid=int(seen.pid), name="", memory_mib=Known(int(used) // MIB) if used else memory)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
