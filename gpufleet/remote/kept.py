"""One connection a host for a whole command line: opened when first asked for, kept until the end.

A deploy looks at its hosts, takes their leases, looks again, acts and retires. Logging in anew for each costs more
than all commands together, here and on the hosts. A session whose answer was lost is let go, so that whoever opens
the host next gets a new connection.
"""

from __future__ import annotations

import threading

from gpufleet.names import HostName
from gpufleet.remote.command import Command
from gpufleet.remote.result import Lost, Outcome
from gpufleet.remote.transport import Session, Transport


class KeptTransport:
    """Implements `Transport` over another one, which it closes. Safe to use from several threads."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._sessions: dict[HostName, Session] = {}
        self._opening: dict[HostName, threading.Lock] = {}
        self._lock = threading.Lock()

    def open(self, host: HostName) -> KeptSession:
        """The session that is there, or a new one. Raises what the transport below raises."""
        with self._lock:
            opening = self._opening.setdefault(host, threading.Lock())
        with opening:
            with self._lock:
                session = self._sessions.get(host)
            if session is None:
                session = self._transport.open(host)
                with self._lock:
                    self._sessions[host] = session
        return KeptSession(self, host, session)

    def let_go(self, host: HostName, session: Session) -> None:
        """Do not hand this session out again. Others may still hear from it, so it is closed at the end."""
        with self._lock:
            if self._sessions.get(host) is session:
                del self._sessions[host]

    def close(self) -> None:
        """Close everything below."""
        with self._lock:
            self._sessions.clear()
        self._transport.close()


class KeptSession:
    """Implements `Session`; closing it closes nothing.

    Attributes:
        noisy: a login here printed text before our first byte.
    """

    def __init__(self, kept: KeptTransport, host: HostName, session: Session) -> None:
        self._kept = kept
        self._host = host
        self._session = session

    @property
    def noisy(self) -> bool:
        """As the session below says; only one over SSH can be."""
        return bool(getattr(self._session, "noisy", False))

    def run(self, command: Command) -> Outcome:
        """Run to the end or to the deadline."""
        return self._heard(self._session.run(command))

    def put(self, content: bytes, path: str, mode: int) -> Outcome:
        """Write a file whole."""
        return self._heard(self._session.put(content, path, mode))

    def _heard(self, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Lost):
            self._kept.let_go(self._host, self._session)
        return outcome

    def close(self) -> None:
        """Leave the connection for the next one."""
