"""Taking the leases of a run, keeping them alive, and giving them back."""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from gpufleet.change.leases import lease
from gpufleet.change.leases.lease import Answer, Grant, Holder, Standing
from gpufleet.change.reach import Reach
from gpufleet.change.records.document import JournalError
from gpufleet.change.records.journal import Record, decode, head_of_copy
from gpufleet.clock import Clock
from gpufleet.errors import ErrorRow, FleetError, HostUnreachable, LeaseHeld, PreflightFailed, Refused
from gpufleet.names import HostName, RunId
from gpufleet.remote.command import Command
from gpufleet.remote.fanout import fanout
from gpufleet.remote.result import Exit, Lost


class LeaseKeeper:
    """The leases of one run in this process.

    Args:
        holder: who we are; each keeper has a token of its own.
        heartbeat: seconds between two heartbeats.
        audit: where takeovers are noted.
        died_here: whether a run is one of this machine whose process is gone.
        forks: hosts asked at once.
    """

    def __init__(
        self,
        *,
        reach: Reach,
        holder: Holder,
        run: RunId,
        audit: Audit,
        died_here: Callable[[str], bool] = lambda _run: False,
        heartbeat: float = lease.HEARTBEAT,
        forks: int = 32,
    ) -> None:
        self.grants: dict[HostName, Grant] = {}
        self._reach = reach
        self._holder = replace(holder, token=secrets.token_hex(16), run=run)
        self.run = run
        self._audit = audit
        self._died_here = died_here
        self._heartbeat = heartbeat
        self._forks = forks
        self._ended = threading.Event()

    def take(
        self, hosts: Iterable[HostName], head: Record, *, again: Sequence[Record] = (), tidy: bool = False
    ) -> None:
        """Take all leases or none: the first in name order, then the others at once.

        So of two runs that want the same hosts exactly one goes on. Two whose hosts overlap only in part may both be
        refused, with nothing changed.

        Args:
            hosts: whose.
            head: the journal's first record, with which the copies begin.
            again: the records of a run that is taken up; then a host may be out of reach, and has no grant.
            tidy: the run is over, its leases are only to be given back.

        Raises:
            LeaseHeld: somebody else holds one; rows say who, since when and what to do.
            HostUnreachable: a host of a fresh run does not answer.
            PreflightFailed: a host cannot write its state.
            Refused: the run was taken up on another machine and went on there.
        """
        self._start()
        command = lease.take(self._holder, head_of_copy(head), tidy=tidy)
        try:
            self._take_all(sorted(hosts), command, again)
        except BaseException:
            self.release(ending="", rest=lambda _host: b"")
            raise

    def _take_all(self, names: list[HostName], command: Command, again: Sequence[Record]) -> None:
        for host in names[:1]:
            self._take_one(host, command, again)
        told = fanout(names[1:], lambda host: self._take_one(host, command, again), forks=self._forks)
        for answer in told.values():
            if isinstance(answer, FleetError):
                raise answer

    def release(self, *, ending: str, rest: Callable[[HostName], bytes]) -> tuple[HostName, ...]:
        """Give every lease back; answers with the hosts that did not hear it: theirs expire by themselves.

        `rest`: lines that a host's copy of the journal lacks.
        """
        self.stop()
        grants, self.grants = self.grants, {}

        def heard(host: HostName) -> bool:
            outcome = self._reach.insist(host, lease.release(grants[host], ending, rest(host)))
            return isinstance(outcome, Exit) and lease.parse(outcome) is not None

        told = fanout(sorted(grants), heard, forks=self._forks)
        return tuple(host for host, answer in told.items() if answer is not True)

    def stop(self) -> None:
        """No more heartbeats; leases that are not given back expire. One that is under way is not waited for."""
        self._ended.set()

    def _start(self) -> None:
        self._ended = threading.Event()
        threading.Thread(target=self._beat, args=(self._ended,), name="lease heartbeat", daemon=True).start()

    def _beat(self, ended: threading.Event) -> None:
        """A host that does not answer misses a beat; its guard decides whether we still hold the lease."""
        while not ended.wait(self._heartbeat):
            fanout(tuple(self.grants), self._renew, forks=self._forks)

    def _renew(self, host: HostName) -> None:
        grant = self.grants.get(host)
        if grant is not None:
            self._reach.run(host, lease.renew(grant))

    def _take_one(self, host: HostName, command: Command, again: Sequence[Record]) -> None:
        outcome = self._reach.insist(host, command)
        if isinstance(outcome, Lost) and outcome.sent:
            # It may hold our token already; taking again with the same run and seat is harmless.
            outcome = self._reach.insist(host, command)
        if isinstance(outcome, Lost):
            if again:
                return
            raise HostUnreachable(outcome.reason, where=host, hints=("nothing was changed",))
        answer = lease.parse(outcome)
        if answer is None or answer.standing is Standing.FULL:
            raise PreflightFailed(
                "the lease cannot be written in ~/.gpufleet",
                where=host,
                hints=(_last_line(outcome) or "make room in the home directory",),
            )
        if answer.standing is Standing.SETTLED:
            raise went_on(host, self.run, f"it is {answer.ending}")
        if answer.standing is not Standing.TAKEN:
            raise held(host, answer, died_here=self._died_here)
        self.grants[host] = Grant(host=host, token=self._holder.token, run=self.run, root=answer.root)
        if answer.over:
            self._audit.note("takeover", host=host, run=self.run, who=self._holder.who, over=answer.over)
        if self._ended.is_set():  # given up while this host answered
            self._reach.run(host, lease.release(self.grants.pop(host), "", b""))
        if again and _number(answer.last_line) > again[-1].seq:
            raise went_on(host, self.run, "its copy of the journal is longer than ours")


def _number(line: str) -> int:
    """The sequence number of a record; 0 for a line that was torn."""
    try:
        return decode(line.encode()).seq
    except JournalError:
        return 0


def went_on(host: HostName, run: RunId, how: str) -> Refused:
    """The error for a journal that is no longer the whole story."""
    return Refused(
        f"run {run} was taken up on another machine: {how}",
        where=host,
        hints=(f"gpufleet change resume {run} --from {host}",),
        run=run,
    )


class Audit:
    """One file below `audit` in the state directory, append-only: `leases` says who took over whose lease, and why."""

    def __init__(self, state_dir: Path, clock: Clock, name: str = "leases") -> None:
        self._path = state_dir / "audit" / f"{name}.jsonl"
        self._clock = clock

    def note(self, what: str, **fields: str) -> None:
        """One line, synced. Raises PreflightFailed when it cannot be written."""
        self.append(json.dumps({"at": self._clock.now().isoformat(), "what": what, **fields}))

    def append(self, text: str) -> None:
        """A line that is one already. Raises PreflightFailed when it cannot be written."""
        line = f"{text}\n"
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(number, line.encode())
                os.fsync(number)
            finally:
                os.close(number)
        except OSError as error:
            raise PreflightFailed(
                f"the audit record cannot be written: {error.strerror}", where=str(self._path)
            ) from error


def show(reach: Reach, host: HostName) -> Answer:
    """Who holds the lease of a host. Raises HostUnreachable, or PreflightFailed when the answer makes no sense."""
    outcome = reach.insist(host, lease.show())
    return _told(outcome, host)


def wait_until_free(
    reach: Reach, hosts: Iterable[HostName], clock: Clock, *, within: float, every: float = 5.0
) -> None:
    """Wait for the leases of others to end. Raises LeaseHeld when time is up."""
    end = clock.monotonic() + within
    for host in sorted(hosts):
        while (answer := show(reach, host)).standing is Standing.HELD:
            if clock.monotonic() >= end:
                raise held(host, answer)
            clock.sleep(every)


def unlock(reach: Reach, host: HostName, *, who: str, reason: str, audit: Audit) -> Answer:
    """Break a host's lease, audited before it happens. Answers with the holder that lost it, or FREE."""
    before = show(reach, host)
    if before.standing is Standing.FREE or before.holder is None:
        return before
    old = before.holder
    audit.note("unlock", host=host, who=who, reason=reason, holder=old.who, run=old.run, over=old.token)
    answer = _told(reach.insist(host, lease.break_lease(old.token)), host)
    if answer.standing in {Standing.HELD, Standing.EXPIRED}:
        raise held(host, answer)
    return replace(answer, holder=old, open_run=before.open_run)


def held(
    host: HostName, answer: Answer, *, died_here: Callable[[str], bool] = lambda _run: False
) -> LeaseHeld:
    """The error that says who holds a lease and what ends it: the run's own end comes before force."""
    holder = answer.holder or Holder(who="somebody", run="", operation="")
    beat = "no heartbeat ever seen" if holder.age is None else f"last heartbeat {holder.age} s ago"
    state = "expired, and its run is open" if answer.standing is Standing.EXPIRED else "held"
    hints: tuple[str, ...]
    if answer.standing is Standing.EXPIRED and holder.run:
        hints = (
            f"gpufleet change resume {holder.run}",
            f"gpufleet change undo {holder.run}",
            f"on another machine add `--from {host}`",
        )
    elif died_here(holder.run):
        state = "held by a run of this machine whose process is gone"
        hints = (f"gpufleet change resume {holder.run}", f"gpufleet change undo {holder.run}")
    else:
        hints = (
            f"wait; it expires {lease.EXPIRES} s after its last heartbeat",
            f"gpufleet change unlock {host} --reason TEXT",
        )
    message = (
        f"{state}: {holder.who}, {holder.operation or 'unknown operation'}, run {holder.run or '?'}, {beat}"
    )
    row = ErrorRow(where=host, message=message, hint=hints[0])
    return LeaseHeld("a lease is held by another run", where=host, hints=hints, rows=(row,))


def _told(outcome: Exit | Lost, host: HostName) -> Answer:
    if isinstance(outcome, Lost):
        raise HostUnreachable(outcome.reason, where=host)
    answer = lease.parse(outcome)
    if answer is None:
        raise PreflightFailed(
            "the host gave no answer about its lease", where=host, hints=(_last_line(outcome),)
        )
    return answer


def _last_line(answer: Exit) -> str:
    return next((line for line in reversed(answer.stderr.splitlines()) if line.strip()), "")
