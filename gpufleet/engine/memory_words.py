"""The words that start an engine -> what they mean for its memory, and which of them nobody can count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpufleet.engine.flags import value_of, written
from gpufleet.engine.kv_cache import BLOCK
from gpufleet.engine.memory import GIB, Setup

UNCOUNTED = {
    "speculative-config": "a draft model's weights and cache are not counted",
    "enable-lora": "the memory of LoRA adapters is not counted",
    "pipeline-parallel-size": "a share of the layers on each GPU is not counted",
    "cpu-offload-gb": "weights in the host's memory are not counted",
    "hf-overrides": "changes to config.json are not counted",
    "kv-transfer-config": "buffers of a cache connector are not counted",
    "attention-backend": "what another attention backend holds is not counted",
}
"""Flags whose memory no rule here knows, and why."""


def uncounted(words: Sequence[str]) -> str:
    """Why the memory of these words cannot be told; empty when it can."""
    for word in words:
        one = written(word)
        if one is not None and not one.negated and one.name in UNCOUNTED:
            if one.name == "pipeline-parallel-size" and value_of(words, one.name) == "1":
                continue
            return UNCOUNTED[one.name]
    return ""


def setup_of(words: Sequence[str], place: Setup, *, ranks: int) -> Setup:
    """`place` with what the words say; a value that is no number is left to the engine's own default.

    Args:
        words: all arguments, those that gpufleet writes included.
        place: the memory and the GPU.
        ranks: GPUs that the replica has; `--tensor-parallel-size` wins.
    """
    return replace(
        place,
        share=_number(value_of(words, "gpu-memory-utilization")) or place.share,
        ranks=_whole(value_of(words, "tensor-parallel-size")) or ranks,
        context=_whole(value_of(words, "max-model-len")),
        requests=_whole(value_of(words, "max-num-seqs")),
        batch=_whole(value_of(words, "max-num-batched-tokens")),
        kv_dtype=value_of(words, "kv-cache-dtype") or "auto",
        quantization=value_of(words, "quantization") or "",
        block=_whole(value_of(words, "block-size")) or BLOCK,
        eager=_switched(words, "enforce-eager", otherwise=False),
        prefixes=_switched(words, "enable-prefix-caching", otherwise=True),
        measured=replace(place.measured, available=_fixed(words) or place.measured.available),
    )


def _fixed(words: Sequence[str]) -> float | None:
    """GiB of the cache where the operator fixed it."""
    size = _whole(value_of(words, "kv-cache-memory-bytes"))
    return size / GIB if size else None


def _switched(words: Sequence[str], name: str, *, otherwise: bool) -> bool:
    found = [one for one in map(written, words) if one is not None and one.name == name]
    return not found[-1].negated if found else otherwise


_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
"""As vLLM reads them (0.33.0, `engine/arg_utils.py`, human_readable_int)."""


def _whole(text: str | None) -> int | None:
    if not text:
        return None
    unit = _UNITS.get(text[-1], 1)
    number = _number(text[:-1] if unit > 1 else text)
    return int(number * unit) if number is not None and number * unit >= 1 else None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < 2**60 else None
