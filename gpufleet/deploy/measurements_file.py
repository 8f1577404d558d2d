"""What engines measured when they started, kept in the state directory: `measured/<key>.json`, one file a combination.

A combination is the model, the image, the words that start the engine, and the kind of GPU or slice. The newest start
wins. A file that is damaged is as good as none: a law takes its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpufleet import whole_file
from gpufleet.engine.flags import value_of, written
from gpufleet.engine.measured import Figures
from gpufleet.pools.model import Pool

_NOT_MEMORY = frozenset(
    {
        "served-model-name",
        "host",
        "port",
        "max-model-len",
        "shutdown-timeout",
        "tool-call-parser",
        "reasoning-parser",
    }
)
"""Flags that change nothing of what is measured; the context is kept beside the figures."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One start: what was measured, and where, for people who look into the file."""

    version: int = 1
    at: str
    run: str
    replica: str
    model: str
    image: str
    place: str
    context: str = ""
    weights_gib: float
    available_gib: float
    activation_gib: float | None = None
    non_torch_gib: float | None = None
    graphs_gib: float | None = None
    tokens: int | None = None


def key(pool: Pool, words: Sequence[str], place: str) -> str:
    """The name of a combination."""
    kept: list[str] = []
    drop = False
    for word in words:
        one = written(word)
        if one is not None:
            drop = one.name in _NOT_MEMORY
        if not drop:
            kept.append(word)
    parts = (pool.model, pool.engine.image, kept, place)
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:24]


def context_of(words: Sequence[str]) -> str:
    """The longest request as the words say it."""
    return value_of(words, "max-model-len") or ""


def load(state_dir: Path, name: str) -> Measurement | None:
    """The newest start of a combination; None when there is none, or none that can be read."""
    try:
        found = msgspec.json.decode((state_dir / "measured" / f"{name}.json").read_bytes(), type=Measurement)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.version == 1 else None


def save(state_dir: Path, name: str, made: Measurement) -> None:
    """Keep a start.

    Raises:
        OSError: it cannot be written.
    """
    whole_file.write(state_dir / "measured" / f"{name}.json", msgspec.json.format(msgspec.json.encode(made)))


def measurement(
    figures: Figures, pool: Pool, words: Sequence[str], *, at: str, run: str, replica: str, place: str
) -> Measurement | None:
    """What is kept of a start; None when its log does not say enough."""
    if figures.weights_gib is None or figures.available_gib is None:
        return None
    return Measurement(
        at=at,
        run=run,
        replica=replica,
        model=pool.model,
        image=pool.engine.image,
        place=place,
        context=context_of(words),
        weights_gib=figures.weights_gib,
        available_gib=figures.available_gib,
        activation_gib=figures.activation_gib,
        non_torch_gib=figures.non_torch_gib,
        graphs_gib=figures.graphs_gib,
        tokens=figures.tokens,
    )
