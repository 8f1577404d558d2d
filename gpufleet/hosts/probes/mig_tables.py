"""What a host says its GPUs can be cut into: `nvidia-smi mig -lgip` and `-lgipp`, read while MIG is on or off.

A profile is two rows of `-lgip`; only the first is needed. Widths differ between drivers (76, 79 and 81 columns from
R450 to R590 in captured outputs), `-lgipp` writes `Placement :` for a single start, and R450 leaves blanks behind a
line. So rows are found by their tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from gpufleet.hosts.model import Fact, Known, Unknown
from gpufleet.hosts.probes.nvidia_smi import trouble_line
from gpufleet.hosts.probes.script import Section
from gpufleet.remote.command import Command

Row = TypeVar("Row")

_PROFILE = re.compile(
    r"^\|\s*(\d{1,4})\s+MIG\s+(\S+)\s+(\d{1,4})\s+(\d{1,3})/(\d{1,3})\s+(\d{1,5}(?:\.\d{1,4})?)\s+(?:Yes|No)\s",
    re.ASCII,
)
_PLACEMENT = re.compile(
    r"^GPU\s+(\d{1,4})\s+Profile ID\s+(\d{1,4})\s+Placements?\s*:\s*\{([\d,\s]+)\}\s*:\s*(\d{1,3})", re.ASCII
)
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


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A row of `-lgip`. `free` counts what still fits now; `gib` is usable memory."""

    gpu: int
    name: str
    id: int
    free: int
    total: int
    gib: float


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
    rows = tuple(
        ProfileRow(int(found[1]), found[2], int(found[3]), int(found[4]), int(found[5]), float(found[6]))
        for line in text.splitlines()
        if (found := _PROFILE.match(line))
    )
    return _known(rows, text)


def parse_placements(text: str) -> Fact[tuple[PlacementRow, ...]]:
    """`-lgipp`, with the starts in rising order."""
    rows = tuple(
        PlacementRow(
            int(found[1]),
            int(found[2]),
            tuple(sorted(int(start) for start in found[3].split(",") if start.strip())),
            int(found[4]),
        )
        for line in text.splitlines()
        if (found := _PLACEMENT.match(line))
    )
    return _known(rows, text)


def _known(rows: tuple[Row, ...], text: str) -> Fact[tuple[Row, ...]]:
    trouble = trouble_line(text)
    if trouble:
        return Unknown(f"nvidia-smi says: {trouble[:200]}")
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
