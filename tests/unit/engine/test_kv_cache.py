"""How many tokens a cache holds, by kind of layer; figures worked out by hand from vLLM's rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.engine.kv_cache import Cache, CacheWish, plan
from gpufleet.models.model import LayerKind, Layers, RecurrentState, Unclear

GIB = 2**30
FULL = Layers(kind=LayerKind.FULL, count=32, key_values=8, width=256)
SLIDING = Layers(kind=LayerKind.SLIDING, count=12, key_values=8, width=128, window=128)
LATENT = Layers(kind=LayerKind.MLA, count=61, key_values=1, width=576)
STATE = RecurrentState(
    convolution=10240, kernel=4, temporal=48 * 128 * 128, convolution_bytes=2, temporal_bytes=4
)
DELTA = Layers(kind=LayerKind.RECURRENT, count=48, state=STATE)
HALF = CacheWish(number_bytes=2)


def cache(*layers: Layers, wish: CacheWish = HALF) -> Cache:
    found = plan(layers, wish)
    assert isinstance(found, Cache)
    return found


def test_full_attention_is_layers_times_heads_times_width() -> None:
    found = cache(FULL)
    assert found.token_bytes == 32 * 8 * 256 * 2
    assert found.tokens(GIB) == GIB // (found.token_bytes * 16) * 16


def test_heads_are_shared_out_until_each_rank_has_one() -> None:
    tokens = [cache(FULL, wish=replace(HALF, ranks=ranks)).token_bytes for ranks in (1, 2, 8, 16)]
    assert tokens == [131072, 65536, 16384, 16384]


def test_latent_vectors_are_not_shared_out() -> None:
    for ranks in (1, 8):
        assert cache(LATENT, wish=replace(HALF, ranks=ranks)).token_bytes == 61 * 576 * 2


def test_an_eight_bit_cache_holds_twice_as_many() -> None:
    assert cache(FULL, wish=replace(HALF, number_bytes=1)).token_bytes == 65536


def test_half_of_the_layers_with_a_window_by_the_old_count() -> None:
    """gpt-oss: two groups of 12; up to 0.18 both were thought to take blocks for every token."""
    full = replace(FULL, count=12, width=128)
    found = cache(full, SLIDING, wish=replace(HALF, version=(0, 11), context=131072))
    assert (found.groups, found.block_bytes) == (2, 12 * 8 * 128 * 2 * 16)
    assert found.tokens(50 * GIB) == 50 * GIB // found.block_bytes // 2 * 16


def test_half_of_the_layers_with_a_window_by_the_new_count() -> None:
    """Since 0.20: context times the requests that fit; the window's group takes few blocks of a long request."""
    full = replace(FULL, count=12, width=128)
    found = cache(full, SLIDING, wish=replace(HALF, version=(0, 20), context=131072, batch=8192))
    windowed = -(-(127 + 8192) // 16) + 1
    assert found.per_request == 131072 // 16 + windowed
    assert found.tokens(50 * GIB) == 50 * GIB // found.block_bytes * 131072 // found.per_request
    assert found.token_bytes == 12 * 8 * 128 * 2


def test_two_batches_are_in_flight_in_newer_versions() -> None:
    old = cache(SLIDING, wish=replace(HALF, version=(0, 25), context=131072))
    new = cache(SLIDING, wish=replace(HALF, version=(0, 28), context=131072))
    assert (old.per_request, new.per_request) == (-(-(127 + 8192) // 16) + 1, -(-(127 + 16384) // 16) + 1)


def test_an_attention_block_grows_until_it_holds_a_state() -> None:
    """Qwen3.5-27B on two GPUs with an eight-bit cache: 1,603,584 bytes of state, 1,024 bytes a token of one layer."""
    attending = Layers(kind=LayerKind.FULL, count=16, key_values=4, width=512)
    wish = CacheWish(number_bytes=1, ranks=2, context=262144, version=(0, 28), prefixes=False)
    found = cache(attending, DELTA, wish=wish)
    assert (found.block, found.groups, found.block_bytes) == (1568, 4, 16 * 1568 * 1024)
    assert found.per_request == -(-262144 // 1568) + 3
    drafted = cache(attending, DELTA, wish=replace(wish, speculative=3))
    assert drafted.block == 1600, "the convolution keeps three tokens more"
    assert drafted.per_request == -(-262144 // 1600) + 3 * 4


def test_four_layers_more_are_padded_not_cut_up() -> None:
    more = replace(SLIDING, count=13)
    found = cache(replace(FULL, count=12, width=128), more, wish=replace(HALF, version=(0, 18), context=4096))
    assert found.groups == 2
    assert found.block_bytes == 13 * 8 * 128 * 2 * 16


@pytest.mark.parametrize(
    ("layers", "wish", "word"),
    [
        ((FULL, DELTA), CacheWish(number_bytes=2, version=(0, 18), context=4096), "0.20 to 0.28"),
        ((FULL, DELTA), CacheWish(number_bytes=2, context=4096), "0.20 to 0.28"),
        ((FULL, DELTA), CacheWish(number_bytes=2, ranks=7, context=4096, prefixes=False), "7 GPUs"),
        ((DELTA,), HALF, "recurrent layers alone"),
        ((FULL, replace(SLIDING, width=96)), replace(HALF, context=4096), "do not fit"),
        ((FULL, SLIDING, DELTA), replace(HALF, context=4096), "several shapes"),
    ],
)
def test_what_is_not_known_is_unknown(layers: tuple[Layers, ...], wish: CacheWish, word: str) -> None:
    found = plan(layers, wish)
    assert isinstance(found, Unclear)
    assert word in found.reason


def test_no_layers_need_no_cache() -> None:
    assert plan((), HALF) is None


def test_a_hybrid_without_a_longest_request_has_no_count() -> None:
    found = cache(replace(FULL, count=12, width=128), SLIDING)
    assert found.tokens(GIB) is None
    assert found.needed() is None


kinds = st.builds(
    Layers,
    kind=st.sampled_from([LayerKind.FULL, LayerKind.SLIDING, LayerKind.CHUNKED]),
    count=st.integers(1, 80),
    key_values=st.sampled_from([1, 2, 4, 8, 16]),
    width=st.sampled_from([128, 256, 512]),
    window=st.integers(1, 8192),
)


@given(
    layers=st.lists(kinds, min_size=1, max_size=2),
    ranks=st.sampled_from([1, 2, 4, 8]),
    context=st.integers(1, 200_000),
    version=st.sampled_from([None, (0, 11), (0, 18), (0, 20), (0, 28)]),
    memory=st.integers(0, 200 * GIB),
    more=st.integers(0, GIB),
)
def test_more_memory_never_holds_less(
    layers: list[Layers], ranks: int, context: int, version: tuple[int, int] | None, memory: int, more: int
) -> None:
    found = plan(layers, CacheWish(number_bytes=2, ranks=ranks, context=context, version=version))
    if not isinstance(found, Cache):
        return
    less, much = found.tokens(memory), found.tokens(memory + more)
    assert less is not None
    assert much is not None
    assert 0 <= less <= much
    needed = found.needed()
    assert needed is not None
    if memory >= needed and found.wish.since((0, 20)):
        assert less >= context, "memory for the longest request holds at least its tokens"
