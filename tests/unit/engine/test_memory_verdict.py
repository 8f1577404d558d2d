"""Fits, tight, no or unknown, and the flags that change it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.engine.boards import BOARDS, named, slice_gib
from gpufleet.engine.loaded import LoadWish, weigh
from gpufleet.engine.memory import GIB, Measured, Setup, Verdict, estimate
from gpufleet.engine.remedies import remedies
from gpufleet.models.config import read
from gpufleet.models.document import described
from gpufleet.models.load import shipped
from gpufleet.models.model import Architecture, Unclear, Weights


def model(name: str) -> Architecture:
    found = described(shipped()[name])
    assert found is not None
    return found


LLAMA = model("llama-3.1-8b-instruct")
A100 = Setup(memory_gib=39.4, share=0.9, requests=256, batch=8192, context=8192, version=(0, 11))


def test_a_model_that_fits() -> None:
    found = estimate(LLAMA, A100)
    assert found.verdict is Verdict.FITS
    assert found.margin_gib is not None
    assert found.tokens is not None
    assert found.tokens > 8192
    assert remedies(LLAMA, A100, found) == ()


def test_a_slice_is_judged_by_its_own_memory_and_the_card_by_its_defaults() -> None:
    """vLLM takes 1,024 requests from the whole H100, although the slice has ten gigabytes."""
    small = model("qwen3-0.6b")
    slice_ = Setup(memory_gib=9.5, card_gib=79.18, share=0.9, version=(0, 11))
    found = estimate(small, slice_)
    assert slice_.taken_requests == 1024
    assert found.verdict is Verdict.NO
    assert remedies(small, slice_, found)[0].startswith("--max-num-seqs 512: ")
    assert estimate(small, replace(slice_, requests=64)).verdict is Verdict.FITS


def test_the_longest_request_must_have_its_cache() -> None:
    long = replace(A100, context=131072)
    found = estimate(LLAMA, long)
    assert (found.verdict, found.needed_gib) == (Verdict.FITS, 16.0)
    assert estimate(LLAMA, replace(long, memory_gib=32.0)).verdict is Verdict.NO
    long = replace(long, memory_gib=36.5)
    found = estimate(LLAMA, long)
    assert found.verdict is Verdict.TIGHT
    hints = remedies(LLAMA, long, found)
    assert any(hint.startswith("--max-model-len ") and ": fits" in hint for hint in hints)
    assert any(hint.startswith("--kv-cache-dtype fp8: fits") for hint in hints)


def test_every_remedy_holds_when_it_is_tried() -> None:
    setup = replace(A100, memory_gib=23.6, context=65536)
    found = estimate(LLAMA, setup)
    assert found.verdict is Verdict.NO
    hints = remedies(LLAMA, setup, found)
    assert hints
    for hint in hints:
        flag, value = hint.partition(":")[0].split()
        made = {
            "--max-num-seqs": lambda word: replace(setup, requests=int(word)),
            "--max-model-len": lambda word: replace(setup, context=int(word)),
            "--tensor-parallel-size": lambda word: replace(setup, ranks=int(word)),
            "--kv-cache-dtype": lambda word: replace(setup, kv_dtype=word),
            "--quantization": lambda word: replace(setup, quantization=word),
            "--gpu-memory-utilization": lambda word: replace(setup, share=float(word)),
        }[flag](value)
        assert estimate(LLAMA, made).verdict in {Verdict.FITS, Verdict.TIGHT}


def test_flags_are_piled_up_when_none_alone_helps() -> None:
    large = model("llama-3.3-70b-instruct")
    setup = replace(A100, context=131072)
    found = estimate(large, setup)
    assert found.verdict is Verdict.NO
    (hint,) = remedies(large, setup, found)
    assert "--tensor-parallel-size" in hint
    nowhere = replace(A100, memory_gib=4.0)
    assert remedies(large, nowhere, estimate(large, nowhere))[0].startswith("no flag makes it fit")


def test_measured_figures_win_over_the_law() -> None:
    found = estimate(LLAMA, replace(A100, measured=Measured(activation=3.0, non_torch=1.0, weights=20.0)))
    assert (found.weights_gib, found.activation_gib, found.non_torch_gib) == (20.0, 3.0, 1.0)
    assert found.available_gib == pytest.approx(39.4 * 0.9 - 24.0)
    known = estimate(LLAMA, replace(A100, measured=Measured(available=2.0)))
    assert known.available_gib == 2.0
    assert known.tokens == 16384


def test_a_bound_makes_it_tight_where_a_measurement_would_refuse() -> None:
    """From 0.20 on the activation is only known to be at most this."""
    setup = Setup(memory_gib=24.0, card_gib=79.18, share=0.9, context=2048, version=(0, 11))
    assert estimate(LLAMA, setup).verdict is Verdict.FITS
    old = estimate(LLAMA, replace(setup, memory_gib=21.5))
    new = estimate(LLAMA, replace(setup, memory_gib=21.5, version=(0, 33)))
    assert (old.verdict, new.verdict) == (Verdict.NO, Verdict.TIGHT)
    assert new.bounded


def test_versions_differ_in_share_and_graphs() -> None:
    setup = Setup(memory_gib=80.0)
    assert replace(setup, version=(0, 18)).taken_share == 0.90
    assert replace(setup, version=(0, 20)).taken_share == 0.92
    assert estimate(LLAMA, replace(setup, version=(0, 18))).graphs_gib == 0
    assert estimate(LLAMA, replace(setup, version=(0, 20))).graphs_gib > 0
    assert estimate(LLAMA, replace(setup, version=(0, 20), eager=True)).graphs_gib == 0


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (
            {"model_type": "odd", "num_hidden_layers": 3, "vocab_size": 10, "hidden_size": 8},
            "kv_bytes_per_token",
        ),
        ({"num_hidden_layers": 3, "num_key_value_heads": 1, "head_dim": 64}, "weights_gib"),
    ],
)
def test_what_is_unknown_gives_no_verdict(config: dict[str, Any], key: str) -> None:
    found = estimate(read(config), A100)
    assert found.verdict is Verdict.UNKNOWN
    assert key in found.unknown
    assert remedies(read(config), A100, found) == ()


def test_an_encoder_needs_no_cache() -> None:
    bert = read({"model_type": "bert", "num_hidden_layers": 12, "hidden_size": 768, "vocab_size": 30522})
    found = estimate(bert, replace(A100, parameters=110_000_000))
    assert (found.verdict, found.token_bytes) == (Verdict.FITS, 0)


def test_a_tied_output_layer_is_not_loaded_twice() -> None:
    small = model("qwen3-0.6b")
    assert small.parameters is not None
    once = weigh(small, LoadWish(parameters=small.parameters))
    assert weigh(small, LoadWish(parameters=small.parameters + small.embedding)) == once
    stored = Weights(linear=1000, linear_numbers=500, wide=300, output=300)
    assert weigh(small, LoadWish(stored=stored)) == 1300 + small.rotary_bytes


def test_weights_are_quantised_on_the_way_and_embeddings_stay() -> None:
    stored = Weights(linear=1000, linear_numbers=500, wide=300, output=300)
    assert weigh(LLAMA, LoadWish(stored=stored, quantization="fp8")) == 1100 + LLAMA.rotary_bytes
    assert isinstance(weigh(LLAMA, LoadWish(stored=stored, quantization="awq")), Unclear)
    assert isinstance(weigh(LLAMA, LoadWish(quantization="something")), Unclear)


def test_experts_are_padded_to_the_tiles_of_the_gpu() -> None:
    moe = model("gpt-oss-20b")
    sizes = {
        capability: weigh(moe, LoadWish(parameters=20910000000, capability=capability))
        for capability in ((9, 0), (8, 0), None)
    }
    assert sizes[8, 0] == sizes[None]
    hopper, marlin = sizes[9, 0], sizes[8, 0]
    assert not isinstance(hopper, Unclear)
    assert not isinstance(marlin, Unclear)
    assert hopper / GIB == pytest.approx(13.47, rel=0.01)
    assert marlin > hopper


@given(
    ranks=st.sampled_from([1, 2, 4, 8, 16]),
    name=st.sampled_from(["qwen3-8b", "deepseek-v3", "qwen3-30b-a3b"]),
)
def test_shares_of_all_ranks_are_at_least_the_whole(ranks: int, name: str) -> None:
    given_ = shipped()[name].parameters.value
    one, shared = (weigh(model(name), LoadWish(parameters=given_, ranks=count)) for count in (1, ranks))
    assert not isinstance(one, Unclear)
    assert not isinstance(shared, Unclear)
    assert one <= shared * ranks + ranks
    assert shared <= one


def test_boards_are_found_as_people_and_drivers_write_them() -> None:
    found = [named(text) for text in ("H100-80GB", "RTX 4090", "NVIDIA A100-SXM4-80GB", "b200")]
    assert [board.name if board else None for board in found] == [
        "H100-80GB",
        "RTX-4090-24GB",
        "A100-80GB",
        "B200-180GB",
    ]
    assert named("A100") is None
    assert named("Voodoo 3") is None
    for board in BOARDS:
        assert 0.95 < board.total_gib / (board.memory_mib / 1024) < 1


def test_a_slice_has_less_than_its_name_says() -> None:
    """A100 and H100: `nvidia-smi mig -lgip` shows 4.75, 9.50, 19.50 and 39.50 GiB."""
    assert [slice_gib(name) for name in ("1g.5gb", "1g.10gb+me", "2g.20gb", "3g.40gb")] == [
        4.75,
        9.5,
        19.5,
        39.5,
    ]
    assert slice_gib("half") is None
