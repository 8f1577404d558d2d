"""The table that nvidia-smi prints when it is asked nothing: what is left where a driver gives no XML.

It has no UUIDs; GPUs are told by their bus id. Rows under `MIG devices:` join device numbers to instances as the XML
does. Of several compute instances of one GPU instance every row repeats the shared memory from R580 on, and only the
first shows it before; so memory belongs to the GPU instance and is never summed over rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpufleet.hosts.model import Fact, GpuProcess, Known, Unknown
from gpufleet.hosts.probes.nvidia_smi import parse_number, parse_word, trouble_line
from gpufleet.hosts.probes.nvidia_xml import XmlGpu, XmlReport, XmlSlice

_VERSIONS = re.compile(r"Driver Version:\s*(\S+)\s+CUDA Version:\s*(\S+)")
_GPU = re.compile(
    r"^\|\s*(\d{1,4})\s+(\S.*?)\s+\S+\s*\|\s*([0-9A-Fa-f]+:[0-9A-Fa-f:.]+)\s+\S+\s*\|", re.ASCII
)
_USAGE = re.compile(r"^\|\s*\S+\s+(\S+?)C?\s[^|]*\|\s*([^|]*?)\s*/\s*([^|]*?)\s*\|\s*(\S+)\s[^|]*\|\s*$")
_MODE = re.compile(r"^\|\s+\|\s+\|\s*(Enabled|Disabled|N/A)\*?\s*\|\s*$")
_SLICE = re.compile(
    r"^\|\s*(\d{1,4})\s+(\d{1,4})\s+(\d{1,4})\s+(\d{1,4})\s*\|\s*(?:\S+\s*/\s*(\S+))?\s*\|", re.ASCII
)
_PROCESS = re.compile(
    r"^\|\s*(\d{1,4})\s+(\d{1,4}|N/A)\s+(\d{1,4}|N/A)\s+(\d{1,10})\s+[A-Z+]+\s+(\S.*?)\s+(\S+)\s*\|\s*$",
    re.ASCII,
)
_ROW = re.compile(r"^\|\s*\d")


@dataclass(slots=True)
class _Gpu:
    """One GPU while its lines are read."""

    name: str
    bus_id: str
    temperature: str = ""
    used: str = ""
    total: str = ""
    utilization: str = ""
    mode: str = ""


@dataclass(slots=True)
class _Read:
    """What the three parts of the table hold; a part that was not printed, or not understood, is Unknown."""

    gpus: dict[int, _Gpu] = field(default_factory=dict)
    slices: Fact[tuple[tuple[int, XmlSlice], ...]] = field(
        default_factory=lambda: Unknown("the table of nvidia-smi has no MIG part")
    )
    processes: Fact[tuple[tuple[int, GpuProcess], ...]] = field(
        default_factory=lambda: Unknown("the table of nvidia-smi has no process part")
    )


def parse_table(text: str) -> Fact[XmlReport]:
    """`nvidia-smi` without arguments, in the shape of the XML; text that is no such table is Unknown."""
    read = _Read()
    for title, lines in _parts(text):
        match title:
            case "MIG devices":
                read.slices = _slices(lines)
            case "Processes":
                read.processes = _processes(lines)
            case _:
                read.gpus |= _gpus(lines)
    if not read.gpus:
        why = trouble_line(text) or next((line.strip() for line in text.splitlines() if line.strip()), "")
        return Unknown(f"nvidia-smi says: {why[:200]}" if why else "nvidia-smi printed nothing")
    found = _VERSIONS.search(text)
    silent = Unknown("the table of nvidia-smi names no version")
    return Known(
        XmlReport(
            driver=parse_word(found[1]) if found else silent,
            cuda=parse_word(found[2]) if found else silent,
            gpus=tuple(_report(index, gpu, read) for index, gpu in sorted(read.gpus.items())),
        )
    )


def _parts(text: str) -> Iterator[tuple[str, list[str]]]:
    """The parts of the table by their titles; the GPUs, which have none, come first."""
    title = ""
    lines: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if found := re.match(r"^\|\s*(MIG devices|Processes):", stripped):
            yield title, lines
            title, lines = found[1], []
        else:
            lines.append(stripped)
    yield title, lines


def _gpus(lines: Sequence[str]) -> dict[int, _Gpu]:
    found: dict[int, _Gpu] = {}
    last: _Gpu | None = None
    for line in lines:
        if row := _GPU.match(line):
            last = found[int(row[1])] = _Gpu(row[2], row[3])
        elif last is not None and not last.total and (row := _USAGE.match(line)):
            last.temperature, last.used, last.total, last.utilization = row[1], row[2], row[3], row[4]
        elif last is not None and (row := _MODE.match(line)):
            last.mode, last = row[1], None
    return found


def _slices(lines: Sequence[str]) -> Fact[tuple[tuple[int, XmlSlice], ...]]:
    memory: dict[tuple[int, int], Fact[int]] = {}
    found: list[tuple[int, int, int, int]] = []
    for line in lines:
        if row := _SLICE.match(line):
            gpu, gi, ci, device = (int(number) for number in row.groups()[:4])
            found.append((gpu, gi, ci, device))
            if row[5]:
                memory.setdefault((gpu, gi), parse_number(row[5]))
        elif _ROW.match(line):
            return Unknown(f"the table of nvidia-smi has a row that is not understood: {line[:80]}")
    if not found and not any("No MIG devices found" in line for line in lines):
        return Unknown("the table of nvidia-smi has a MIG part without rows")
    hidden = Unknown("the table of nvidia-smi shows no memory of this slice")
    return Known(
        tuple(
            (
                gpu,
                XmlSlice(device=device, gi=Known(gi), ci=Known(ci), memory_mib=memory.get((gpu, gi), hidden)),
            )
            for gpu, gi, ci, device in found
        )
    )


def _processes(lines: Sequence[str]) -> Fact[tuple[tuple[int, GpuProcess], ...]]:
    found: list[tuple[int, GpuProcess]] = []
    for line in lines:
        if row := _PROCESS.match(line):
            gi, ci = (int(text) if text.isdecimal() else None for text in (row[2], row[3]))
            one = GpuProcess(pid=int(row[4]), name=row[5], memory_mib=parse_number(row[6]), gi=gi, ci=ci)
            found.append((int(row[1]), one))
        elif _ROW.match(line):
            return Unknown(f"the table of nvidia-smi has a row that is not understood: {line[:80]}")
    if not found and not any("No running processes found" in line for line in lines):
        return Unknown("the table of nvidia-smi has a process part without rows")
    return Known(tuple(found))


def _report(index: int, gpu: _Gpu, read: _Read) -> XmlGpu:
    slices: Fact[tuple[XmlSlice, ...]]
    if isinstance(read.slices, Known):
        slices = Known(tuple(one for at, one in read.slices.value if at == index))
    else:
        slices = Known(()) if gpu.mode in {"Disabled", "N/A"} else read.slices
    return XmlGpu(
        uuid="",
        bus_id=gpu.bus_id,
        name=gpu.name,
        memory_total=gpu.total,
        memory_used=gpu.used,
        temperature=gpu.temperature,
        utilization=gpu.utilization,
        mig_current=gpu.mode,
        mig_pending="",
        slices=slices,
        processes=Known(tuple(one for at, one in read.processes.value if at == index))
        if isinstance(read.processes, Known)
        else read.processes,
    )
