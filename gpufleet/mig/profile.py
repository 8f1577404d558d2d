"""Profile names: `1g.10gb+me`, `1c.3g.40gb`, and which names of a board are near a mistyped one.

`-lgi` and `-lgip` print the media suffix; `-L`, `-lci` and CSV drop it (captured outputs of R450 to R590). A compute
instance that takes all of its GPU instance is named like it; a smaller one has an `Nc.` prefix.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

_NAME = re.compile(r"(?:(\d{1,2})c\.)?(\d{1,2})g\.(\d{1,4})gb([+-][a-z]+(?:\.[a-z]+)?)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileName:
    """The parts of a name.

    Attributes:
        compute: compute slices of a compute instance smaller than its GPU instance; None otherwise.
        slices: compute slices of the GPU instance.
        gigabytes: the number in the name, which is not the memory of the slice.
        media: `+me`, `+gfx`, `+me.all`, `-me` or nothing.
    """

    slices: int
    gigabytes: int
    media: str = ""
    compute: int | None = None

    def __str__(self) -> str:
        prefix = f"{self.compute}c." if self.compute is not None else ""
        return f"{prefix}{self.slices}g.{self.gigabytes}gb{self.media}"

    @property
    def gpu_instance(self) -> str:
        """The name of the GPU instance, media suffix included."""
        return f"{self.slices}g.{self.gigabytes}gb{self.media}"


def parse(text: str) -> ProfileName | None:
    """The parts of a name as nvidia-smi prints or takes it, or None."""
    found = _NAME.fullmatch(text.strip().lower().removeprefix("mig "))
    if found is None:
        return None
    return ProfileName(
        compute=int(found[1]) if found[1] else None,
        slices=int(found[2]),
        gigabytes=int(found[3]),
        media=found[4] or "",
    )


def same_but_media(one: str, other: str) -> bool:
    """Whether two names differ at most in the suffix that some outputs drop."""
    first, second = parse(one), parse(other)
    if first is None or second is None:
        return one == other
    return (first.compute, first.slices, first.gigabytes) == (second.compute, second.slices, second.gigabytes)


def nearest(text: str, names: Iterable[str], *, limit: int = 3) -> tuple[str, ...]:
    """Names of this board that a person may have meant: the same number of slices first, then alike in spelling."""
    known = tuple(names)
    meant = parse(text)
    alike = [name for name in known if meant and (parsed := parse(name)) and parsed.slices == meant.slices]
    spelled = difflib.get_close_matches(text.lower(), known, n=limit, cutoff=0.6)
    return tuple(dict.fromkeys([*alike, *spelled]))[:limit]


def nearest_words(text: str, names: Iterable[str], *, limit: int = 3) -> tuple[str, ...]:
    """Names that are spelled alike, letter case apart."""
    known = {name.lower(): name for name in names}
    return tuple(known[key] for key in difflib.get_close_matches(text.lower(), known, n=limit, cutoff=0.5))
