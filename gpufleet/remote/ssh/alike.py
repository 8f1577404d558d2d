"""Which hosts ssh_config speaks of alike, so that one `ssh -G` answers for all of them.

Two hosts get the same options when every `Host` line of every file matches both or neither, no `Match` block asks
for anything else than the name, and the name is not made canonical first (ssh_config(5), OpenSSH 10). A block that
gives another address, or a value with the host's name in it, concerns the hosts that its `Host` line matches. Whatever
this module does not understand makes hosts unlike each other: then each is asked for on its own, which is always right.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

ReadInclude: TypeAlias = Callable[[str], list[str] | None]
"""The texts of the files that an `Include` pattern names; None when they cannot be read."""

MOST_FILES = 64
_UNLIKE = frozenset({"match", "canonicalizehostname"})
_OWN = frozenset({"hostname", "token"})
_EVERY: tuple[str, ...] = ("*",)
_UNUSED = frozenset({"controlpath", "localcommand", "remotecommand"})
"""Keywords whose tokens may differ: nothing here reads their values."""


@dataclass(frozen=True, slots=True)
class Patterns:
    """The pattern lists of all `Host` lines, in order; None when hosts must be asked for one by one.

    `own` has those of them whose hosts differ from each other.
    """

    lines: tuple[tuple[str, ...], ...] | None
    own: tuple[tuple[str, ...], ...] = ()

    def signature(self, host: str) -> tuple[bool, ...] | None:
        """Which `Host` lines match; None when this host must be asked for on its own."""
        if self.lines is None or host != host.lower() or any(_matches(host, line) for line in self.own):
            return None
        return tuple(_matches(host, patterns) for patterns in self.lines)


def patterns(texts: list[str], include: ReadInclude) -> Patterns:
    """All `Host` lines of these files and of the files they include."""
    lines: list[tuple[str, ...]] = []
    own: list[tuple[str, ...]] = []
    # What stands before the first `Host` of an included file is for the block that includes it, at most: taking it for
    # every host's costs questions and no mistakes.
    waiting = [(text, _EVERY) for text in reversed(texts)]
    read = 0
    while waiting:
        read += 1
        text, block = waiting.pop()
        for line in text.splitlines():
            words = _words(line)
            if words is None or read > MOST_FILES or (words and words[0] in _UNLIKE):
                return Patterns(None)
            if words[:1] == ["host"]:
                block = tuple(words[1:])
                lines.append(block)
            if words and words[0] in _OWN:
                own.append(block)
            for pattern in words[1:] if words[:1] == ["include"] else ():
                found = include(pattern)
                if found is None:
                    return Patterns(None)
                waiting += [(one, _EVERY) for one in found]
    if any(pattern != pattern.lower() for line in lines for pattern in line):
        return Patterns(None)
    return Patterns(tuple(lines), tuple(dict.fromkeys(own)))


def _words(line: str) -> list[str] | None:
    """The keyword in small letters and its arguments; None for a line that is not understood."""
    text = line.strip()
    if not text or text.startswith("#"):
        return []
    keyword = re.match(r"[A-Za-z]+", text)
    if keyword is None:
        return None
    rest = re.sub(r"^\s*=?\s*", "", text[keyword.end() :])
    if keyword[0].lower() not in {"host", "include"}:
        # `ssh -G` expands tokens such as %n in some values and leaves them in others.
        return ["token"] if "%" in rest and keyword[0].lower() not in _UNUSED else [keyword[0].lower()]
    try:
        return [keyword[0].lower(), *shlex.split(rest, comments=True)]
    except ValueError:
        return None


def _matches(host: str, patterns: tuple[str, ...]) -> bool:
    """Whether a `Host` line speaks of this host: a negated pattern that matches ends it."""
    found = False
    for pattern in patterns:
        bare = pattern.removeprefix("!")
        # Most lines name one host: a regular expression for each of them would cost as much as `ssh -G` does.
        if re.fullmatch(_expression(bare), host) if "*" in bare or "?" in bare else bare == host:
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _expression(pattern: str) -> str:
    return "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in pattern)


def for_host(answer: str, asked: str, host: str) -> str | None:
    """What `ssh -G host` would print, from what it printed for `asked`; None when that named another machine."""
    lines = [line for line in answer.splitlines() if not line.lower().startswith(("host ", "hostname "))]
    named = [
        line.split(" ", 1)[1].strip() for line in answer.splitlines() if line.lower().startswith("hostname ")
    ]
    if named != [asked]:
        return None
    return "\n".join([f"host {host}", f"hostname {host}", *lines])
