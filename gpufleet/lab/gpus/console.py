"""What nvidia-smi needs of whoever runs it: a call in a simulated shell, or a process of a real host."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """Tells the time that nvidia-smi prints."""

    def now(self) -> datetime:
        """Wall clock."""
        ...


class Machine(Protocol):
    """The machine it runs on."""

    @property
    def clock(self) -> Clock:
        """Its clock."""
        ...


class Output(Protocol):
    """Standard output."""

    def write(self, text: str) -> object:
        """Append text."""
        ...


class Console(Protocol):
    """One run of nvidia-smi."""

    @property
    def host(self) -> Machine:
        """Where it runs."""
        ...

    @property
    def arguments(self) -> list[str]:
        """The words behind the program's name."""
        ...

    @property
    def user(self) -> str:
        """Who runs it; only `root` may change a GPU."""
        ...

    @property
    def out(self) -> Output:
        """Where it prints, errors too."""
        ...

    def say(self, *lines: str) -> None:
        """Print lines."""
        ...

    def complain(self, text: str, status: int = 1) -> int:
        """Print to standard error; gives the status back."""
        ...

    def pause(self, seconds: float) -> None:
        """Let time pass."""
        ...
