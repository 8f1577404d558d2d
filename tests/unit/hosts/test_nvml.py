"""NVML's answers as facts: nvidia-ml-py itself over simulated GPUs, compared with nvidia-smi's text over the same ones.

No real library was asked: it needs a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import pynvml
import pytest

from gpufleet.errors import FleetError
from gpufleet.hosts import gather, nvml
from gpufleet.hosts.model import GpuFact, HostFacts, Known, Unknown
from gpufleet.inventory.model import Address, Connection, Host
from gpufleet.lab.fleet import HostWish, LabHost, build_fleet
from gpufleet.lab.memory import MemoryTransport
from gpufleet.names import HostName
from tests.kit.lab_kit import LabClock
from tests.kit.nvml_stand_in import NvmlStandIn
from tests.unit.hosts.answers import healthy, section
from tests.unit.hosts.test_gather import Frozen, Hosts, spoken

IMAGE = "vllm/vllm-openai:v0.20.0"
CUT = {0: ("3g.40gb:4", "1g.10gb+me:0", "1g.20gb:2")}


class Here:
    """This machine as a simulated host with NVML beside its nvidia-smi."""

    def __init__(self, monkeypatch, gpus: str = "2xH100-80GB", **more) -> None:
        wish = HostWish(
            **{"name": "here", "gpus": gpus, "layouts": CUT, "images": (IMAGE,), "login": "root", **more}
        )
        self.fleet = build_fleet([wish], LabClock())
        self.lab: LabHost = self.fleet["here"]
        self.library = NvmlStandIn(self.lab.gpus)
        self.library.put_under(monkeypatch)
        self.host = Host(name=HostName("here"), address=Address("127.0.0.1"), connection=Connection.LOCAL)

    def occupy(self) -> None:
        large = self.lab.gpus.gpus[0].devices()[0][1]
        for device in (large.uuid, self.lab.gpus.gpus[1].uuid):
            run = f"docker run -d --gpus '\"device={device}\"' {IMAGE} --model x"
            assert self.lab.sh(run, user="root").code == 0

    def text(self) -> HostFacts:
        """What nvidia-smi alone tells."""
        far = Host(name=HostName("here"), address=Address("127.0.0.1"))
        seen = gather.gather(MemoryTransport(self.fleet), [far], clock=self.fleet.clock)[far.name]
        assert isinstance(seen, HostFacts), seen
        return seen

    def both(self) -> HostFacts:
        """What a host with `connection: local` tells."""
        seen = gather.gather(MemoryTransport(self.fleet), [self.host], clock=self.fleet.clock)[self.host.name]
        assert isinstance(seen, HostFacts), seen
        return seen


def library_gpus() -> tuple[GpuFact, ...]:
    seen = nvml.gpus()
    assert isinstance(seen, Known), seen
    return seen.value


def told(value: object) -> object:
    """The same without the words in which something is not known."""
    if isinstance(value, Unknown):
        return "unknown"
    if isinstance(value, Known):
        return told(value.value)
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: told(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, tuple):
        return [told(one) for one in value]
    return value


def apart(ours: object, text: object, path: str = "") -> Iterator[str]:
    if isinstance(ours, dict) and isinstance(text, dict):
        for name in ours:
            yield from apart(ours[name], text[name], f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(text, list) and len(ours) == len(text):
        for one, other in zip(ours, text, strict=True):
            yield from apart(one, other, path)
    elif ours != text:
        yield f"{path}: {ours!r} is not {text!r}"


@pytest.mark.parametrize(
    ("gpus", "layouts"),
    [
        ("2xH100-80GB", CUT),
        ("2xA100-80GB", {0: ("3g.40gb:0", "3g.40gb:4")}),
        ("2xA30-24GB", {0: ("2g.12gb+me:0", "1g.6gb:2")}),
        ("2xL40S-48GB", {}),
    ],
)
def test_the_same_facts_as_nvidia_smi_gives(monkeypatch, gpus, layouts):
    here = Here(monkeypatch, gpus, layouts=layouts)
    if layouts:
        here.occupy()
    here.fleet.clock.sleep(30.0)
    text = here.text().gpus
    assert isinstance(text, Known)
    ours = library_gpus()
    assert len(ours) == len(text.value)
    different = [
        line for one, other in zip(ours, text.value, strict=True) for line in apart(told(one), told(other))
    ]
    assert [line for line in different if not line.startswith(".nvlink")] == []
    assert here.library.open == 0


def test_the_same_offers_as_nvidia_smi_gives(monkeypatch):
    here = Here(monkeypatch)
    far = Host(name=HostName("here"), address=Address("127.0.0.1"))
    text = gather.gather_offers(MemoryTransport(here.fleet), [far])[far.name]
    ours = gather.gather_offers(MemoryTransport(here.fleet), [here.host])[far.name]
    assert isinstance(text, Known)
    assert isinstance(ours, Known)
    for index, rows in text.value.items():
        assert sorted(ours.value[index], key=lambda one: one.row.id) == sorted(
            rows, key=lambda one: one.row.id
        )
    here.library.broken["nvmlDeviceGetGpuInstanceProfileInfoV"] = pynvml.NVML_ERROR_UNKNOWN
    assert gather.gather_offers(MemoryTransport(here.fleet), [here.host])[far.name] == text


def test_case_16_without_rights_text_stands_in(monkeypatch):
    here = Here(monkeypatch)
    here.occupy()
    here.library.root = False
    ours = library_gpus()[0]
    assert ours.mig.gpu_instances == Unknown("NVML: Insufficient Permissions")
    assert ours.processes == Unknown("NVML: Insufficient Permissions")
    assert isinstance(ours.mig.instances, Known)
    assert [isinstance(one.start, Unknown) for one in ours.mig.instances.value] == [True, True, True]
    assert [one.profile for one in ours.mig.instances.value] == ["3g.40gb", "1g.20gb", "1g.10gb"]
    seen = here.both().gpus
    text = here.text().gpus
    assert isinstance(seen, Known)
    assert isinstance(text, Known)
    assert seen.value[0].mig.gpu_instances == text.value[0].mig.gpu_instances
    assert seen.value[0].processes == text.value[0].processes
    assert seen.value[0].nvlink == text.value[0].nvlink


@pytest.mark.parametrize(
    ("function", "code", "said"),
    [
        ("nvmlDeviceGetCount_v2", pynvml.NVML_ERROR_UNKNOWN, "Unknown Error"),
        ("nvmlDeviceGetHandleByIndex_v2", pynvml.NVML_ERROR_GPU_IS_LOST, "GPU is lost"),
        ("nvmlInitWithFlags", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "version mismatch"),
    ],
)
def test_a_library_that_does_not_answer(monkeypatch, function, code, said):
    here = Here(monkeypatch)
    here.library.broken[function] = code
    seen = nvml.gpus()
    assert isinstance(seen, Unknown)
    assert said in seen.reason
    assert here.both().gpus == here.text().gpus
    assert here.library.open == 0


@pytest.mark.parametrize(
    ("function", "code", "name"),
    [
        ("nvmlDeviceGetTemperature", pynvml.NVML_ERROR_NOT_SUPPORTED, "temperature_c"),
        ("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_NO_PERMISSION, "memory_total_mib"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_UNKNOWN, "processes"),
        ("nvmlSystemGetDriverVersion", pynvml.NVML_ERROR_UNKNOWN, "driver"),
    ],
)
def test_one_value_that_is_not_told_hides_no_other(monkeypatch, function, code, name):
    here = Here(monkeypatch)
    here.library.broken[function] = code
    (first, _) = library_gpus()
    assert isinstance(getattr(first, name), Unknown)
    assert first.mig.current == Known(True)


def test_an_old_driver_without_the_newer_memory_call(monkeypatch):
    here = Here(monkeypatch)
    here.library.lacking.add("nvmlDeviceGetMemoryInfo_v2")
    assert isinstance(library_gpus()[0].memory_used_mib, Known)


def test_a_mode_that_is_not_told_is_unknown(monkeypatch):
    here = Here(monkeypatch)
    here.library.broken["nvmlDeviceGetMigMode"] = pynvml.NVML_ERROR_UNKNOWN
    mig = library_gpus()[0].mig
    for fact in (mig.capable, mig.current, mig.instances, mig.gpu_instances):
        assert isinstance(fact, Unknown)


def test_a_machine_of_which_nvml_sees_a_part(monkeypatch):
    here = Here(monkeypatch)
    here.library.devices = here.lab.gpus.given(frozenset({"0"}))
    assert len(library_gpus()) == 1
    assert here.both().gpus == here.text().gpus


def test_the_real_library_where_there_is_none():
    seen = nvml.gpus()
    if isinstance(seen, Known):
        pytest.skip("this machine has NVML")
    assert seen.reason.startswith("NVML: ")


def local(monkeypatch, gpus) -> HostFacts | FleetError:
    monkeypatch.setattr(nvml, "gpus", gpus)
    absent = healthy() | {"list": section("list", "not installed", status=None)}
    transport = Hosts(here=lambda _: spoken(absent))
    host = Host(name=HostName("here"), address=Address("127.0.0.1"), connection=Connection.LOCAL)
    return gather.gather(transport, [host], clock=Frozen())[host.name]


def test_this_machine_without_nvidia_smi(monkeypatch):
    here = Here(monkeypatch)
    ours = library_gpus()
    seen = local(monkeypatch, lambda: Known(ours))
    assert isinstance(seen, HostFacts)
    assert seen.gpus == Known(ours)
    assert seen.driver == Known(here.lab.gpus.driver)
    assert seen.symptoms == ()


def test_this_machine_without_either(monkeypatch):
    seen = local(monkeypatch, lambda: Unknown("NVML: Library Not Found"))
    assert isinstance(seen, HostFacts)
    assert isinstance(seen.gpus, Unknown)
    assert [symptom.code for symptom in seen.symptoms] == ["driver-missing"]
