"""Hosts that are folders: each command runs in a real POSIX shell with the host's folder as its home.

Everything between `Command` and the shell is real (framing included); only the network is missing, so it can be
cut at will: before a command took effect, after it, or for good.
"""

from __future__ import annotations

import secrets
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpufleet.errors import HostUnreachable
from gpufleet.names import HostName
from gpufleet.remote.command import Command
from gpufleet.remote.framing import frame, unframe
from gpufleet.remote.result import Exit, Lost, Outcome

LOSE_BEFORE = "before"
LOSE_AFTER = "after"
NOT_SENT = "not sent"


@dataclass
class ShellHosts:
    """A transport over folders.

    Attributes:
        fault: asked before each command for one of the constants above, or None; called from several threads.
        dead: hosts that cannot be reached.
        ran: every command that reached its host, in order.
        cut: the process that used this transport is dead; nothing more leaves it.
    """

    base: Path
    shell: tuple[str, ...] = ("/bin/sh",)
    fault: Callable[[HostName, Command], str | None] = lambda _host, _command: None
    dead: set[HostName] = field(default_factory=set)
    ran: list[tuple[HostName, Command]] = field(default_factory=list)
    cut: bool = False
    running: int = 0
    lock: threading.Condition = field(default_factory=threading.Condition)

    def home(self, host: str) -> Path:
        home = self.base / host
        home.mkdir(parents=True, exist_ok=True)
        return home

    def open(self, host: HostName) -> ShellSession:
        if host in self.dead:
            raise HostUnreachable("connection refused", where=host)
        return ShellSession(self, host)

    def close(self) -> None:
        """Nothing is held open."""

    def wait_idle(self) -> None:
        """Until no command runs on any host any more."""
        with self.lock:
            assert self.lock.wait_for(lambda: not self.running, timeout=60)

    def execute(self, host: HostName, command: Command) -> Outcome:
        with self.lock:
            if self.cut:
                return Lost(reason="the process is dead", sent=False)
            self.ran.append((host, command))
            self.running += 1
        try:
            return self._executed(host, command)
        finally:
            with self.lock:
                self.running -= 1
                self.lock.notify_all()

    def _executed(self, host: HostName, command: Command) -> Outcome:
        marker = f"m{secrets.token_hex(8)}"
        completed = subprocess.run(
            [*self.shell, "-s"],
            input=frame(command, marker),
            capture_output=True,
            env={"HOME": str(self.home(host)), "PATH": "/usr/local/bin:/usr/bin:/bin"},
            timeout=60,
            check=False,
        )
        answer = unframe(completed.stdout, completed.stderr, marker)
        return answer.exit or Lost(reason="the shell died", sent=True)


@dataclass
class ShellSession:
    hosts: ShellHosts
    host: HostName

    def run(self, command: Command) -> Outcome:
        if self.host in self.hosts.dead:
            return Lost(reason="connection lost", sent=False)
        match self.hosts.fault(self.host, command):
            case "before":
                return Lost(reason="connection lost", sent=True)
            case "not sent":
                return Lost(reason="connection refused", sent=False)
            case "after":
                self.hosts.execute(self.host, command)
                return Lost(reason="connection lost", sent=True)
            case _:
                return self.hosts.execute(self.host, command)

    def put(self, content: bytes, path: str, mode: int) -> Outcome:
        target = self.hosts.home(self.host) / path.removeprefix("~/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode)
        return Exit(code=0)

    def close(self) -> None:
        """Nothing is held open."""
