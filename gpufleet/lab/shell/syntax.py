"""What a script means: the tree that the parser builds and the interpreter walks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


class Unsupported(Exception):
    """The script is outside the agreed dialect; never guessed at, never skipped."""


class SyntaxFault(Exception):
    """The script is no shell text at all."""


@dataclass(frozen=True, slots=True)
class Literal:
    """Text as it stands; `quoted` text is neither split nor a pattern."""

    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Tilde:
    """`~` or `~name` at the start of a word."""

    name: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$name` or `${name OP word}`; `operator` is empty, `#len`, or one of the operators as written."""

    name: str
    operator: str
    word: Word | None
    quoted: bool


@dataclass(frozen=True, slots=True)
class Substitution:
    """`$(...)`."""

    body: Sequence
    quoted: bool


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`$((...))`; the expression is expanded as if in double quotes first."""

    expression: Word
    quoted: bool


Part: TypeAlias = Literal | Tilde | Parameter | Substitution | Arithmetic


@dataclass(frozen=True, slots=True)
class Word:
    """Parts that make one word.

    `plain` is its value when nothing in it needs expanding; a `flat` word expands to one field by joining its parts,
    since all that is expanded in it is quoted.
    """

    parts: tuple[Part, ...]
    plain: str | None
    flat: bool = False


@dataclass(frozen=True, slots=True)
class Redirection:
    """One of `<` `>` `>>` `>&` `<&` `<>` `>|` `<<`; the target of `<<` is the text itself."""

    fd: int
    operator: str
    target: Word


@dataclass(frozen=True, slots=True)
class Simple:
    """Assignments, words, redirections."""

    assignments: tuple[tuple[str, Word], ...]
    words: tuple[Word, ...]
    redirections: tuple[Redirection, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands joined by `|`, perhaps negated."""

    commands: tuple[Node, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class AndOr:
    """A chain of `&&` and `||`."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class Background:
    """`command &`."""

    command: Node


@dataclass(frozen=True, slots=True)
class Sequence:
    """Commands one after the other."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class If:
    """Conditions with their bodies, and what happens when none holds."""

    arms: tuple[tuple[Sequence, Sequence], ...]
    otherwise: Sequence | None


@dataclass(frozen=True, slots=True)
class For:
    """`for name in words`; None means the positional parameters."""

    name: str
    words: tuple[Word, ...] | None
    body: Sequence


@dataclass(frozen=True, slots=True)
class Loop:
    """`while`, or `until` when `until` is True."""

    condition: Sequence
    body: Sequence
    until: bool


@dataclass(frozen=True, slots=True)
class Case:
    """`case word in patterns) body ;; esac`."""

    word: Word
    arms: tuple[tuple[tuple[Word, ...], Sequence], ...]


@dataclass(frozen=True, slots=True)
class Subshell:
    """`( ... )`."""

    body: Sequence


@dataclass(frozen=True, slots=True)
class Function:
    """A definition."""

    name: str
    body: Node


@dataclass(frozen=True, slots=True)
class Redirected:
    """A compound command with redirections of its own."""

    command: Node
    redirections: tuple[Redirection, ...]


Node: TypeAlias = (
    Simple
    | Pipeline
    | AndOr
    | Background
    | Sequence
    | If
    | For
    | Loop
    | Case
    | Subshell
    | Function
    | Redirected
)
