"""Builtins of the shell."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from gpufleet.lab.shell.call import ExitShell, LeaveLoop, ReturnFunction
from gpufleet.lab.shell.conditions import ConditionFault, holds
from gpufleet.lab.shell.printf import PrintfFault, printf
from gpufleet.lab.shell.syntax import Unsupported
from gpufleet.lab.shell.variable_builtins import VARIABLE_BUILTINS
from gpufleet.lab.simfs import FsError

if TYPE_CHECKING:
    from gpufleet.lab.shell.interpreter import Shell

Builtin: TypeAlias = Callable[["Shell", list[str]], int]
Act: TypeAlias = Callable[[], int]

SPECIAL = frozenset(
    {
        ":",
        ".",
        "break",
        "continue",
        "eval",
        "exec",
        "exit",
        "export",
        "return",
        "set",
        "shift",
        "trap",
        "unset",
    }
)
REFUSED = frozenset(
    {
        "sed",
        "awk",
        "perl",
        "python",
        "python3",
        "jq",
        "flock",
        "xargs",
        "find",
        "source",
        "let",
        "declare",
        "typeset",
        "pushd",
        "popd",
        "shopt",
        "getopts",
        "alias",
        "ulimit",
        "fg",
        "bg",
        "jobs",
        "hash",
        "readonly",
        "times",
    }
)
"""Not in the dialect: scripts that use them are refused loudly."""
SIGNALS = {
    "HUP": 1,
    "INT": 2,
    "QUIT": 3,
    "KILL": 9,
    "USR1": 10,
    "USR2": 12,
    "TERM": 15,
    "CONT": 18,
    "STOP": 19,
    "EXIT": 0,
}


def signal_number(text: str) -> int | None:
    """`TERM`, `SIGTERM` or `15` as a number."""
    if text.isdigit():
        return int(text)
    return SIGNALS.get(text.removeprefix("SIG"))


def _true(_shell: Shell, _argv: list[str]) -> int:
    return 0


def _false(_shell: Shell, _argv: list[str]) -> int:
    return 1


def _echo(shell: Shell, argv: list[str]) -> int:
    words = argv[1:]
    end = "\n"
    if words and words[0] == "-n":
        words, end = words[1:], ""
    text = " ".join(words)
    if "\\" in text:
        raise Unsupported("echo with a backslash: shells differ; use printf '%s\\n'")
    if words and re.fullmatch("-[neE]+", words[0]):
        raise Unsupported(f"echo {words[0]}: shells differ; use printf")
    shell.sink(1).write(text + end)
    return 0


def _printf(shell: Shell, argv: list[str]) -> int:
    arguments = argv[2:] if argv[1:2] == ["--"] else argv[1:]
    if not arguments:
        return shell.complain("printf: usage: printf format [arg ...]")
    try:
        text, status = printf(arguments[0], arguments[1:])
    except PrintfFault as fault:
        return shell.complain(f"printf: {fault}", 1)
    shell.sink(1).write(text)
    return status


def _test(shell: Shell, argv: list[str]) -> int:
    words = argv[1:]
    if argv[0] == "[":
        if not words or words[-1] != "]":
            return shell.complain("[: missing ]")
        words = words[:-1]
    try:
        return int(not holds(words, shell))
    except ConditionFault as fault:
        return shell.complain(f"{argv[0]}: {fault}")


def _cd(shell: Shell, argv: list[str]) -> int:
    words = [word for word in argv[1:] if word not in {"-P", "-L", "--"}]
    target = words[0] if words else shell.variables.get("HOME", "/")
    if target == "-":
        target = shell.variables.get("OLDPWD", "/")
    path = shell.host.fs_path(target, shell.cwd)
    try:
        shell.host.fs.enter(path, shell.user)
    except FsError:
        return shell.complain(f"cd: can't cd to {target}")
    shell.variables["OLDPWD"] = shell.cwd
    shell.cwd = shell.variables["PWD"] = path
    return 0


def _pwd(shell: Shell, _argv: list[str]) -> int:
    shell.sink(1).write(f"{shell.cwd}\n")
    return 0


def _eval(shell: Shell, argv: list[str]) -> int:
    shell.status = 0
    shell.run_lines(" ".join(argv[1:]))
    return shell.status


def _exec(shell: Shell, argv: list[str]) -> int:
    if len(argv) == 1:
        return 0
    status = shell.program(argv[1:], shell.environment())
    shell.traps.clear()
    raise ExitShell(status)


def _exit(shell: Shell, argv: list[str]) -> int:
    if len(argv) > 1 and not argv[1].isdigit():
        shell.complain(f"exit: Illegal number: {argv[1]}")
        raise ExitShell(2)
    raise ExitShell(int(argv[1]) & 255 if len(argv) > 1 else shell.status)


def _return(shell: Shell, argv: list[str]) -> int:
    raise ReturnFunction(int(argv[1]) & 255 if len(argv) > 1 else shell.status)


def _break(shell: Shell, argv: list[str]) -> int:
    if shell.loops:
        raise LeaveLoop(int(argv[1]) if len(argv) > 1 else 1, again=argv[0] == "continue")
    return 0


def _command(shell: Shell, argv: list[str]) -> int:
    words = argv[1:]
    if words[:1] == ["-V"]:
        raise Unsupported("command -V")
    if words[:1] == ["-v"]:
        return _where(shell, words[1:2])
    if words[:1] == ["-p"]:
        words = words[1:]
    return shell.command(words, {}, functions=False) if words else 0


def _where(shell: Shell, names: list[str]) -> int:
    if not names:
        return 127
    name = names[0]
    known = name in shell.functions or name in BUILTINS
    place = name if known and "/" not in name else shell.find_program(name)
    if place is None:
        return 127
    shell.sink(1).write(f"{place}\n")
    return 0


def _type(shell: Shell, argv: list[str]) -> int:
    status = 0
    for name in argv[1:]:
        place = shell.find_program(name)
        if name in shell.functions:
            shell.sink(1).write(f"{name} is a shell function\n")
        elif name in BUILTINS:
            shell.sink(1).write(f"{name} is a shell builtin\n")
        elif place is not None:
            shell.sink(1).write(f"{name} is {place}\n")
        else:
            status = shell.complain(f"{name}: not found", 127)
    return status


def _trap(shell: Shell, argv: list[str]) -> int:
    words = argv[2:] if argv[1:2] == ["--"] else argv[1:]
    if not words:
        return 0
    if len(words) == 1:
        shell.traps.pop(words[0].removeprefix("SIG").replace("0", "EXIT"), None)
        return 0
    for word in words[1:]:
        name = "EXIT" if word == "0" else word.removeprefix("SIG")
        if name not in SIGNALS and not name.isdigit():
            return shell.complain(f"trap: {word}: bad trap", 1)
        if words[0] == "-":
            shell.traps.pop(name, None)
        else:
            shell.traps[name] = words[0]
    return 0


def _wait(shell: Shell, argv: list[str]) -> int:
    pids = [int(word) for word in argv[1:] if word.isdigit()]
    status = 0
    for pid in pids or sorted(shell.shared.finished | shell.shared.parked.keys()):
        status = _wait_one(shell, pid)
    return status if pids else 0


def _wait_one(shell: Shell, pid: int) -> int:
    wake = shell.shared.parked.pop(pid, None)
    if wake is None:
        return shell.shared.finished.pop(pid, 127)
    process = shell.host.processes.get(pid)
    if process is not None and process.signal:
        shell.shared.again.pop(pid, None)
        shell.host.finish(pid)
        return 128 + process.signal
    raise Unsupported("waiting for a background job that sleeps")


def _kill(shell: Shell, argv: list[str]) -> int:
    words = argv[1:]
    number: int | None = 15
    if words[:1] == ["-s"]:
        number, words = signal_number(words[1]), words[2:]
    elif words and re.fullmatch(r"-(?:[A-Z]+|\d+)", words[0]):
        number, words = signal_number(words[0][1:]), words[1:]
    words = words[1:] if words[:1] == ["--"] else words
    if number is None or not words:
        return shell.complain("kill: usage: kill [-s signal] pid ...")
    status = 0
    for word in words:
        if not re.fullmatch(r"-?\d+", word):
            status = shell.complain(f"kill: Illegal number: {word}")
        elif not shell.signal(abs(int(word)), number):
            status = shell.complain("kill: No such process", 1)
    return status


def _dot(shell: Shell, argv: list[str]) -> int:
    path = shell.host.fs_path(argv[1], shell.cwd)
    try:
        text = shell.host.fs.read(path, shell.user).decode("latin-1")
    except FsError:
        shell.complain(f".: cannot open {argv[1]}: No such file")
        raise ExitShell(2) from None
    shell.status = 0
    try:
        shell.run_lines(text)
    except ReturnFunction as ending:
        return ending.status
    return shell.status


BUILTINS: dict[str, Builtin] = {
    **VARIABLE_BUILTINS,
    ":": _true,
    ".": _dot,
    "true": _true,
    "false": _false,
    "echo": _echo,
    "printf": _printf,
    "test": _test,
    "[": _test,
    "cd": _cd,
    "pwd": _pwd,
    "eval": _eval,
    "exec": _exec,
    "exit": _exit,
    "return": _return,
    "break": _break,
    "continue": _break,
    "command": _command,
    "type": _type,
    "trap": _trap,
    "wait": _wait,
    "kill": _kill,
}
