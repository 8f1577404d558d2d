"""`test` and `[`: POSIX forms of up to four arguments, and nothing in which shells differ."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpufleet.lab.shell.syntax import Unsupported
from gpufleet.lab.simfs import Directory, File, Link

if TYPE_CHECKING:
    from gpufleet.lab.shell.interpreter import Shell

_UNARY = frozenset(
    {
        "-n",
        "-z",
        "-e",
        "-f",
        "-d",
        "-r",
        "-w",
        "-x",
        "-s",
        "-L",
        "-h",
        "-p",
        "-S",
        "-b",
        "-c",
        "-t",
        "-u",
        "-g",
        "-k",
    }
)
_NUMERIC = {
    "-eq": int.__eq__,
    "-ne": int.__ne__,
    "-lt": int.__lt__,
    "-le": int.__le__,
    "-gt": int.__gt__,
    "-ge": int.__ge__,
}
_BINARY = frozenset({"=", "!=", "-nt", "-ot", "-ef", *_NUMERIC})


class ConditionFault(Exception):
    """A malformed condition; exit status 2."""


def holds(words: list[str], shell: Shell) -> bool:
    """The truth of a condition."""
    match words:
        case []:
            return False
        case [word]:
            return word != ""
        case ["!", word]:
            return word == ""
        case [operator, operand]:
            return _unary(operator, operand, shell)
        case [left, operator, right] if operator in _BINARY:
            return _binary(left, operator, right, shell)
        case ["!", *rest] if len(rest) <= 3:
            return not holds(rest, shell)
        case ["(", word, ")"]:
            return word != ""
        case [_, "==", _]:
            raise Unsupported("test ==; write =")
        case _:
            if {"-a", "-o"} & set(words):
                raise Unsupported("test -a and -o; write && and ||")
            raise ConditionFault(f"{words[1] if len(words) > 1 else words[0]}: unexpected operator")


def _integer(text: str) -> int:
    if not re.fullmatch(r"\s*[-+]?\d+\s*", text):
        raise ConditionFault(f"Illegal number: {text}")
    return int(text)


def _binary(left: str, operator: str, right: str, shell: Shell) -> bool:
    if operator == "=":
        return left == right
    if operator == "!=":
        return left != right
    if operator in _NUMERIC:
        return bool(_NUMERIC[operator](_integer(left), _integer(right)))
    fs = shell.host.fs
    first = fs.seek(shell.host.fs_path(left, shell.cwd), shell.user)
    second = fs.seek(shell.host.fs_path(right, shell.cwd), shell.user)
    if operator == "-ef":
        return first is not None and first is second
    if first is None or second is None:
        raise Unsupported(f"test {operator} with a file that does not exist")
    return first.mtime > second.mtime if operator == "-nt" else first.mtime < second.mtime


def _unary(operator: str, operand: str, shell: Shell) -> bool:
    if operator not in _UNARY:
        raise ConditionFault(f"{operator}: unexpected operator")
    if operator == "-n":
        return operand != ""
    if operator == "-z":
        return operand == ""
    if operator == "-t" or not operand:
        return False
    fs = shell.host.fs
    path = shell.host.fs_path(operand, shell.cwd)
    link = operator in {"-L", "-h"}
    node = fs.seek(path, shell.user, follow=not link)
    if node is None:
        return operator in {"-e", "-r", "-w"} and path in {"/dev/null", "/dev/stdin", "/dev/stdout"}
    match operator:
        case "-L" | "-h":
            return isinstance(node, Link)
        case "-f":
            return isinstance(node, File)
        case "-d":
            return isinstance(node, Directory)
        case "-s":
            return not isinstance(node, File) or len(node.read()) > 0
        case "-r":
            return fs.may(shell.user, node, 4)
        case "-w":
            return fs.may(shell.user, node, 2)
        case "-x":
            return fs.may(shell.user, node, 1) and (shell.user != "root" or bool(node.mode & 0o111))
        case "-S":
            return path in shell.host.parts.get("sockets", ())
        case "-p" | "-b" | "-c" | "-u" | "-g" | "-k":
            return operator == "-c" and path.startswith("/dev/")
        case _:
            return True
