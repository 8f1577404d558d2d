"""References to secrets, and the moment they are followed: when the secret is first used, not before.

${env:NAME}               a variable of gpufleet's own environment
${file:PATH}              a file, its final newline taken off; `~` is home, relative to the inventory's folder
${cmd:PROGRAM ARGUMENTS}  the standard output of a program, started without a shell, its final newline taken off
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess  # noqa: TID251  # the one place where the inventory starts a program
from pathlib import Path
from threading import Lock

from gpufleet.errors import SecretUnresolved
from gpufleet.paths import expanded
from gpufleet.redact import Secret

PATTERN = re.compile(r"\$\{(env|file|cmd):([^}]+)\}")

TIMEOUT = 30.0
"""Seconds that a program may take to print a secret."""


class LazySecret(Secret[str]):
    """A secret whose reference is followed by the first `reveal`; the value is kept from then on.

    Hosts share one such value a reference and ask from many threads: the program behind it runs once.
    """

    __slots__ = ("_base", "_lock")

    def __init__(self, reference: str, base: Path) -> None:
        super().__init__("", reference=reference)
        self._base = base
        self._lock = Lock()

    def reveal(self) -> str:
        """The value.

        Raises:
            SecretUnresolved: the reference leads nowhere.
        """
        with self._lock:
            if not self._value:
                self._value = resolve(self.reference, self._base).reveal()
            return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LazySecret) and self.reference == other.reference

    def __hash__(self) -> int:
        return hash((LazySecret, self.reference))


def resolve(reference: str, base: Path) -> Secret[str]:
    """Follow a reference now; `base` is what relative paths are relative to.

    Raises:
        SecretUnresolved: it names the reference and the reason, never a value.
    """
    match = PATTERN.fullmatch(reference)
    if match is None:
        raise SecretUnresolved(
            "not a reference to a secret",
            hints=("write ${env:NAME}, ${file:PATH} or ${cmd:PROGRAM ARGUMENTS}",),
        )
    kind, rest = match.groups()
    value = {"env": _from_environment, "file": _from_file, "cmd": _from_program}[kind](rest, reference, base)
    if not value:
        raise SecretUnresolved(f"{reference} is empty", hints=("an empty secret is never meant",))
    if "\0" in value:
        raise SecretUnresolved(f"{reference} contains a NUL character")
    return Secret(value, reference=reference)


def _from_environment(name: str, reference: str, _base: Path) -> str:
    value = os.environ.get(name)
    if value is None:
        raise SecretUnresolved(f"{reference}: the variable is not set", hints=(f"export {name}",))
    return value


def _from_file(name: str, reference: str, base: Path) -> str:
    path = base / expanded(name)
    try:
        return _last_newline_off(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise SecretUnresolved(f"{reference}: the file is not UTF-8") from error
    except OSError as error:
        raise SecretUnresolved(
            f"{reference}: {(error.strerror or str(error)).lower()}", where=str(path)
        ) from error


def _from_program(line: str, reference: str, base: Path) -> str:
    try:
        argv = shlex.split(line)
    except ValueError as error:
        raise SecretUnresolved(f"{reference}: {str(error).lower()}", hints=("check the quotes",)) from error
    hint = "run the program by hand to see why"
    try:
        ended = subprocess.run(
            argv, cwd=base, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise SecretUnresolved(f"{reference}: no answer within {TIMEOUT:g} seconds", hints=(hint,)) from None
    except (OSError, IndexError) as error:
        reason = getattr(error, "strerror", None) or "there is no program in it"
        raise SecretUnresolved(f"{reference}: {reason.lower()}") from error
    if ended.returncode != 0:
        raise SecretUnresolved(
            f"{reference}: the program ended with status {ended.returncode}", hints=(hint,)
        )
    try:
        return _last_newline_off(ended.stdout.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise SecretUnresolved(f"{reference}: the program did not print UTF-8", hints=(hint,)) from error


def _last_newline_off(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")
