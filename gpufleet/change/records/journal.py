"""The journal of a run: one JSON object a line, and its way back to a state.

A record has a schema version, a sequence number that is global to the run, the time of the writer's clock, and one
of the bodies below. The plan is stored whole, so that another process or another machine can finish the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from gpufleet.change import events
from gpufleet.change.machine import IllegalEvent, State, evolve, opened
from gpufleet.change.model import Plan
from gpufleet.change.records.document import JournalError, PlanRecord, Resolve, packed, plan_value
from gpufleet.names import HostName, RunId, StepId
from gpufleet.redact import Secret, scrub

SCHEMA = 1


class Opened(msgspec.Struct, frozen=True, tag="opened", forbid_unknown_fields=True):
    """The first record: who does what, where."""

    run: str
    operator: str
    seat: str
    hosts: tuple[str, ...]
    plan: PlanRecord


class Intent(msgspec.Struct, frozen=True, tag="intent", forbid_unknown_fields=True):
    step: str
    act: events.Act


class Outcome(msgspec.Struct, frozen=True, tag="outcome", omit_defaults=True, forbid_unknown_fields=True):
    step: str
    act: events.Act
    result: events.Result
    reason: str = ""
    hint: str = ""


class Observed(msgspec.Struct, frozen=True, tag="observed", omit_defaults=True, forbid_unknown_fields=True):
    step: str
    act: events.Act
    found: events.Found
    reason: str = ""


class Turned(msgspec.Struct, frozen=True, tag="turned", forbid_unknown_fields=True):
    reason: str


class Reopened(msgspec.Struct, frozen=True, tag="reopened", forbid_unknown_fields=True):
    goal: events.Goal


class Publishing(msgspec.Struct, frozen=True, tag="publishing", forbid_unknown_fields=True):
    pass


class Settled(msgspec.Struct, frozen=True, tag="settled", forbid_unknown_fields=True):
    ending: events.Ending


Body: TypeAlias = Opened | Intent | Outcome | Observed | Turned | Reopened | Publishing | Settled


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line. `at` is RFC 3339, UTC."""

    v: int
    seq: int
    at: str
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What the first record says, with the plan as a value again."""

    run: RunId
    operator: str
    seat: str
    at: str
    hosts: tuple[HostName, ...]
    plan: Plan


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    """One line, with its newline."""
    return _encoder.encode(record) + b"\n"


def head_of_copy(first: Record) -> bytes:
    """The first line as a host's copy has it: a large plan is packed, since every host gets all of it."""
    body = first.body
    if isinstance(body, Opened):
        body = msgspec.structs.replace(body, plan=packed(body.plan))
    return encode(msgspec.structs.replace(first, body=body))


def decode(line: bytes) -> Record:
    """Raises JournalError for what is no record, or one of a later schema."""
    try:
        record = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise JournalError(f"not a journal record: {error}") from error
    if record.v != SCHEMA:
        raise JournalError(
            f"journal schema {record.v}, and this gpufleet reads {SCHEMA}",
            hints=("use the gpufleet that wrote it",),
        )
    return record


def body_of(event: events.Event, secrets: tuple[Secret[str], ...] = ()) -> Body:
    """What the journal keeps of an event; texts that hosts wrote are scrubbed."""
    match event:
        case events.Intended():
            return Intent(event.step, event.act)
        case events.Ended():
            reason, hint = scrub(event.reason, secrets), scrub(event.hint, secrets)
            return Outcome(event.step, event.act, event.result, reason, hint)
        case events.Observed():
            return Observed(event.step, event.act, event.found, scrub(event.reason, secrets))
        case events.Turned():
            return Turned(scrub(event.reason, secrets))
        case events.Reopened():
            return Reopened(event.goal)
        case events.Publishing():
            return Publishing()
        case events.Settled():
            return Settled(event.ending)


def event_of(body: Body) -> events.Event | None:
    """The event of a record; None for the opening."""
    match body:
        case Opened():
            return None
        case Intent():
            return events.Intended(step=StepId(body.step), act=body.act)
        case Outcome():
            return events.Ended(
                step=StepId(body.step), act=body.act, result=body.result, reason=body.reason, hint=body.hint
            )
        case Observed():
            return events.Observed(step=StepId(body.step), act=body.act, found=body.found, reason=body.reason)
        case Turned():
            return events.Turned(reason=body.reason)
        case Reopened():
            return events.Reopened(goal=body.goal)
        case Publishing():
            return events.Publishing()
        case Settled():
            return events.Settled(ending=body.ending)


def opening(records: Iterable[Record], resolve: Resolve) -> Opening:
    """What the first record says. Raises JournalError when it is no opening."""
    first = next(iter(records), None)
    if first is None or not isinstance(first.body, Opened):
        raise JournalError(
            "the journal does not begin with the plan of its run",
            hints=("hosts that the run touched keep copies: add `--from HOST` to make it whole",),
        )
    body = first.body
    return Opening(
        run=RunId(body.run),
        operator=body.operator,
        seat=body.seat,
        at=first.at,
        hosts=tuple(HostName(host) for host in body.hosts),
        plan=plan_value(body.plan, resolve),
    )


def replay(records: Iterable[Record], plan: Plan) -> State:
    """The state that the process which wrote these records had. Raises JournalError for an impossible history."""
    state = opened(plan)
    for record in records:
        event = event_of(record.body)
        if event is None:
            continue
        try:
            state = evolve(state, event)
        except IllegalEvent as error:
            raise JournalError(f"record {record.seq} cannot follow the ones before it: {error}") from error
    return state
