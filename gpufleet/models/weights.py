"""The headers of safetensors files: which tensors there are, of what type, shape and size.

A file begins with eight bytes, the length of its header as a little-endian number, then the header: one JSON object
that names every tensor with its type, shape and the bytes between which it lies (safetensors format, README of
huggingface/safetensors). The tensors fill the rest without gaps; so a header can be checked against itself and
against the size of the file, and a damaged one is an error, never a wrong sum.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TypeGuard

from gpufleet.errors import DocumentError
from gpufleet.models.model import Tensor, Weights

LENGTH = 8
"""Bytes of the header's length."""

HEADER_LIMIT = 100_000_000
"""Bytes that a header may have, by the format's own reader."""

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
    "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


def header_length(first: bytes, size: int, where: str) -> int:
    """The length of the header of a file of `size` bytes.

    Raises:
        DocumentError: the first bytes cannot be those of a safetensors file.
    """
    if len(first) < LENGTH:
        raise _damaged("the file ends before its header begins", where)
    length = int.from_bytes(first[:LENGTH], "little")
    if not 2 <= length <= min(HEADER_LIMIT, size - LENGTH):
        raise _damaged(f"its header would be {length} bytes long, in a file of {size}", where)
    return length


def parse(header: bytes, size: int, where: str) -> tuple[Tensor, ...]:
    """The tensors that a header names.

    Args:
        header: the JSON, without the length in front.
        size: bytes of the whole file.
        where: the file, for messages.

    Raises:
        DocumentError: it is no header, or does not agree with itself or with the size of the file.
    """
    try:
        named = json.loads(header.decode("utf-8"), object_pairs_hook=_unique)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise _damaged("its header is not JSON", where) from error
    if not isinstance(named, dict):
        raise _damaged("its header is no mapping of tensors", where)
    spans: list[tuple[int, int, str]] = []
    found: list[Tensor] = []
    for name, entry in named.items():
        if name == "__metadata__":
            continue
        tensor, start = _tensor(name, entry, where)
        found.append(tensor)
        spans.append((start, start + tensor.size, name))
    end = 0
    for start, stop, name in sorted(spans):
        if start != end:
            raise _damaged(f"tensor `{_shown(name)}` begins at {start}, the one before ends at {end}", where)
        end = stop
    if LENGTH + len(header) + end != size:
        raise _damaged(
            f"the header describes {LENGTH + len(header) + end} bytes, and the file has {size}", where
        )
    return tuple(found)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Two tensors of one name are a damaged header, and JSON's own reader would drop one in silence."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice")
    return found


def _tensor(name: str, entry: object, where: str) -> tuple[Tensor, int]:
    if not isinstance(entry, dict):
        raise _damaged(f"tensor `{_shown(name)}` is not described", where)
    kind, shape, span = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    bits = BITS.get(kind) if isinstance(kind, str) else None
    if bits is None or not isinstance(kind, str):
        raise _damaged(f"tensor `{_shown(name)}` has an unknown type `{_shown(str(kind))}`", where)
    if not (_numbers(shape) and _numbers(span) and len(span) == 2 and span[0] <= span[1]):
        raise _damaged(f"tensor `{_shown(name)}` has no readable shape or place", where)
    count = 1
    for extent in shape:
        count *= extent
    if count * bits != 8 * (span[1] - span[0]):
        raise _damaged(
            f"tensor `{_shown(name)}` of shape {shape} and type {kind} does not fill {span[1] - span[0]} bytes",
            where,
        )
    return Tensor(name=name, kind=kind, shape=tuple(shape), size=span[1] - span[0]), span[0]


def _numbers(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**63 for item in value
    )


def _shown(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _damaged(what: str, where: str) -> DocumentError:
    return DocumentError(
        f"the weights are damaged: {what}",
        where=where,
        hints=("copy the file again and compare checksums",),
    )


_OUTPUT = re.compile(r"(^|\.)(lm_head|output_layer|embed_out)\.weight$")
_EMBEDDING = re.compile(
    r"(^|\.)(embed_tokens|wte|word_embeddings|tok_embeddings|embed_positions|wpe)[\w.]*weight$"
)
_TOWER = re.compile(r"(^|\.)(vision\w*|visual|audio\w*|multi_modal_projector|mm_projector|encoder)\.")
_WHOLE = re.compile(
    r"norm|(^|\.)(gate|router|mlp\.gate|mlp\.router)\.(weight|bias)|e_score_correction_bias|"
    r"(q_a_proj|kv_a_proj_with_mqa|kv_a_layernorm)\."
)
_MXFP4 = re.compile(r"experts\.\w+_(blocks|scales)$")


def summed(tensors: Iterable[Tensor]) -> Weights:
    """Sorted by what becomes of them; the parts add up to all bytes."""
    linear = numbers = wide = replicated = output = experts = count = 0
    packed = False
    for tensor in tensors:
        count += 1
        if _MXFP4.search(tensor.name):
            experts += tensor.size
        elif _OUTPUT.search(tensor.name):
            output += tensor.size
        elif _EMBEDDING.search(tensor.name) or _TOWER.search(tensor.name):
            wide += tensor.size
        elif _WHOLE.search(tensor.name) or len(tensor.shape) < 2:
            replicated += tensor.size
        else:
            linear += tensor.size
            packed = packed or tensor.kind not in {"BF16", "F16", "F32"}
            numbers += _count(tensor.shape)
    return Weights(
        linear=linear,
        linear_numbers=None if packed or experts else numbers,
        wide=wide,
        replicated=replicated,
        output=output,
        experts=experts,
        tensors=count,
    )


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
