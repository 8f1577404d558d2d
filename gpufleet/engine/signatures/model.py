"""The shape of the tables: signatures of failures and phases of a start."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a signature says about trying again."""

    PERMANENT = "permanent"
    """The same start fails the same way: waiting is over."""
    TRANSIENT = "transient"
    """Another start may succeed."""
    PROGRESS = "progress"
    """No failure by itself; told only when nothing better is found."""
    WRAPPER = "wrapper"
    """Says that something else failed, above; never the cause when there is another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a line of a log says about why a container does not come up.

    Attributes:
        id: stable; runbooks match on it.
        needles: literal texts, one of which stands in every line that the pattern matches. A log is searched for
            these first, because that costs the same whatever is in it.
        pattern: must take time in proportion to the line: no gap in it is unbounded.
        narrows: ids of more general signatures. Python prints an exception before those raised from it, so the
            exact one of a chain may stand below the general one.
    """

    id: str
    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    fix: str
    kind: Kind = Kind.PERMANENT
    narrows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A step of an engine's start, in the order of the table.

    Attributes:
        told: a format of the pattern's groups, for people.
    """

    id: str
    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    told: str


def signature(
    name: str,
    needles: str | tuple[str, ...],
    fix: str,
    pattern: str = "",
    *,
    kind: Kind = Kind.PERMANENT,
    narrows: tuple[str, ...] = (),
) -> Signature:
    """A row of a table; without a pattern the needles themselves decide."""
    words = (needles,) if isinstance(needles, str) else needles
    text = pattern or "|".join(re.escape(word) for word in words)
    return Signature(id=name, needles=words, pattern=re.compile(text), fix=fix, kind=kind, narrows=narrows)
