"""What weights weigh on one GPU once the engine has loaded them.

Files and memory differ: a tied output layer is not loaded twice, tables of rotary positions come on top, MXFP4
experts are padded to the tiles of the kernel, and tensor parallelism shares out some tensors and repeats others.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.models.model import Architecture, Experts, Format, LayerKind, Layers, Unclear, Weights

ONLINE = {
    "fp8": Format(name="fp8", bytes_each=1.0),
    "bitsandbytes": Format(name="bnb4", bytes_each=0.5 + 4 / 64),
}
"""What the engine makes of plain weights while it loads them; other formats must be in the files already."""

STORED = {
    "awq": Format(name="int4", bytes_each=0.5 + 2.5 / 128),
    "awq_marlin": Format(name="int4", bytes_each=0.5 + 2.5 / 128),
    "gptq": Format(name="int4", bytes_each=0.5 + 2.5 / 128),
    "gptq_marlin": Format(name="int4", bytes_each=0.5 + 2.5 / 128),
    "int8": Format(name="int8", bytes_each=1.0),
    "nvfp4": Format(name="nvfp4", bytes_each=0.5 + 1 / 16),
    "mxfp4": Format(name="mxfp4", bytes_each=0.5 + 1 / 32, experts_only=True, tile=True),
    **ONLINE,
}
"""Formats by the word of `--quantization`, with groups of 128 numbers."""

_PLAIN_WORDS = frozenset({"", "none", "auto", "compressed-tensors", "modelopt"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWish:
    """What decides on the weights of one GPU beside the model.

    Attributes:
        parameters: numbers of the whole model, as given; the architecture's own count when None.
        stored: from the headers of the files; wins over `parameters`.
        quantization: word of `--quantization`, empty when the files say it.
        capability: compute capability of the GPU, None when not known.
    """

    parameters: int | None = None
    stored: Weights | None = None
    quantization: str = ""
    ranks: int = 1
    capability: tuple[int, int] | None = None
    version: tuple[int, int] | None = None


def weigh(model: Architecture, wish: LoadWish) -> int | Unclear:
    """Bytes on one GPU."""
    body = _stored(model, wish.stored, wish) if wish.stored is not None else _counted(model, wish)
    if isinstance(body, Unclear):
        return body
    shared, whole = body
    return int(shared / wish.ranks + whole) + model.rotary_bytes


def _stored(model: Architecture, weights: Weights, wish: LoadWish) -> tuple[float, float] | Unclear:
    """Bytes to share out and bytes that every rank holds, from the headers."""
    linear: float = weights.linear
    if wish.quantization not in _PLAIN_WORDS and weights.linear_numbers is not None:
        online = ONLINE.get(wish.quantization)
        if online is None:
            return Unclear(f"these weights are not stored as {wish.quantization}")
        linear = weights.linear_numbers * online.bytes_each
    experts = weights.experts * _padding(model.experts, wish) if model.experts else weights.experts
    output = 0 if model.tied else weights.output
    return linear + experts + weights.wide + output + _repeated(model, wish), weights.replicated


def _counted(model: Architecture, wish: LoadWish) -> tuple[float, float] | Unclear:
    """The same from the number of parameters."""
    given = wish.parameters if wish.parameters is not None else model.parameters
    if given is None:
        return Unclear("the number of parameters is not known: give `--parameters N` or `--weights DIR`")
    total = _without_copy(model, given)
    form = _form(model, wish)
    if isinstance(form, Unclear):
        return form
    whole = float(model.replicated * model.number_bytes)
    if form is None:
        return total * model.number_bytes - whole + _repeated(model, wish), whole
    if form.experts_only:
        return _experts_alone(model, total, form, wish)
    if not model.embedding:
        return Unclear("config.json does not say how large the embedding is, and it stays unquantised")
    wide = model.embedding * (1 if model.tied else 2) + model.wide
    linear = total - wide - model.replicated
    if linear <= 0:
        return Unclear(f"{given} parameters are fewer than its embeddings have")
    return linear * form.bytes_each + wide * model.number_bytes + _repeated(model, wish), whole


def _experts_alone(
    model: Architecture, total: int, form: Format, wish: LoadWish
) -> tuple[float, float] | Unclear:
    experts = model.experts
    if experts is None or experts.parameters >= total:
        return Unclear("config.json does not describe the experts, and they alone are quantised")
    padding = _padding(experts, wish) if form.tile else 1.0
    whole = float(model.replicated * model.number_bytes)
    packed = experts.parameters * form.bytes_each * padding
    plain = (total - experts.parameters) * model.number_bytes
    return packed + plain - whole + _repeated(model, wish), whole


def _form(model: Architecture, wish: LoadWish) -> Format | Unclear | None:
    if wish.quantization in _PLAIN_WORDS:
        return model.format
    form = STORED.get(wish.quantization)
    if form is None:
        return Unclear(f"how `{wish.quantization}` stores weights is not known here")
    if isinstance(model.format, Format):
        return model.format
    return form


def _without_copy(model: Architecture, given: int) -> int:
    """Hubs count a tied output layer that the file repeats; the engine does not load it."""
    counted = model.parameters
    repeated = given - model.embedding
    if model.tied and counted is not None and abs(repeated - counted) < counted // 500:
        return repeated
    return given


def _repeated(model: Architecture, wish: LoadWish) -> float:
    """Key and value projections that ranks beyond the number of key-value heads hold again."""
    if isinstance(model.layers, Unclear) or wish.ranks == 1:
        return 0.0
    extra = sum(_repeated_in(layers, model.hidden, wish.ranks) for layers in model.layers)
    return extra * model.number_bytes


def _repeated_in(layers: Layers, hidden: int, ranks: int) -> int:
    if layers.kind is LayerKind.MLA or not layers.key_values or layers.key_values >= ranks:
        return 0
    return layers.count * hidden * layers.width * (ranks - layers.key_values)


def _padding(experts: Experts | None, wish: LoadWish) -> float:
    """How much MXFP4 experts grow by the tiles of their kernel.

    Hopper's kernel pads what it sums over to 256; Marlin, which older and consumer GPUs use, pads the hidden size to
    256 and the intermediate size to 128; Blackwell's pads both to 256, since 0.20 the intermediate size to 128
    (vllm 0.11.0 `quantization/mxfp4.py`, 0.33.0 `fused_moe/oracle/mxfp4.py`). A GPU that is not known is taken for
    one that uses Marlin, the most common case.
    """
    if experts is None:
        return 1.0
    hidden, inner = experts.hidden, -(-experts.intermediate // wish.ranks)
    wide = _up(hidden, 256)
    if wish.capability is not None and wish.capability[0] == 9:
        gate, down = 2 * inner * wide, hidden * _up(inner, 256)
    else:
        large = wish.capability is not None and wish.capability[0] == 10
        old = wish.version is not None and wish.version < (0, 20)
        tall = _up(inner, 256 if large and old else 128)
        gate, down = 2 * tall * wide, wide * tall
    return (gate + down) / (3 * hidden * experts.intermediate / wish.ranks)


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
