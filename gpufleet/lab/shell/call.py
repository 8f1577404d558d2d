"""What a program is given, and how it ends early."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from gpufleet.lab.shell.streams import Reader, Sink
from gpufleet.lab.simhost import SimHost

if TYPE_CHECKING:
    from gpufleet.lab.shell.interpreter import Shell


class Ending(BaseException):
    """Control flow, not a fault; no `except Exception` may swallow it."""


class ExitShell(Ending):
    """`exit`."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class ReturnFunction(Ending):
    """`return`."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class LeaveLoop(Ending):
    """`break` or `continue`, `levels` loops up."""

    def __init__(self, levels: int, *, again: bool) -> None:
        super().__init__(levels)
        self.levels = levels
        self.again = again


class DeadlinePassed(Ending):
    """Somebody's time is up; `at` says whose."""

    def __init__(self, at: float) -> None:
        super().__init__(at)
        self.at = at


@dataclass(slots=True)
class Shared:
    """What a shell and all its subshells have in common."""

    deadlines: list[float]
    """On the script's own time, which begins at 0 and counts what it waited: hosts share a clock, and another
    one's waiting must not end this one's patience."""
    elapsed: float = 0.0
    fuse: int | None = None
    """Commands after which the power goes, for faults."""
    steps: int = 0
    background: int = 0
    pids: list[int] = field(default_factory=list)
    """Shells that wait for one another, outermost first."""
    parked: dict[int, float] = field(default_factory=dict)
    """Pid of a parked job and when its sleep ends."""
    finished: dict[int, int] = field(default_factory=dict)
    """Pid of a background job that ended and its status."""
    again: dict[int, Callable[[], int]] = field(default_factory=dict)
    """Pid of a parked job that does nothing before its sleep is over, and what runs it then."""
    ripe: bool = False
    """Whether the job that runs now has slept already."""


class PowerCut(Ending):
    """The host died in the middle of a script."""


class Parked(Ending):
    """A background job would sleep; `first`: before it did anything, so that it can be run when that is over."""

    def __init__(self, until: float, *, first: bool = False) -> None:
        super().__init__(until)
        self.until = until
        self.first = first


@dataclass(slots=True, kw_only=True)
class Call:
    """One run of one program. All texts are byte text.

    Attributes:
        argv: the program's name and its arguments.
        env: exported variables.
        user: who runs it.
        shell: the shell that called, for programs that run others.
    """

    argv: Sequence[str]
    stdin: Reader
    out: Sink
    err: Sink
    env: Mapping[str, str]
    cwd: str
    user: str
    shell: Shell

    @property
    def host(self) -> SimHost:
        """The machine it runs on."""
        return self.shell.host

    @property
    def arguments(self) -> list[str]:
        """What stands behind the program's name."""
        return list(self.argv[1:])

    def say(self, *lines: str) -> None:
        """Write lines to standard output."""
        for line in lines:
            self.out.write(f"{line}\n")

    def complain(self, text: str, status: int = 1) -> int:
        """Write a line to standard error; gives the exit status back."""
        self.err.write(f"{text}\n")
        return status

    def pause(self, seconds: float) -> None:
        """Let time pass; raises when a deadline or a signal comes first."""
        self.shell.pause(seconds)

    def pause_first(self, seconds: float) -> None:
        """The same for a program that has done nothing yet: in the background it is then run when the time is over."""
        self.shell.pause(seconds, first=True)


Program: TypeAlias = Callable[[Call], int]
