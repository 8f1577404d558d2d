"""The root of every error gpufleet raises on purpose, its families and the one table of exit codes.

An error is raised where the fact is known and carries values; it is rendered in one place, `cli.console`,
as text or as the same fields in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What the process answers to a shell; the table of `docs/reference/exit-codes.md`."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    CHANGES = 3
    REFUSED = 4
    STALE = 5
    LEASE_HELD = 6
    UNREACHABLE = 7
    PREFLIGHT = 8
    ROLLED_BACK = 9
    INCOMPLETE = 10
    IN_DOUBT = 11
    CANNOT_SERVE = 12
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """One of several places that an error is about: a host, a line of a file, a step."""

    where: str
    message: str
    hint: str = ""
    code: str = ""


class FleetError(Exception):
    """Something a person can act on.

    Attributes:
        code: stable slug, one a class; runbooks match on it.
        exit: the process's exit code.
        summary: one line without a full stop.
        where: host, `file:line`, or step; empty when the summary says it all.
        hints: what to do next, each one line.
        rows: the single places, when there are several.
        fields: further fields of the JSON answer, such as `hosts`.
    """

    code: ClassVar[str] = "error"
    exit: ClassVar[ExitCode] = ExitCode.INTERNAL
    outcome: ClassVar[str] = "failed"

    def __init__(
        self,
        summary: str,
        *,
        where: str = "",
        hints: tuple[str, ...] = (),
        rows: tuple[ErrorRow, ...] = (),
        run: str = "",
    ) -> None:
        super().__init__(summary)
        self.summary = summary
        self.where = where
        self.hints = hints
        self.rows = rows
        self.run = run
        self.fields: Mapping[str, object] = {}

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.summary}"


class UsageError(FleetError):
    """The command line asks for something that does not exist or does not fit together."""

    code = "usage"
    exit = ExitCode.USAGE


class DocumentError(FleetError):
    """A file that a person wrote is wrong; every problem is a row with file and line."""

    code = "document"
    exit = ExitCode.USAGE


class SelectionError(FleetError):
    """A host selector names something unknown, or nothing at all."""

    code = "selection"
    exit = ExitCode.USAGE


class SecretUnresolved(FleetError):
    """A reference to a secret could not be followed; the reference is shown, never a value."""

    code = "secret-unresolved"
    exit = ExitCode.USAGE


class Refused(FleetError):
    """The facts forbid it; nothing was changed."""

    code = "refused"
    exit = ExitCode.REFUSED
    outcome = "refused"


class Unplaceable(Refused):
    """No free GPU or slice holds what was asked for."""

    code = "unplaceable"


class MemoryTooSmall(Refused):
    """The model would not start in the memory of the GPU or slice that a replica was given."""

    code = "memory-too-small"


class FactUnknown(Refused):
    """A fact the plan needs could not be read, and unknown is never treated as no."""

    code = "fact-unknown"


class StalePlan(FleetError):
    """The fleet moved since the plan was made."""

    code = "stale-plan"
    exit = ExitCode.STALE
    outcome = "refused"


class LeaseHeld(FleetError):
    """Another operator is changing one of these hosts."""

    code = "lease-held"
    exit = ExitCode.LEASE_HELD
    outcome = "refused"


class LeaseLost(FleetError):
    """Our lease was taken over, or the host that holds it does not answer."""

    code = "lease-lost"
    exit = ExitCode.IN_DOUBT
    outcome = "in_doubt"


class HostUnreachable(FleetError):
    """A host was not reached, or refused us, before any change."""

    code = "unreachable"
    exit = ExitCode.UNREACHABLE


class AuthenticationRefused(HostUnreachable):
    """The server is there and does not accept our key, password or agent."""

    code = "authentication"


class HostKeyUnknown(HostUnreachable):
    """No entry of known_hosts speaks for this host."""

    code = "host-key-unknown"


class HostKeyChanged(HostUnreachable):
    """The host shows another key than known_hosts holds, or one that is revoked."""

    code = "host-key-changed"


class SudoRefused(HostUnreachable):
    """sudo wants a password that was not given, or does not know the user."""

    code = "sudo-refused"


class PreflightFailed(FleetError):
    """A host cannot do what is asked of it; nothing was changed."""

    code = "preflight"
    exit = ExitCode.PREFLIGHT
    outcome = "refused"


class RolledBack(FleetError):
    """A step failed and every host is as it was before."""

    code = "rolled-back"
    exit = ExitCode.ROLLED_BACK
    outcome = "rolled_back"


class RollbackIncomplete(FleetError):
    """A step failed and not everything could be undone; rows say what is left and where."""

    code = "rollback-incomplete"
    exit = ExitCode.INCOMPLETE
    outcome = "incomplete"


class InDoubt(FleetError):
    """A run was interrupted; `change resume` or `change undo` ends it."""

    code = "in-doubt"
    exit = ExitCode.IN_DOUBT
    outcome = "in_doubt"


class CannotServe(FleetError):
    """The proxy cannot listen, or has nothing to serve."""

    code = "cannot-serve"
    exit = ExitCode.CANNOT_SERVE


class Interrupted(FleetError):
    """Ctrl-C before anything was changed."""

    code = "interrupted"
    exit = ExitCode.INTERRUPTED
