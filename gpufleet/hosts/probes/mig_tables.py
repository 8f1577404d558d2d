"""What a host says its GPUs can be cut into: `nvidia-smi mig -lgip` and `-lgipp`, read while MIG is on or off.

A profile is two rows of `-lgip`; the second may be missing. Widths differ between drivers (76, 79 and 81 columns from
R450 to R590 in captured outputs), `-lgipp` writes `Placement :` for a single start, and R450 leaves blanks behind a
line. So rows are found by their tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from gpufleet.hosts.model import Fact, Known, Unknown
from gpufleet.hosts.probes.nvidia_smi import odd_row, trouble_line
from gpufleet.hosts.probes.script import Section
from gpufleet.remote.command import Command

Row = TypeVar("Row")

_PROFILE = re.compile(
    r"^\s*\|\s*(\d{1,4})\s+MIG\s+(\S+)\s+(\d{1,4})\s+(\d{1,3})/(\d{1,3})"
    r"\s+(\d{1,5}(?:\.\d{1,4})?|\[[^\]|]*\]|N/A)\s+(\S+)((?:\s+\S+){3,8}?)\s*\|",
    re.ASCII,
)
_SECOND = re.compile(r"^\s*\|\s*(\S+)\s+(\S+)\s+(\S+)\s*\|\s*$", re.ASCII)
_ROW = re.compile(r"^\s*\|.*\sMIG\s", re.ASCII)
_PLACEMENT = re.compile(
    r"^\s*GPU\s+(\d{1,4})\s+Profile ID\s+(\d{1,4})\s+Placements?\s*:\s*\{\s*(\d{1,3}(?:\s*,\s*\d{1,3})*)\s*\}"
    r"\s*:\s*(\d{1,3})\s*$",
    re.ASCII,
)
_PLACE_ROW = re.compile(r"^\s*GPU\s+\d+\s+Profile", re.ASCII)
_INCAPABLE = re.compile(r"No MIG-supported devices found", re.IGNORECASE)

SCRIPT = """\
PATH=$PATH:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/usr/lib/wsl/lib:/run/nvidia/driver/usr/bin:/usr/local/nvidia/bin
export PATH
limit=
if command -v timeout >/dev/null 2>&1; then limit='timeout 30'; fi
for table in lgip lgipp; do
  printf '@@gf begin %s\\n' "$table"
  printf '@@gf begin %s\\n' "$table" >&2
  $limit nvidia-smi mig "-$table" </dev/null
  status=$?
  printf '\\n@@gf end %s %s\\n' "$table" "$status"
  printf '\\n@@gf end %s %s\\n' "$table" "$status" >&2
done
"""
COMMAND = Command(script=SCRIPT, timeout=90.0, mutates=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """What a slice has besides memory: counts, or None where nvidia-smi printed none.

    Attributes:
        sm: streaming multiprocessors, the compute of the slice.
        copy, decoders, encoders, jpeg, optical_flow: engines of each kind.
    """

    sm: int | None = None
    copy: int | None = None
    decoders: int | None = None
    encoders: int | None = None
    jpeg: int | None = None
    optical_flow: int | None = None


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A profile of `-lgip`. `free` counts what still fits now; `gib` is usable memory, None where a word stands.

    Attributes:
        p2p: whether slices of this profile reach each other's memory; None where it was not printed.
    """

    gpu: int
    name: str
    id: int
    free: int
    total: int
    gib: float | None
    p2p: bool | None = None
    engines: Engines = Engines()


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """A line of `-lgipp`: where a profile may start, and how many memory slots it covers."""

    gpu: int
    id: int
    starts: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Offer:
    """A profile that a GPU offers with its placements."""

    row: ProfileRow
    placement: PlacementRow


def parse_profiles(text: str) -> Fact[tuple[ProfileRow, ...]]:
    """`-lgip`, in the order of the table; no rows where no GPU can be cut."""
    rows: list[ProfileRow] = []
    lines = text.splitlines()
    for line, under in zip(lines, [*lines[1:], ""], strict=False):
        if found := _PROFILE.match(line):
            rows.append(_profile(found, _SECOND.match(under)))
    return _known(tuple(rows), text, _ROW, _PROFILE)


def _profile(first: re.Match[str], second: re.Match[str] | None) -> ProfileRow:
    counts = [_count(word) for word in first[8].split()]
    more = [_count(word) for word in second.groups()] if second else [None] * 3
    return ProfileRow(
        int(first[1]),
        first[2],
        int(first[3]),
        int(first[4]),
        int(first[5]),
        float(first[6]) if first[6][0].isdigit() else None,
        {"yes": True, "no": False}.get(first[7].lower()),
        Engines(
            sm=counts[0],
            decoders=counts[1],
            encoders=counts[2],
            copy=more[0],
            jpeg=more[1],
            optical_flow=more[2],
        ),
    )


def _count(word: str) -> int | None:
    return int(word) if word.isascii() and word.isdecimal() else None


def parse_placements(text: str) -> Fact[tuple[PlacementRow, ...]]:
    """`-lgipp`, with the starts in rising order."""
    rows = tuple(
        PlacementRow(
            int(found[1]),
            int(found[2]),
            tuple(sorted(int(start) for start in found[3].split(","))),
            int(found[4]),
        )
        for line in text.splitlines()
        if (found := _PLACEMENT.match(line))
    )
    return _known(rows, text, _PLACE_ROW, _PLACEMENT)


def _known(
    rows: tuple[Row, ...], text: str, row: re.Pattern[str], shape: re.Pattern[str]
) -> Fact[tuple[Row, ...]]:
    trouble = trouble_line(text)
    if trouble:
        return Unknown(f"nvidia-smi says: {trouble[:200]}")
    if odd := odd_row(text, rows=row, known=(shape,)):
        return Unknown(f"nvidia-smi printed a row that is not understood: {odd[:80]}")
    if rows or _INCAPABLE.search(text):
        return Known(rows)
    return Unknown("nvidia-smi printed no profiles")


def offers(sections: Mapping[str, Section]) -> Fact[Mapping[int, tuple[Offer, ...]]]:
    """What each GPU index offers; a profile whose placements were not printed is left out.

    Both tables come from one moment of one driver; where one could not be read, neither is believed.
    """
    read = {name: sections.get(name) for name in ("lgip", "lgipp")}
    for name, section in read.items():
        if section is None:
            return Unknown(f"nvidia-smi mig -{name} gave no answer")
        if section.status in {124, 137}:
            return Unknown(f"nvidia-smi mig -{name}: no answer within 30 s")
        if section.status == 127:
            return Unknown("nvidia-smi is not installed")
    profiles, placements = parse_profiles(_text(read["lgip"])), parse_placements(_text(read["lgipp"]))
    if isinstance(profiles, Unknown):
        return profiles
    if isinstance(placements, Unknown):
        return placements
    places = {(row.gpu, row.id): row for row in placements.value}
    found: dict[int, list[Offer]] = {}
    for row in profiles.value:
        place = places.get((row.gpu, row.id))
        if place is not None:
            found.setdefault(row.gpu, []).append(Offer(row, place))
    return Known({gpu: tuple(rows) for gpu, rows in found.items()})


def _text(section: Section | None) -> str:
    return section.text if section is not None else ""
