"""The journal's copies on the touched hosts: lines wait here until a command carries them along.

A host's copy is always a prefix of what concerns it: its own steps, those on the operator's machine and the whole run. The intent of an act travels
with the act's first command and is written there before that command runs; outcomes travel with the next command,
the last ones with the release of the lease. Sequence numbers make a line that was carried twice harmless.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gpufleet.change import events
from gpufleet.change.machine import State, evolve, opened
from gpufleet.change.model import HERE, Plan
from gpufleet.change.records import journal
from gpufleet.change.records.journal import Intent, Observed, Outcome, Record
from gpufleet.change.table import Phase
from gpufleet.names import HostName, StepId


@dataclass(slots=True)
class Lines:
    """What one command carries. Call `delivered` once the host has it."""

    text: str
    taken: bool = False

    def delivered(self) -> None:
        """The host wrote them."""
        self.taken = True


class Mirror:
    """Waiting lines by host. Safe to use from several threads."""

    def __init__(self, plan: Plan) -> None:
        self._hosts = {step.id: step.host for step in plan.steps}
        self._waiting: dict[HostName, list[str]] = {host: [] for host in plan.hosts}
        self._locks = {host: threading.Lock() for host in plan.hosts}

    def add(self, record: Record) -> None:
        """A record that was just synced on this machine."""
        line = journal.encode(record).decode().rstrip("\n")
        body = record.body
        hosts = (
            [self._hosts[StepId(body.step)]]
            if isinstance(body, Intent | Outcome | Observed) and self._hosts[StepId(body.step)] != HERE
            else self._waiting
        )
        for host in tuple(hosts):
            with self._locks[host]:
                self._waiting[host].append(line)

    @contextmanager
    def carried(self, host: HostName) -> Iterator[Lines]:
        """Every line that waits for this host; those not delivered wait on."""
        with self._locks[host]:
            count = len(self._waiting[host])
            lines = Lines("\n".join(self._waiting[host]))
        yield lines
        if lines.taken:
            with self._locks[host]:
                sent = set(lines.text.split("\n"))
                self._waiting[host] = [line for line in self._waiting[host][:count] if line not in sent] + (
                    self._waiting[host][count:]
                )

    def rest(self, host: HostName) -> bytes:
        """What the copy still lacks, for the release."""
        with self._locks[host]:
            return "".join(f"{line}\n" for line in self._waiting[host]).encode()


def merged(
    copies: Iterable[tuple[Record, ...]], unseen: frozenset[HostName], plan: Plan
) -> tuple[Record, ...]:
    """One history out of the copies of several hosts, for a run that is taken up on another machine.

    A copy may lack its last lines, so the history is made to claim less than happened, never more: a step whose
    outcome is missing is interrupted, every step of an unseen host counts as begun, and a run that published
    publishes again.
    """
    by_number = {record.seq: record for copy in copies for record in copy}
    records = [by_number[seq] for seq in sorted(by_number)]
    history = records[:1]
    state = opened(plan)

    def add(record: Record, event: events.Event) -> None:
        nonlocal state
        state = evolve(state, event)
        history.append(Record(record.v, record.seq, record.at, journal.body_of(event)))

    for step in plan.steps:
        if step.host in unseen:
            add(history[0], events.Intended(step=step.id, act=events.Act.DO))
    for record in records[1:]:
        event = journal.event_of(record.body)
        if isinstance(event, events.Settled):
            continue
        if isinstance(event, events.Publishing):
            for missing in _not_done(state):
                add(record, missing)
        if event is not None:
            add(record, event)
    return tuple(history)


def _not_done(state: State) -> Iterator[events.Event]:
    """What must have happened before the run published."""
    for step, status in state.statuses.items():
        if status.phase in {Phase.PENDING, Phase.PARTIAL}:
            yield events.Intended(step=step, act=events.Act.DO)
        if status.phase in {Phase.PENDING, Phase.PARTIAL, Phase.RUNNING}:
            yield events.Ended(step=step, act=events.Act.DO, result=events.Result.SUCCEEDED)
        if status.phase in {Phase.UNKNOWN, Phase.INTERRUPTED, Phase.DOUBTFUL}:
            yield events.Observed(step=step, act=events.Act.DO, found=events.Found.DONE)
