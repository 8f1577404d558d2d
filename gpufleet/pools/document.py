"""The YAML shape of a pool definition, and its way into a `Pool` and back.

A definition stands under `pools:` in the inventory, in a file of its own, or in a record that gpufleet wrote.
Secrets are references (`${env:HF_TOKEN}`); whoever runs something resolves them, this module never does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from gpufleet.located import Located, Problems, convert
from gpufleet.names import PoolName
from gpufleet.pools import members_document
from gpufleet.pools.model import (
    EngineWish,
    GateWish,
    Limits,
    Pool,
)
from gpufleet.pools.slice_document import SliceDocument, check_slice, slice_document, slice_wish
from gpufleet.pools.strategy_document import (
    StrategyDocument,
    StrategyName,
    strategy_document,
    strategy_of,
)
from gpufleet.pools.weights_document import Weights, check_weights, weights_of, weights_written
from gpufleet.redact import Secret, scrub

Text = Annotated[str, Meta(min_length=1)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Scalar = str | int | float
Algorithm = Literal["round-robin", "least-busy", "weighted-static", "random"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,47}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$\{(?:env|file|cmd):[^}]+\}")
_SECRET_NAME = re.compile(r"(?i)(?:token|secret|password|passwd|api_?key)$")
_IMAGE = re.compile(r"[A-Za-z0-9][\w./:@-]*", re.ASCII)
_SIZE = re.compile(r"[0-9]+[bkmgBKMG]?")
_CPUS = re.compile(r"[0-9]+(?:\.[0-9]+)?")

WORD = 64 * 1024
"""Bytes of one argument or variable: docker reads no longer line of an environment file, and Linux gives a program
no word of more than 128 KiB."""

WORDS = 512 * 1024
"""Bytes of all arguments together; Linux gives a program at most 2 MiB, its environment included."""


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
    within: Seconds = 3600.0
    every: Annotated[float, Meta(ge=0.05, le=600)] = 2.0
    prompt: Annotated[str, Meta(min_length=1, max_length=10_000)] = "Say hello."


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
    _check_text(source, problems)
    document = convert(source, PoolDocument, problems) if len(problems.rows) == before else None
    if document is None:
        return None
    _check_name(source, document, problems, name)
    _check_words(source, document, problems)
    check_weights(source.at("weights"), document.weights, problems)
    check_slice(source.at("slice"), document.slice, problems)
    _check_environment(source, document, problems)
    _check_limits(source, document, problems)
    members_document.check(source, document.members, problems)
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
            stall=pool.gate.stall, within=pool.gate.within, every=pool.gate.every, prompt=pool.gate.prompt
        ),
        limits=LimitsDocument(
            memory=pool.limits.memory,
            cpus=pool.limits.cpus,
            shm=pool.limits.shm,
            memlock="inherit" if pool.limits.memlock == "inherit" else "unlimited",
        ),
        kv_offload=pool.kv_offload,
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
            within=document.gate.within,
            every=document.gate.every,
            prompt=document.gate.prompt,
        ),
        limits=Limits(
            memory=limits.memory,
            cpus=None if limits.cpus is None else str(limits.cpus),
            shm=limits.shm,
            memlock=limits.memlock,
        ),
        kv_offload=document.kv_offload,
        strategy=strategy_of(document.strategy),
        placement=document.placement,
        members=members_document.to_model(document.members),
        owner=document.owner,
    )


def environment(written: Mapping[str, Scalar]) -> dict[str, str | Secret[str]]:
    """Values as text, references as secrets that are still to be resolved."""
    return {
        key: Secret("", reference=str(value)) if _REFERENCE.fullmatch(str(value)) else str(value)
        for key, value in written.items()
    }


def _check_name(source: Located, document: PoolDocument, problems: Problems, name: str) -> None:
    place = source.at("pool")
    if name and document.pool and document.pool != name:
        problems.add(place, f"this is pool `{document.pool}`, not `{name}`")
    wanted = name or document.pool
    if not wanted:
        problems.add(source, "`pool` is missing", "give the pool a name: `pool: chat`")
    elif not NAME.fullmatch(wanted):
        problems.add(
            place,
            f"`{wanted}` is no pool name",
            "letters, digits, `-`, `_` and `.`, 48 at most, first a letter or digit",
        )


def _check_text(source: Located, problems: Problems) -> None:
    """A command line may hold any bytes; what is journalled and sent is text."""
    for key, item in source.entries():
        _check_text(Located(key, item.file, item.line), problems)
        _check_text(item, problems)
    for item in source.items():
        _check_text(item, problems)
    if isinstance(source.value, str):
        try:
            source.value.encode()
        except UnicodeEncodeError:
            problems.add(source, "a value holds bytes that are not UTF-8", "write it in UTF-8")


def _check_words(source: Located, document: PoolDocument, problems: Problems) -> None:
    """What becomes a word of a command line: never a NUL, never something that reads as an option."""
    texts = [
        ("model", document.model),
        ("served_name", document.served_name),
    ]
    for key, text in texts:
        if text.startswith("-"):
            problems.add(source.at(key), f"`{key}` starts with `-`", "it would be read as an option")
        if _unprintable(text):
            problems.add(source.at(key), f"`{key}` contains a control character")
        if len(text.encode()) > WORD:
            problems.add(source.at(key), f"`{key}` is longer than {WORD // 1024} KiB")
    image = document.engine.image
    if image and not _IMAGE.fullmatch(image):
        problems.add(source.at("engine", "image"), f"`{scrub(image)}` is no image reference")
    if sum(len(str(word).encode()) + 1 for word in document.engine.args) > WORDS:
        problems.add(source.at("engine", "args"), f"the arguments are longer than {WORDS // 1024} KiB in all")
    for number, word in enumerate(str(item) for item in document.engine.args):
        place = source.at("engine", "args", number)
        if "\0" in word:
            problems.add(place, "an argument contains a NUL character")
        if len(word.encode()) > WORD:
            problems.add(
                place,
                f"an argument is longer than {WORD // 1024} KiB",
                "put it into a file below `weights` and name the file",
            )
            continue
        if word.startswith("--") and re.search(r"\s", word.partition("=")[0]):
            option, _, value = word.partition(" ")
            problems.add(
                place,
                f"`{scrub(word)}` is two words in one item",
                f"write them as two: `{option}` and `{scrub(value)}`",
            )
        if scrub(f" {word}") != f" {word}":
            problems.add(
                place, "an argument looks like a secret", "pass it by engine.env as a reference: ${env:NAME}"
            )


def _check_environment(source: Located, document: PoolDocument, problems: Problems) -> None:
    """One line each in an environment file, and no secret in plain text."""
    for key, value in document.engine.env.items():
        place, text = source.at("engine", "env", key), str(value)
        if not _VARIABLE.fullmatch(key):
            problems.add(place, f"`{key}` is no name of a variable")
        if len(key.encode()) + len(text.encode()) > WORD - 2:
            problems.add(place, f"a variable is longer than {WORD // 1024} KiB")
            continue
        if "\n" in text or "\r" in text or "\0" in text:
            problems.add(place, f"`{key}` contains a line break or NUL, which no environment file can hold")
        if _REFERENCE.fullmatch(text):
            continue
        if text and (_SECRET_NAME.search(key) or scrub(text) != text):
            problems.add(
                place,
                f"`{key}` holds a secret in plain text",
                "write a reference: ${env:NAME} or ${file:PATH}",
            )


def _check_limits(source: Located, document: PoolDocument, problems: Problems) -> None:
    limits = document.limits
    for key, text, pattern, example in (
        ("memory", limits.memory, _SIZE, "64g"),
        ("cpus", None if limits.cpus is None else str(limits.cpus), _CPUS, "8"),
        ("shm", limits.shm, _SIZE, "16g"),
    ):
        if text is not None and (not pattern.fullmatch(text) or not text.strip("0.bkmgBKMG")):
            problems.add(source.at("limits", key), f"`{key}: {text}` is no limit", f"for example {example}")


def _unprintable(text: str) -> bool:
    return any(ord(letter) < 32 or ord(letter) == 127 for letter in text)
