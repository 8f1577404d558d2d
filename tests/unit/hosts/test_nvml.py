"""NVML's answers as facts. The library needs a GPU, so a stand-in answers with its names and its errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.errors import FleetError
from gpufleet.hosts import gather, nvml
from gpufleet.hosts.model import HostFacts, Known, Unknown
from gpufleet.inventory.model import Address, Connection, Host
from gpufleet.names import HostName
from tests.unit.hosts.answers import healthy, section
from tests.unit.hosts.test_gather import Frozen, Hosts, spoken

MIB = 1024 * 1024


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):  # noqa: N801 the library's own name
    pass


class NVMLError_NotFound(NVMLError):  # noqa: N801 likewise
    pass


def library(**changed: Any) -> Any:
    """One H100; `mig` is its mode, `slices` its MIG devices by number."""

    def refuse(*_: object) -> object:
        raise NVMLError("Insufficient Permissions")

    def mode(_gpu: object) -> object:
        if changed.get("mig") is None:
            raise NVMLError_NotSupported("Not Supported")
        return changed["mig"]

    def mig_device(_gpu: object, number: int) -> object:
        if number not in changed.get("slices", ()):
            raise NVMLError_NotFound("Not Found")
        return f"slice {number}"

    made = SimpleNamespace(
        NVMLError=NVMLError,
        NVMLError_NotSupported=NVMLError_NotSupported,
        NVMLError_NotFound=NVMLError_NotFound,
        NVML_TEMPERATURE_GPU=0,
        NVML_ERROR_NOT_FOUND=6,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda _index: "gpu",
        nvmlDeviceGetUUID=lambda handle: f"MIG-{handle[-1]}" if handle != "gpu" else b"GPU-1",
        nvmlDeviceGetName=lambda handle: (
            "NVIDIA H100 80GB HBM3" + (" MIG 1g.10gb" if handle != "gpu" else "")
        ),
        nvmlDeviceGetPciInfo=lambda _: SimpleNamespace(busId="00000000:18:00.0"),
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=1000 * MIB, used=10 * MIB),
        nvmlDeviceGetTemperature=lambda *_: 40,
        nvmlDeviceGetUtilizationRates=refuse,
        nvmlSystemGetDriverVersion=lambda: "580.82.07",
        nvmlDeviceGetMigMode=mode,
        nvmlDeviceGetMaxMigDeviceCount=lambda _: 7,
        nvmlDeviceGetMigDeviceHandleByIndex=mig_device,
        nvmlDeviceGetGpuInstanceId=lambda handle: 7 + int(handle[-1]),
        nvmlDeviceGetComputeInstanceId=lambda _: 0,
        nvmlDeviceGetGpuInstanceById=lambda _gpu, number: number,
        nvmlGpuInstanceGetInfo=lambda number: SimpleNamespace(
            placement=SimpleNamespace(start=number - 7, size=1)
        ),
        nvmlDeviceGetComputeRunningProcesses=lambda _: [
            SimpleNamespace(pid=9, usedGpuMemory=5 * MIB),
            SimpleNamespace(pid=10, usedGpuMemory=None),
        ],
    )
    for name, value in changed.items():
        setattr(made, name, value)
    return made


def test_one_gpu_without_mig():
    seen = nvml.read(library())
    assert isinstance(seen, Known)
    (gpu,) = seen.value
    assert (gpu.uuid, gpu.memory_total_mib, gpu.temperature_c) == ("GPU-1", Known(1000), Known(40))
    assert gpu.utilization_pct == Unknown("NVML: Insufficient Permissions")
    assert gpu.mig.capable == Known(False)
    assert isinstance(gpu.processes, Known)
    assert [(one.pid, isinstance(one.memory_mib, Known)) for one in gpu.processes.value] == [
        (9, True),
        (10, False),
    ]


def test_slices():
    seen = nvml.read(library(mig=(1, 1), slices=(0, 3)))
    assert isinstance(seen, Known)
    instances = seen.value[0].mig.instances
    assert isinstance(instances, Known)
    assert [(one.uuid, one.profile, one.gi, one.start, one.size) for one in instances.value] == [
        ("MIG-0", "1g.10gb", Known(7), Known(0), Known(1)),
        ("MIG-3", "1g.10gb", Known(10), Known(3), Known(1)),
    ]


def test_a_mode_that_is_not_told_is_unknown():
    def refuse(_gpu: object) -> object:
        raise NVMLError("Unknown Error")

    seen = nvml.read(library(nvmlDeviceGetMigMode=refuse))
    assert isinstance(seen, Known)
    assert isinstance(seen.value[0].mig.capable, Unknown)


@pytest.mark.parametrize("name", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"])
def test_a_library_that_does_not_answer(name):
    def refuse(*_: object) -> object:
        raise NVMLError("Driver Not Loaded")

    assert nvml.read(library(**{name: refuse})) == Unknown("NVML: Driver Not Loaded")


def local(monkeypatch, gpus) -> HostFacts | FleetError:
    monkeypatch.setattr(nvml, "gpus", gpus)
    absent = healthy() | {"list": section("list", "not installed", status=None)}
    transport = Hosts(here=lambda _: spoken(absent))
    host = Host(name=HostName("here"), address=Address("127.0.0.1"), connection=Connection.LOCAL)
    return gather.gather(transport, [host], clock=Frozen())[host.name]


def test_this_machine_without_nvidia_smi(monkeypatch):
    seen = local(monkeypatch, lambda: nvml.read(library()))
    assert isinstance(seen, HostFacts)
    assert isinstance(seen.gpus, Known)
    assert seen.driver == Known("580.82.07")
    assert seen.symptoms == ()


def test_this_machine_without_either(monkeypatch):
    seen = local(monkeypatch, lambda: Unknown("NVML: Library Not Found"))
    assert isinstance(seen, HostFacts)
    assert isinstance(seen.gpus, Unknown)
    assert [symptom.code for symptom in seen.symptoms] == ["driver-missing"]
