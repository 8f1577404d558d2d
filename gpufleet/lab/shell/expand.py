"""Expansion: parameters, substitution, arithmetic, field splitting and patterns, in POSIX order."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpufleet.lab.shell import patterns
from gpufleet.lab.shell.arithmetic import evaluate
from gpufleet.lab.shell.syntax import (
    Arithmetic,
    Literal,
    Parameter,
    Part,
    Sequence,
    Substitution,
    Tilde,
    Word,
)
from gpufleet.lab.simhost import SimHost

Piece = tuple[str, bool]
"""Text, and whether it was quoted."""

_SPECIAL = re.compile(r"[*?\[]")


class UnsetVariable(Exception):
    """`${v:?word}` or `set -u` met an unset variable."""


class _Fields:
    """Fields under construction. A field is closed by white space or by another separator of IFS."""

    def __init__(self, separators: str) -> None:
        self.done: list[list[Piece]] = []
        self.current: list[Piece] | None = None
        self.separators = separators
        self.space = "".join(character for character in separators if character in " \t\n")
        self._spaced = False
        """White space has just closed a field: one separator that follows belongs to it."""

    def add(self, text: str, *, quoted: bool) -> None:
        """Append to the field, beginning it when there is none."""
        if self.current is None:
            self.current = []
        self.current.append((text, quoted))
        self._spaced = False

    def close(self) -> None:
        """End the field, if there is one."""
        if self.current is not None:
            self.done.append(self.current)
            self.current = None

    def split(self, text: str) -> None:
        """Add the value of an unquoted expansion, cut at IFS."""
        if not text:
            return
        if not self.separators:
            self.add(text, quoted=False)
            return
        for found in re.finditer(f"[{re.escape(self.separators)}]|[^{re.escape(self.separators)}]+", text):
            run = found.group()
            if run[0] not in self.separators:
                self.add(run, quoted=False)
            elif run in self.space:
                self._spaced = self._spaced or self.current is not None
                self.close()
            elif self.current is not None:
                self.close()
            elif self._spaced:
                self._spaced = False
            else:
                self.done.append([("", True)])


class Expansion:
    """The half of the shell that turns words into fields."""

    host: SimHost
    user: str
    cwd: str
    variables: dict[str, str]
    parameters: list[str]
    name: str
    options: set[str]
    status: int
    pid: int
    last_background: int
    substitution_status: int | None

    def substitute(self, body: Sequence) -> str:
        """The standard output of `$(...)`."""
        raise NotImplementedError

    # -- entry points ------------------------------------------------------------------------------------------

    def fields(self, words: Iterable[Word]) -> list[str]:
        """Arguments: everything expanded, split, and matched against names."""
        out: list[str] = []
        for word in words:
            if word.plain is not None:
                out.append(word.plain)
                continue
            if word.flat:
                out.append(self._joined(word))
                continue
            fields = _Fields(self.variables.get("IFS", " \t\n"))
            self._emit(word.parts, fields, splitting=True)
            fields.close()
            for pieces in fields.done:
                out.extend(self._names(pieces))
        return out

    def single(self, word: Word) -> str:
        """One value: no splitting, no names; for assignments, redirections and `case`."""
        if word.plain is not None:
            return word.plain
        if word.flat:
            return self._joined(word)
        return "".join(text for text, _ in self.pieces(word))

    def _joined(self, word: Word) -> str:
        """The one field of a flat word."""
        text = ""
        for part in word.parts:
            match part:
                case Literal(literal, _):
                    text += literal
                case Parameter(name, _, _, _):
                    value = self.lookup(name)
                    if value is None and "u" in self.options:
                        raise UnsetVariable(f"{name}: parameter not set")
                    text += value or ""
                case Substitution(body, _):
                    text += self.substitute(body)
                case _:
                    raise TypeError(f"{part} in a flat word")
        return text

    def pieces(self, word: Word) -> list[Piece]:
        """One value that remembers which of its text was quoted; for patterns."""
        fields = _Fields("")
        self._emit(word.parts, fields, splitting=False)
        fields.close()
        return [piece for field in fields.done for piece in field]

    # -- parts -------------------------------------------------------------------------------------------------

    def _names(self, pieces: list[Piece]) -> list[str]:
        plain = "".join(text for text, _ in pieces)
        if "f" in self.options or not any(not quoted and _SPECIAL.search(text) for text, quoted in pieces):
            return [plain]
        return patterns.names(self.host.fs, self.cwd, self.user, pieces) or [plain]

    def _emit(self, parts: tuple[Part, ...], fields: _Fields, *, splitting: bool) -> None:
        for part in parts:
            match part:
                case Literal(text, quoted):
                    if text or quoted:
                        fields.add(text, quoted=quoted)
                case Tilde(name):
                    fields.add(self._home(name), quoted=True)
                case Parameter():
                    self._parameter(part, fields, splitting=splitting)
                case Substitution(body, quoted):
                    self._value(self.substitute(body), fields, quoted=quoted, splitting=splitting)
                case Arithmetic(expression, quoted):
                    value = str(evaluate(self.single(expression), self.variables))
                    self._value(value, fields, quoted=quoted, splitting=splitting)

    def _value(self, value: str, fields: _Fields, *, quoted: bool, splitting: bool) -> None:
        if quoted or not splitting:
            if value or quoted:
                fields.add(value, quoted=quoted)
        else:
            fields.split(value)

    def _home(self, name: str) -> str:
        if not name:
            return self.variables.get("HOME", "~")
        user = self.host.users.get(name)
        return user.home if user else f"~{name}"

    def lookup(self, name: str) -> str | None:
        """The value of a variable or special parameter other than `@` and `*`."""
        if name[0].isdigit():
            index = int(name)
            if index == 0:
                return self.name
            return self.parameters[index - 1] if index <= len(self.parameters) else None
        match name:
            case "#":
                return str(len(self.parameters))
            case "?":
                return str(self.status)
            case "$":
                return str(self.pid)
            case "!":
                return str(self.last_background) if self.last_background else ""
            case "-":
                return "".join(sorted(self.options))
            case _:
                return self.variables.get(name)

    def _parameter(self, part: Parameter, fields: _Fields, *, splitting: bool) -> None:
        name, operator = part.name, part.operator
        if operator and operator[-1] in "-=?+" and part.word is not None:
            self._conditional(part, part.word, fields, splitting=splitting)
            return
        if name in {"@", "*"} and operator != "#len":
            if operator:
                raise UnsetVariable(f"${{{name}{operator}...}} is not in the dialect")
            self._all(fields, star=name == "*", quoted=part.quoted, splitting=splitting)
            return
        value = str(len(self.parameters)) if name in {"@", "*"} else self.lookup(name)
        if value is None:
            if "u" in self.options:
                raise UnsetVariable(f"{name}: parameter not set")
            value = ""
        if operator == "#len":
            value = value if name in {"@", "*"} else str(len(value))
        elif operator and part.word is not None:
            value = patterns.strip(operator, self.pieces(part.word), value)
        self._value(value, fields, quoted=part.quoted, splitting=splitting)

    def _conditional(self, part: Parameter, word: Word, fields: _Fields, *, splitting: bool) -> None:
        name, operator = part.name, part.operator
        many = name in {"@", "*"}
        value = (" ".join(self.parameters) if self.parameters else None) if many else self.lookup(name)
        present = value is not None and (operator[0] != ":" or value != "")
        match operator[-1]:
            case "+":
                if present:
                    self._emit_word(word, fields, quoted=part.quoted, splitting=splitting)
                elif part.quoted:
                    fields.add("", quoted=True)
                return
            case "?" if not present:
                message = self.single(word) or "parameter not set"
                raise UnsetVariable(f"{name}: {message}")
            case "=" if not present:
                if not (name[0].isalpha() or name[0] == "_"):
                    raise UnsetVariable(f"{name}: bad variable name")
                self.variables[name] = value = self.single(word)
                present = True
        if not present:
            self._emit_word(word, fields, quoted=part.quoted, splitting=splitting)
        elif many:
            self._all(fields, star=name == "*", quoted=part.quoted, splitting=splitting)
        else:
            self._value(value or "", fields, quoted=part.quoted, splitting=splitting)

    def _emit_word(self, word: Word, fields: _Fields, *, quoted: bool, splitting: bool) -> None:
        """The word of `${v-word}`; its unquoted literals are split as well."""
        if quoted and not word.parts:
            fields.add("", quoted=True)
        for part in word.parts:
            if isinstance(part, Literal) and not part.quoted and splitting:
                fields.split(part.text)
            else:
                self._emit((part,), fields, splitting=splitting)

    def _all(self, fields: _Fields, *, star: bool, quoted: bool, splitting: bool) -> None:
        separators = self.variables.get("IFS", " \t\n")
        if not splitting or (star and quoted):
            between = separators[:1] if star else " "
            fields.add(between.join(self.parameters), quoted=quoted)
            return
        for index, value in enumerate(self.parameters):
            if index:
                fields.close()
            self._value(value, fields, quoted=quoted, splitting=True)
