"""The YAML shape of `slice`: what one replica of a pool needs of a host."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gpufleet.located import Located, Problems
from gpufleet.pools.model import SliceWish


class SliceDocument(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What one replica needs: one of `gpus`, `mig`, `memory_gib` and `share`."""

    gpus: Annotated[int, Meta(ge=1, le=64)] | None = None
    mig: Annotated[str, Meta(min_length=1)] | None = None
    memory_gib: Annotated[float, Meta(gt=0, le=4096)] | None = None
    share: Annotated[float, Meta(ge=0.01, le=0.99)] | None = None
    across: bool = False


def slice_wish(document: SliceDocument) -> SliceWish:
    """As it is meant."""
    return SliceWish(
        gpus=document.gpus or 1,
        mig=document.mig,
        memory_gib=document.memory_gib,
        share=None if document.share is None else round(document.share * 100),
        across=document.across,
    )


def slice_document(wish: SliceWish) -> SliceDocument:
    """As it is written."""
    if wish.mig:
        return SliceDocument(mig=wish.mig)
    if wish.memory_gib:
        return SliceDocument(memory_gib=wish.memory_gib)
    if wish.share is not None:
        return SliceDocument(share=wish.share / 100)
    return SliceDocument(gpus=wish.gpus, across=wish.across)


def check_slice(source: Located, wish: SliceDocument, problems: Problems) -> None:
    """One of the four, and `across` only where there is something to cross."""
    said = [key for key in ("gpus", "mig", "memory_gib", "share") if getattr(wish, key) is not None]
    if len(said) > 1:
        problems.add(source, f"`slice` says {' and '.join(f'`{key}`' for key in said)}", "one of them")
    if wish.across and (wish.gpus or 1) == 1:
        problems.add(source.at("across"), "`across` is about several GPUs", "set `gpus`, or leave it out")
