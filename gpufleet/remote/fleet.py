"""One transport for hosts over SSH and for this machine alike; paramiko is imported when the first SSH host is opened."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from gpufleet.clock import Clock
from gpufleet.errors import SelectionError
from gpufleet.names import HostName
from gpufleet.redact import Secret
from gpufleet.remote.local import LocalTransport
from gpufleet.remote.target import Target, Way
from gpufleet.remote.transport import Session

if TYPE_CHECKING:
    from gpufleet.remote.ssh.transport import SshTransport


class FleetTransport:
    """Opens each host in its own way. Safe to use from several threads."""

    def __init__(
        self,
        targets: Mapping[HostName, Target],
        *,
        clock: Clock | None = None,
        warn: Callable[[str], None] = lambda _line: None,
        ask_passphrase: Callable[[str], Secret[str] | None] | None = None,
    ) -> None:
        self._targets = targets
        self._clock = clock
        self._warn = warn
        self._ask_passphrase = ask_passphrase
        self._local = LocalTransport(targets, clock=clock)
        self._ssh: SshTransport | None = None
        self._lock = threading.Lock()

    def open(self, host: HostName) -> Session:
        """A session; raises `HostUnreachable` or one of its kinds."""
        target = self._targets.get(host)
        if target is None:
            raise SelectionError(f"there is no host {host}")
        if target.way is Way.LOCAL:
            return self._local.open(host)
        return self.over_ssh().open(host)

    def over_ssh(self) -> SshTransport:
        """The SSH side, for what only it can answer, such as a host's key."""
        with _without("invoke"):
            from gpufleet.remote.ssh.transport import SshTransport  # noqa: PLC0415 costs a fifth of a second, and some never need it

        with self._lock:
            if self._ssh is None:
                self._ssh = SshTransport(
                    self._targets, clock=self._clock, warn=self._warn, ask_passphrase=self._ask_passphrase
                )
            return self._ssh

    def close(self) -> None:
        """Close every session and jump connection."""
        with self._lock:
            ssh, self._ssh = self._ssh, None
        if ssh is not None:
            ssh.close()


@contextlib.contextmanager
def _without(name: str) -> Iterator[None]:
    """Keep a module from being imported meanwhile.

    paramiko takes `invoke` for `Match exec` in its own reader of ssh_config, which nothing here uses, goes without
    it when it is absent, and would spend a third of its import on it.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # the documented way to make an import fail
    try:
        yield
    finally:
        del sys.modules[name]
