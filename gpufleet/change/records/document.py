"""The JSON shape of a stored plan, and its way there and back: in journals, and in files of `plan --save`.

A secret is stored as its reference (`{"secret": "${env:HF_TOKEN}"}`) and resolved anew when it is read; one without
a reference cannot be stored and is refused before anything is done. Text around several references is kept as it
is, so that a whole environment file can be one secret.

Every touched host keeps the whole plan, so its size counts once for each host of it: steps of a fleet repeat the same
scripts and wait for the same steps. A large plan is therefore packed (zlib, base64) before it is sent there; its
title and command stay readable.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import msgspec

from gpufleet.change.model import Check, Irreversible, Plan, Step
from gpufleet.errors import ExitCode, FleetError, SecretUnresolved
from gpufleet.names import HostName, StepId
from gpufleet.redact import Secret, UnfollowedSecret
from gpufleet.remote.command import Command

Resolve: TypeAlias = Callable[[str], Secret[str]]
"""Follows one reference, `${env:NAME}` and its like. Raises errors.SecretUnresolved."""

_REFERENCE = re.compile(r"\$\{[^}]+\}")


class JournalError(FleetError):
    """A journal cannot be read or written, or does not follow the machine's rules."""

    code = "journal"
    exit = ExitCode.USAGE


class SecretRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A secret by its reference; text around several references is kept as it is."""

    secret: str


class CommandRecord(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A `Command`; `stdin` is base64 unless it is a secret."""

    mutates: bool
    argv: tuple[str | SecretRef, ...] = ()
    script: str = ""
    stdin: str | SecretRef | None = None
    timeout: float = 60.0
    become: bool = False
    files: tuple[str, ...] = ()


class CheckRecord(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A `Check`."""

    look: CommandRecord
    expect: str
    data: tuple[str, ...] = ()
    within: float = 0.0
    stall: float = 0.0
    every: float = 2.0
    wished: bool = False


class StepRecord(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A `Step`; `irreversible` holds the reason when there is no undo."""

    id: str
    host: str
    title: str
    verify: CheckRecord
    do: tuple[CommandRecord, ...] = ()
    undo: tuple[CommandRecord, ...] = ()
    irreversible: str | None = None
    absent: CheckRecord | None = None
    after: tuple[str, ...] = ()
    phase: str = ""


class PlanRecord(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A `Plan`. `packed` is the whole record once more in a small form; steps and context are then empty."""

    title: str
    command: str
    steps: tuple[StepRecord, ...] = ()
    fingerprint: str = ""
    context: dict[str, str] = {}
    packed: str = ""


READABLE = 64 << 10
"""Bytes of JSON up to which a plan is stored on hosts as it is."""

_LARGEST = 256 << 20
"""Bytes that a packed plan may have; a plan for 1,000 hosts takes about 30 MiB."""

_encoder = msgspec.json.Encoder()
_plan_decoder = msgspec.json.Decoder(PlanRecord)


def encode_plan(plan: Plan) -> bytes:
    """A plan as JSON, for a file. Raises JournalError for a secret without a reference."""
    return _encoder.encode(plan_record(plan))


def decode_plan(content: bytes, resolve: Resolve) -> Plan:
    """The plan of `encode_plan`, its secrets resolved anew."""
    try:
        return plan_value(_plan_decoder.decode(content), resolve)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise JournalError(f"not a stored plan: {error}") from error


def plan_record(plan: Plan) -> PlanRecord:
    """Raises JournalError for a secret without a reference."""
    steps = tuple(_step_record(step) for step in plan.steps)
    return PlanRecord(plan.title, plan.command, steps, plan.fingerprint, dict(plan.context))


def packed(record: PlanRecord) -> PlanRecord:
    """The same plan for a copy on a host: small, and the same as before when it was small already."""
    content = _encoder.encode(record)
    if len(content) <= READABLE or record.packed:
        return record
    small = base64.b64encode(zlib.compress(content)).decode("ascii")
    return PlanRecord(record.title, record.command, fingerprint=record.fingerprint, packed=small)


def unpacked(record: PlanRecord) -> PlanRecord:
    """The record with its steps. Raises JournalError for a packed text that is damaged."""
    if not record.packed:
        return record
    try:
        opener = zlib.decompressobj()
        content = opener.decompress(base64.b64decode(record.packed, validate=True), _LARGEST)
        whole = _plan_decoder.decode(content)
    except (binascii.Error, zlib.error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise JournalError(f"the packed plan is damaged: {error}") from error
    if not opener.eof or whole.packed:
        raise JournalError("the packed plan is damaged: it does not end")
    return whole


def plan_value(record: PlanRecord, resolve: Resolve) -> Plan:
    """The plan as a value, its secrets resolved."""
    record = unpacked(record)
    return Plan(
        title=record.title,
        command=record.command,
        steps=tuple(_step_value(step, resolve) for step in record.steps),
        fingerprint=record.fingerprint,
        context=dict(record.context),
    )


def secrets_of(plan: Plan) -> tuple[Secret[str], ...]:
    """Every secret of the plan that is known, so that it can be removed from what hosts answer."""
    found: dict[str, Secret[str]] = {}
    for step in plan.steps:
        for part in _secrets_in((*step.do, *_undo_of(step), *_looks_of(step))):
            if isinstance(part, UnfollowedSecret):
                continue
            value = part.reveal()
            if isinstance(value, str):
                found[value] = Secret(value, reference=part.reference)
                continue
            for line in value.decode("utf-8", "replace").splitlines():
                word = line.partition("=")[2] or line
                found[word] = Secret(word)
    return tuple(found.values())


def refuse_unfollowed(plan: Plan, done: Callable[[StepId], bool]) -> None:
    """Refuse to go on without a secret that a step which is not `done` needs, or the way back of any step.

    Raises:
        SecretUnresolved: of the first such reference.
    """
    for step in plan.steps:
        ahead = () if done(step.id) else (*step.do, *_looks_of(step))
        for part in _secrets_in((*ahead, *_undo_of(step))):
            part.reveal()


def _undo_of(step: Step) -> tuple[Command, ...]:
    """The commands that take a step back, none for one that lasts."""
    return () if isinstance(step.undo, Irreversible) else step.undo


def _looks_of(step: Step) -> tuple[Command, ...]:
    return (step.verify.look, *((step.absent.look,) if step.absent else ()))


def _secrets_in(commands: Iterable[Command]) -> Iterator[Secret[str] | Secret[bytes]]:
    for command in commands:
        yield from (part for part in command.argv if isinstance(part, Secret))
        if isinstance(command.stdin, Secret):
            yield command.stdin


def _step_record(step: Step) -> StepRecord:
    lasting = isinstance(step.undo, Irreversible)
    return StepRecord(
        id=step.id,
        host=step.host,
        title=step.title,
        verify=_check_record(step.verify, step),
        do=tuple(_command_record(command, step) for command in step.do),
        undo=()
        if isinstance(step.undo, Irreversible)
        else tuple(_command_record(item, step) for item in step.undo),
        irreversible=step.undo.why if lasting and isinstance(step.undo, Irreversible) else None,
        absent=_check_record(step.absent, step) if step.absent else None,
        after=tuple(sorted(step.after)),
        phase=step.phase,
    )


def _step_value(record: StepRecord, resolve: Resolve) -> Step:
    undo = tuple(_command_value(command, resolve) for command in record.undo)
    return Step(
        id=StepId(record.id),
        host=HostName(record.host),
        title=record.title,
        do=tuple(_command_value(command, resolve) for command in record.do),
        undo=undo if record.irreversible is None else Irreversible(record.irreversible),
        verify=_check_value(record.verify, resolve),
        absent=_check_value(record.absent, resolve) if record.absent else None,
        after=frozenset(StepId(step) for step in record.after),
        phase=record.phase,
    )


def _check_record(check: Check, step: Step) -> CheckRecord:
    look = _command_record(check.look, step)
    return CheckRecord(look, check.expect, check.data, check.within, check.stall, check.every, check.wished)


def _check_value(record: CheckRecord, resolve: Resolve) -> Check:
    return Check(
        look=_command_value(record.look, resolve),
        expect=record.expect,
        data=record.data,
        within=record.within,
        stall=record.stall,
        every=record.every,
        wished=record.wished,
    )


def _command_record(command: Command, step: Step) -> CommandRecord:
    stdin = command.stdin
    return CommandRecord(
        mutates=command.mutates,
        argv=tuple(_reference(part, step) if isinstance(part, Secret) else part for part in command.argv),
        script=command.script,
        stdin=(
            _reference(stdin, step)
            if isinstance(stdin, Secret)
            else None
            if stdin is None
            else base64.b64encode(stdin).decode("ascii")
        ),
        timeout=command.timeout,
        become=command.become,
        files=command.files,
    )


def _reference(secret: Secret[str] | Secret[bytes], step: Step) -> SecretRef:
    if not _REFERENCE.search(secret.reference):
        raise JournalError(
            "a secret without a reference cannot be journaled",
            where=f"step {step.id} on {step.host}",
            hints=("give it as ${env:NAME} or another reference, so that a resumed run can read it again",),
        )
    return SecretRef(secret.reference)


def _secret(reference: str, resolve: Resolve) -> Secret[str]:
    """The text with each `${...}` in it followed; one that leads nowhere is missed by who needs it, not by who reads."""
    try:
        return Secret(
            _REFERENCE.sub(lambda match: resolve(match.group()).reveal(), reference), reference=reference
        )
    except SecretUnresolved as error:
        return UnfollowedSecret(reference=reference, error=error)


def _secret_bytes(reference: str, resolve: Resolve) -> Secret[bytes]:
    """The same for standard input."""
    secret = _secret(reference, resolve)
    if isinstance(secret, UnfollowedSecret):
        return UnfollowedSecret(reference=reference, error=secret.error)
    return Secret(secret.reveal().encode(), reference=reference)


def _command_value(record: CommandRecord, resolve: Resolve) -> Command:
    stdin: bytes | Secret[bytes] | None
    match record.stdin:
        case None:
            stdin = None
        case SecretRef(secret=reference):
            stdin = _secret_bytes(reference, resolve)
        case str(text):
            try:
                stdin = base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise JournalError("standard input of a stored command is not base64") from error
    return Command(
        argv=tuple(
            _secret(part.secret, resolve) if isinstance(part, SecretRef) else part for part in record.argv
        ),
        script=record.script,
        stdin=stdin,
        timeout=record.timeout,
        mutates=record.mutates,
        become=record.become,
        files=record.files,
    )
