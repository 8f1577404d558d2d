"""A command as a value: what is to be run on a host, before anybody runs it.

Two forms share one type. A *program* is an argument vector. A *script* is constant shell text of our own whose
`"$1"`, `"$2"`... are the argument vector. In both, what a user typed is an argument and never shell text: the
framing quotes each argument once, inside a script that travels on standard input, so neither the login shell
(bash, fish, tcsh) nor `ps` ever sees it.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace

from gpufleet.redact import MASK, Secret

_LONE_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # \udc80 to \udcff stand for single bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One exec on one host.

    Attributes:
        argv: the program and its arguments, or the positional parameters of `script`.
        script: constant POSIX shell text; never built from user input.
        stdin: what the program or script reads from standard input.
        timeout: seconds until the remote process is ended and the outcome is `Lost`.
        mutates: whether it changes the host: a dry run refuses these, and a loss leaves these in doubt.
        become: run as root through sudo.
        files: absolute paths on this machine that the script may ask for by number (`remote.offer`).
    """

    argv: tuple[str | Secret[str], ...] = ()
    script: str = ""
    stdin: bytes | Secret[bytes] | None = None
    timeout: float = 60.0
    mutates: bool
    become: bool = False
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.argv and not self.script:
            raise ValueError("a command needs a program or a script")
        if self.files and (self.become or self.stdin is not None):
            raise ValueError("files travel on standard input, which sudo and `stdin` need for themselves")
        known = [part.known_text if isinstance(part, Secret) else part for part in self.argv]
        if any("\0" in part for part in known):
            raise ValueError("an argument contains a NUL character, which no process can receive")
        if any(_LONE_SURROGATE.search(part) for part in known):
            raise ValueError("an argument contains half a surrogate pair, which no bytes stand for")

    def wire(self) -> str:
        """The shell text of this command alone, each argument quoted once; secrets are in it."""
        words = " ".join(quote(reveal(part)) for part in self.argv)
        if not self.script:
            return f"{words}\n"
        return f"set -- {words}\n{self.script.rstrip()}\n" if words else f"set --\n{self.script.rstrip()}\n"

    def shown(self) -> str:
        """For people: each secret masked before it is quoted, a script by its first line."""
        words = " ".join(MASK if isinstance(part, Secret) else shlex.quote(part) for part in self.argv)
        if not self.script:
            return words
        first = next((line for line in self.script.splitlines() if line.strip()), "")
        return f"sh -s -- {words} <<< {first!r}".replace("  ", " ")

    def as_root(self) -> Command:
        """The same command through sudo."""
        return replace(self, become=True)


def reveal(part: str | Secret[str]) -> str:
    """The text that goes over the wire for one argument."""
    return part.reveal() if isinstance(part, Secret) else part


def quote(text: str) -> str:
    """One shell word that is exactly `text`.

    Always in quotes: `shlex.quote` leaves `A=b` and `if` bare, which in first place are an assignment and a
    keyword.
    """
    return "'" + text.replace("'", "'\"'\"'") + "'"
