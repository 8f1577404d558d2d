"""A pool whose `model` is a name of the catalogue: what the engine loads, its image and its arguments.

What the pool says itself wins, flag by flag. A name that is in no catalogue stays as it is: a hub name, or a path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpufleet.engine.flags import written
from gpufleet.engine.kinds import AUTO
from gpufleet.errors import UsageError
from gpufleet.models.model import Entry, Modality
from gpufleet.pools.model import Pool


def entry_of(pool: Pool, known: Mapping[str, Entry]) -> Entry | None:
    """The entry that a pool means: by its name, or the only one with its hub name."""
    if pool.model in known:
        return known[pool.model]
    alike = [entry for entry in known.values() if entry.hub == pool.model]
    return alike[0] if len(alike) == 1 else None


def filled(pool: Pool, known: Mapping[str, Entry]) -> Pool:
    """The pool with what the catalogue adds, when its `model` is a name there; clients go on using that name.

    Raises:
        UsageError: nobody says which image serves it.
    """
    entry = known.get(pool.model)
    if entry is None:
        return pool
    image = pool.engine.image or entry.image
    if not image and entry.modality is Modality.TTS:
        raise UsageError(
            f"the catalogue names no image for {entry.name}",
            where=pool.written_at.get("model", "") or f"pool {pool.name}",
            hints=(entry.note or "name one with engine.image",),
        )
    added = tuple(_not_said(entry.arguments, pool.engine.args))
    if entry.revision:
        added = (*added, *_not_said(("--revision", entry.revision), pool.engine.args))
    places = pool.engine.args_at
    if len(places) == len(pool.engine.args):
        places = (*(entry.origin or f"catalogue, {entry.name}" for _ in added), *places)
    return replace(
        pool,
        model=entry.hub,
        served_name=pool.served_name or entry.name,
        engine=replace(pool.engine, image=image, args=(*added, *pool.engine.args), args_at=places),
        gate=replace(pool.gate, kind=_gate_kind(pool, entry)),
    )


_KINDS = {Modality.EMBEDDING: "embedding", Modality.STT: "transcription", Modality.TTS: "speech"}


def _gate_kind(pool: Pool, entry: Entry) -> str:
    """What the pool says, else what fits the modality; a model that writes text is asked as its arguments tell."""
    kind = _KINDS.get(entry.modality, AUTO)
    if kind == "embedding" and "rerank" in entry.name.casefold():
        kind = "rerank"
    return kind if pool.gate.kind == AUTO else pool.gate.kind


def _not_said(added: Sequence[str], said: Sequence[str]) -> Iterator[str]:
    """The flags of the catalogue, with their values, that the pool does not set itself."""
    own = {one.name for one in map(written, said) if one is not None}
    skip = False
    for word in added:
        one = written(word)
        if one is not None:
            skip = one.name in own
        if not skip:
            yield word
