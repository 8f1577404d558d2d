"""The YAML shape of a pool definition, and its way into a `Pool` and back.

A definition stands under `pools:` in the inventory, in a file of its own, or in a record that gpufleet wrote.
Secrets are references (`${env:HF_TOKEN}`); whoever runs something resolves them, this module never does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from gpufleet.located import Located, Problems, convert
from gpufleet.names import PoolName
from gpufleet.pools import members_document
from gpufleet.pools.mistakes import REFERENCE, check, check_text
from gpufleet.pools.model import (
    EngineWish,
    GateWish,
    Limits,
    Pool,
)
from gpufleet.pools.slice_document import SliceDocument, slice_document, slice_wish
from gpufleet.pools.strategy_document import (
    StrategyDocument,
    StrategyName,
    strategy_document,
    strategy_of,
)
from gpufleet.pools.weights_document import Weights, weights_of, weights_written
from gpufleet.redact import Secret

Text = Annotated[str, Meta(min_length=1)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Scalar = str | int | float
Algorithm = Literal["round-robin", "least-busy", "weighted-static", "random", "cache-aware"]
GateKind = Literal[
    "auto", "chat", "completion", "embedding", "rerank", "pooling", "transcription", "speech", "models"
]


class _Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What all parts of a definition have in common."""


class EngineDocument(_Shape, frozen=True, kw_only=True):
    """What runs in the container."""

    image: str = ""
    args: list[Scalar] = []
    env: dict[str, Scalar] = {}
    version: Scalar = ""
    lint: Literal["strict", "warn"] = "strict"


class GateDocument(_Shape, frozen=True, kw_only=True):
    """How long a new replica may take, in seconds, and what it is asked."""

    stall: Seconds = 600.0
    pull_stall: Seconds = 300.0
    within: Seconds = 3600.0
    every: Annotated[float, Meta(ge=0.05, le=600)] = 2.0
    prompt: Annotated[str, Meta(min_length=1, max_length=10_000)] = "Say hello."
    kind: GateKind = "auto"


class LimitsDocument(_Shape, frozen=True, kw_only=True):
    """Container limits in the runtime's notation."""

    memory: str | None = None
    cpus: Scalar | None = None
    shm: str | None = None
    memlock: Literal["unlimited", "inherit"] = "unlimited"


class PoolDocument(_Shape, frozen=True, kw_only=True):
    """One pool definition."""

    pool: Text | None = None
    model: Text
    served_name: str = ""
    algorithm: Algorithm = "round-robin"
    replicas: Annotated[int, Meta(ge=0, le=1000)] = 1
    hosts: Text | list[Text] = "all"
    slice: SliceDocument = SliceDocument()
    engine: EngineDocument = EngineDocument()
    weights: Weights | None = None
    strategy: StrategyName | StrategyDocument = "all-at-once"
    placement: Literal["best-fit", "spread"] = "best-fit"
    gate: GateDocument = GateDocument()
    limits: LimitsDocument = LimitsDocument()
    kv_offload: Annotated[float, Meta(gt=0, le=16_384)] | None = None
    lora: dict[str, Text] = {}
    lora_from: Text | None = None
    members: dict[str, members_document.MemberDocument] = {}
    owner: str = ""


def to_model(source: Located, problems: Problems, name: str = "", *, empty: bool = False) -> Pool | None:
    """The pool that `source` describes; every mistake goes to `problems`, with its line.

    Args:
        source: the definition as it was read.
        problems: where complaints go.
        name: the key under `pools:`, or the name asked for; `pool:` must then say the same or nothing.
        empty: a pool that asks for no replica is one too; a person's definition must ask for some, or name members.
    """
    before = len(problems.rows)
    check_text(source, problems)
    document = convert(source, PoolDocument, problems) if len(problems.rows) == before else None
    if document is None:
        return None
    check(source, document, problems, name)
    if not document.replicas and not empty and not members_document.others(document.members):
        problems.add(source.at("replicas"), "`replicas`: expected a whole number >= 1")
    if len(problems.rows) > before:
        return None
    return _with_places(_built(document, name), source)


def _with_places(pool: Pool, source: Located) -> Pool:
    """The same pool, knowing where its parts were written."""
    args = tuple(source.at("engine", "args", number).where for number in range(len(pool.engine.args)))
    parts = {key: item.where for key, item in source.entries()}
    for section in ("engine", "gate", "limits"):
        parts |= {f"{section}.{key}": item.where for key, item in source.at(section).entries()}
    parts |= {f"lora.{key}": item.where for key, item in source.at("lora").entries()}
    parts |= {f"engine.env.{key}": item.where for key, item in source.at("engine", "env").entries()}
    return replace(
        pool,
        engine=replace(pool.engine, args_at=args),
        hosts_at=source.at("hosts").where,
        written_at=parts,
    )


def from_model(pool: Pool) -> dict[str, Any]:
    """The definition of `pool` as plain values; secrets as their references."""
    document = PoolDocument(
        pool=pool.name,
        model=pool.model,
        served_name=pool.served_name,
        algorithm=_algorithm(pool.algorithm),
        replicas=pool.replicas,
        hosts=list(pool.hosts),
        slice=slice_document(pool.slice),
        placement="spread" if pool.placement == "spread" else "best-fit",
        engine=EngineDocument(
            image=pool.engine.image,
            args=list(pool.engine.args),
            env={key: _written(value) for key, value in pool.engine.env.items()},
            version=pool.engine.version,
            lint="warn" if pool.engine.lint == "warn" else "strict",
        ),
        weights=weights_written(pool.weights, pool.staging),
        strategy=strategy_document(pool.strategy),
        gate=GateDocument(
            stall=pool.gate.stall,
            pull_stall=pool.gate.pull_stall,
            within=pool.gate.within,
            every=pool.gate.every,
            prompt=pool.gate.prompt,
            kind=_kind(pool.gate.kind),
        ),
        limits=LimitsDocument(
            memory=pool.limits.memory,
            cpus=pool.limits.cpus,
            shm=pool.limits.shm,
            memlock="inherit" if pool.limits.memlock == "inherit" else "unlimited",
        ),
        kv_offload=pool.kv_offload,
        lora=dict(pool.lora),
        lora_from=pool.lora_from,
        members=members_document.from_model(pool.members),
        owner=pool.owner,
    )
    plain: dict[str, Any] = msgspec.to_builtins(document)
    return plain


def _algorithm(word: str) -> Algorithm:
    for known in get_args(Algorithm):
        if word == known:
            return known  # type: ignore[no-any-return]  # get_args forgets that these are the literals
    raise ValueError(f"unknown algorithm {word}")


def _kind(word: str) -> GateKind:
    for known in get_args(GateKind):
        if word == known:
            return known  # type: ignore[no-any-return]  # get_args forgets that these are the literals
    raise ValueError(f"unknown kind {word}")


def _written(value: str | Secret[str]) -> str:
    return value.reference if isinstance(value, Secret) else value


def _built(document: PoolDocument, name: str) -> Pool:
    limits = document.limits
    directory, staging = weights_of(document.weights)
    return Pool(
        name=PoolName(name or document.pool or ""),
        model=document.model,
        served_name=document.served_name,
        algorithm=document.algorithm,
        replicas=document.replicas,
        hosts=(document.hosts,) if isinstance(document.hosts, str) else tuple(document.hosts),
        slice=slice_wish(document.slice),
        engine=EngineWish(
            image=document.engine.image,
            args=tuple(str(word) for word in document.engine.args),
            env=environment(document.engine.env),
            version=str(document.engine.version),
            lint=document.engine.lint,
        ),
        weights=directory,
        staging=staging,
        gate=GateWish(
            stall=document.gate.stall,
            pull_stall=document.gate.pull_stall,
            within=document.gate.within,
            every=document.gate.every,
            prompt=document.gate.prompt,
            kind=document.gate.kind,
        ),
        limits=Limits(
            memory=limits.memory,
            cpus=None if limits.cpus is None else str(limits.cpus),
            shm=limits.shm,
            memlock=limits.memlock,
        ),
        kv_offload=document.kv_offload,
        lora=dict(sorted(document.lora.items())),
        lora_from=document.lora_from,
        strategy=strategy_of(document.strategy),
        placement=document.placement,
        members=members_document.to_model(document.members),
        owner=document.owner,
    )


def environment(written: Mapping[str, Scalar]) -> dict[str, str | Secret[str]]:
    """Values as text, references as secrets that are still to be resolved."""
    return {
        key: Secret("", reference=str(value)) if REFERENCE.fullmatch(str(value)) else str(value)
        for key, value in written.items()
    }
