"""config.json -> what memory depends on: by kind of layer, or unknown with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.located import Located, Problems
from gpufleet.models.config import architecture, read
from gpufleet.models.document import described
from gpufleet.models.layers import PLAIN, WINDOWED
from gpufleet.models.load import shipped
from gpufleet.models.model import Architecture, Format, LayerKind, Layers, Unclear

BASE: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}


def layers(**changes: object) -> tuple[Layers, ...]:
    found = read({**BASE, **changes}).layers
    assert not isinstance(found, Unclear), found.reason
    return found


def unclear(**changes: object) -> str:
    found = read({**BASE, **changes}).layers
    assert isinstance(found, Unclear)
    return found.reason


def test_a_plain_model_attends_in_every_layer() -> None:
    assert layers() == (Layers(kind=LayerKind.FULL, count=4, key_values=2, width=16),)


def test_a_head_may_be_wider_than_its_share() -> None:
    assert layers(head_dim=128)[0].width == 256


def test_every_head_has_keys_where_nothing_else_is_said() -> None:
    plain = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
    found = read(plain).layers
    assert not isinstance(found, Unclear)
    assert found[0].key_values == 8


def test_what_a_family_leaves_out_is_its_default_or_unknown() -> None:
    sparse = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    found = read(sparse)
    assert not isinstance(found.layers, Unclear)
    assert [(one.kind, one.count, one.key_values, one.width) for one in found.layers] == [
        (LayerKind.FULL, 5, 4, 512),
        (LayerKind.SLIDING, 29, 4, 512),
    ]
    assert (found.vocabulary, found.context, found.tied) == (262208, 131072, True)
    plain = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
    assert isinstance(read({**plain, "model_type": "mistral"}).layers, Unclear)


def test_a_window_counts_only_when_it_is_used_and_shorter_than_the_context() -> None:
    assert layers(sliding_window=512)[0].kind is LayerKind.SLIDING
    assert layers(sliding_window=512, use_sliding_window=False)[0].kind is LayerKind.FULL
    assert layers(sliding_window=4096)[0].kind is LayerKind.FULL
    assert "use_sliding_window" in unclear(sliding_window=512, use_sliding_window=True)


def test_layers_with_and_without_a_window_stand_side_by_side() -> None:
    found = layers(
        model_type="gpt_oss", sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 2
    )
    assert [(one.kind, one.count, one.window) for one in found] == [
        (LayerKind.FULL, 2, 0),
        (LayerKind.SLIDING, 2, 128),
    ]
    by_pattern = layers(model_type="gemma2", sliding_window=128)
    assert [one.count for one in by_pattern] == [2, 2]


def test_latent_attention_keeps_one_vector() -> None:
    found = layers(model_type="deepseek_v3", kv_lora_rank=512, qk_rope_head_dim=64)
    assert found == (Layers(kind=LayerKind.MLA, count=4, key_values=1, width=576),)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model_type": "something_new"}, "something_new"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512, "index_topk": 2048}, "index"),
        ({"model_type": "new_latent", "kv_lora_rank": 512}, "latent"),
        ({"model_type": "gpt_oss", "layer_types": ["conv", "full_attention"]}, "conv"),
        ({"model_type": "qwen3_next"}, "linear"),
        (
            {"model_type": "gemma4_text", "layer_types": ["full_attention"], "num_kv_shared_layers": 2},
            "share",
        ),
        ({"num_hidden_layers": None}, "how many layers"),
    ],
)
def test_what_is_not_known_is_unknown_with_its_reason(changes: dict[str, object], word: str) -> None:
    assert word in unclear(**changes)


def test_the_text_model_inside_is_what_counts() -> None:
    found = read(
        {"model_type": "some_vl", "text_config": BASE, "vision_config": {"hidden_size": 8, "depth": 2}}
    )
    assert found.family == "llama"
    assert found.wide == 2 * (4 * 64 + 2 * 8 * 32)


def test_parameters_are_counted_for_known_families() -> None:
    """Published counts: Qwen3-8B 8.19, Llama-3.1-8B 8.03, Qwen3-30B-A3B 30.53 billion (memory points, model cards)."""
    known = {"qwen3-8b": 8190735360, "llama-3.1-8b-instruct": 8030261248, "qwen3-30b-a3b": 30532122624}
    for name, published in known.items():
        found = described(shipped()[name])
        assert found is not None
        assert found.parameters == published


@pytest.mark.parametrize(
    ("quantised", "expected"),
    [
        (None, None),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
            Format(name="fp8", bytes_each=1 + 4 / 16384),
        ),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128},
            Format(name="int4", bytes_each=0.5 + 2.5 / 128),
        ),
        (
            {"quant_method": "mxfp4"},
            Format(name="mxfp4", bytes_each=0.53125, experts_only=True, tile=True),
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, Format(name="nvfp4", bytes_each=0.5625)),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
                "ignore": ["lm_head"],
            },
            Format(name="fp8", bytes_each=1.0),
        ),
    ],
)
def test_formats_by_their_bytes(quantised: object, expected: Format | None) -> None:
    assert read({**BASE, "quantization_config": quantised}).format == expected


@pytest.mark.parametrize(
    "quantised",
    [
        {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn.o_proj"]},
        {"quant_method": "something"},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        {"quant_method": "compressed-tensors", "config_groups": {}},
    ],
)
def test_a_format_that_cannot_be_told_is_unknown(quantised: object) -> None:
    assert isinstance(read({**BASE, "quantization_config": quantised}).format, Unclear)


def test_tables_of_positions() -> None:
    plain = read(BASE).rotary_bytes
    assert plain == 2048 * 8 * 2
    assert read({**BASE, "rope_scaling": {"type": "linear", "factor": 4}}).rotary_bytes == 4 * plain
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    assert read({**BASE, "rope_scaling": yarn}).rotary_bytes == 2 * plain
    assert read({**BASE, "rope_scaling": yarn}).context == 4096


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(
    [*BASE, "head_dim", "rope_scaling", "layer_types", "kv_lora_rank", "sliding_window", "num_experts", "text_config",
     "vision_config", "quantization_config", "partial_rotary_factor", "moe_intermediate_size", "mlp_only_layers",
     "linear_num_value_heads", "hybrid_override_pattern", "sliding_window_pattern"]
)  # fmt: skip


@given(
    config=st.dictionaries(keys, values, max_size=12),
    family=st.sampled_from([*sorted(PLAIN | WINDOWED), "nemotron_h", "deepseek_v3", "qwen3_5_text", "odd"]),
)
def test_no_config_breaks_the_reader(config: dict[str, Any], family: str) -> None:
    assert isinstance(read({**BASE, **config, "model_type": family}), Architecture)
    problems = Problems()
    found = architecture(Located.of({**BASE, **config}), problems)
    assert (found is None) == bool(problems.rows)


def test_what_is_no_config_is_a_problem_with_its_place() -> None:
    problems = Problems()
    assert architecture(Located.of({**BASE, "num_hidden_layers": "many"}, "c.json"), problems) is None
    assert problems.rows[0].where == "c.json"
    assert architecture(Located.of([], "c.json"), problems) is None
