"""Models as values: what the catalogue says of one, and what its architecture asks of memory.

A number that nobody vouches for is not there: `Cited.value` is None, and what depends on it is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

V_co = TypeVar("V_co", covariant=True)


class Modality(Enum):
    """What goes in and comes out; each has its own gate."""

    LLM = "llm"
    EMBEDDING = "embedding"
    STT = "stt"
    TTS = "tts"
    OCR = "ocr"


class LayerKind(Enum):
    """How a layer remembers the tokens before."""

    FULL = "full attention"
    SLIDING = "sliding-window attention"
    CHUNKED = "chunked attention"
    MLA = "multi-head latent attention"
    RECURRENT = "recurrent state"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentState:
    """The state that a linear-attention or Mamba layer keeps for a request, whatever the request's length.

    Attributes:
        convolution: channels of the convolution, over all tensor-parallel ranks.
        kernel: its width in tokens; one fewer is kept, and one more for each speculative token.
        temporal: numbers of the recurrent state, over all ranks.
        convolution_bytes, temporal_bytes: of one number.
    """

    convolution: int
    kernel: int
    temporal: int
    convolution_bytes: int
    temporal_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Layers of one kind and shape.

    Attributes:
        key_values: key-value heads; 0 where the kind has none.
        width: numbers that one head keeps of one token: keys and values together, or the latent vector.
        window: tokens of the window or chunk; 0 where there is none.
    """

    kind: LayerKind
    count: int
    key_values: int = 0
    width: int = 0
    window: int = 0
    state: RecurrentState | None = None


@dataclass(frozen=True, slots=True)
class Unclear:
    """What a config.json does not let anybody calculate, and why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How quantised weights are stored.

    Attributes:
        name: as people know it: `fp8`, `int4`, `mxfp4`.
        bytes_each: of one quantised number, its share of scales and zero points included.
        experts_only: nothing but the experts is quantised.
        tile: MXFP4 experts are padded to the tiles of the GPU's kernel.
    """

    name: str
    bytes_each: float
    experts_only: bool = False
    tile: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts: `layers` layers, each with `count` experts of three matrices."""

    layers: int
    count: int
    hidden: int
    intermediate: int

    @property
    def parameters(self) -> int:
        """Numbers in all experts together."""
        return self.layers * self.count * 3 * self.hidden * self.intermediate


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What config.json says that memory depends on. Zero or None is what it does not say.

    Attributes:
        family: `model_type`; empty when the file has none.
        number_bytes: of one number as the weights are loaded: 2 for bfloat16.
        layers: by kind, or why the KV cache cannot be calculated.
        context: tokens that the model is made for.
        tied: the output layer is the embedding again, whatever the file holds.
        parameters: counted from the shapes; None where the family is not known well enough.
        embedding: numbers of one embedding table.
        wide: numbers that no quantisation touches, beside the embeddings: a vision tower.
        replicated: numbers that every tensor-parallel rank holds whole.
        rotary_bytes: tables of rotary positions, which the engine counts among the weights.
        format: of the stored weights; None for plain ones, Unclear where parts are left out that cannot be told.
        kv_bytes: of one cached number, where the checkpoint itself asks for another than the weights'.
        generates: False for models that encode and keep no cache.
    """

    family: str
    number_bytes: int
    layers: tuple[Layers, ...] | Unclear
    context: int | None = None
    tied: bool = False
    parameters: int | None = None
    vocabulary: int = 0
    hidden: int = 0
    intermediate: int = 0
    heads: int = 0
    embedding: int = 0
    wide: int = 0
    replicated: int = 0
    rotary_bytes: int = 0
    experts: Experts | None = None
    format: Format | Unclear | None = None
    kv_bytes: int | Unclear | None = None
    generates: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor as a safetensors header describes it."""

    name: str
    kind: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What safetensors headers say, sorted by what quantisation and tensor parallelism do with it.

    Attributes:
        linear: bytes of matrices that are quantised together: attention, feed-forward, experts.
        linear_numbers: how many numbers that is; None when they are packed already.
        wide: bytes that stay as they are: embeddings, output layer, vision and audio towers.
        replicated: bytes that every tensor-parallel rank holds whole: norms, routers, latent projections.
        output: bytes of the output layer, 0 without one; not loaded where it is tied to the embedding.
        experts: bytes of experts in MXFP4, which the engine pads.
    """

    linear: int = 0
    linear_numbers: int | None = None
    wide: int = 0
    replicated: int = 0
    output: int = 0
    experts: int = 0
    tensors: int = 0


@dataclass(frozen=True, slots=True)
class Cited(Generic[V_co]):
    """A value and where it was read; no value is `unknown`."""

    value: V_co | None = None
    source: str = ""


Config: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One model of the catalogue.

    Attributes:
        name: what people type and pools name.
        hub: what the engine loads: a hub name, or a path on the hosts.
        revision: commit of the hub's repository; empty when none is pinned.
        image, arguments: what a pool takes that says nothing of its own.
        since: the engine's first version that serves it, as it was cited.
        parameters: numbers of the whole model.
        memory_gib: GPU memory it is known to be served in, all GPUs of a replica together.
        capability: lowest compute capability.
        quantization: format of the weights.
        config: the lines of config.json that memory depends on; None when nobody vouches for them.
        gated: the hub asks for consent and a token.
        origin: file and line; empty for a shipped entry.
    """

    name: str
    hub: str
    modality: Modality
    revision: str = ""
    image: str = ""
    arguments: tuple[str, ...] = ()
    since: Cited[str] = field(default_factory=Cited)
    parameters: Cited[int] = field(default_factory=Cited)
    memory_gib: Cited[float] = field(default_factory=Cited)
    capability: Cited[str] = field(default_factory=Cited)
    quantization: Cited[str] = field(default_factory=Cited)
    config: Cited[Config] = field(default_factory=Cited)
    gated: bool = False
    note: str = ""
    origin: str = ""
