"""NVML over simulated GPUs, below nvidia-ml-py: its own functions, structures and errors run, only the library is ours.

No real `libnvidia-ml.so` was ever asked here: what a function answers follows nvml.h as nvidia-ml-py documents it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import pynvml

from gpufleet.lab.gpus.boards import Profile
from gpufleet.lab.gpus.simgpu import GpuSet, Instance, SimGpu

MIB = 1024 * 1024
KINDS = {
    ("1g", ""): pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE,
    ("2g", ""): pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE,
    ("3g", ""): pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE,
    ("4g", ""): pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE,
    ("7g", ""): pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE,
    ("1g", "+me"): pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1,
    ("2g", "+me"): pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1,
    ("1g", "double"): pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2,
}
DOUBLE_MEMORY = 15


class Refusal(Exception):
    """A code other than success."""


def kind_of(profile: Profile) -> int | None:
    """NVML's own number of a profile; None for one that this stand-in does not know."""
    slices, _, rest = profile.name.partition(".")
    media = "double" if profile.id == DOUBLE_MEMORY else f"+{rest.partition('+')[2]}" if "+" in rest else ""
    return KINDS.get((slices, media))


class NvmlStandIn:
    """`libnvidia-ml.so.1` over simulated GPUs.

    Attributes:
        root: whether whoever asks may see GPU instances and other people's processes.
        broken: functions that end with a code of their own.
        lacking: functions that this driver does not have.
    """

    def __init__(self, devices: GpuSet) -> None:
        self.devices = devices
        self.root = True
        self.broken: dict[str, int] = {}
        self.lacking: set[str] = set()
        self.open = 0
        self._handles: list[Any] = []

    def put_under(self, monkeypatch: Any) -> None:
        """Let nvidia-ml-py find its functions here."""
        monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", self.function)

    def function(self, name: str) -> Callable[..., int]:
        act: Callable[..., None] | None = getattr(self, f"_{name}", None)
        if name in self.lacking or act is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        known = act

        def call(*words: Any) -> int:
            if name in self.broken:
                return self.broken[name]
            try:
                known(*words)
            except Refusal as refused:
                return int(refused.args[0])
            return int(pynvml.NVML_SUCCESS)

        return call

    # -- handles -------------------------------------------------------------------------------------------------

    def _give(self, reference: Any, thing: Any, at: int = 0) -> None:
        self._handles.append(thing)
        ctypes.cast(reference, ctypes.POINTER(ctypes.c_void_p))[at] = len(self._handles)

    def _thing(self, handle: Any) -> Any:
        return self._handles[(ctypes.cast(handle, ctypes.c_void_p).value or 0) - 1]

    def _gpu(self, handle: Any) -> SimGpu:
        thing = self._thing(handle)
        found = thing[0] if isinstance(thing, tuple) else thing
        assert isinstance(found, SimGpu)
        return found

    def _privileged(self) -> None:
        if not self.root:
            raise Refusal(pynvml.NVML_ERROR_NO_PERMISSION)

    # -- the system ------------------------------------------------------------------------------------------------

    def _nvmlInitWithFlags(self, _flags: int) -> None:
        if self.devices.trouble == "no-driver":
            raise Refusal(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        if self.devices.trouble == "mismatch":
            raise Refusal(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
        self.open += 1

    def _nvmlShutdown(self) -> None:
        self.open -= 1

    def _nvmlErrorString(self, code: int) -> bytes:
        return f"code {code}".encode()

    def _nvmlSystemGetDriverVersion(self, buffer: Any, _size: Any) -> None:
        buffer.value = self.devices.driver.encode()

    def _nvmlSystemGetProcessName(self, pid: Any, buffer: Any, _size: Any) -> None:
        names = {holder.pid: holder.name for holder in self.devices.holders()}
        if pid.value not in names:
            raise Refusal(pynvml.NVML_ERROR_NOT_FOUND)
        buffer.value = names[pid.value].encode()

    def _nvmlDeviceGetCount_v2(self, count: Any) -> None:
        count._obj.value = len(self.devices.gpus)

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> None:
        self._give(device, self.devices.gpus[index.value])

    # -- a device ----------------------------------------------------------------------------------------------------

    def _nvmlDeviceGetUUID(self, handle: Any, buffer: Any, _size: Any) -> None:
        thing = self._thing(handle)
        buffer.value = (thing[1].uuid if isinstance(thing, tuple) else thing.uuid).encode()

    def _nvmlDeviceGetName(self, handle: Any, buffer: Any, _size: Any) -> None:
        thing, gpu = self._thing(handle), self._gpu(handle)
        mig = f" MIG {thing[1].profile.name.partition('+')[0]}" if isinstance(thing, tuple) else ""
        buffer.value = f"{gpu.board.name}{mig}".encode()

    def _nvmlDeviceGetPciInfo_v3(self, handle: Any, info: Any) -> None:
        info._obj.busId = self._gpu(handle).bus_id.encode()

    def _nvmlDeviceGetMemoryInfo_v2(self, handle: Any, memory: Any) -> None:
        thing = self._thing(handle)
        if isinstance(thing, tuple):
            memory._obj.total = thing[1].memory_mib * MIB
            return
        memory._obj.total = thing.board.memory_mib * MIB
        memory._obj.used = self.devices.used_mib(thing) * MIB

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> None:
        self._nvmlDeviceGetMemoryInfo_v2(handle, memory)
        memory._obj.used += 479 * MIB

    def _nvmlDeviceGetTemperature(self, handle: Any, _sensor: Any, value: Any) -> None:
        value._obj.value = 55 if self.devices.processes(self._gpu(handle)) else 33

    def _nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> None:
        gpu = self._gpu(handle)
        if gpu.mig:
            raise Refusal(pynvml.NVML_ERROR_NOT_SUPPORTED)
        rates._obj.gpu = 37 if self.devices.processes(gpu) else 0

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, found: Any) -> None:
        gpu = self._gpu(handle)
        if gpu.mig:
            self._privileged()
        rows = self.devices.processes(gpu)
        if found is None and rows:
            count._obj.value = len(rows)
            raise Refusal(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        count._obj.value = len(rows)
        for at, (holder, one, memory) in enumerate(rows):
            found[at].pid, found[at].usedGpuMemory = holder.pid, memory * MIB
            found[at].gpuInstanceId = 0xFFFFFFFF if one is None else one.gi
            found[at].computeInstanceId = 0xFFFFFFFF if one is None else one.ci or 0

    def _nvmlDeviceGetGraphicsRunningProcesses_v3(self, _handle: Any, count: Any, _found: Any) -> None:
        count._obj.value = 0

    # -- MIG -----------------------------------------------------------------------------------------------------------

    def _nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> None:
        gpu = self._gpu(handle)
        if not gpu.board.profiles:
            raise Refusal(pynvml.NVML_ERROR_NOT_SUPPORTED)
        current._obj.value, pending._obj.value = int(gpu.mig), int(gpu.pending)

    def _profile(self, gpu: SimGpu, number: int) -> Profile:
        """By the number that nvidia-smi prints."""
        return next(one for one in gpu.board.profiles if one.id == number)

    def _nvmlDeviceGetGpuInstanceProfileInfoV(self, handle: Any, kind: int, info: Any) -> None:
        gpu = self._gpu(handle)
        profile = next((one for one in gpu.board.profiles if kind_of(one) == kind), None)
        if profile is None:
            raise Refusal(pynvml.NVML_ERROR_NOT_SUPPORTED)
        seen = info._obj
        seen.id, seen.instanceCount = profile.id, profile.total
        seen.multiprocessorCount = profile.sm
        seen.decoderCount, seen.encoderCount, seen.copyEngineCount, seen.jpegCount, seen.ofaCount = (
            profile.engines
        )
        seen.memorySizeMB, seen.name = round(profile.gib * 1024), f"MIG {profile.name}".encode()

    def _nvmlDeviceGetGpuInstances(self, handle: Any, number: int, found: Any, count: Any) -> None:
        self._privileged()
        gpu = self._gpu(handle)
        rows = [one for one in gpu.instances if one.profile.id == number]
        count._obj.value = len(rows)
        for at, one in enumerate(rows):
            self._give(found, (gpu, one), at)

    def _nvmlGpuInstanceGetInfo(self, handle: Any, info: Any) -> None:
        one: Instance = self._thing(handle)[1]
        info._obj.id, info._obj.profileId = one.gi, one.profile.id
        info._obj.placement.start, info._obj.placement.size = one.start, one.profile.size

    def _nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        self, handle: Any, number: int, found: Any, count: Any
    ) -> None:
        profile = self._profile(self._gpu(handle), number)
        for at, start in enumerate(profile.starts if found is not None else ()):
            found[at].start, found[at].size = start, profile.size
        count._obj.value = len(profile.starts)

    def _nvmlDeviceGetGpuInstanceRemainingCapacity(self, handle: Any, number: int, count: Any) -> None:
        gpu = self._gpu(handle)
        count._obj.value = gpu.free_count(self._profile(gpu, number))

    def _nvmlDeviceGetMaxMigDeviceCount(self, _handle: Any, count: Any) -> None:
        count._obj.value = 7

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, device: Any) -> None:
        gpu = self._gpu(handle)
        found: Mapping[int, Instance] = dict(gpu.devices())
        if index.value not in found:
            raise Refusal(pynvml.NVML_ERROR_NOT_FOUND)
        self._give(device, (gpu, found[index.value]))

    def _nvmlDeviceGetGpuInstanceId(self, handle: Any, value: Any) -> None:
        value._obj.value = self._thing(handle)[1].gi

    def _nvmlDeviceGetComputeInstanceId(self, handle: Any, value: Any) -> None:
        value._obj.value = self._thing(handle)[1].ci
