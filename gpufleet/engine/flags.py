"""Words of `engine.args` -> what the engine of this version would refuse, or quietly take for something else.

    release = release_of("vllm/vllm-openai:v0.20.1")
    for fault in lint(("--task", "embed"), release, owned=OWNED_FLAGS): ...

Theory. A flag stands in the table with the first and the last of the versions that were read (`flag_table`). Against
the version of an image that gives six answers, `Standing`; three of them are "not known here": a version between two
that were read while the flag came or went, a version outside the table, and an image whose version nobody told. What
is not known is said and stops nothing; what would be refused for certain is an error of the plan. The words are
walked as argparse walks them: a flag, then as many bare words as it takes; a bare word that no flag takes is what a
lost line continuation leaves behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

from gpufleet.engine import flag_table
from gpufleet.located import did_you_mean
from gpufleet.redact import scrub

Number = tuple[int, int, int]

_TAG = re.compile(
    r":v?(\d+)\.(\d+)(?:\.(\d+))?(?:[-+.]?[A-Za-z][\w.+-]*|[-+][\w.+-]+)?(?:@sha256:[0-9a-f]+)?$"
)
_SETTING = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:[-+.]?[A-Za-z][\w.+-]*)?")
_IMAGE = re.compile(r"[\w.:/-]+/[\w.-]+:v?\d+\.\d+[\w.-]*")
_NEGATIVE_NUMBER = re.compile(r"-\d|-\.\d")
_SWITCHES_TAKE_NO_VALUE = (0, 10, 2)
"""From here on the sources were read to make every switch a pair of `--x` and `--no-x`; before, some took a value."""

ANY_PATCH = 999


@dataclass(frozen=True, slots=True)
class Release:
    """A version of the engine; `patch` is None for a tag that moves (`v0.20`)."""

    major: int
    minor: int
    patch: int | None = None

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}" + ("" if self.patch is None else f".{self.patch}")

    @property
    def oldest(self) -> Number:
        return (self.major, self.minor, self.patch or 0)

    @property
    def newest(self) -> Number:
        return (self.major, self.minor, ANY_PATCH if self.patch is None else self.patch)

    def at_least(self, major: int, minor: int, patch: int = 0) -> bool:
        """Whether it is that version or a later one, for certain."""
        return self.oldest >= (major, minor, patch)


def release_of(image: str, setting: str = "") -> Release | None:
    """What `engine.version` says, else the tag; None for `latest`, a bare digest or a private scheme."""
    found = _SETTING.fullmatch(setting) if setting else _TAG.search(image)
    if found is None:
        return None
    return Release(int(found[1]), int(found[2]), None if found[3] is None else int(found[3]))


class Standing(Enum):
    """What is known of a flag in a version."""

    KNOWN = "known"
    GONE = "gone"
    NEWER = "newer"
    NEVER = "in no version that was read"
    BETWEEN = "came or went between versions that were read"
    OUTSIDE = "the version is outside those that were read, or not known"


@dataclass(frozen=True, slots=True)
class Span:
    """First and last sample that has a flag, as places in the list of samples."""

    first: int
    last: int


@cache
def samples() -> tuple[Number, ...]:
    """The versions that were read, oldest first."""
    return tuple(_number(text) for text in flag_table.SAMPLES)


@cache
def spans() -> Mapping[str, Span]:
    """Every flag that was ever read, without dashes."""
    found: dict[str, Span] = {}
    span = Span(0, 0)
    for line in flag_table.TABLE.splitlines():
        if line.endswith(":"):
            first, last = line[:-1].split()
            span = Span(flag_table.SAMPLES.index(first), flag_table.SAMPLES.index(last))
        else:
            found |= dict.fromkeys(line.split(), span)
    return found


def _number(text: str) -> Number:
    major, minor, patch = text.split(".")
    return (int(major), int(minor), int(patch))


def standing(flag: str, release: Release | None) -> Standing:
    """What is known of `flag` (without dashes) in a version."""
    span = spans().get(flag)
    if release is None or release.oldest > samples()[-1] or release.newest < samples()[0]:
        return Standing.OUTSIDE
    if span is None:
        return Standing.NEVER
    ends = {_standing_at(span, release.oldest), _standing_at(span, release.newest)}
    return ends.pop() if len(ends) == 1 else Standing.BETWEEN


def _standing_at(span: Span, version: Number) -> Standing:
    read = samples()
    if version > read[span.last]:
        following = read[span.last + 1] if span.last + 1 < len(read) else None
        return Standing.GONE if following is not None and version >= following else Standing.BETWEEN
    if version < read[span.first]:
        return Standing.NEWER if span.first and version <= read[span.first - 1] else Standing.BETWEEN
    return Standing.KNOWN


def known_in(release: Release | None) -> frozenset[str]:
    """Flags that this version has for certain; with no version, all that were ever read."""
    if release is None:
        return frozenset(spans())
    return frozenset(flag for flag in spans() if standing(flag, release) is Standing.KNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong, or that cannot be told.

    Attributes:
        at: the word in `engine.args`; None when it is about all of them or about something else.
        key: the part of the pool definition it is about, when that is not `engine.args`.
        sure: False when it is only said: the engine may well take it.
    """

    message: str
    hint: str = ""
    at: int | None = None
    key: str = ""
    sure: bool = True


@dataclass(frozen=True, slots=True)
class Written:
    """A flag as it was written.

    Attributes:
        name: the long name, without dashes, underscores as dashes, without `no-` when `negated`.
        shown: as the person wrote it, without its value.
        value: whether a value stands behind `=`.
    """

    name: str
    shown: str
    negated: bool = False
    value: bool = False


def written(word: str) -> Written | None:
    """The flag that a word is; None for a bare word, a negative number among them."""
    if word.startswith("-O") and word != "-O":
        return Written("compilation-config", "-O", value=True)
    if not word.startswith("-") or word == "-" or _NEGATIVE_NUMBER.match(word):
        return None
    shown, equals, _ = word.partition("=")
    if not word.startswith("--"):
        return Written(flag_table.ALIASES.get(shown, shown), shown, value=bool(equals))
    name = shown[2:].partition(".")[0].removesuffix("+").replace("_", "-")
    if name.startswith("no-") and name not in spans():
        return Written(name[3:], shown, negated=True, value=bool(equals))
    return Written(name, shown, value=bool(equals))


def lint(
    args: Sequence[str], release: Release | None, *, owned: Mapping[str, str], image: str = ""
) -> tuple[Fault, ...]:
    """Everything that is wrong with the words, in their order; what cannot be told comes with `sure=False`."""
    faults = list(_walk(args, release, owned))
    if any(written(word) for word in args) and standing("", release) is Standing.OUTSIDE:
        faults.append(_unread(release, image))
    return tuple(faults)


def _unread(release: Release | None, image: str) -> Fault:
    read = flag_table.SAMPLES
    if release is None:
        return Fault(
            message=f"the engine's version is not known{f' from {image}' if image else ''}: flags are not checked against it",
            hint="name a tag such as v0.20.1, or set engine.version",
            sure=False,
        )
    return Fault(
        message=f"flags of versions {read[0]} to {read[-1]} are known here, not those of {release}: they are not checked",
        sure=False,
    )


def _walk(args: Sequence[str], release: Release | None, owned: Mapping[str, str]) -> Iterator[Fault]:
    """Word by word: `room` is how many bare words the flag before still takes, None when it may take any number."""
    room: int | None = 0
    before = ""
    for place, word in enumerate(args):
        flag = written(word)
        if word == "\\" or word.endswith((" \\", "\t\\")):
            yield Fault(
                message="a line continuation of the shell stands among the arguments",
                hint="leave the backslash out: each item is one word",
                at=place,
            )
        elif flag is not None:
            yield from _hungry(before, room, place - 1)
            yield from _flag_faults(flag, place, release, owned)
            room = _room(flag, release)
            before = flag.shown if room == 1 else ""
        elif room == 0:
            yield _stray(word, place)
        elif room is not None:
            room, before = room - 1, ""
    yield from _hungry(before, room, len(args) - 1)


def _hungry(before: str, room: int | None, place: int) -> Iterator[Fault]:
    if before and room == 1:
        yield Fault(message=f"`{scrub(before)}` has no value", hint="write it as the next item", at=place)


def _room(flag: Written, release: Release | None) -> int | None:
    if flag.value:
        return 0
    alone = flag_table.stands_alone(flag.name)
    if flag.negated or (alone and _pairs(release)):
        return 0
    if alone is None or alone or flag.name not in spans():
        return None
    return 1 if flag_table.takes_one(flag.name) else None


def _pairs(release: Release | None) -> bool:
    return release is None or release.oldest >= _SWITCHES_TAKE_NO_VALUE


def _flag_faults(
    flag: Written, place: int, release: Release | None, owned: Mapping[str, str]
) -> Iterator[Fault]:
    instead = owned.get(f"--{flag.name}")
    if instead is not None:
        yield Fault(
            message=f"`{flag.shown}` is a flag that gpufleet sets itself", hint=instead_of(instead), at=place
        )
        return
    if flag.shown == "--":
        yield Fault(message="`--` ends the flags: what follows would be taken for a model", at=place)
        return
    if not flag.shown.startswith("--") and flag.name == flag.shown:
        yield Fault(
            message=f"the short flag `{scrub(flag.shown)}` is not known here",
            hint="write its long name",
            at=place,
            sure=False,
        )
        return
    yield from _version_faults(flag, place, release, owned)
    if flag.negated and flag_table.stands_alone(flag.name) is False and flag.name in spans():
        yield Fault(message=f"`--{flag.name}` takes a value and has no `--no-` form", at=place)
    if flag.value and not flag.negated and flag_table.stands_alone(flag.name) and _pairs(release):
        yield Fault(
            message=f"`{flag.shown}` takes no value",
            hint=f"write `--{flag.name}`, or `--no-{flag.name}` to turn it off",
            at=place,
        )


def _version_faults(
    flag: Written, place: int, release: Release | None, owned: Mapping[str, str]
) -> Iterator[Fault]:
    read, name, shown = flag_table.SAMPLES, flag.name, scrub(flag.shown)
    span = spans().get(name)
    match standing(name, release):
        case Standing.GONE if span is not None:
            yield Fault(
                message=f"`{shown}` is gone in vLLM {release}: last seen in {read[span.last]}, first missing in {read[span.last + 1]}",
                hint=_instead(name),
                at=place,
            )
        case Standing.NEWER if span is not None:
            yield Fault(
                message=f"`{shown}` needs a newer vLLM than {release}: first seen in {read[span.first]}, not yet in {read[span.first - 1]}",
                hint=f"use an image of {read[span.first]} or later, or leave it out",
                at=place,
            )
        case Standing.BETWEEN if span is not None:
            yield Fault(message=_between(shown, span, release), hint=_instead(name), at=place, sure=False)
        case Standing.NEVER:
            yield _never(flag, place, release, owned)
        case Standing.OUTSIDE if span is None:
            yield Fault(
                message=f"`{shown}` is in no version of vLLM that was read ({read[0]} to {read[-1]})",
                hint=did_you_mean(name, spans()).replace("`", "`--", 1),
                at=place,
                sure=False,
            )
        case _:
            pass


def _between(shown: str, span: Span, release: Release | None) -> str:
    read = flag_table.SAMPLES
    if release is not None and release.newest > samples()[span.last] and span.last + 1 < len(read):
        return (
            f"`{shown}` may be gone in vLLM {release}: last seen in {read[span.last]}, "
            f"first missing in {read[span.last + 1]}"
        )
    return f"`{shown}` may not be there yet in vLLM {release}: first seen in {read[span.first]}"


def _never(flag: Written, place: int, release: Release | None, owned: Mapping[str, str]) -> Fault:
    """A name that no sample has: argparse takes an unambiguous beginning for the whole, and refuses the rest."""
    shown = scrub(flag.shown)
    whole = sorted(name for name in known_in(release) if name.startswith(flag.name))
    if len(whole) == 1 and len(flag.name) > 2:
        instead = owned.get(f"--{whole[0]}")
        if instead is not None:
            return Fault(
                message=f"`{shown}` is short for `--{whole[0]}`, which gpufleet sets itself",
                hint=instead_of(instead),
                at=place,
            )
        return Fault(
            message=f"`{shown}` is taken for `--{whole[0]}`",
            hint="write the whole name: a beginning may mean another flag in the next version",
            at=place,
            sure=False,
        )
    close = did_you_mean(flag.name, known_in(release)).replace("`", "`--", 1)
    return Fault(message=f"vLLM {release} has no flag `{shown}`", hint=close or "leave it out", at=place)


def instead_of(setting: str) -> str:
    """What to write for something that gpufleet sets itself: its own setting, or nothing and why."""
    left_out = setting.removeprefix("nothing: ")
    return f"leave it out: {left_out}" if left_out != setting else f"use {setting}"


def _instead(name: str) -> str:
    instead = flag_table.REPLACEMENTS.get(name, "")
    if not instead:
        return "leave it out: no successor is known"
    return instead if instead.startswith("leave") else f"use {instead}"


def _stray(word: str, place: int) -> Fault:
    """A bare word that no flag takes; the engine refuses it, or takes it for the name of its model."""
    shown = scrub(word if len(word) <= 60 else f"{word[:57]}...")
    if word in {"serve", "vllm"}:
        return Fault(
            message=f"`{word}` is said already: engine.args holds flags alone", hint="leave it out", at=place
        )
    if _IMAGE.fullmatch(word):
        return Fault(message=f"`{shown}` is an image, not a flag", hint="write it as engine.image", at=place)
    if word.casefold() in {"true", "false"}:
        return Fault(
            message=f"`{shown}` follows a flag that takes no value",
            hint="leave it out; `--no-...` turns a flag off",
            at=place,
        )
    return Fault(
        message=f"`{shown}` belongs to no flag",
        hint="is the flag before it missing? The model is the pool's `model`",
        at=place,
    )


def value_of(args: Sequence[str], flag: str) -> str | None:
    """The value that the last `--flag` among the words has; None when it is not there or has none."""
    found: str | None = None
    for place, word in enumerate(args):
        one = written(word)
        if one is None or one.name != flag or one.negated:
            continue
        following = args[place + 1] if place + 1 < len(args) else ""
        found = word.partition("=")[2] if one.value else following if not written(following) else None
    return found
