"""Words: quoting, expansions and here-documents, as characters become parts."""

from __future__ import annotations

import re
from collections.abc import Sequence as Items

from gpufleet.lab.shell.syntax import (
    Arithmetic,
    Literal,
    Parameter,
    Part,
    Sequence,
    Substitution,
    SyntaxFault,
    Tilde,
    Unsupported,
    Word,
)

_PLAIN = re.compile(r"[^\\'\"$` \t\n;&|()<>]+")
_DOUBLE = re.compile(r"[^\"\\$`]+")
_HERE = re.compile(r"[^\\$`]+")
_BRACED = re.compile(r"[^\\'\"$`}]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_BRACED_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-]")
_OPERATOR = re.compile(r":?[-=?+]|##?|%%?")
_TILDE = re.compile(r"~([A-Za-z0-9_-]*)(?=[/: \t\n;&|()<>]|$)")
_SPECIAL = re.compile(r"[*?\[]")


def word_of(parts: Items[Part]) -> Word:
    """A word, with its plain value when every part is literal and nothing in it is a pattern."""
    plain: str | None = "" if parts else None
    flat = bool(parts)
    for part in parts:
        match part:
            case Literal(text, quoted):
                special = not quoted and _SPECIAL.search(text) is not None
                plain = None if plain is None or special else plain + text
                flat = flat and not special
            case Parameter(name, "", None, True) if name not in {"@", "*"}:
                plain = None
            case Substitution(_, True):
                plain = None
            case _:
                plain, flat = None, False
    return Word(tuple(parts), plain, flat)


class WordParser:
    """The part of the parser that reads words; `command_list` comes from the part that reads commands."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.skips: dict[int, int] = {}
        """Where to go on after the line end at a position: behind the here-documents of that line."""

    def command_list(self) -> Sequence:
        """Commands up to a closing word or bracket."""
        raise NotImplementedError

    def fault(self, what: str) -> SyntaxFault:
        """A syntax fault at the current line."""
        return SyntaxFault(f"line {self.text.count(chr(10), 0, self.at) + 1}: {what}")

    def take(self, token: str) -> None:
        """Go past `token`, which must stand here."""
        if not self.text.startswith(token, self.at):
            raise self.fault(f"expected {token!r}")
        self.at += len(token)

    def word(self, *, assignment: bool = False) -> Word:
        """One word in command position or as an argument."""
        parts: list[Part] = []
        text = self.text
        if text.startswith("~", self.at):
            self._tilde(parts)
        while self.at < len(text):
            found = _PLAIN.match(text, self.at)
            if found is not None:
                self.at = found.end()
                parts.append(Literal(found.group(), quoted=False))
                if assignment and found.group().endswith(":") and text.startswith("~", self.at):
                    self._tilde(parts)
                continue
            if not self._quoting(parts):
                break
        if not parts:
            raise self.fault(f"expected a word, found {text[self.at : self.at + 1]!r}")
        return word_of(parts)

    def _tilde(self, parts: list[Part]) -> None:
        found = _TILDE.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
            parts.append(Tilde(found.group(1)))

    def _quoting(self, parts: list[Part]) -> bool:
        """Read one quoted piece or expansion; False when a delimiter stands here."""
        match self.text[self.at]:
            case "\\":
                if self.text.startswith("\\\n", self.at):
                    self.at += 2
                    return True
                parts.append(Literal(self.text[self.at + 1 : self.at + 2] or "\\", quoted=True))
                self.at += 2
            case "'":
                parts.append(self._single())
            case '"':
                self.at += 1
                inner = self._double(_DOUBLE, '"')
                self.take('"')
                parts.extend(inner or [Literal("", quoted=True)])
            case "$":
                parts.append(self._dollar(quoted=False))
            case "`":
                raise Unsupported("back quotes; write $(...)")
            case _:
                return False
        return True

    def _single(self) -> Literal:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise self.fault("unterminated quoted string")
        literal = Literal(self.text[self.at + 1 : end], quoted=True)
        self.at = end + 1
        return literal

    def _double(self, run: re.Pattern[str], closing: str) -> list[Part]:
        """Parts up to `closing` (or the end of the text when it is empty), in double-quote rules."""
        parts: list[Part] = []
        text = self.text
        while True:
            if self.at >= len(text):
                if closing:
                    raise self.fault("unterminated quoted string")
                return parts
            found = run.match(text, self.at)
            if found is not None:
                self.at = found.end()
                parts.append(Literal(found.group(), quoted=True))
                continue
            character = text[self.at]
            if character == closing:
                return parts
            if character == "\\":
                following = text[self.at + 1 : self.at + 2]
                self.at += 2
                if following == "\n":
                    continue
                escaped = following and following in f"$`\\{closing}"
                parts.append(Literal(following if escaped else f"\\{following}", quoted=True))
            elif character == "$":
                parts.append(self._dollar(quoted=True))
            elif character == "`":
                raise Unsupported("back quotes; write $(...)")
            else:
                parts.append(Literal(character, quoted=True))
                self.at += 1

    def _dollar(self, *, quoted: bool) -> Part:
        text = self.text
        if text.startswith("$((", self.at):
            return self._arithmetic(quoted=quoted)
        if text.startswith("$(", self.at):
            self.at += 2
            body = self.command_list()
            self.take(")")
            return Substitution(body, quoted)
        if text.startswith("${", self.at):
            self.at += 2
            return self._braced(quoted=quoted)
        self.at += 1
        found = _NAME.match(text, self.at)
        if found is None:
            if not quoted and text[self.at : self.at + 1] in {"'", '"'}:
                raise Unsupported("$'..' and $\"..\" quoting")
            return Literal("$", quoted=True)
        self.at = found.end()
        return Parameter(found.group(), "", None, quoted)

    def _arithmetic(self, *, quoted: bool) -> Arithmetic:
        start = self.at + 3
        depth, end = 0, start
        while end < len(self.text):
            character = self.text[end]
            if character == "(":
                depth += 1
            elif character == ")":
                if depth == 0:
                    break
                depth -= 1
            end += 1
        if not self.text.startswith("))", end):
            raise Unsupported("$(( that does not end in )); write $( ( for a subshell")
        inner = type(self)(self.text[start:end])
        parts = inner._double(_HERE, "")  # noqa: SLF001  the same parser over a part of its own text
        self.at = end + 2
        return Arithmetic(word_of(parts), quoted)

    def _braced(self, *, quoted: bool) -> Parameter:
        text = self.text
        if text.startswith("#", self.at) and not text.startswith("#}", self.at):
            self.at += 1
            name = self._braced_name()
            self.take("}")
            return Parameter(name, "#len", None, quoted)
        name = self._braced_name()
        if text.startswith("}", self.at):
            self.at += 1
            return Parameter(name, "", None, quoted)
        found = _OPERATOR.match(text, self.at)
        if found is None or (found.group()[0] == ":" and len(found.group()) == 1):
            raise Unsupported(f"${{{name}{text[self.at : self.at + 1]}...}}")
        self.at = found.end()
        operator = found.group()
        pattern = operator[0] in "#%"
        word = self._braced_word(quoted=quoted and not pattern)
        self.take("}")
        return Parameter(name, operator, word, quoted)

    def _braced_name(self) -> str:
        found = _BRACED_NAME.match(self.text, self.at)
        if found is None:
            raise Unsupported(f"${{{self.text[self.at : self.at + 1]}...}}")
        self.at = found.end()
        return found.group()

    def _braced_word(self, *, quoted: bool) -> Word:
        """The word behind an operator, up to its closing brace."""
        parts: list[Part] = []
        text = self.text
        if not quoted and text.startswith("~", self.at):
            self._tilde(parts)
        while self.at < len(text) and text[self.at] != "}":
            found = _BRACED.match(text, self.at)
            if found is not None:
                self.at = found.end()
                parts.append(Literal(found.group(), quoted=quoted))
            elif quoted and text[self.at] == "'":
                raise Unsupported('a single quote inside "${v-...}"')
            elif quoted and text[self.at] == "\\":
                following = text[self.at + 1 : self.at + 2]
                parts.append(Literal(following if following in '$`"\\}' else f"\\{following}", quoted=True))
                self.at += 2
            elif quoted and text[self.at] == "$":
                parts.append(self._dollar(quoted=True))
            else:
                self._quoting(parts)
        return word_of(parts)

    def here_document(self, delimiter: Word, *, strip: bool) -> Word:
        """The text behind the end of this line, up to a line that is the delimiter alone."""
        if delimiter.plain is None:
            raise Unsupported("a here-document delimiter with expansions")
        literal = any(isinstance(part, Literal) and part.quoted for part in delimiter.parts)
        line_end = self.text.find("\n", self.at)
        if line_end < 0:
            raise self.fault("here-document without text")
        at = self.skips.get(line_end, line_end + 1)
        lines: list[str] = []
        while True:
            if at >= len(self.text):
                raise self.fault(f"here-document without its delimiter {delimiter.plain!r}")
            end = self.text.find("\n", at)
            end = len(self.text) if end < 0 else end
            line = self.text[at:end].lstrip("\t") if strip else self.text[at:end]
            at = end + 1
            if line == delimiter.plain:
                break
            lines.append(f"{line}\n")
        self.skips[line_end] = min(at, len(self.text))
        body = "".join(lines)
        if literal:
            return Word((Literal(body, quoted=True),), body)
        inner = type(self)(body)
        parts = inner._double(_HERE, "")  # noqa: SLF001  the same parser over a part of its own text
        return word_of(parts or [Literal("", quoted=True)])
