"""The seam between what is run and how words travel; memory, in-process SSH and OpenSSH all fit it."""

from __future__ import annotations

from typing import Protocol

from gpufleet.names import HostName
from gpufleet.remote.command import Command
from gpufleet.remote.result import Outcome


class Session(Protocol):
    """An open way to one host. Safe to use from several threads."""

    def run(self, command: Command) -> Outcome:
        """Run to the end or to the deadline; never raises for what the host does."""
        ...

    def put(self, content: bytes, path: str, mode: int) -> Outcome:
        """Write a file whole: to a temporary name beside it, fsync, mode, rename. `~/` is the home directory."""
        ...

    def close(self) -> None:
        """Let go of the connection; calling it twice is fine."""
        ...


class Transport(Protocol):
    """Opens sessions by host name."""

    def open(self, host: HostName) -> Session:
        """Raises `errors.HostUnreachable` or one of its kinds when the host is not reached or refuses us."""
        ...

    def close(self) -> None:
        """Close every session and jump connection that is still open."""
        ...
