"""One way to each host for a whole run: opened when first needed, opened again after a loss."""

from __future__ import annotations

import threading

from gpufleet.clock import Clock
from gpufleet.errors import HostUnreachable, SelectionError
from gpufleet.names import HostName
from gpufleet.remote.command import Command
from gpufleet.remote.result import Lost, Outcome
from gpufleet.remote.transport import Session, Transport

TRIES = 3
PAUSE = 1.0
"""Seconds before the second try to reach a host; doubled for the third."""


class Reach:
    """Runs commands on hosts by name. Safe to use from several threads."""

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport = transport
        self._clock = clock
        self._sessions: dict[HostName, Session] = {}
        self._locks: dict[HostName, threading.Lock] = {}
        self._left: list[Session] = []
        self._lock = threading.Lock()

    def run(self, host: HostName, command: Command) -> Outcome:
        """Run once; a host that cannot be reached, or left the inventory, is `Lost(sent=False)`."""
        try:
            session = self._session(host)
        except HostUnreachable as error:
            return Lost(reason=error.summary, sent=False)
        except SelectionError:
            # A run names its hosts; whoever ends it later may have another inventory.
            return Lost(reason="the inventory does not have this host any more", sent=False)
        outcome = session.run(command)
        if isinstance(outcome, Lost):
            self._drop(host, session)
        return outcome

    def insist(self, host: HostName, command: Command, tries: int = TRIES) -> Outcome:
        """Run, and try again while nothing was sent; also after a loss when the command only looks."""
        pause = PAUSE
        outcome = self.run(host, command)
        for _ in range(tries - 1):
            if not isinstance(outcome, Lost) or (outcome.sent and command.mutates):
                break
            self._clock.sleep(pause)
            pause *= 2
            outcome = self.run(host, command)
        return outcome

    def close(self) -> None:
        """Let go of every session."""
        with self._lock:
            sessions = [*self._sessions.values(), *self._left]
            self._sessions.clear()
            self._left.clear()
        for session in sessions:
            session.close()

    def _session(self, host: HostName) -> Session:
        with self._lock:
            lock = self._locks.setdefault(host, threading.Lock())
        with lock:
            session = self._sessions.get(host)
            if session is None:
                session = self._transport.open(host)
                self._sessions[host] = session
            return session

    def _drop(self, host: HostName, session: Session) -> None:
        """Other threads may still hear from it, so it is closed at the end and not now."""
        with self._lock:
            if self._sessions.get(host) is session:
                del self._sessions[host]
            self._left.append(session)
