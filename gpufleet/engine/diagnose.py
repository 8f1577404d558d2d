"""A log -> how far an engine came, and the first cause that is no wrapper, with the operator's fix.

Theory of operation. A container that is restarted writes one log for all its lives: each begins with the version.
The phase is that of the last life; the cause is the first of the last life that has one. Wrapper errors ("see root
cause above") are told only when there is nothing else. Candidates are ranked:

    an error, or a line without a level   <  a warning, or source code quoted in a traceback
                                          <  what is no failure by itself  <  a wrapper

and within a rank the earliest line wins, because later errors follow from the first; only a narrower signature of
the same chain of exceptions takes the place of a general one. What is said with the level INFO is never a cause.

Every signature is found by its literal texts first, so the cost grows with the length of a log and with nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpufleet.engine.log_text import BEFORE, Line, Weight, line_at, plain, read_line, shown, tail
from gpufleet.engine.signatures.engine_signatures import ENGINE, HUB
from gpufleet.engine.signatures.host_signatures import RUNTIME, SSH
from gpufleet.engine.signatures.model import Kind, Phase, Signature
from gpufleet.engine.signatures.phases import PHASES, VERSION

__all__ = ["SIGNATURES", "Cause", "Diagnosis", "Reached", "diagnose", "first_cause", "phase", "said", "tail"]

SIGNATURES: tuple[Signature, ...] = (*SSH, *HUB, *ENGINE, *RUNTIME)

TRIES = 50
"""Finds in one line that are looked at."""

LIVES = 20
"""Lives of a container that are looked at, from the last one back."""

_CHAINED = ("direct cause of the following exception", "another exception occurred:")
_ORDER = {Kind.PERMANENT: 0, Kind.TRANSIENT: 0, Kind.PROGRESS: 2, Kind.WRAPPER: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The line found and what to do about it.

    Attributes:
        line: scrubbed, without process, level, time and place in front.
        error: whether the line has the level of an error.
    """

    id: str
    line: str
    fix: str
    kind: Kind = Kind.PERMANENT
    error: bool = False

    @property
    def permanent(self) -> bool:
        """Whether another start would end the same way."""
        return self.kind is Kind.PERMANENT

    @property
    def real(self) -> bool:
        """Whether it is a failure by itself, and no wrapper."""
        return self.kind in {Kind.PERMANENT, Kind.TRANSIENT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A phase, and the same in words: `loading weights 3/8`."""

    id: str
    told: str
    place: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a log says.

    Attributes:
        phase: how far the last life came; None when the log shows no start.
        cause: None when no signature matches.
        wrapper_skipped: whether wrapper errors were passed over on the way to the cause.
        over: whether the cause comes after every phase of its life: nothing moved since.
    """

    phase: Reached | None
    cause: Cause | None
    wrapper_skipped: bool
    over: bool

    @property
    def real_cause(self) -> Cause | None:
        """The cause, unless it is only a wrapper or no failure by itself."""
        return self.cause if self.cause is not None and self.cause.real else None

    @property
    def well(self) -> bool:
        """Whether the engine came up and nothing failed since."""
        return self.cause is None and self.phase is not None and self.phase.id == "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Find:
    """A line that a signature matches; finds are compared by rank, then place, then row of the table."""

    rank: int
    place: int
    row: int
    signature: Signature
    line: Line

    @property
    def key(self) -> tuple[int, int, int]:
        return self.rank, self.place, self.row


def diagnose(log: str) -> Diagnosis:
    """Everything that a log of any length and form says."""
    text = plain(log)
    phase = None
    last = True
    for begin, end in _lives(text):
        reached = _reached(text, begin, end)
        if last:
            phase, last = reached, False
            if reached is not None and reached.id == "ready":
                begin = reached.place  # noqa: PLW2901  what it said before it came up did not stop it
        found, wrapped = _first(text, begin, end)
        if found is not None:
            return Diagnosis(
                phase=phase,
                cause=_cause(found),
                wrapper_skipped=wrapped and found.signature.kind is not Kind.WRAPPER,
                over=reached is None or reached.place < found.place,
            )
        if phase is not None and phase.id == "ready":
            break
    return Diagnosis(phase=phase, cause=None, wrapper_skipped=False, over=False)


def first_cause(log: str) -> Cause | None:
    """The first real cause; None when no signature matches, or only wrappers."""
    return diagnose(log).real_cause


def phase(log: str) -> str:
    """How far the start came, with the shard being loaded: changes while something moves, and only then."""
    text = plain(log)
    reached = _reached(text, *next(_lives(text)))
    return reached.told if reached else ""


def said(line: str) -> str:
    """A line of the log without process, level, time and place in front."""
    return read_line(plain(line)).text


def _lives(text: str) -> Iterator[tuple[int, int]]:
    """Where the lives of the container begin and end in its log, the last one first."""
    begins = sorted(
        {text.rfind("\n", max(0, at - BEFORE), at) + 1 or at for at in _all_of(text, VERSION.needles)}
    )
    begins = [0, *begins[1:]][-LIVES:]  # what stands before the first version belongs to the first life
    yield from zip(reversed(begins), [len(text), *reversed(begins[1:])], strict=True)


def _all_of(text: str, needles: tuple[str, ...]) -> Iterator[int]:
    for needle in needles:
        place = text.find(needle)
        while place >= 0:
            yield place
            place = text.find(needle, place + len(needle))


def _reached(text: str, begin: int, end: int) -> Reached | None:
    """The furthest phase in a part of a log."""
    for one in reversed(PHASES):
        found = _last_of(one, text, begin, end)
        if found is not None:
            place, match = found
            told = one.told.format(**match.groupdict())
            if match.groupdict().get("tokens"):  # newer versions say both in one line
                told = f"KV cache {match['tokens']} tokens"
            return Reached(id=one.id, told=told, place=place)
    return None


def _last_of(one: Phase, text: str, begin: int, end: int) -> tuple[int, re.Match[str]] | None:
    for needle in one.needles:
        place = end
        for _ in range(TRIES):
            place = text.rfind(needle, begin, place)
            if place < 0:
                break
            start = max(begin, text.rfind("\n", max(0, place - 200), place) + 1, place - 200)
            match = one.pattern.search(text, start, min(end, place + 400))
            if match is not None and "\n" not in match[0]:
                return place, match
    return None


def _first(text: str, begin: int, end: int) -> tuple[_Find | None, bool]:
    """The best find of a part of a log, and whether a wrapper stands in it too."""
    finds: list[_Find] = []
    wrapped = False
    for row, one in enumerate(SIGNATURES):
        for found in _finds(one, row, text, begin, end):
            finds.append(found)
            wrapped = wrapped or one.kind is Kind.WRAPPER
    if not finds:
        return None, False
    best = min(finds, key=lambda found: found.key)
    for found in sorted(finds, key=lambda found: found.place):
        if best.signature.id in found.signature.narrows and _chained(text, best.place, found.place):
            best = found
            break
    return best, wrapped


def _chained(text: str, first: int, second: int) -> bool:
    return first < second and any(text.find(words, first, second) >= 0 for words in _CHAINED)


def _finds(one: Signature, row: int, text: str, begin: int, end: int) -> Iterator[_Find]:
    """The first line of each weight that a signature matches."""
    best: dict[Weight, tuple[int, Line]] = {}
    for needle in one.needles:
        for place, line in _lines_with(needle, text, begin, end):
            seen = best.get(line.weight)
            if (seen is None or place < seen[0]) and one.pattern.search(line.text):
                best[line.weight] = place, line
                if line.weight is Weight.FULL:
                    break
            elif seen is not None and place > seen[0] and line.weight is Weight.FULL:
                break
    for weight, (place, line) in best.items():
        if weight is not Weight.NONE:
            yield _Find(
                rank=max(_ORDER[one.kind], weight.value), place=place, row=row, signature=one, line=line
            )


def _lines_with(needle: str, text: str, begin: int, end: int) -> Iterator[tuple[int, Line]]:
    """Lines that hold a needle, with the place of their beginning; of one line at most `TRIES` finds."""
    place, start, looked, tries = text.find(needle, begin, end), begin, begin, 0
    while place >= 0:
        newline = text.rfind("\n", looked, place)  # from the find before on, so that no text is read twice
        start, tries = (start, tries + 1) if newline < 0 else (newline + 1, 1)
        yield start, line_at(text, place)
        looked = place + len(needle)
        if tries >= TRIES or place - start < BEFORE // 2:
            newline = text.find("\n", looked, end)
            looked = newline if newline >= 0 else end
        place = text.find(needle, looked, end)


def _cause(found: _Find) -> Cause:
    one = found.signature
    return Cause(id=one.id, line=shown(found.line.text), fix=one.fix, kind=one.kind, error=found.line.error)
