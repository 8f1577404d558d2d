"""Files of layouts: gpufleet's own, and configurations of mig-parted in and out.

    version: 1                                  version: v1
    layouts:                                    mig-configs:
      chat: 3g.40gb,2x1g.10gb                     half-and-small:
      embed:                                        - devices: [0, 1]
        board: H100                                   mig-enabled: true
        slices: 3g.40gb:4,1g.10gb:0                   mig-devices: {"3g.40gb": 1, "1g.10gb": 2}

`board` must stand in the name that the GPU gives itself. mig-parted counts profiles and places nothing (its README,
"Configuration"), so a layout that goes out that way loses its starts. A `device-filter` is not taken: the PCI device
ids it names are no part of the facts, and a wrong guess would cut the wrong GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gpufleet.errors import UsageError
from gpufleet.located import Located, Problems, convert, did_you_mean
from gpufleet.mig.layout import EMPTY

Slices = Annotated[str, Meta(min_length=1)]
Device = Annotated[int, Meta(ge=0, le=255)]


class _Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all parts of a layout file have in common."""


class OwnLayout(_Shape, frozen=True, kw_only=True):
    """One layout with the board it is for."""

    slices: Slices
    board: str = ""


class OwnFile(_Shape, frozen=True, kw_only=True):
    """A layout file of gpufleet."""

    version: Literal[1] = 1
    layouts: dict[str, Slices | OwnLayout]


class PartedEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """What mig-parted does to some devices."""

    devices: Literal["all"] | list[Device]
    mig_enabled: bool
    mig_devices: dict[str, Annotated[int, Meta(ge=0, le=64)]] = {}
    device_filter: str | int | list[str | int] = ""


class PartedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """A configuration of mig-parted, version v1."""

    version: Literal["v1"] = "v1"
    mig_configs: dict[str, list[PartedEntry]]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A layout of a file as it is written at the command line, and the board it is for, if it says."""

    text: str
    board: str = ""


def layout_of(source: Located, name: str, index: int) -> Chosen:
    """The layout that `name` has in a file for the GPU with this index.

    Raises:
        DocumentError: every mistake of the file, with its line.
        UsageError: the file has no such layout, or none for this GPU.
    """
    problems = Problems()
    if isinstance(source.value, dict) and "mig-configs" in source.value:
        _explain_scalars(source, problems)
        parted = convert(source, PartedFile, problems) if not problems.rows else None
        problems.raise_if_any(f"{source.file} is not usable")
        if parted is None:
            raise AssertionError("a file without a problem has layouts")
        return _from_parted(parted, source, name, index)
    own = convert(source, OwnFile, problems)
    problems.raise_if_any(f"{source.file} is not usable")
    if own is None:
        raise AssertionError("a file without a problem has layouts")
    layout = own.layouts.get(name)
    if layout is None:
        raise _unknown(source, name, own.layouts)
    return Chosen(layout) if isinstance(layout, str) else Chosen(layout.slices, layout.board)


def parted(layouts: Mapping[int, tuple[bool, Sequence[str]]]) -> dict[str, object]:
    """A mig-parted configuration named `current`: by GPU index, whether MIG is on, and the profiles that are there."""
    groups: dict[tuple[bool, tuple[tuple[str, int], ...]], list[int]] = {}
    for index, (on, names) in sorted(layouts.items()):
        counts = tuple(sorted((name, list(names).count(name)) for name in set(names)))
        groups.setdefault((on, counts), []).append(index)
    entries = [
        {"devices": indexes, "mig-enabled": on, "mig-devices": dict(counts)}
        for (on, counts), indexes in groups.items()
    ]
    return {"version": "v1", "mig-configs": {"current": entries}}


def _explain_scalars(source: Located, problems: Problems) -> None:
    """`devices: 7` is the slip that people make; a list of one is what they mean."""
    for _, entries in source.at("mig-configs").entries():
        for entry in entries.items():
            devices = entry.at("devices")
            if isinstance(devices.value, int) and not isinstance(devices.value, bool):
                problems.add(
                    devices, f"`devices` is the number {devices.value}", f"write a list: [{devices.value}]"
                )


def _from_parted(file: PartedFile, source: Located, name: str, index: int) -> Chosen:
    entries = file.mig_configs.get(name)
    if entries is None:
        raise _unknown(source, name, file.mig_configs)
    mine = [one for one in entries if one.devices == "all" or index in one.devices]
    where = source.at("mig-configs", name).where
    if any(one.device_filter for one in mine):
        raise UsageError(
            f"layout {name} chooses GPUs by `device-filter`, which is not read",
            where=where,
            hints=("name the GPUs in `devices`",),
        )
    if len(mine) != 1:
        count = f"{len(mine)} entries" if mine else "no entry"
        raise UsageError(
            f"layout {name} has {count} for GPU {index}",
            where=where,
            hints=("one entry has to name the GPU",),
        )
    (entry,) = mine
    if not entry.mig_enabled:
        raise UsageError(
            f"layout {name} turns MIG off on GPU {index}",
            where=where,
            hints=("a layout of slices is planned here; `none` is an empty one",),
        )
    words = [f"{count}x{profile}" for profile, count in entry.mig_devices.items() if count]
    return Chosen(",".join(words) or EMPTY)


def _unknown(source: Located, name: str, known: Mapping[str, object]) -> UsageError:
    hint = did_you_mean(name, known) or f"it has {', '.join(sorted(known)) or 'none'}"
    return UsageError(f"there is no layout {name[:60]!r} in the file", where=source.file, hints=(hint,))
