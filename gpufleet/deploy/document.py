"""The JSON shape of a saved plan: `pool plan --save` writes it, `pool deploy --plan` carries it out.

It says what was asked for, what the fleet looked like, and every step that would be done; no secret is in it, only
references. It is not a script: the plan is made anew from the definition, and carried out only when it comes out the
same, step by step, on a fleet that did not move. So a file that somebody edits can stop a deploy and never change it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from gpufleet.change.records.document import PlanRecord
from gpufleet.deploy.footing import HostFooting
from gpufleet.errors import DocumentError

SCHEMA = 1


class SavedPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One saved plan.

    Attributes:
        gpufleet: version that wrote it; another one may plan otherwise.
        made_at, made_by: RFC 3339; `user@machine pid N`.
        pool: the definition, secrets as references.
        record: digest of what this machine remembered of the pool, empty when nothing.
        footing: each host that was looked at.
        rows: one a replica, as `pool plan` shows them.
        plan: every step, with the run and other words that change from run to run put as placeholders.
        checksum: of everything else.
    """

    schema: int
    gpufleet: str
    made_at: str
    made_by: str
    pool: dict[str, Any]
    record: str
    footing: dict[str, HostFooting]
    rows: list[dict[str, Any]]
    plan: PlanRecord
    checksum: str = ""


class _Head(msgspec.Struct, frozen=True):
    """What tells whether the rest can be understood."""

    schema: int
    gpufleet: str
    checksum: str


def encode(saved: SavedPlan) -> bytes:
    """As it stands in the file, with its checksum."""
    content = msgspec.json.encode(saved)
    sealed = msgspec.structs.replace(saved, checksum=checksum(content))
    return msgspec.json.format(msgspec.json.encode(sealed), indent=2) + b"\n"


def is_plan(start: bytes) -> bool:
    """Whether a file that begins so was written as a saved plan, whatever became of the rest."""
    return start.lstrip()[:1] == b"{" and b'"schema"' in start and b'"gpufleet"' in start


def decode(content: bytes, where: str, *, version: str) -> SavedPlan:
    """The saved plan of a file.

    Raises:
        DocumentError: it is none, it is cut off, it was edited, or another gpufleet wrote it.
    """
    again = ("save it again: gpufleet pool plan ... --save PLAN.JSON",)
    try:
        head = msgspec.json.decode(content, type=_Head)
    except msgspec.ValidationError as error:
        raise DocumentError(f"this is no saved plan: {error}", where=where, hints=again) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DocumentError(
            f"this is no saved plan, or only a part of one: {error}", where=where, hints=again
        ) from error
    if (head.schema, head.gpufleet) != (SCHEMA, version):
        raise DocumentError(
            f"the plan was saved by gpufleet {head.gpufleet} (schema {head.schema}), and this is gpufleet {version} "
            f"(schema {SCHEMA}): it may plan otherwise",
            where=where,
            hints=(*again, "or use the gpufleet that wrote it"),
        )
    try:
        if head.checksum != checksum(content):
            raise DocumentError("the plan was changed after it was saved", where=where, hints=again)
        return msgspec.json.decode(content, type=SavedPlan)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DocumentError(f"this is no saved plan: {error}", where=where, hints=again) from error


def checksum(content: bytes) -> str:
    """SHA-256 of a document's values, its own checksum aside; blanks and line ends do not count."""
    values = msgspec.json.decode(content)
    values.pop("checksum", None)
    return hashlib.sha256(msgspec.json.encode(values, order="sorted")).hexdigest()
