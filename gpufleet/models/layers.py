"""config.json -> layers by kind: which of them keep keys and values, which keep a state, which nothing.

A family is listed here when the rule by which vLLM sizes its cache is known (source: vllm 0.33.0,
`v1/kv_cache_interface.py` and each family's model file). Any other family is Unclear: a guess by the number of
layers would be wrong for exactly those models that differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gpufleet.models.model import LayerKind, Layers, RecurrentState, Unclear

PLAIN = frozenset(
    {
        "", "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl",
        "qwen2_5_vl_text", "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe", "qwen3_vl_moe_text",
        "qwen3_omni_moe_text", "qwen3_asr", "phi", "phi3", "gemma", "granite", "granitemoe", "olmo", "olmo2",
        "olmoe", "starcoder2", "stablelm", "internlm2", "internlm3", "glm", "glm4", "glm4_moe", "ernie4_5",
        "ernie4_5_moe", "seed_oss", "smollm3", "exaone", "nemotron", "baichuan", "gpt_neox", "gptj", "opt",
        "hunyuan_v1_dense", "minimax_m2", "cohere", "arcee", "dots1", "glm_ocr_text", "paddleocr_vl",
        "kimi_vl_text", "mistral3_text", "ministral", "ministral3", "voxtral_text", "bloom", "gpt2",
        "glm4v_text", "glm4v_moe_text",
    }
)  # fmt: skip
"""Every layer attends to the whole context, or to the window that config.json names."""

WINDOWED = frozenset(
    {"gemma2", "gemma3_text", "gemma3", "gpt_oss", "cohere2", "gemma4_text", "gemma4", "olmo3", "exaone4"}
)
"""Full and sliding layers side by side, told apart by `layer_types`, or by a pattern."""

_PATTERN = {"gemma2": 2, "gemma3_text": 6, "gemma3": 6, "cohere2": 4}
"""Every n-th layer attends to the whole context, unless `sliding_window_pattern` says otherwise."""

LATENT = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"})

DELTA = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5", "qwen3_5_moe_text", "qwen3_5_moe"})
"""Gated delta networks: three layers with a state for each one that attends."""

ENCODERS = frozenset(
    {"bert", "roberta", "xlm-roberta", "modernbert", "nomic_bert", "new", "gte", "clip", "siglip", "mpnet"}
)
"""Encode a text as a whole and keep nothing."""

_OWN_DEFAULT = frozenset(
    {
        "mistral",
        "mixtral",
        "ministral",
        "ministral3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "gemma2",
        "gpt_oss",
    }
)
"""Families whose number of key-value heads, where config.json leaves it out, is not that of their attention heads."""

_WORDS = {
    "full_attention": LayerKind.FULL,
    "attention": LayerKind.FULL,
    "global_attention": LayerKind.FULL,
    "sliding_attention": LayerKind.SLIDING,
    "chunked_attention": LayerKind.CHUNKED,
    "linear_attention": LayerKind.RECURRENT,
    "mamba": LayerKind.RECURRENT,
}


def whole(config: Mapping[str, Any], *names: str) -> int:
    """The first of these entries that is a number above zero; 0 when none is."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**48:
            return value
    return 0


def number_bytes(word: object) -> int | None:
    """Bytes of one number of a type named as torch names it."""
    text = str(word).removeprefix("torch.")
    return {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4, "float8_e4m3fn": 1}.get(text)


def head_width(config: Mapping[str, Any]) -> int:
    """Width of one attention head."""
    own = whole(config, "head_dim", "attention_head_dim")
    heads = whole(config, "num_attention_heads", "n_head")
    return own or (whole(config, "hidden_size", "n_embd", "d_model") // heads if heads else 0)


def read(config: Mapping[str, Any], plain_bytes: int) -> tuple[Layers, ...] | Unclear:
    """The layers of a text model.

    Args:
        config: the part of config.json that describes the text model.
        plain_bytes: of one number of the activations.
    """
    family = str(config.get("model_type") or "")
    count = whole(config, "num_hidden_layers", "n_layer", "num_layers")
    if not count:
        return Unclear("config.json does not say how many layers there are")
    if family in ENCODERS:
        return ()
    if whole(config, "index_topk", "index_head_dim", "index_n_heads"):
        return Unclear("sparse attention keeps an index of its own beside the latent vectors")
    if family in LATENT or (not family and whole(config, "kv_lora_rank")):
        return _latent(config, count)
    if whole(config, "kv_lora_rank"):
        return Unclear(f"`{family}` has latent attention in a form that is not known here")
    if family in DELTA:
        return _delta(config, count, plain_bytes)
    if family == "nemotron_h":
        return _nemotron(config, plain_bytes)
    if family in WINDOWED or (family in PLAIN and isinstance(config.get("layer_types"), Sequence)):
        return _windowed(config, family, count)
    if family in PLAIN:
        return _plain(config, count)
    return Unclear(f"how `{family}` keeps its cache is not known here")


def _attention(
    config: Mapping[str, Any], count: int, kind: LayerKind, window: int = 0
) -> tuple[Layers, ...] | Unclear:
    heads = whole(config, "num_attention_heads", "n_head")
    key_values = whole(config, "num_key_value_heads", "multi_query_group_num", "num_kv_heads")
    if not key_values and str(config.get("model_type")) not in _OWN_DEFAULT:
        key_values = heads
    width = head_width(config)
    if not key_values or not width:
        return Unclear("config.json does not say how many key-value heads there are, or how wide they are")
    return (Layers(kind=kind, count=count, key_values=key_values, width=2 * width, window=window),)


def _plain(config: Mapping[str, Any], count: int) -> tuple[Layers, ...] | Unclear:
    window = whole(config, "sliding_window")
    if not window or config.get("use_sliding_window") is False or window >= (_context(config) or 0) > 0:
        return _attention(config, count, LayerKind.FULL)
    if config.get("use_sliding_window") is True:
        return Unclear("some layers have a window (`use_sliding_window`), and which is not written here")
    return _attention(config, count, LayerKind.SLIDING, window)


def _context(config: Mapping[str, Any]) -> int | None:
    return whole(config, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length") or None


def _windowed(config: Mapping[str, Any], family: str, count: int) -> tuple[Layers, ...] | Unclear:
    words = config.get("layer_types")
    if not isinstance(words, Sequence):
        step = whole(config, "sliding_window_pattern", "_sliding_window_pattern") or _PATTERN.get(family, 0)
        if not step:
            return Unclear(f"which layers of `{family}` have a window is not written in config.json")
        words = [
            "full_attention" if (place + 1) % step == 0 else "sliding_attention" for place in range(count)
        ]
    kinds = Counter(_WORDS.get(str(word)) for word in words)
    if None in kinds or LayerKind.RECURRENT in kinds:
        odd = next(str(word) for word in words if _WORDS.get(str(word)) in {None, LayerKind.RECURRENT})
        return Unclear(f"layers of the kind `{odd}` in `{family}` are not known here")
    if whole(config, "num_kv_shared_layers"):
        return Unclear("layers share their cache (`num_kv_shared_layers`)")
    if len(words) != count:
        return Unclear(f"`layer_types` names {len(words)} layers, and there are {count}")
    found: list[Layers] = []
    for kind, number in kinds.items():
        if kind is None:
            continue
        window = {
            LayerKind.SLIDING: whole(config, "sliding_window"),
            LayerKind.CHUNKED: whole(config, "attention_chunk_size"),
        }.get(kind, 0)
        if kind is not LayerKind.FULL and not window:
            return Unclear(f"config.json does not say how wide the window of `{family}` is")
        shaped = _attention(_shape_of(config, kind), number, kind, window)
        if isinstance(shaped, Unclear):
            return shaped
        found += shaped
    return tuple(sorted(found, key=lambda layers: layers.kind.value))


def _shape_of(config: Mapping[str, Any], kind: LayerKind) -> Mapping[str, Any]:
    """Gemma 4 gives its full layers other heads than the sliding ones."""
    wide = whole(config, "global_head_dim")
    if kind is not LayerKind.FULL or not wide:
        return config
    heads = whole(config, "num_global_key_value_heads") or whole(config, "num_key_value_heads")
    return {**config, "head_dim": wide, "num_key_value_heads": heads}


def _latent(config: Mapping[str, Any], count: int) -> tuple[Layers, ...] | Unclear:
    width = whole(config, "kv_lora_rank") + whole(config, "qk_rope_head_dim")
    if not whole(config, "kv_lora_rank"):
        return Unclear("config.json does not say how wide the latent vector is (`kv_lora_rank`)")
    return (Layers(kind=LayerKind.MLA, count=count, key_values=1, width=width),)


def _delta(config: Mapping[str, Any], count: int, plain_bytes: int) -> tuple[Layers, ...] | Unclear:
    words = config.get("layer_types")
    if isinstance(words, Sequence):
        attends = sum(1 for word in words if word == "full_attention")
    else:
        attends = count // (whole(config, "full_attention_interval") or 4)
    key_heads, value_heads = whole(config, "linear_num_key_heads"), whole(config, "linear_num_value_heads")
    key_width, value_width = whole(config, "linear_key_head_dim"), whole(config, "linear_value_head_dim")
    kernel = whole(config, "linear_conv_kernel_dim")
    if not all((key_heads, value_heads, key_width, value_width, kernel)):
        return Unclear(
            "config.json does not describe the linear layers (`linear_num_value_heads` and others)"
        )
    state = RecurrentState(
        convolution=2 * key_heads * key_width + value_heads * value_width,
        kernel=kernel,
        temporal=value_heads * value_width * key_width,
        convolution_bytes=plain_bytes,
        temporal_bytes=number_bytes(config.get("mamba_ssm_dtype")) or plain_bytes,
    )
    full = _attention(config, attends, LayerKind.FULL)
    if isinstance(full, Unclear):
        return full
    return (*full, Layers(kind=LayerKind.RECURRENT, count=count - attends, state=state))


def _nemotron(config: Mapping[str, Any], plain_bytes: int) -> tuple[Layers, ...] | Unclear:
    """`hybrid_override_pattern`: M a Mamba 2 layer, * one that attends, - and E neither."""
    pattern = str(config.get("hybrid_override_pattern") or "")
    heads, width = whole(config, "mamba_num_heads"), whole(config, "mamba_head_dim")
    size, groups = whole(config, "ssm_state_size"), whole(config, "n_groups")
    kernel = whole(config, "conv_kernel")
    if set(pattern) - set("M*-E") or not all((pattern, heads, width, size, groups, kernel)):
        return Unclear(
            "config.json does not describe the Mamba layers (`hybrid_override_pattern` and others)"
        )
    state = RecurrentState(
        convolution=heads * width + 2 * groups * size,
        kernel=kernel,
        temporal=heads * width * size,
        convolution_bytes=plain_bytes,
        temporal_bytes=number_bytes(config.get("mamba_ssm_cache_dtype")) or plain_bytes,
    )
    full = _attention(config, pattern.count("*"), LayerKind.FULL)
    if isinstance(full, Unclear):
        return full
    return (*full, Layers(kind=LayerKind.RECURRENT, count=pattern.count("M"), state=state))
