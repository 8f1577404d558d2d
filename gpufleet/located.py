"""Values that remember where they were written, and the complaints about them.

A document module (`*.document`, `proxy.config`) gets a `Located` value and a list of `Problems`, asks `convert`
for the Struct that describes its shape, and adds what it finds itself:

    pool = convert(located, PoolDocument, problems)      # None when a required part is missing or wrong
    problems.add(located.at("replicas"), "`replicas` is larger than the number of hosts")
    problems.raise_if_any("the pool definition is wrong")

`Inventory.pools`, `.models` and `.proxy` hold such values. `yaml_source.read` makes them from a file and
`Located.of` from plain values.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from gpufleet.errors import DocumentError, ErrorRow

S = TypeVar("S", bound=msgspec.Struct)

SHOWN = 50
"""Problems that one error lists; the rest is counted."""

NEXT = "correct it and run the command again; nothing was changed"
"""The next step, where a problem has no better one of its own."""


@dataclass(frozen=True, slots=True)
class Located:
    """A value with its file and line.

    Attributes:
        value: None, bool, int, float, str, a dict of names to Located, or a list of Located.
        line: from 1; that of the key for an entry of a mapping, that of the value otherwise. 0 when unknown.
        nodes: how many values it holds when every alias is written out, itself included.
    """

    value: object
    file: str = ""
    line: int = 0
    nodes: int = 1

    @classmethod
    def of(cls, plain: object, file: str = "") -> Located:
        """Plain values, without lines."""
        if isinstance(plain, Mapping):
            return cls({str(key): cls.of(item, file) for key, item in plain.items()}, file)
        if isinstance(plain, Sequence) and not isinstance(plain, str):
            return cls([cls.of(item, file) for item in plain], file)
        return cls(plain, file)

    @property
    def where(self) -> str:
        """`file:line`, as editors and terminals understand it."""
        return f"{self.file}:{self.line}" if self.line else self.file

    def plain(self) -> object:
        """The same without places."""
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value

    def at(self, *path: str | int) -> Located:
        """The value at `path`, or the deepest part of the way there that exists."""
        here = self
        for step in path:
            try:
                here = here.value[step]  # type: ignore[index]  # whatever does not fit ends the way
            except (KeyError, IndexError, TypeError):
                return here
        return here

    def entries(self) -> Iterator[tuple[str, Located]]:
        """Names and values of a mapping; nothing for any other value."""
        if isinstance(self.value, dict):
            yield from self.value.items()

    def items(self) -> Iterator[Located]:
        """Items of a list; nothing for any other value."""
        if isinstance(self.value, list):
            yield from self.value


@dataclass(slots=True)
class Problems:
    """Everything that is wrong, in the order found, so that a person mends it in one go."""

    rows: list[ErrorRow] = field(default_factory=list)

    def add(self, place: Located | str, message: str, hint: str = "") -> None:
        """One problem at one place."""
        self.rows.append(ErrorRow(place if isinstance(place, str) else place.where, message, hint))

    def raise_if_any(self, summary: str) -> None:
        """Raise all of it as one error.

        Raises:
            DocumentError: there is at least one problem.
        """
        if not self.rows:
            return
        unique = _in_file_order(dict.fromkeys(self.rows))
        if len(unique) == 1:
            row = unique[0]
            raise DocumentError(row.message, where=row.where, hints=(row.hint or NEXT,))
        rest = len(unique) - SHOWN
        hints = (f"{rest} more problems are not shown", NEXT) if rest > 0 else (NEXT,)
        raise DocumentError(f"{summary}: {len(unique)} problems", rows=tuple(unique[:SHOWN]), hints=hints)


def _in_file_order(rows: Iterable[ErrorRow]) -> list[ErrorRow]:
    """Files as they were read, and in each file from top to bottom."""
    files: dict[str, list[tuple[int, ErrorRow]]] = {}
    for row in rows:
        file, _, line = row.where.rpartition(":")
        known = file and line.isdigit()
        files.setdefault(file if known else row.where, []).append((int(line) if known else 0, row))
    return [row for inside in files.values() for _, row in sorted(inside, key=lambda pair: pair[0])]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean `address`?`, or an empty text when nothing is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else ""


def convert(source: Located, shape: type[S], problems: Problems) -> S | None:
    """The Struct that `source` describes; parts that are wrong are reported, each with its line, and left out.

    Returns:
        None when what is left does not make a `shape`, for instance because a required field is missing.
    """
    try:
        return msgspec.convert(source.plain(), shape)
    except msgspec.ValidationError:
        pass
    before = len(problems.rows)
    kept = _sift(source, shape, "", problems)
    try:
        return msgspec.convert(kept, shape)
    except msgspec.ValidationError as error:
        if len(problems.rows) == before:
            problems.add(source, _worded(str(error)))
        return None


_WRONG = object()
"""Stands for a part that was reported and is left out."""


def _sift(source: Located, kind: object, name: str, problems: Problems) -> object:
    """`source` as plain values without the parts that do not fit `kind`, each of them reported."""
    struct = _struct_in(kind)
    if isinstance(source.value, dict):
        if struct is not None:
            return _sift_struct(source, struct, name, problems)
        mapping = _generic_in(kind, dict)
        if mapping:
            kept = {key: _sift(item, mapping[1], key, problems) for key, item in source.entries()}
            return {key: item for key, item in kept.items() if item is not _WRONG}
    elements = _generic_in(kind, list)
    if isinstance(source.value, list) and elements:
        items = [_sift(item, elements[0], name, problems) for item in source.items()]
        return [item for item in items if item is not _WRONG]
    plain = source.plain()
    try:
        msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        subject = f"`{name}`: " if name else ""
        problems.add(source, f"{subject}{_worded(str(error), kind)}", _choice_hint(plain, kind))
        return _WRONG
    return plain


def _sift_struct(source: Located, struct: type[msgspec.Struct], name: str, problems: Problems) -> object:
    hints = typing.get_type_hints(struct, include_extras=True)
    fields = {item.encode_name: item for item in msgspec.structs.fields(struct)}
    kept: dict[str, object] = {}
    for key, item in source.entries():
        if key not in fields:
            close = did_you_mean(key, fields)
            hint = "" if close else f"known here: {', '.join(fields)}"
            problems.add(item, f"unknown field `{key}`{', ' + close if close else ''}", hint)
            continue
        part = _sift(item, hints[fields[key].name], key, problems)
        if part is not _WRONG:
            kept[key] = part
    required = [key for key, item in fields.items() if item.required]
    present = dict(source.entries())
    for key in required:
        if key not in present:
            problems.add(source, f"{f'`{name}`: ' if name else ''}`{key}` is missing")
    return kept if all(key in kept for key in required) else _WRONG


def _members(kind: object) -> tuple[object, ...]:
    """The alternatives of a union, or the type alone; `Annotated` is taken off."""
    if typing.get_origin(kind) is typing.Annotated:
        return _members(typing.get_args(kind)[0])
    if typing.get_origin(kind) in {typing.Union, types.UnionType}:
        return tuple(part for member in typing.get_args(kind) for part in _members(member))
    return (kind,)


def _struct_in(kind: object) -> type[msgspec.Struct] | None:
    for member in _members(kind):
        if isinstance(member, type) and issubclass(member, msgspec.Struct):
            return member
    return None


def _generic_in(kind: object, origin: type) -> tuple[object, ...]:
    """The parameters of `dict[...]` or of `list[...]`, `tuple[..., ...]` in `kind`."""
    wanted = {list, tuple} if origin is list else {origin}
    for member in _members(kind):
        if typing.get_origin(member) in wanted:
            return typing.get_args(member)
    return ()


def _choice_hint(plain: object, kind: object) -> str:
    choices = [
        str(choice)
        for member in _members(kind)
        if typing.get_origin(member) is typing.Literal
        for choice in typing.get_args(member)
    ]
    if not choices:
        return ""
    return did_you_mean(str(plain), choices) or f"one of: {', '.join(choices)}"


_WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "nothing",
}
_TYPES = re.compile(r"`([a-z |]+)`")


def _worded(message: str, kind: object = None) -> str:
    """A message of msgspec in words of YAML, without its path: the line is known better.

    A type that carries a description is described by it; so a pattern is never shown, nor the value.
    """
    described = _description(kind)
    if described:
        return f"expected {described}"
    text = message.partition(" - at `")[0]
    text = text.replace("Invalid enum value", "unknown value").replace("Expected", "expected")

    def spoken(match: re.Match[str]) -> str:
        words = [_WORDS.get(word, word) for word in match.group(1).split(" | ") if word != "null"]
        return " or ".join(words) or _WORDS["null"]

    return _TYPES.sub(spoken, text)


def _description(kind: object) -> str:
    if typing.get_origin(kind) is typing.Annotated:
        for meta in typing.get_args(kind)[1:]:
            if isinstance(meta, msgspec.Meta) and meta.description:
                return meta.description
        return ""
    if typing.get_origin(kind) in {typing.Union, types.UnionType}:
        return next(filter(None, map(_description, typing.get_args(kind))), "")
    return ""
