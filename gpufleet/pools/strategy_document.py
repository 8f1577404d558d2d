"""The YAML shape of a pool's `strategy`: its name alone, or a block; and its way into a wish and back."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from gpufleet.pools.model import StrategyWish

StrategyName = Literal["all-at-once", "rolling", "canary", "blue-green"]
Count = Annotated[int, Meta(ge=1, le=1000)] | Annotated[str, Meta(pattern=r"^(100|[1-9][0-9]?)%$")]
Percent = Annotated[float, Meta(ge=0, le=100)]


class StrategyDocument(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """How replicas are replaced; `StrategyWish` says what each means."""

    kind: StrategyName = "rolling"
    max_unavailable: Count = 1
    canary: Count = 1
    traffic: Annotated[int, Meta(ge=1, le=99)] | None = None
    observe: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    min_requests: Annotated[int, Meta(ge=1, le=1_000_000)] = 20
    deadline: Annotated[float, Meta(gt=0, le=86_400)] = 900.0
    unknown: Literal["rollback", "proceed"] = "rollback"
    max_error_rate: Percent = 1.0
    max_ttft: Annotated[float, Meta(ge=1, le=1000)] = 2.0


CANARY_OBSERVE = 300.0
"""Seconds that canaries are watched when nobody says how long."""


def strategy_of(document: StrategyName | StrategyDocument) -> StrategyWish:
    """A name alone means the defaults of that strategy."""
    if not isinstance(document, StrategyDocument):
        document = StrategyDocument(kind=document)
    observe = document.observe
    if observe is None:
        observe = CANARY_OBSERVE if document.kind == "canary" else 0.0
    return StrategyWish(
        kind=document.kind,
        max_unavailable=document.max_unavailable,
        canary=document.canary,
        traffic=document.traffic,
        observe=observe,
        min_requests=document.min_requests,
        deadline=document.deadline,
        unknown=document.unknown,
        max_error_rate=document.max_error_rate,
        max_ttft=document.max_ttft,
    )


def strategy_document(wish: StrategyWish) -> StrategyName | StrategyDocument:
    """The other way: the name alone when all else is as by default."""
    for name in get_args(StrategyName):
        if strategy_of(name) == wish:
            return name  # type: ignore[no-any-return]  # get_args forgets that these are the literals
    return msgspec.convert(
        {field: getattr(wish, field) for field in StrategyDocument.__struct_fields__}, StrategyDocument
    )
