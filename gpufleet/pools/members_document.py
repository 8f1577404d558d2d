"""The `members` of a pool definition: what an operator set for single replicas, and containers that were added."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gpufleet.located import Located, Problems
from gpufleet.names import ReplicaId
from gpufleet.pools.model import Member, MemberState

REPLICA = re.compile(r"\S+/\d{1,4}")
_REFERENCE = re.compile(r"\$\{(?:env|file|cmd):[^}]+\}")


class MemberDocument(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What an operator set for one replica."""

    weight: Annotated[int, Meta(ge=0, le=1000)] = 1
    state: Literal["active", "draining", "removed"] = "active"
    container: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")] | None = None
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    key: str | None = None


def check(source: Located, members: Mapping[str, MemberDocument], problems: Problems) -> None:
    """Every mistake in the members of the definition `source`."""
    for replica, member in members.items():
        if not REPLICA.fullmatch(replica):
            problems.add(
                source.at("members", replica), f"`{replica}` is no replica", "write HOST/N: gpu-01/0"
            )
        if member.key and not _REFERENCE.fullmatch(member.key):
            problems.add(
                source.at("members", replica, "key"),
                "`key` holds a secret in plain text",
                "write a reference: ${env:NAME} or ${file:PATH}; an empty text means that no key is asked for",
            )


def others(members: Mapping[str, MemberDocument]) -> bool:
    """Whether some members are not counted by `replicas`: they were added, or removed and run on."""
    return any(one.container or one.state == "removed" for one in members.values())


def to_model(members: Mapping[str, MemberDocument]) -> tuple[Member, ...]:
    """As values."""
    return tuple(
        Member(
            replica=ReplicaId(replica),
            weight=member.weight,
            state=MemberState(member.state),
            container=member.container or "",
            port=member.port or 0,
            key=member.key,
        )
        for replica, member in members.items()
    )


def from_model(members: Sequence[Member]) -> dict[str, MemberDocument]:
    """The other way."""
    return {
        member.replica: MemberDocument(
            weight=member.weight,
            state=member.state.value,
            container=member.container or None,
            port=member.port or None,
            key=member.key,
        )
        for member in members
    }
