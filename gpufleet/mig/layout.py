"""Layouts as people write them: `3g.40gb,2x1g.10gb`, `1g.10gb:4` at a place, `4x>=20gib`, or a preset's name.

    wish    ::= item ("," item)* | preset
    item    ::= [COUNT "x"] (PROFILE | ">=" GIB "gib") [":" START]

A layout is everything that the GPU shall hold afterwards; `none` asks for an empty GPU that stays in MIG mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpufleet.errors import Unplaceable, UsageError
from gpufleet.mig.model import Geometry, Profile
from gpufleet.mig.profile import nearest
from gpufleet.mig.profile import parse as parse_name

EMPTY = "none"
_ITEM = re.compile(
    r"(?:(\d{1,2})\s*x\s*)?(?:>=\s*(\d{1,4}(?:\.\d{1,2})?)\s*gi?b|([0-9a-z.+-]+))(?::(\d{1,2}))?", re.ASCII
)
_MANY = 64
"""No board holds more slices than this; a larger count is a slip of the finger."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One slice that is wished for: its profile, and where, when that matters."""

    profile: Profile
    start: int | None = None

    def __str__(self) -> str:
        return self.profile.name if self.start is None else f"{self.profile.name}:{self.start}"


PRESETS = ("all-smallest", "balanced", "half", "whole")


def parse(text: str, geometry: Geometry) -> tuple[Wanted, ...]:
    """What a person asks of this board.

    Raises:
        Unplaceable: a profile that the board does not have, with the nearest names.
        UsageError: a word that is no profile; a start that it does not have.
    """
    words = text.strip().lower()
    if words == EMPTY:
        return ()
    if words in PRESETS:
        return preset(words, geometry)
    return tuple(one for item in words.split(",") for one in _item(item.strip(), geometry))


def preset(name: str, geometry: Geometry) -> tuple[Wanted, ...]:
    """A layout by its name, made of this board's plain profiles.

    `whole` is one slice, `half` the largest that fits twice, `all-smallest` as many of the smallest as there are, and
    `balanced` one half beside a quarter and as many of the smallest as the rest holds.
    """
    plain = [one for one in geometry.profiles if "+" not in one.name and not one.name.endswith("-me")]
    smallest = min(plain, key=lambda one: (one.size, -one.total))
    whole = max(plain, key=lambda one: one.size)
    half = next(one for one in plain if one.size * 2 == whole.size and one.total == 2)
    match name:
        case "whole":
            return (Wanted(whole),)
        case "half":
            return (Wanted(half), Wanted(half))
        case "all-smallest":
            return (Wanted(smallest),) * smallest.total
        case _:
            quarter = [one for one in plain if one.size * 4 == whole.size and one.size > smallest.size]
            middle = min(quarter, key=lambda one: one.total, default=smallest)
            rest = (geometry.slots // 2 - middle.size) // smallest.size
            return (Wanted(half), Wanted(middle), *(Wanted(smallest),) * max(0, rest))


def _item(text: str, geometry: Geometry) -> Iterator[Wanted]:
    found = _ITEM.fullmatch(text)
    if found is None:
        raise UsageError(
            f"{text[:60]!r} is no slice" if text else "an empty item in a layout",
            hints=(
                "write for example 3g.40gb,2x1g.10gb or 2x>=20gib; nvidia-smi's names are in `mig profiles`",
            ),
        )
    count = int(found[1]) if found[1] else 1
    if not 0 < count <= _MANY:
        raise UsageError(f"{count} slices of one kind in {text!r}", hints=(f"a count is 1 to {_MANY}",))
    profile = at_least(geometry, float(found[2])) if found[2] else _named(found[3], geometry)
    start = int(found[4]) if found[4] else None
    if start is not None and start not in profile.starts:
        raise UsageError(
            f"{profile.name} cannot start at {start} on {geometry.board}",
            hints=(f"it starts at {', '.join(str(one) for one in profile.starts)}",),
        )
    if start is not None and count > 1:
        raise UsageError(
            f"{text!r} puts {count} slices at one place", hints=("write each with a start of its own",)
        )
    yield from (Wanted(profile, start),) * count


def at_least(geometry: Geometry, gib: float) -> Profile:
    """The smallest plain profile with that much usable memory, in GiB; a profile of unknown memory is never chosen.

    Raises:
        UsageError: none is large enough.
    """
    known = [one for one in geometry.profiles if one.memory_gib is not None and "+" not in one.name]
    enough = [one for one in known if one.memory_gib is not None and one.memory_gib >= gib]
    if not enough:
        most = max((one.memory_gib or 0.0 for one in known), default=None)
        raise UsageError(
            f"no slice of {geometry.board} is known to hold {gib:g} GiB",
            hints=(
                f"the largest holds {most:g} GiB"
                if most
                else "the memory of its profiles is unknown: name one",
            ),
        )
    return min(enough, key=lambda one: (one.size, one.memory_gib, -one.total))


def _named(name: str, geometry: Geometry) -> Profile:
    profile = geometry.profile(name)
    if profile is not None:
        return profile
    names = [one.name for one in geometry.profiles]
    near = nearest(name, names)
    offered = f"it has {', '.join(names)}"
    hints = (f"did you mean {' or '.join(near)}?", offered) if near else (offered,)
    # A profile of some other board is a wish that this GPU cannot have; any other word is a slip of the finger.
    kind = Unplaceable if parse_name(name) else UsageError
    raise kind(f"{geometry.board} has no profile {name}", hints=hints)
