"""The YAML shape of a catalogue file: one model a file, shipped with gpufleet or written by a team.

    name: qwen3-8b
    hub: Qwen/Qwen3-8B
    modality: llm
    parameters: {value: 8190735360, source: "https://huggingface.co/Qwen/Qwen3-8B"}
    memory_gib: unknown
    config: {source: ..., values: {num_hidden_layers: 36, ...}}

A figure is `unknown`, or has a value and the source that it was read in. `config` holds lines of the model's own
config.json under their own names, as many as memory depends on.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gpufleet.located import Located, Problems, convert
from gpufleet.models.config import architecture
from gpufleet.models.model import Architecture, Cited, Entry, Modality

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_IMAGE = re.compile(r"[A-Za-z0-9][\w./:@-]*", re.ASCII)
_CAPABILITY = re.compile(r"\d{1,2}\.\d")

Text = Annotated[str, Meta(min_length=1, max_length=1024)]
Word = str | int | float
Unknown = Literal["unknown"]


class _Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all parts of a file have in common."""


class CountDocument(_Shape, frozen=True, kw_only=True):
    """A whole number and where it was read."""

    value: Annotated[int, Meta(gt=0)]
    source: Text


class SizeDocument(_Shape, frozen=True, kw_only=True):
    """Gibibytes and where they were read."""

    value: Annotated[float, Meta(gt=0, le=100_000)]
    source: Text


class WordDocument(_Shape, frozen=True, kw_only=True):
    """A word and where it was read."""

    value: Text
    source: Text


class ConfigDocument(_Shape, frozen=True, kw_only=True):
    """Lines of config.json and where they were read."""

    values: dict[str, Any]
    source: Text


class EntryDocument(_Shape, frozen=True, kw_only=True):
    """One model."""

    hub: Text
    modality: Literal["llm", "embedding", "stt", "tts", "ocr"]
    name: Text | None = None
    revision: str | None = None
    image: str = ""
    args: list[Word] = []
    since: WordDocument | Unknown = "unknown"
    parameters: CountDocument | Unknown = "unknown"
    memory_gib: SizeDocument | Unknown = "unknown"
    compute_capability: WordDocument | Unknown = "unknown"
    quantization: WordDocument | Unknown = "unknown"
    config: ConfigDocument | Unknown = "unknown"
    gated: bool = False
    note: str = ""


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a catalogue file, for editors."""
    made = msgspec.json.schema(EntryDocument)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "gpufleet model", **made}


def to_model(source: Located, name: str, problems: Problems) -> Entry | None:
    """The entry that a file describes; every mistake goes to `problems` with its line.

    Args:
        source: the file as it was read.
        name: what the model is called when the file does not say: the file's own name.
        problems: where complaints go.
    """
    before = len(problems.rows)
    document = convert(source, EntryDocument, problems)
    if document is None or len(problems.rows) > before:
        return None
    name = document.name or name
    _check(source, document, name, problems)
    if len(problems.rows) > before:
        return None
    return Entry(
        name=name,
        hub=document.hub,
        modality=Modality(document.modality),
        revision="" if document.revision in {None, "unknown"} else str(document.revision),
        image=document.image,
        arguments=tuple(str(word) for word in document.args),
        since=_cited(document.since),
        parameters=_cited(document.parameters),
        memory_gib=_cited(document.memory_gib),
        capability=_cited(document.compute_capability),
        quantization=_cited(document.quantization),
        config=Cited()
        if isinstance(document.config, str)
        else Cited(document.config.values, document.config.source),
        gated=document.gated,
        note=document.note,
        origin=source.where,
    )


def described(entry: Entry) -> Architecture | None:
    """What an entry's lines of config.json say; None when it has none."""
    if entry.config.value is None:
        return None
    return architecture(Located.of(dict(entry.config.value), entry.origin), Problems())


def _cited(part: Any) -> Cited[Any]:
    return Cited() if isinstance(part, str) else Cited(part.value, part.source)


def _check(source: Located, document: EntryDocument, name: str, problems: Problems) -> None:
    if not NAME.fullmatch(name):
        problems.add(
            source.at("name"),
            f"`{name}` is no name for a model",
            "letters, digits, `.`, `_` and `-`, 96 at most",
        )
    if document.hub.startswith("-") or not document.hub.isprintable():
        problems.add(
            source.at("hub"), "`hub` is no name of a model", "OWNER/NAME on the hub, or an absolute path"
        )
    if document.image and not _IMAGE.fullmatch(document.image):
        problems.add(source.at("image"), "`image` is no image reference")
    capability = document.compute_capability
    if not isinstance(capability, str) and not _CAPABILITY.fullmatch(capability.value):
        problems.add(
            source.at("compute_capability", "value"),
            f"`{capability.value}` is no compute capability",
            'write it as text: "8.0"',
        )
    for number, word in enumerate(document.args):
        text = str(word)
        if "\0" in text or (text.startswith("--") and re.search(r"\s", text.partition("=")[0])):
            problems.add(
                source.at("args", number), f"`{text}` is no single word", "write flag and value as two items"
            )
    if not isinstance(document.config, str):
        architecture(source.at("config", "values"), problems)
