"""Builtins that set variables, parameters and options."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpufleet.lab.shell.call import ExitShell
from gpufleet.lab.shell.streams import Reader
from gpufleet.lab.shell.syntax import Unsupported

if TYPE_CHECKING:
    from gpufleet.lab.shell.interpreter import Shell

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _export(shell: Shell, argv: list[str]) -> int:
    for word in argv[1:]:
        if word.startswith("-"):
            raise Unsupported(f"export {word}")
        name, given, value = word.partition("=")
        if not _NAME.fullmatch(name):
            shell.complain(f"export: {name}: bad variable name")
            raise ExitShell(2)
        if given:
            shell.variables[name] = value
        shell.exported.add(name)
    return 0


def _unset(shell: Shell, argv: list[str]) -> int:
    words = argv[1:]
    functions = bool(words) and words[0] == "-f"
    for word in words[1:] if words and words[0] in {"-f", "-v"} else words:
        if functions:
            shell.functions.pop(word, None)
        else:
            shell.variables.pop(word, None)
            shell.exported.discard(word)
    return 0


def _set(shell: Shell, argv: list[str]) -> int:
    words = argv[1:]
    while words and words[0][:1] in {"-", "+"} and len(words[0]) > 1:
        word = words.pop(0)
        if word == "--":
            shell.parameters = words
            return 0
        letters = word[1:]
        if letters == "o" and words:
            letters = {"errexit": "e", "nounset": "u", "noglob": "f", "noclobber": "C"}.get(
                words[0], words[0]
            )
            words.pop(0)
        for letter in letters:
            if letter not in "eufC":
                raise Unsupported(f"set {word[0]}{letters}")
            (shell.options.add if word[0] == "-" else shell.options.discard)(letter)
    if words:
        shell.parameters = words
    return 0


def _shift(shell: Shell, argv: list[str]) -> int:
    count = int(argv[1]) if len(argv) > 1 else 1
    if count > len(shell.parameters):
        shell.complain("shift: can't shift that many")
        raise ExitShell(2)
    shell.parameters = shell.parameters[count:]
    return 0


def _read(shell: Shell, argv: list[str]) -> int:
    words = argv[1:]
    raw = False
    while words and words[0].startswith("-"):
        if words[0] != "-r":
            raise Unsupported(f"read {words[0]}")
        raw = True
        words = words[1:]
    if not words:
        raise Unsupported("read without a name")
    source = shell.fds.get(0)
    line = source.line() if isinstance(source, Reader) else None
    status = 0 if line is not None and line.endswith("\n") else 1
    text = (line or "").replace("\0", "")
    if not raw and "\\" in text:
        raise Unsupported("read without -r of a line with a backslash")
    for name, value in zip(words, _fields(shell, text.removesuffix("\n"), len(words)), strict=True):
        shell.variables[name] = value
    return status


def _fields(shell: Shell, text: str, count: int) -> list[str]:
    separators = shell.variables.get("IFS", " \t\n")
    space = "".join(c for c in separators if c in " \t\n")
    fields: list[str] = []
    text = text.lstrip(space) if space else text
    while len(fields) < count - 1 and text:
        end = next((at for at, c in enumerate(text) if c in separators), len(text))
        fields.append(text[:end])
        rest = text[end:]
        stripped = rest.lstrip(space) if space else rest
        if stripped and stripped[0] in separators and stripped[0] not in space:
            stripped = stripped[1:].lstrip(space) if space else stripped[1:]
        text = stripped
    last = text.rstrip(space) if space else text
    hard = "".join(c for c in separators if c not in space)
    if last and hard and last[-1] in hard and not any(c in separators for c in last[:-1]):
        last = last[:-1]
    fields.append(last)
    return fields + [""] * (count - len(fields))


def _umask(shell: Shell, argv: list[str]) -> int:
    if len(argv) == 1:
        shell.sink(1).write(f"{shell.umask:04o}\n")
        return 0
    if not re.fullmatch("[0-7]{1,4}", argv[1]):
        raise Unsupported(f"umask {argv[1]}")
    shell.umask = int(argv[1], 8)
    return 0


def _local(shell: Shell, argv: list[str]) -> int:
    if not shell.locals:
        return shell.complain("local: not in a function")
    for word in argv[1:]:
        name, given, value = word.partition("=")
        shell.locals[-1].setdefault(name, shell.variables.get(name))
        if given:
            shell.variables[name] = value
    return 0


VARIABLE_BUILTINS: dict[str, Callable[[Shell, list[str]], int]] = {
    "export": _export,
    "unset": _unset,
    "set": _set,
    "shift": _shift,
    "read": _read,
    "umask": _umask,
    "local": _local,
}
