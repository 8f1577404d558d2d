"""Script text to a tree. A recursive descent over characters, because quoting, `$(...)` and here-documents nest.

Outside the dialect lie back quotes, `[[`, `$'..'`, `<<<`, `&>`, process substitution, arrays, `function` and the
`${v/..}` family: shells differ in them, so meeting one is an `Unsupported`, not a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from gpufleet.lab.shell.syntax import (
    AndOr,
    Background,
    Case,
    For,
    Function,
    If,
    Literal,
    Loop,
    Node,
    Pipeline,
    Redirected,
    Redirection,
    Sequence,
    Simple,
    Subshell,
    SyntaxFault,
    Unsupported,
    Word,
)
from gpufleet.lab.shell.words import WordParser, word_of

_BLANK = re.compile(r"(?:[ \t]|\\\n)*(?:#[^\n]*)?")
_KEYWORD = re.compile(r"(?:[a-z]+|!|\{|\})(?=[ \t\n;&|()<>]|$)")
_FUNCTION = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)[ \t]*\([ \t]*\)")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_REDIRECTION = re.compile(r"([0-9]*)(<<-|<<|<&|<>|>>|>&|>\||<|>)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CLOSERS = frozenset({"then", "else", "elif", "fi", "do", "done", "esac", "}"})
_OPENERS = frozenset({"if", "for", "while", "until", "case", "{"})
_FOREIGN = frozenset({"function", "select", "time", "coproc"})

LONGEST_REMEMBERED = 6000
MOST_REMEMBERED = 4000
_ITEMS: dict[str, tuple[tuple[str, Node], ...]] = {}
"""Commands that end at a line's end, by their first line. What they mean depends on their own text alone."""


@dataclass(frozen=True, slots=True)
class Script:
    """A parsed script: its complete commands, and the fault that stopped the parser after them, if any."""

    commands: tuple[Sequence, ...]
    fault: SyntaxFault | Unsupported | None


@lru_cache(maxsize=512)
def parse(text: str) -> Script:
    """Parse a whole script. As in a real shell, commands before a fault are still run."""
    parser = Parser(text)
    commands: list[Sequence] = []
    try:
        while (command := parser.complete_command()) is not None:
            commands.append(command)
    except (SyntaxFault, Unsupported) as fault:
        return Script(tuple(commands), fault)
    return Script(tuple(commands), None)


class Parser(WordParser):
    """One pass over one text."""

    def complete_command(self) -> Sequence | None:
        """The commands up to the end of the next line that ends one; None at the end of the text."""
        self.newlines()
        if self.at >= len(self.text):
            return None
        items: list[Node] = []
        while True:
            items.append(self._item())
            self.blank()
            if self.at >= len(self.text):
                break
            if self.text[self.at] == "\n":
                self.newlines()
                break
            if self.text[self.at] in ");":
                raise self.fault(f"unexpected {self.text[self.at]!r}")
        return Sequence(tuple(items))

    def command_list(self) -> Sequence:
        """Commands up to a closing word or bracket, which is left in place."""
        items: list[Node] = []
        while True:
            self.newlines()
            if self._closed():
                return Sequence(tuple(items))
            items.append(self._item())

    def blank(self) -> None:
        """Skip blanks, continued lines and a comment."""
        found = _BLANK.match(self.text, self.at)
        if found is not None:
            self.at = found.end()

    def newlines(self) -> None:
        """Skip blanks, line ends and the here-documents behind them."""
        while True:
            self.blank()
            if not self.text.startswith("\n", self.at):
                return
            self.at = self.skips.get(self.at, self.at + 1)

    def _closed(self) -> bool:
        if self.at >= len(self.text) or self.text[self.at] == ")" or self.text.startswith(";;", self.at):
            return True
        return self._keyword() in _CLOSERS

    def _keyword(self) -> str:
        found = _KEYWORD.match(self.text, self.at)
        return found.group() if found else ""

    def _expect(self, word: str) -> None:
        self.newlines()
        if self._keyword() != word:
            raise self.fault(f"expected {word!r}")
        self.at += len(word)

    def _item(self) -> Node:
        """One command of a list, from memory where the same lines were parsed before: scripts are constant text."""
        start = self.at
        known = _ITEMS.get(self.text[start : self.text.find("\n", start)], ())
        for text, node in known:
            if self.text.startswith(text, start) and self.text.startswith("\n", start + len(text)):
                self.at = start + len(text)
                return node
        here_documents = len(self.skips)
        node = self._list_item()
        if self.text.startswith("\n", self.at) and here_documents == len(self.skips):
            self._remember(self.text[start : self.at], node)
        return node

    def _remember(self, text: str, node: Node) -> None:
        if len(text) > LONGEST_REMEMBERED or text.startswith("set -- "):
            return
        if len(_ITEMS) > MOST_REMEMBERED:
            _ITEMS.clear()
        first = text.partition("\n")[0]
        _ITEMS[first] = (*_ITEMS.get(first, ())[-7:], (text, node))

    def _list_item(self) -> Node:
        node = self._and_or()
        self.blank()
        if self.text.startswith("&", self.at):
            self.at += 1
            if self.text.startswith(">", self.at):
                raise Unsupported("&> redirection")
            return Background(node)
        if self.text.startswith(";", self.at) and not self.text.startswith(";;", self.at):
            self.at += 1
        return node

    def _and_or(self) -> Node:
        first = self._pipeline()
        rest: list[tuple[str, Node]] = []
        while True:
            self.blank()
            operator = self.text[self.at : self.at + 2]
            if operator not in {"&&", "||"}:
                return AndOr(first, tuple(rest)) if rest else first
            self.at += 2
            self.newlines()
            rest.append((operator, self._pipeline()))

    def _pipeline(self) -> Node:
        self.blank()
        negated = False
        while self._keyword() == "!":
            self.at += 1
            negated = not negated
            self.blank()
        commands = [self._command()]
        while True:
            self.blank()
            if not self.text.startswith("|", self.at) or self.text.startswith("||", self.at):
                break
            self.at += 1
            if self.text.startswith("&", self.at):
                raise Unsupported("|& pipe")
            self.newlines()
            commands.append(self._command())
        return commands[0] if len(commands) == 1 and not negated else Pipeline(tuple(commands), negated)

    def _command(self) -> Node:
        self.blank()
        if self.at >= len(self.text):
            raise self.fault("unexpected end of text")
        if self.text.startswith("((", self.at):
            raise Unsupported("(( arithmetic command")
        if self.text[self.at] == "(":
            self.at += 1
            body = self.command_list()
            self.take(")")
            return self._redirected(Subshell(body))
        keyword = self._keyword()
        if keyword in _OPENERS:
            self.at += len(keyword)
            return self._redirected(self._compound(keyword))
        if keyword in _FOREIGN:
            raise Unsupported(keyword)
        if keyword in _CLOSERS:
            raise self.fault(f"unexpected {keyword!r}")
        found = _FUNCTION.match(self.text, self.at)
        if found:
            self.at = found.end()
            self.newlines()
            return Function(found.group(1), self._command())
        return self._simple()

    def _compound(self, keyword: str) -> Node:
        match keyword:
            case "{":
                body = self.command_list()
                self._expect("}")
                return body
            case "if":
                return self._if()
            case "for":
                return self._for()
            case "case":
                return self._case()
            case _:
                condition = self.command_list()
                return Loop(condition, self._do_group(), keyword == "until")

    def _do_group(self) -> Sequence:
        self._expect("do")
        body = self.command_list()
        self._expect("done")
        return body

    def _if(self) -> Node:
        arms: list[tuple[Sequence, Sequence]] = []
        while True:
            condition = self.command_list()
            self._expect("then")
            arms.append((condition, self.command_list()))
            keyword = self._keyword()
            if keyword == "elif":
                self.at += 4
                continue
            otherwise = None
            if keyword == "else":
                self.at += 4
                otherwise = self.command_list()
            self._expect("fi")
            return If(tuple(arms), otherwise)

    def _for(self) -> Node:
        self.blank()
        found = _NAME.match(self.text, self.at)
        if found is None:
            raise self.fault("expected a variable name after for")
        self.at = found.end()
        self.newlines()
        words: tuple[Word, ...] | None = None
        if self._keyword() == "in":
            self.at += 2
            collected: list[Word] = []
            self.blank()
            while self.at < len(self.text) and self.text[self.at] not in ";\n":
                collected.append(self.word())
                self.blank()
            words = tuple(collected)
        self.blank()
        if self.text.startswith(";", self.at):
            self.at += 1
        return For(found.group(), words, self._do_group())

    def _case(self) -> Node:
        self.blank()
        subject = self.word()
        self._expect("in")
        arms: list[tuple[tuple[Word, ...], Sequence]] = []
        while True:
            self.newlines()
            if self._keyword() == "esac":
                self.at += 4
                return Case(subject, tuple(arms))
            if self.text.startswith("(", self.at):
                self.at += 1
            patterns: list[Word] = []
            while True:
                self.blank()
                patterns.append(self.word())
                self.blank()
                if self.text.startswith("|", self.at):
                    self.at += 1
                    continue
                break
            self.take(")")
            body = self.command_list()
            arms.append((tuple(patterns), body))
            self.newlines()
            if self.text.startswith(";;", self.at):
                self.at += 2

    def _redirected(self, node: Node) -> Node:
        redirections: list[Redirection] = []
        while True:
            self.blank()
            found = _REDIRECTION.match(self.text, self.at)
            if found is None:
                return Redirected(node, tuple(redirections)) if redirections else node
            redirections.append(self._redirection(found))

    def _redirection(self, found: re.Match[str]) -> Redirection:
        self.at = found.end()
        operator = found.group(2)
        if self.text.startswith("(", self.at):
            raise Unsupported("process substitution")
        if operator == "<<" and self.text.startswith("<", self.at):
            raise Unsupported("<<< here-string")
        self.blank()
        fd = int(found.group(1)) if found.group(1) else (0 if operator[0] == "<" else 1)
        target = self.word()
        if operator in {"<<", "<<-"}:
            return Redirection(fd, "<<", self.here_document(target, strip=operator == "<<-"))
        return Redirection(fd, operator, target)

    def _simple(self) -> Node:
        assignments: list[tuple[str, Word]] = []
        words: list[Word] = []
        redirections: list[Redirection] = []
        while True:
            self.blank()
            if self.at >= len(self.text):
                break
            found = _REDIRECTION.match(self.text, self.at)
            if found is not None:
                redirections.append(self._redirection(found))
                continue
            if self.text[self.at] in "\n;&|()":
                break
            assigned = None if words else _ASSIGNMENT.match(self.text, self.at)
            if assigned is not None:
                self.at = assigned.end()
                if self.text.startswith("(", self.at):
                    raise Unsupported("arrays")
                empty = self.at >= len(self.text) or self.text[self.at] in " \t\n;&|()<>"
                assignments.append((assigned.group(1), word_of([]) if empty else self.word(assignment=True)))
                continue
            words.append(self.word())
        if not (assignments or words or redirections):
            raise self.fault(f"unexpected {self.text[self.at : self.at + 1]!r}")
        if words and words[0].parts == (Literal("[[", quoted=False),):
            raise Unsupported("[[")
        return Simple(tuple(assignments), tuple(words), tuple(redirections))
