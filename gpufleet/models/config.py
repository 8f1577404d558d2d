"""config.json -> Architecture: everything in it that GPU memory depends on.

Sources of the rules: vllm 0.33.0 (`model_executor/layers/rotary_embedding`, `config/model.py`, the quantisation
methods) and the safetensors files of the families named; a rule that is not known makes its part unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpufleet.located import Located, Problems
from gpufleet.models import layers as layer_rules
from gpufleet.models.layers import ENCODERS, WINDOWED, head_width, number_bytes, whole
from gpufleet.models.model import Architecture, Experts, Format, Unclear

_TEXT = ("text_config", "llm_config", "language_config", "thinker_config", "decoder_config")
_VISION = ("vision_config", "audio_config", "encoder_config")


def text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """What describes the text model, with the outer words where the inner ones are silent."""
    for name in _TEXT:
        inner = config.get(name)
        if isinstance(inner, Mapping):
            outer = {
                key: value for key, value in config.items() if key not in {*_TEXT, *_VISION, "model_type"}
            }
            return text_part({**outer, **inner})
    return {**_LEFT_OUT.get(str(config.get("model_type")), {}), **config}


_LEFT_OUT: Mapping[str, Mapping[str, object]] = {
    "gemma3_text": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    }
}
"""What a config.json of these families leaves out where it is the default (transformers 5.24.0, Gemma3TextConfig)."""


def architecture(source: Located, problems: Problems) -> Architecture | None:
    """What a config.json, or its lines in the catalogue, says; None when it is none at all."""
    config = source.plain()
    if not isinstance(config, dict) or not config:
        problems.add(source, "this is no config.json", "it is a mapping with `num_hidden_layers` and others")
        return None
    for key in ("num_hidden_layers", "num_key_value_heads", "num_attention_heads", "head_dim", "vocab_size"):
        value = config.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            problems.add(source.at(key), f"`{key}` is no number above zero")
    return read(config) if not problems.rows else None


def read(config: Mapping[str, Any]) -> Architecture:
    """See `Architecture`; never fails: what is missing is zero, None or Unclear."""
    text = text_part(config)
    family = str(text.get("model_type") or "")
    plain = number_bytes(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype")) or 2
    hidden = whole(text, "hidden_size", "n_embd", "d_model")
    vocabulary = whole(text, "vocab_size")
    experts = _experts(text, hidden)
    quantised = _quantised(config, text)
    tied = bool(text.get("tie_word_embeddings", family in _TIED))
    return Architecture(
        family=family,
        number_bytes=plain if plain != 1 else 2,
        layers=layer_rules.read(text, plain),
        context=context(text),
        tied=tied,
        parameters=_counted(config, text, hidden, vocabulary, experts, tied=tied),
        vocabulary=vocabulary,
        hidden=hidden,
        intermediate=whole(text, "intermediate_size", "n_inner"),
        heads=whole(text, "num_attention_heads", "n_head"),
        embedding=vocabulary * hidden,
        wide=tower(config),
        replicated=_replicated(text, hidden),
        rotary_bytes=_rotary(text, family),
        experts=experts,
        format=_format(quantised),
        kv_bytes=_kv_bytes(quantised),
        generates=family not in ENCODERS,
    )


_TIED = frozenset({"gemma", "gemma2", "gemma3_text", "gemma3", "gemma4_text", "gemma4", "cohere", "cohere2"})
"""Families whose config.json leaves out that the embedding is the output layer too."""


def _scaling(text: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in ("rope_scaling", "rope_parameters"):
        found = text.get(key)
        if isinstance(found, Mapping):
            return found
    return {}


def _factor(scaling: Mapping[str, Any]) -> float:
    """By how much positions are stretched; 0.0 when it is not said, or is no such number."""
    value = scaling.get("factor")
    return float(value) if isinstance(value, int | float) and 0 < value < 1_000_000 else 0.0


def _scaling_kind(scaling: Mapping[str, Any]) -> str:
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def context(text: Mapping[str, Any]) -> int | None:
    """Tokens that the model is made for, as the engine derives them (vllm 0.33.0, `config/model.py`)."""
    limit = whole(
        text, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions"
    )
    scaling = _scaling(text)
    first, factor = whole(scaling, "original_max_position_embeddings"), _factor(scaling)
    if _scaling_kind(scaling) == "yarn" and first and factor:
        return int(first * factor)
    return limit or None


def _rotary(text: Mapping[str, Any], family: str) -> int:
    """Bytes of the cosine and sine tables: positions x rotary width x bytes of a number.

    The engine makes them when it loads the model and counts them among the weights: a table a distinct set of
    rotary parameters. Linear scaling lengthens the table by its factor, YaRN the original length; a table for
    images and video (mrope) is four times as long. gpt-oss and DeepSeek keep theirs in four bytes.
    """
    width = whole(text, "qk_rope_head_dim") or int(head_width(text) * _partial(text))
    positions = whole(text, "max_position_embeddings")
    scaling = _scaling(text)
    if not positions or not width or family in ENCODERS:
        return 0
    number = 4 if family in {"gpt_oss", "deepseek_v2", "deepseek_v3", "kimi_k2"} else 2
    kind, factor = _scaling_kind(scaling), _factor(scaling)
    tables = [positions]
    if factor and kind == "yarn":
        tables = [int(whole(scaling, "original_max_position_embeddings") * factor) or positions]
    elif factor and kind == "linear":
        tables = [int(positions * factor)]
    if "mrope_section" in scaling:
        tables = [4 * length for length in tables]
    if family in WINDOWED and (text.get("rope_local_base_freq") or family == "gemma3_text"):
        tables.append(positions)
    return sum(tables) * width * number


def _partial(text: Mapping[str, Any]) -> float:
    share = text.get("partial_rotary_factor") or _scaling(text).get("partial_rotary_factor") or 1.0
    return float(share) if isinstance(share, int | float) and 0 < share <= 1 else 1.0


def _experts(text: Mapping[str, Any], hidden: int) -> Experts | None:
    count = whole(text, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    if not count or not hidden:
        return None
    layers = whole(text, "num_hidden_layers") - whole(text, "first_k_dense_replace")
    dense = text.get("mlp_only_layers")
    if isinstance(dense, list):
        layers -= len(dense)
    step = whole(text, "decoder_sparse_step", "moe_layer_freq") or 1
    inner = whole(text, "moe_intermediate_size", "intermediate_size")
    return Experts(layers=layers // step, count=count, hidden=hidden, intermediate=inner)


def tower(config: Mapping[str, Any]) -> int:
    """Numbers of the vision and audio towers: transformer blocks of four square matrices and a feed-forward pair.

    Patch embedding and projector are left out: less than a tenth of a tower that is itself a few percent.
    """
    total = 0
    for name in _VISION:
        part = config.get(name)
        if not isinstance(part, Mapping):
            continue
        hidden = whole(part, "hidden_size", "embed_dim", "d_model", "width")
        depth = whole(part, "num_hidden_layers", "depth", "encoder_layers", "layers")
        inner = whole(part, "intermediate_size", "encoder_ffn_dim") or 4 * hidden
        total += depth * (4 * hidden * hidden + 2 * hidden * inner)
    return total


def _replicated(text: Mapping[str, Any], hidden: int) -> int:
    """What no rank shares: norms, routers, the down-projections of latent attention."""
    layers = whole(text, "num_hidden_layers", "n_layer", "num_layers")
    norms = (2 * layers + 1) * hidden
    routers = 0
    experts = _experts(text, hidden)
    if experts is not None:
        routers = experts.layers * experts.count * hidden
    latent = 0
    if whole(text, "kv_lora_rank"):
        latent = (
            layers
            * hidden
            * (whole(text, "q_lora_rank") + whole(text, "kv_lora_rank") + whole(text, "qk_rope_head_dim"))
        )
    return norms + routers + latent


COUNTED = frozenset({"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral"})
"""Families whose parameters follow from config.json alone."""


def _counted(
    config: Mapping[str, Any],
    text: Mapping[str, Any],
    hidden: int,
    vocabulary: int,
    experts: Experts | None,
    *,
    tied: bool,
) -> int | None:
    family = str(text.get("model_type") or "")
    layers, heads = whole(text, "num_hidden_layers"), whole(text, "num_attention_heads")
    width = head_width(text)
    inner = whole(text, "intermediate_size")
    if (
        family not in COUNTED
        or any(name in config for name in _VISION)
        or not all((layers, heads, hidden, inner))
    ):
        return None
    key_values = whole(text, "num_key_value_heads") or heads
    attention = hidden * width * (2 * heads + 2 * key_values)
    if family == "qwen2":
        attention += width * (heads + 2 * key_values)
    if family.startswith("qwen3"):
        attention += 2 * width
    feed = 0 if experts else layers * 3 * hidden * inner
    routed = experts.parameters + experts.layers * experts.count * hidden if experts else 0
    tables = vocabulary * hidden * (1 if tied else 2)
    return layers * (attention + 2 * hidden) + feed + routed + hidden + tables


def _quantised(config: Mapping[str, Any], text: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for place in (config, text):
        for key in ("quantization_config", "compression_config"):
            found = place.get(key)
            if isinstance(found, Mapping):
                return found
    return None


def _format(quantised: Mapping[str, Any] | None) -> Format | Unclear | None:
    if quantised is None:
        return None
    method = str(quantised.get("quant_method") or quantised.get("quant_algo") or "").lower()
    if method == "mxfp4":
        return Format(name="mxfp4", bytes_each=0.5 + 1 / 32, experts_only=True, tile=True)
    if _leaves_more_out(quantised, method):
        return Unclear("parts of the model are left unquantised, and which is only in the weights themselves")
    if method in {"awq", "gptq"}:
        return _grouped(
            whole(quantised, "bits", "w_bit") or 4, whole(quantised, "group_size", "q_group_size") or 128
        )
    if method in {"fp8", "fbgemm_fp8"}:
        block = quantised.get("weight_block_size")
        sides = (
            [side for side in block if isinstance(side, int) and side > 0] if isinstance(block, list) else []
        )
        return Format(name="fp8", bytes_each=1 + (4 / (sides[0] * sides[1]) if len(sides) == 2 else 0.0))
    if method == "compressed-tensors":
        return _compressed(quantised)
    if method.startswith("modelopt") or "producer" in quantised:
        return _modelopt(quantised)
    return Unclear(f"how `{method}` stores weights is not known here")


def _grouped(bits: int, group: int) -> Format:
    """Integers in groups, each group with a scale of two bytes and a zero point of as many bits as a number."""
    each = bits / 8 + (2 + bits / 8) / group if group > 0 else bits / 8
    return Format(name=f"int{bits}", bytes_each=each)


_ALWAYS_WIDE = (
    "lm_head",
    "embed",
    "norm",
    "gate",
    "router",
    "bias",
    "visual",
    "vision",
    "audio",
    "mtp",
    "multi_modal",
)


def _leaves_more_out(quantised: Mapping[str, Any], method: str) -> bool:
    """Whether something is left out beside what stays wide in every format."""
    for key in ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers"):
        names = quantised.get(key)
        if isinstance(names, list) and any(
            not any(word in str(name) for word in _ALWAYS_WIDE) for name in names
        ):
            return True
    return method not in {"awq", "gptq"} and isinstance(quantised.get("dynamic"), Mapping)


def _compressed(quantised: Mapping[str, Any]) -> Format | Unclear:
    groups = quantised.get("config_groups")
    found = (
        [group for group in groups.values() if isinstance(group, Mapping)]
        if isinstance(groups, Mapping)
        else []
    )
    weights = [group.get("weights") for group in found]
    shapes = {_scheme(weight) for weight in weights if isinstance(weight, Mapping)}
    if len(shapes) != 1:
        return Unclear("several formats side by side: only the weights themselves tell how much is in which")
    return next(iter(shapes))


def _scheme(weight: Mapping[str, Any]) -> Format:
    bits, group = whole(weight, "num_bits"), whole(weight, "group_size")
    if weight.get("type") == "float":
        scale = 1 / group if group > 0 and bits == 4 else 0.0
        return Format(name=f"fp{bits}", bytes_each=bits / 8 + scale)
    if bits == 8:
        return Format(name="int8", bytes_each=1.0)
    zero = bits / 8 if weight.get("symmetric") is False else 0.0
    return Format(name=f"int{bits}", bytes_each=bits / 8 + ((2 + zero) / group if group > 0 else 0.0))


def _modelopt(quantised: Mapping[str, Any]) -> Format | Unclear:
    inner = quantised.get("quantization")
    words = inner if isinstance(inner, Mapping) else quantised
    algorithm = str(words.get("quant_algo") or "").upper()
    if algorithm == "FP8":
        return Format(name="fp8", bytes_each=1.0)
    if algorithm == "NVFP4":
        return Format(name="nvfp4", bytes_each=0.5 + 1 / 16)
    return Unclear(
        f"`{algorithm or 'modelopt'}` mixes formats: only the weights themselves tell how much is in which"
    )


def _kv_bytes(quantised: Mapping[str, Any] | None) -> int | Unclear | None:
    """Whether the checkpoint asks for a cache of other numbers; versions differ in whether they follow it."""
    if quantised is None:
        return None
    for key in ("kv_cache_scheme", "kv_cache_quant_algo", "kv_cache_quant_method"):
        if quantised.get(key):
            return Unclear(f"the checkpoint asks for a quantised cache (`{key}`): give --kv-cache-dtype")
    return None
