"""`nvidia-smi -q -x`: the only place that says which MIG device number is which instance, and whose each process is.

It carries no MIG UUID: device N of `nvidia-smi -L` is `<index>N` here, on the same GPU. Any number may be a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# The document comes from a host that may lie: entity declarations, the one way to make expat work without end,
# are refused before parsing, and expat fetches nothing.
from xml.etree import ElementTree as ET

from gpufleet.hosts.model import Fact, GpuProcess, Known, Unknown
from gpufleet.hosts.probes.nvidia_smi import parse_number, parse_word

_DECLARATION = re.compile(r"<\?xml[^>]*\?>|<!DOCTYPE[^>\[]*>")


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlSlice:
    """One `<mig_device>`."""

    device: int
    gi: Fact[int]
    ci: Fact[int]
    memory_mib: Fact[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlGpu:
    """One `<gpu>`; `uuid` and `bus_id` are empty where the document leaves them out."""

    uuid: str
    bus_id: str
    name: str
    memory_total: str
    memory_used: str
    temperature: str
    utilization: str
    mig_current: str
    mig_pending: str
    slices: Fact[tuple[XmlSlice, ...]]
    processes: Fact[tuple[GpuProcess, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlReport:
    """The whole document."""

    driver: Fact[str]
    cuda: Fact[str]
    gpus: tuple[XmlGpu, ...]


def parse_report(text: str) -> Fact[XmlReport]:
    """`nvidia-smi -q -x`; text that is no such document is Unknown with the reason."""
    start = text.find("<nvidia_smi_log")
    if start < 0:
        line = next((line.strip() for line in text.splitlines() if line.strip()), "")
        return Unknown(f"nvidia-smi says: {line[:200]}" if line else "nvidia-smi printed nothing")
    if "<!ENTITY" in text or "<!DOCTYPE" in text[start:]:
        return Unknown("the XML of nvidia-smi declares entities, which it never does")
    try:
        root = ET.fromstring(_DECLARATION.sub("", text[start:]))  # noqa: S314  # see the import
    except (ET.ParseError, ValueError):
        return Unknown("the XML of nvidia-smi is cut off or damaged")
    return Known(
        XmlReport(
            driver=parse_word(_text(root, "driver_version")),
            cuda=parse_word(_text(root, "cuda_version")),
            gpus=tuple(_gpu(element) for element in root.findall("gpu")),
        )
    )


def _gpu(element: ET.Element) -> XmlGpu:
    return XmlGpu(
        uuid=_text(element, "uuid"),
        bus_id=element.get("id", "") or _text(element, "pci/pci_bus_id"),
        name=_text(element, "product_name"),
        memory_total=_text(element, "fb_memory_usage/total"),
        memory_used=_text(element, "fb_memory_usage/used"),
        temperature=_text(element, "temperature/gpu_temp"),
        utilization=_text(element, "utilization/gpu_util"),
        mig_current=_text(element, "mig_mode/current_mig"),
        mig_pending=_text(element, "mig_mode/pending_mig"),
        slices=_slices(element.find("mig_devices")),
        processes=_processes(element.find("processes")),
    )


def _slices(element: ET.Element | None) -> Fact[tuple[XmlSlice, ...]]:
    if element is None:
        return Unknown("the XML of nvidia-smi has no MIG section")
    found: list[XmlSlice] = []
    for device in element.findall("mig_device"):
        number = parse_number(_text(device, "index"))
        if isinstance(number, Unknown):
            return Unknown(f"a MIG device without a number: {number.reason}")
        found.append(
            XmlSlice(
                device=number.value,
                gi=parse_number(_text(device, "gpu_instance_id")),
                ci=parse_number(_text(device, "compute_instance_id")),
                memory_mib=parse_number(_text(device, "fb_memory_usage/total")),
            )
        )
    return Known(tuple(found))


def _processes(element: ET.Element | None) -> Fact[tuple[GpuProcess, ...]]:
    if element is None:
        return Unknown("the XML of nvidia-smi has no process section")
    word = (element.text or "").strip()
    if word and word.casefold() not in {"none", "n/a"}:
        return Unknown(f"the process list says: {word[:80]}")
    found: list[GpuProcess] = []
    for process in element.findall("process_info"):
        pid = parse_number(_text(process, "pid"))
        if isinstance(pid, Unknown):
            return Unknown(f"a process without a number: {pid.reason}")
        found.append(
            GpuProcess(
                pid=pid.value,
                name=_text(process, "process_name"),
                memory_mib=parse_number(_text(process, "used_memory")),
                gi=_optional(_text(process, "gpu_instance_id")),
                ci=_optional(_text(process, "compute_instance_id")),
            )
        )
    return Known(tuple(_once(found)))


def _once(processes: list[GpuProcess]) -> Iterator[GpuProcess]:
    """A process that computes and draws is listed once for each; it is one process."""
    seen: set[tuple[int, int | None, int | None]] = set()
    for process in processes:
        key = (process.pid, process.gi, process.ci)
        if key not in seen:
            seen.add(key)
            yield process


def _optional(text: str) -> int | None:
    number = parse_number(text)
    return number.value if isinstance(number, Known) else None


def _text(element: ET.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()
