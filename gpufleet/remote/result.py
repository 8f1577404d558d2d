"""What came back from a host: an answer, or the fact that none came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The remote process ended and we read its answer to the end.

    Attributes:
        code: exit status, 128 + N when a signal N ended it.
        stdout: decoded as UTF-8 with replacement, login noise removed.
        stderr: likewise.
        sudo_refused: why sudo did not run the command (a slug of `remote.sudo`), empty when it did or was not
            asked; the command has not started then.
    """

    code: int
    stdout: str = ""
    stderr: str = ""
    sudo_refused: str = ""

    @property
    def ok(self) -> bool:
        """Whether the exit status was 0; output on standard error says nothing about success."""
        return self.code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """No answer came.

    Attributes:
        reason: one line, without addresses of memory or library names.
        sent: True when the request was on the wire: it may have run, and only a look can tell.
    """

    reason: str
    sent: bool


Outcome: TypeAlias = Exit | Lost
