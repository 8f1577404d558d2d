"""How many tokens fit into the memory that is left for the KV cache: vLLM's own arithmetic, by kind of layer.

Theory of operation (source: vllm 0.11.0 to 0.33.0, `v1/core/kv_cache_utils.py`, later `kv_cache_planning.py`, and
`v1/kv_cache_interface.py`). Memory is cut into blocks. A block holds one page of each layer of a group: `block`
tokens of an attention layer, or the state of one request for a recurrent layer. All pages are of one size, so layers
of different kinds are dealt into groups of equally many layers, and a request takes blocks from each group:

    full        as many as its tokens fill
    sliding     those of the window and of the tokens in flight, and one more
    chunked     those of the chunk and of the tokens in flight
    recurrent   one, one more for each speculative token, one more while prefixes are cached

What the engine reports as tokens is `blocks // groups * block` up to 0.18, and since 0.20 the longest context times
the number of such requests that fit. Both are the same for a model with one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.models.model import LayerKind, Layers, Unclear

BLOCK = 16
"""Tokens in a block, where neither the operator nor a kernel asks for more."""

BY_CONCURRENCY = (0, 20)
"""Since this version tokens are counted as context times concurrency (seen in 0.20.2, not yet in 0.18.1)."""

IN_FLIGHT_TWICE = (0, 28)
"""Since this version the tokens of two batches are in flight (seen in 0.28.0, not yet in 0.25.1)."""

STATES_ALIGNED = ((0, 20), (0, 28))
"""From the first to the second version prefix caching aligns attention blocks with states and keeps one state more.
Before, blocks grew by other rules (0.18.1); in 0.33 a further state is kept by some kernels and not by others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheWish:
    """What beside the layers decides on the cache.

    Attributes:
        number_bytes: of one cached number.
        ranks: tensor parallel.
        context: longest request in tokens; None when nobody said, and some kinds then cannot be counted.
        batch: tokens of one batch.
        speculative: tokens that a draft proposes at once.
        prefixes: whether prefixes are cached.
    """

    number_bytes: int
    ranks: int = 1
    context: int | None = None
    batch: int = 8192
    block: int = BLOCK
    version: tuple[int, int] | None = None
    speculative: int = 0
    prefixes: bool = True

    def since(self, version: tuple[int, int]) -> bool:
        """Whether the engine is at least of this version; one that is not known is taken for a new one."""
        return self.version is None or self.version >= version


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The cache of one GPU.

    Attributes:
        block_bytes: one block over all layers of a group.
        block: tokens of an attention page.
        groups: groups of equally many layers.
        per_request: blocks that the longest request takes; None when its length is not known.
        token_bytes: what one more token of a long request costs.
        wish: what it was made from.
    """

    block_bytes: int
    block: int
    groups: int
    per_request: int | None
    token_bytes: int
    wish: CacheWish

    def needed(self) -> int | None:
        """Bytes that one request of the longest context takes."""
        return None if self.per_request is None else self.per_request * self.block_bytes

    def tokens(self, available: int) -> int | None:
        """Tokens that the engine would report for `available` bytes; None when that cannot be told."""
        blocks = max(0, available // self.block_bytes)
        if self.groups == 1 and (self.wish.context is None or not self.wish.since(BY_CONCURRENCY)):
            return blocks * self.block
        if not self.wish.since(BY_CONCURRENCY):
            return blocks // self.groups * self.block
        if self.per_request is None or self.wish.context is None:
            return None
        return blocks * self.wish.context // self.per_request


def heads_of(layers: Layers, ranks: int) -> int:
    """Key-value heads that one rank holds: shared out, and repeated when there are more ranks than heads."""
    return max(1, layers.key_values // ranks)


def _page_per_token(layers: Layers, wish: CacheWish) -> int:
    heads = 1 if layers.kind is LayerKind.MLA else heads_of(layers, wish.ranks)
    return heads * layers.width * wish.number_bytes


def plan(layers: Sequence[Layers], wish: CacheWish) -> Cache | Unclear | None:
    """How the layers share the cache; None when no layer keeps anything."""
    kept = [one for one in layers if one.count]
    if not kept:
        return None
    recurrent = [one for one in kept if one.kind is LayerKind.RECURRENT]
    attending = [one for one in kept if one.kind is not LayerKind.RECURRENT]
    if not attending:
        return Unclear("a model of recurrent layers alone has no cache that grows with its tokens")
    if recurrent:
        return _hybrid(attending, recurrent, wish)
    pages = {_page_per_token(one, wish) for one in attending}
    if len(attending) == 1:
        return _grouped(attending, pages.pop(), wish.block, wish)
    if len({one.kind for one in attending}) == 1 and attending[0].kind is LayerKind.FULL:
        token = sum(one.count * _page_per_token(one, wish) for one in attending)
        return _uniform(attending[0], token, wish)
    largest = max(pages)
    if any(largest % page for page in pages):
        return Unclear("pages of its layers do not fit into one another")
    return _grouped(attending, largest, wish.block, wish)


def _uniform(layers: Layers, token: int, wish: CacheWish) -> Cache:
    """One kind in several widths: one group, each layer with its own page."""
    return Cache(
        block_bytes=token * wish.block,
        block=wish.block,
        groups=1,
        per_request=_blocks(layers, wish.block, wish),
        token_bytes=token,
        wish=wish,
    )


def _hybrid(attending: Sequence[Layers], recurrent: Sequence[Layers], wish: CacheWish) -> Cache | Unclear:
    """Attention beside recurrent layers: the attention block grows until its page holds a state."""
    if len(recurrent) != 1 or len(attending) != 1 or recurrent[0].state is None:
        return Unclear("states of several shapes side by side are not known here")
    first, last = STATES_ALIGNED
    if wish.prefixes and (wish.version is None or not first <= wish.version <= last):
        return Unclear(
            "how states and cached prefixes share memory is known for 0.20 to 0.28: give --vllm, or switch prefixes off"
        )
    state = recurrent[0].state
    if state.convolution % wish.ranks or state.temporal % wish.ranks:
        return Unclear(f"the states are not shared out over {wish.ranks} GPUs")
    kernel = state.kernel - 1 + wish.speculative
    size = (
        state.convolution // wish.ranks * kernel * state.convolution_bytes
        + state.temporal // wish.ranks * state.temporal_bytes
    )
    token = _page_per_token(attending[0], wish)
    block = max(wish.block, wish.block * -(-size // (wish.block * token)))
    return _grouped([*attending, *recurrent], token, block, wish)


def _grouped(kept: Sequence[Layers], token: int, block: int, wish: CacheWish) -> Cache:
    """Layers dealt into groups; `token` is the largest page of one token."""
    least, most = min(one.count for one in kept), max(one.count for one in kept)
    size = most if most < least * _slack(wish) else least
    requests: int | None = 0
    groups = growing = 0
    for one in kept:
        number = -(-one.count // size)
        groups += number
        page = token if one.kind is LayerKind.RECURRENT else _page_per_token(one, wish)
        growing += number * page if one.kind in {LayerKind.FULL, LayerKind.MLA} else 0
        blocks = _blocks(one, block * (token // page), wish)
        requests = None if requests is None or blocks is None else requests + number * blocks
    return Cache(
        block_bytes=size * token * block,
        block=block,
        groups=groups,
        per_request=requests,
        token_bytes=size * (growing or groups * token),
        wish=wish,
    )


def _slack(wish: CacheWish) -> float:
    """Groups are padded to the larger kind when it is little larger (1.25 in 0.14.1, 1.5 in 0.18.1)."""
    return 1.5 if wish.since((0, 18)) else 1.25


def _blocks(layers: Layers, block: int, wish: CacheWish) -> int | None:
    """Blocks of one group that the longest request takes."""
    if layers.kind is LayerKind.RECURRENT:
        return 1 + wish.speculative + (1 if wish.prefixes else 0)
    if wish.context is None:
        return None
    flight = wish.batch * (2 if wish.since(IN_FLIGHT_TWICE) else 1)
    if layers.kind is LayerKind.SLIDING:
        return -(-min(layers.window - 1 + flight, wish.context) // block) + 1
    if layers.kind is LayerKind.CHUNKED:
        return -(-min(layers.window + flight, wish.context) // block)
    return -(-wish.context // block)
