"""Read YAML into plain values that remember the line of every key and item.

    root = read(Path("inventory.yaml"))         # Located, see `located`
    root.at("hosts", "gpu-01", "port").where    # 'inventory.yaml:12'
    convert(root, InventoryDocument, problems)  # `located.convert`: all mistakes, each with its line

The raw values in `Inventory.pools`, `.models` and `.proxy` are of this kind, so `pools.document` and others
report lines with the same two calls.

Theory of operation. The text is checked as bytes first (size, UTF-8, characters that YAML forbids), then walked
event by event: libyaml keeps its state on the heap, so no nesting exhausts our stack, and an alias is counted
with everything it stands for before anything is copied. Scalars follow the core schema of YAML 1.2: `yes`, `no`,
`on` and `off` are text, `010` is ten and `12:30` is text.

What is refused: a file over `LIMIT` bytes (before it is parsed), bytes that are not UTF-8, tabs as indentation,
an empty file, several documents, duplicate keys, keys that are not text, tags, aliases that unfold to more than
`NODES` values or contain themselves, nesting deeper than `DEPTH`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import yaml

from gpufleet.located import Located, Problems
from gpufleet.redact import notice

LIMIT = 5_000_000
"""Bytes that a file may have."""

NODES = 200_000
"""Values that a file may hold once its aliases are written out."""

DEPTH = 64
"""How deep mappings and lists may be nested."""

_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAB_INDENT = re.compile(r"^ *\t[ \t]*\S", re.MULTILINE)
_INTEGER = re.compile(r"[-+]?[0-9]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS: dict[str, object] = {"": None, "~": None}
for _word, _constant in (("null", None), ("true", True), ("false", False)):
    _CONSTANTS |= {_word: _constant, _word.title(): _constant, _word.upper(): _constant}
_TEXT_TAGS = frozenset({"!", "tag:yaml.org,2002:str"})
_COLLECTION_TAGS = frozenset({None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})


class _Refusal(Exception):
    """Reading cannot go on; the problem is already noted."""


def read(path: Path) -> Located:
    """The one document in a file.

    Raises:
        DocumentError: every problem, with file and line.
    """
    problems = Problems()
    located = read_into(path, problems)
    problems.raise_if_any(f"{path} is not usable")
    if located is None:
        raise AssertionError("unreadable and without a problem")
    return located


def read_into(path: Path, problems: Problems) -> Located | None:
    """Like `read`, but problems are added to a list; None when nothing could be made of the file."""
    name = str(path)
    try:
        with path.open("rb") as stream:
            content = stream.read(LIMIT + 1)
    except OSError as error:
        problems.add(name, f"cannot be read: {(error.strerror or str(error)).lower()}")
        return None
    if len(content) > LIMIT:
        problems.add(
            name,
            f"the file is larger than {LIMIT // 1_000_000} MB and was not parsed",
            "a file of this kind holds hosts and pools: is it the right one?",
        )
        return None
    return parse(content, name, problems)


def parse(content: bytes, file: str, problems: Problems) -> Located | None:
    """The one document in `content`; `file` is only a name for messages."""
    try:
        text = _decoded(content, file, problems)
        notice(text)
        return _Builder(file, problems).build(text)
    except yaml.MarkedYAMLError as error:
        _note_syntax(error, content, file, problems)
    except yaml.YAMLError as error:
        problems.add(file, f"not YAML: {str(error).splitlines()[0]}")
    except _Refusal:
        pass
    return None


def _decoded(content: bytes, file: str, problems: Problems) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        problems.add(f"{file}:1", "the file is UTF-16", "save it as UTF-8")
        raise _Refusal
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problems.add(
            f"{file}:{line}",
            f"not UTF-8: byte 0x{content[error.start]:02x} at offset {error.start}",
            "save the file as UTF-8",
        )
        raise _Refusal from error
    found = _FORBIDDEN.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        problems.add(f"{file}:{line}", f"control character U+{ord(found.group()):04X} is not allowed in YAML")
        raise _Refusal
    return text


def _note_syntax(error: yaml.MarkedYAMLError, content: bytes, file: str, problems: Problems) -> None:
    """A syntax error in words; a tab in the indentation explains most of them."""
    text = content.decode("utf-8-sig")
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    tabs = [text.count("\n", 0, match.start()) + 1 for match in _TAB_INDENT.finditer(text)]
    if any(number <= line + 1 for number in tabs):
        for number in tabs:
            problems.add(f"{file}:{number}", "a tab indents this line", "YAML is indented with spaces only")
        return
    context = f" {error.context}" if error.context else ""
    problems.add(f"{file}:{line}", f"not YAML: {error.problem}{context}")


@dataclass(slots=True)
class _Open:
    """A mapping or list that has begun and not ended."""

    value: dict[str, Located] | list[Located]
    line: int
    anchor: str | None
    key: tuple[str, int] | None = None
    wants_key: bool = True
    nodes: int = 1
    merged: list[Located] = field(default_factory=list)


def _events(text: str) -> Iterator[Any]:
    """Parser events of libyaml, or of the Python parser where PyYAML was built without it."""
    parser: Any = yaml.CLoader(text) if yaml.__with_libyaml__ else yaml.Loader(text)
    while True:
        event = parser.get_event()
        if event is None:
            return
        yield event


class _Builder:
    """Folds events into Located values, with a stack of its own."""

    def __init__(self, file: str, problems: Problems) -> None:
        self._file = file
        self._problems = problems
        self._stack: list[_Open] = []
        self._anchors: dict[str, Located | None] = {}
        self._root: Located | None = None
        self._documents = 0
        self._total = 0

    def build(self, text: str) -> Located:
        for event in _events(text):
            kind = type(event).__name__
            line = event.start_mark.line + 1
            if kind == "ScalarEvent":
                self._place(self._scalar(event, line), event.anchor, line)
            elif kind in {"MappingStartEvent", "SequenceStartEvent"}:
                self._begin({} if kind == "MappingStartEvent" else [], event, line)
            elif kind in {"MappingEndEvent", "SequenceEndEvent"}:
                self._end()
            elif kind == "AliasEvent":
                self._alias(event.anchor, line)
            elif kind == "DocumentStartEvent":
                self._documents += 1
                if self._documents > 1:
                    self._refuse(line, "a second document begins here", "keep one document in a file")
        if self._root is None or self._root.value is None:
            self._refuse(0, "the file is empty", "`gpufleet inventory schema` shows what it may hold")
        return self._root

    def _refuse(self, line: int, message: str, hint: str = "") -> NoReturn:
        place = f"{self._file}:{line}" if line else self._file
        self._problems.add(place, message, hint)
        raise _Refusal

    def _scalar(self, event: Any, line: int) -> object:
        text: str = event.value
        if event.tag is not None and event.tag not in _TEXT_TAGS:
            self._problems.add(
                f"{self._file}:{line}",
                f"the tag `{_shown(event.tag)}` is not supported",
                "write the value plainly",
            )
            return text
        return _resolved(text) if event.implicit[0] else text

    def _begin(self, value: dict[str, Located] | list[Located], event: Any, line: int) -> None:
        if event.tag not in _COLLECTION_TAGS:
            self._problems.add(f"{self._file}:{line}", f"the tag `{_shown(event.tag)}` is not supported")
        if len(self._stack) >= DEPTH:
            self._refuse(line, f"nested deeper than {DEPTH} levels")
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        self._stack.append(_Open(value, line, event.anchor))

    def _end(self) -> None:
        ended = self._stack.pop()
        if isinstance(ended.value, dict):
            for source in ended.merged:
                for key, item in source.entries():
                    ended.value.setdefault(key, item)
        self._place(ended.value, ended.anchor, ended.line, ended.nodes)

    def _alias(self, anchor: str, line: int) -> None:
        if anchor not in self._anchors:
            self._refuse(line, f"the alias `*{anchor}` has no anchor before it")
        target = self._anchors[anchor]
        if target is None:
            self._refuse(line, f"the alias `*{anchor}` stands inside what it names")
        self._place(target.value, None, line, target.nodes)

    def _place(self, value: object, anchor: str | None, line: int, nodes: int = 1) -> None:
        """Put a finished value where it belongs: root, list, key or value of a mapping."""
        located = Located(value, self._file, line, nodes)
        if anchor is not None:
            self._anchors[anchor] = located
        if not self._stack:
            self._root = located
            return
        top = self._stack[-1]
        top.nodes += nodes
        if top.nodes > NODES:
            self._refuse(line, f"aliases unfold to more than {NODES} values")
        if isinstance(top.value, list):
            top.value.append(located)
        elif top.wants_key:
            top.wants_key = False
            top.key = self._key(top, value, line)
        else:
            top.wants_key = True
            self._enter(top, top.value, located)

    def _key(self, top: _Open, value: object, line: int) -> tuple[str, int] | None:
        """The key of the next value, or None when it cannot be one; the value is then dropped."""
        if not isinstance(value, str):
            shown = "a mapping or list" if isinstance(value, dict | list) else f"`{_yaml_text(value)}`"
            hint = "" if isinstance(value, dict | list) else f'put it in quotes: "{_yaml_text(value)}"'
            self._problems.add(f"{self._file}:{line}", f"the key {shown} is not text", hint)
            return None
        if isinstance(top.value, dict) and value in top.value:
            first = top.value[value].line
            self._problems.add(
                f"{self._file}:{line}", f"duplicate key `{value}`, first on line {first}", "keep one of them"
            )
            return None
        return value, line

    def _enter(self, top: _Open, mapping: dict[str, Located], located: Located) -> None:
        if top.key is None:
            return
        name, line = top.key
        if name != "<<":
            mapping[name] = replace(located, line=line)
            return
        sources = list(located.items()) if isinstance(located.value, list) else [located]
        if all(isinstance(source.value, dict) for source in sources):
            top.merged.extend(sources)
        else:
            self._problems.add(f"{self._file}:{line}", "`<<` merges mappings only")


def _resolved(text: str) -> object:
    """A plain scalar by the core schema of YAML 1.2."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if not (text[0].isdigit() or text[0] in "+-."):
        return text
    if len(text) <= 300:
        if _INTEGER.fullmatch(text):
            return int(text)
        if _HEXADECIMAL.fullmatch(text):
            return int(text, 16)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text


def _yaml_text(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _shown(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")
