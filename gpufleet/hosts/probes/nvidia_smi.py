"""nvidia-smi in text: the list of devices, queries as CSV, tables of instances. Every driver from R450 on.

nvidia-smi prints its errors on standard output, a table header may stand above an error, widths and row orders
differ between drivers, and any number may be a word (`[N/A]`, `[GPU requires reset]`). So rows are found by their
tokens, never by column, and a word where a number belongs is Unknown with that word as its reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpufleet.hosts.model import Fact, Known, Unknown

Row = TypeVar("Row")

QUERY_FIELDS = (
    "index",
    "uuid",
    "name",
    "pci.bus_id",
    "driver_version",
    "memory.total",
    "memory.used",
    "temperature.gpu",
    "utilization.gpu",
    "mig.mode.current",
    "mig.mode.pending",
)
APPS_FIELDS = ("gpu_uuid", "pid", "process_name", "used_memory")

_WORDS = {
    "": "nvidia-smi printed nothing",
    "n/a": "not available on this GPU",
    "not supported": "not supported by this GPU",
    "not available": "not available on this GPU",
    "insufficient permissions": "insufficient permissions",
    "no permission": "insufficient permissions",
    "unknown error": "nvidia-smi says: unknown error",
    "not found": "nvidia-smi says: not found",
    "gpu requires reset": "the GPU requires a reset",
    "requested functionality has been deprecated": "no longer reported by this driver",
    "gpu is lost": "the GPU is lost",
    "err!": "nvidia-smi says: ERR!",
}
_NUMBER = re.compile(r"^(-?\d{1,12})(?:\.\d+)?\s*(?:MiB|%|C|W|MHz)?$", re.ASCII)
_GPU_LINE = re.compile(r"^GPU\s+(\d{1,4}):\s+(\S.*?)\s+\(UUID:\s*(GPU-[^\s)]+)\)", re.ASCII)
_SLICE_LINE = re.compile(r"^\s+MIG\s+(\S+)\s+Device\s+(\d{1,4}):\s+\(UUID:\s*(MIG-[^\s)]+)\)", re.ASCII)
_GPU_INSTANCE = re.compile(
    r"^\s*\|\s*(\d{1,4})\s+MIG\s+(\S+)\s+(\d{1,4})\s+(\d{1,4})\s+(\d{1,4}):(\d{1,4})\s*\|", re.ASCII
)
_COMPUTE_INSTANCE = re.compile(
    r"^\s*\|\s*(\d{1,4})\s+(\d{1,4})\s+MIG\s+(\S+)\s+(\d{1,4})\*?\s+(\d{1,4})(?:\s+(\d{1,4}):(\d{1,4}))?\s*\|",
    re.ASCII,
)
_TABLE_ROW = re.compile(r"^\s*\|\s*\d|^\s*\|.*\sMIG\s", re.ASCII)
_EMPTY = re.compile(
    r"No (?:MIG-enabled|MIG-supported) devices found|No (?:GPU|compute) instances found|No devices were found",
    re.IGNORECASE,
)
_TROUBLE = re.compile(
    r"Failed to |Unable to |Insufficient Permissions|has failed because|Unknown Error|GPU is lost"
    r"|mismatch|not a valid field|invalid|command not found",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ListedSlice:
    """One MIG line of `-L`: its device number on this GPU, its name without `+me`, its UUID."""

    device: int
    name: str
    uuid: str


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """One GPU line of `-L` with the MIG lines under it."""

    index: int
    name: str
    uuid: str
    slices: tuple[ListedSlice, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """`nvidia-smi -L`: GPUs, and the lines that are neither a GPU nor a slice (a lost device, an error)."""

    gpus: tuple[ListedGpu, ...]
    other_lines: tuple[str, ...]

    @property
    def says_none(self) -> bool:
        """Whether it says in words that no device was found."""
        return not self.gpus and any("No devices were found" in line for line in self.other_lines)


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """One row of `mig -lgi`; the only place that prints `+me` and the placement."""

    gpu: int
    profile: str
    profile_id: int
    gi: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """One row of `mig -lci`; the placement inside the GPU instance is missing on R450."""

    gpu: int
    gi: int
    profile: str
    profile_id: int
    ci: int
    start: int | None
    size: int | None


def parse_number(text: str) -> Fact[int]:
    """A count with or without its unit; fractions are cut off, words are Unknown."""
    found = _NUMBER.match(text.strip())
    if found:
        return Known(int(found.group(1)))
    return Unknown(word_reason(text))


def parse_word(text: str) -> Fact[str]:
    """A value that is a word of its own, unless nvidia-smi says why it has none."""
    bare = _bare(text)
    if bare.casefold() in _WORDS:
        return Unknown(_WORDS[bare.casefold()])
    return Known(bare)


def parse_switch(text: str) -> Fact[bool]:
    """`Enabled` or `Disabled`; `[N/A]` is Unknown here, its caller knows what it says of MIG."""
    match _bare(text).casefold():
        case "enabled":
            return Known(True)
        case "disabled":
            return Known(False)
        case _:
            return Unknown(word_reason(text))


def is_not_applicable(text: str) -> bool:
    """Whether nvidia-smi says that this GPU has no such thing at all."""
    return _bare(text).casefold() in {"n/a", "not supported", "not available"}


def word_reason(text: str) -> str:
    """Why there is no number, from the word that stands in its place."""
    bare = _bare(text)
    return _WORDS.get(bare.casefold(), f"nvidia-smi printed {bare[:60]!r}")


def parse_listing(text: str) -> Listing:
    """`nvidia-smi -L`."""
    gpus: list[ListedGpu] = []
    slices: list[ListedSlice] = []
    others: list[str] = []

    def close() -> None:
        if gpus and slices:
            last = gpus.pop()
            gpus.append(ListedGpu(last.index, last.name, last.uuid, tuple(slices)))
        slices.clear()

    for line in text.splitlines():
        if found := _GPU_LINE.match(line):
            close()
            gpus.append(ListedGpu(int(found[1]), found[2], found[3]))
        elif gpus and (found := _SLICE_LINE.match(line)):
            slices.append(ListedSlice(int(found[2]), found[1], found[3]))
        elif line.strip():
            others.append(line.strip())
    close()
    return Listing(tuple(gpus), tuple(others))


def parse_rows(text: str, fields: Sequence[str], *, free: str) -> tuple[Mapping[str, str], ...]:
    """CSV of a query, by field name. A header line, where one stands, names the fields instead of `fields`.

    `free` is the one field whose value may itself hold a comma and a space. Lines that do not have the right
    number of values are errors in words and left out.
    """
    names = list(fields)
    rows: list[Mapping[str, str]] = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(", ")]
        if _is_heading(values, fields):
            names = [_column_name(value) for value in values]
            continue
        surplus = len(values) - len(names)
        if surplus < 0 or (surplus > 0 and free not in names) or not line.strip():
            continue
        if surplus > 0:
            at = names.index(free)
            values[at : at + surplus + 1] = [", ".join(values[at : at + surplus + 1])]
        rows.append(dict(zip(names, values, strict=True)))
    return tuple(rows)


def _is_heading(values: Sequence[str], fields: Sequence[str]) -> bool:
    """Whether these are names of fields: the first is a well known one, or half of them were asked for."""
    names = [_column_name(value) for value in values]
    if names[0] in {*fields, "timestamp", "index", "gpu_uuid", "uuid", "name", "pci.bus_id"}:
        return True
    return 2 * len({*names} & {*fields}) >= len(names)


def parse_gpu_instances(text: str) -> Fact[tuple[GpuInstance, ...]]:
    """`nvidia-smi mig -lgi`; rows come unsorted and are sorted here by GPU and start."""
    rows = [
        GpuInstance(int(found[1]), found[2], int(found[3]), int(found[4]), int(found[5]), int(found[6]))
        for line in text.splitlines()
        if (found := _GPU_INSTANCE.match(line))
    ]
    return _rows_or_reason(text, sorted(rows, key=lambda row: (row.gpu, row.start, row.gi)), _GPU_INSTANCE)


def parse_compute_instances(text: str) -> Fact[tuple[ComputeInstance, ...]]:
    """`nvidia-smi mig -lci`; sorted by GPU, GPU instance and compute instance."""
    rows = [
        ComputeInstance(
            gpu=int(found[1]),
            gi=int(found[2]),
            profile=found[3],
            profile_id=int(found[4]),
            ci=int(found[5]),
            start=int(found[6]) if found[6] else None,
            size=int(found[7]) if found[7] else None,
        )
        for line in text.splitlines()
        if (found := _COMPUTE_INSTANCE.match(line))
    ]
    return _rows_or_reason(text, sorted(rows, key=lambda row: (row.gpu, row.gi, row.ci)), _COMPUTE_INSTANCE)


def trouble_line(text: str) -> str:
    """The first line that tells of an error, or an empty string."""
    return next((line.strip() for line in text.splitlines() if _TROUBLE.search(line)), "")


def odd_row(text: str, *, rows: re.Pattern[str], known: Sequence[re.Pattern[str]]) -> str:
    """A line that `rows` takes for a row of a table and no pattern of `known` understands, or an empty string.

    What is not understood is no absence: a slice on such a row would be taken for free room.
    """
    return next(
        (
            line.strip()
            for line in text.splitlines()
            if rows.match(line) and not any(pattern.match(line) for pattern in known)
        ),
        "",
    )


def _rows_or_reason(text: str, rows: Sequence[Row], shape: re.Pattern[str]) -> Fact[tuple[Row, ...]]:
    trouble = trouble_line(text)
    if trouble and not _EMPTY.search(trouble):
        return Unknown(f"nvidia-smi says: {trouble[:200]}")
    if odd := odd_row(text, rows=_TABLE_ROW, known=(shape,)):
        return Unknown(f"nvidia-smi printed a row that is not understood: {odd[:80]}")
    if rows:
        return Known(tuple(rows))
    if _EMPTY.search(text):
        return Known(())
    return Unknown(
        "nvidia-smi printed a header without rows" if text.strip() else "nvidia-smi printed nothing"
    )


def _bare(text: str) -> str:
    stripped = text.strip()
    if stripped.startswith("[") and stripped.endswith("]"):
        stripped = stripped[1:-1].strip()
    return stripped


def _column_name(title: str) -> str:
    """`memory.total [MiB]` -> `memory.total`; the names that differ from the ones asked for are put right."""
    name = title.split(" [", 1)[0].strip()
    return {"gpu_name": "name", "gpu_bus_id": "pci.bus_id", "used_gpu_memory": "used_memory"}.get(name, name)
