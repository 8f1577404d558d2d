"""Whether a model fits into the memory of a GPU or slice, and what makes it fit: arithmetic on what is known.

Theory of operation. vLLM takes a share of the memory that CUDA reports and gives its KV cache what is left:

    cache = total * share - weights - non-torch - activation peak - CUDA graphs (since 0.20)

(vllm 0.33.0, `v1/worker/gpu_worker.py`, determine_available_memory). Weights follow from the files (`loaded`), the
cache's use from the layers (`kv_cache`). The activation peak is measured by the engine itself while it starts; what
can be said before is a law: the sampler is warmed up with as many requests as may run at once, and holds
`9.8 * vocabulary * requests * 4` bytes then, seen within 5 percent in 8 of 10 logs of 0.10 and 0.11; and one batch
passes through the widest layer. Whichever is larger counts. For 0.20 and later the law is an upper bound, so a
model that would fit without it is called tight, not refused.

The verdict compares what is left with what the longest request needs: `no` when that is negative, `tight` when it
is less than `MARGIN` of the total (two starts of one engine differ by as much), `fits` otherwise, and `unknown`
when weights or layers are not known. Nothing unknown is taken for zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gpufleet.engine.kv_cache import BLOCK, Cache, CacheWish, plan
from gpufleet.engine.loaded import LoadWish, weigh
from gpufleet.models.model import Architecture, Unclear, Weights

GIB = 2**30
MARGIN = 0.05
"""Share of the memory that must stay free to be called safe."""

SAMPLER_FACTOR = 9.8
"""Numbers of four bytes that the sampler's warm-up holds for each word of the vocabulary and each request."""

GRAPHS_SINCE = (0, 20)
"""Since this version the engine estimates its CUDA graphs and takes them off (on by default in 0.20.2)."""

LAW_BEFORE = (0, 20)
"""The activation law was seen in versions before this one."""

SHARE_NEW = (0, 20)

GRAPHS_GIB = 0.6
"""CUDA graphs of one GPU, where nobody measured them: logs show 0.4 to 1.0 GiB."""

NON_TORCH_ALONE_GIB = 0.13
NON_TORCH_TOGETHER_GIB = 0.55
"""Memory outside of PyTorch: 0.13 GiB on one GPU, 0.54 to 0.55 with NCCL (llm-d-benchmark, 0.10 and 0.11)."""


class Verdict(Enum):
    """`unknown` is an answer of its own, never a refusal."""

    FITS = "fits"
    TIGHT = "tight"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of an engine's own log, GiB on one GPU; they win over any law. None was not measured."""

    weights: float | None = None
    activation: float | None = None
    non_torch: float | None = None
    graphs: float | None = None
    available: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How the engine would run.

    Attributes:
        memory_gib: total memory of the GPU or slice as CUDA reports it.
        card_gib: of the whole GPU, from which vLLM takes its defaults even on a slice; `memory_gib` when None.
        share: `--gpu-memory-utilization`; the version's default when None.
        context: `--max-model-len`; the model's own when None.
        requests: `--max-num-seqs`, batch: `--max-num-batched-tokens`; vLLM's default for the card when None.
        kv_dtype: `--kv-cache-dtype`.
        version: major and minor of the engine; None is taken for the newest.
        capability: compute capability of the GPU.
        offload_gib: cache in the host's memory, `kv_offload`, over all GPUs of a replica.
    """

    memory_gib: float
    card_gib: float | None = None
    share: float | None = None
    ranks: int = 1
    context: int | None = None
    requests: int | None = None
    batch: int | None = None
    kv_dtype: str = "auto"
    quantization: str = ""
    version: tuple[int, int] | None = None
    capability: tuple[int, int] | None = None
    block: int = BLOCK
    eager: bool = False
    prefixes: bool = True
    speculative: int = 0
    parameters: int | None = None
    stored: Weights | None = None
    offload_gib: float = 0.0
    measured: Measured = field(default_factory=Measured)

    @property
    def large(self) -> bool:
        """Whether vLLM takes the defaults of large cards (0.33.0, `engine/arg_utils.py`: 70 GiB, and no A100)."""
        card = self.card_gib if self.card_gib is not None else self.memory_gib
        return card >= 70 and self.capability != (8, 0)

    @property
    def taken_share(self) -> float:
        """The share, or the default of the version: 0.92 since 0.20, 0.90 before."""
        if self.share is not None:
            return self.share
        return 0.92 if self.version is None or self.version >= SHARE_NEW else 0.90

    @property
    def taken_requests(self) -> int:
        """Requests at once, or the default of the card."""
        return self.requests if self.requests is not None else 1024 if self.large else 256

    def taken_batch(self, context: int | None) -> int:
        """Tokens of a batch, or the default: of the card, or with the V0 engine the whole context."""
        if self.batch is not None:
            return self.batch
        if self.version is not None and self.version < (0, 8):
            return max(2048, context or 0)
        return 8192 if self.large else 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The verdict and everything it rests on, GiB on one GPU; None is unknown, and `unknown` says why.

    Attributes:
        margin_gib: what stays when the longest request has its cache.
        tokens: that the engine will report as its cache.
        token_bytes: of one more token of a long request.
        context: the longest request, as it was taken.
        bounded: the activation is an upper bound, not a measurement.
        host_gib: memory of the host that the cache's offload takes.
    """

    verdict: Verdict
    weights_gib: float | None
    non_torch_gib: float
    activation_gib: float | None
    graphs_gib: float
    available_gib: float | None
    needed_gib: float | None
    margin_gib: float | None
    tokens: int | None
    token_bytes: int | None
    context: int | None
    bounded: bool = False
    host_gib: float = 0.0
    unknown: Mapping[str, str] = field(default_factory=dict)


def estimate(model: Architecture, setup: Setup) -> Estimate:
    """What one GPU of a replica has left, and whether that is enough."""
    unknown: dict[str, str] = {}
    context = setup.context or model.context
    batch = setup.taken_batch(context)
    weights = _weights(model, setup, unknown)
    activation, bounded = _activation(model, setup, batch, unknown)
    graphs = _graphs(setup)
    non_torch = _non_torch(setup)
    available = setup.measured.available
    if available is None and weights is not None and activation is not None:
        budget = setup.memory_gib * setup.taken_share
        available = budget - weights - non_torch - activation - graphs
    cache = _cache(model, setup, context, batch, unknown)
    needed = _needed(cache, model, unknown)
    margin = available - needed if available is not None and needed is not None else None
    slack = activation if bounded and setup.measured.available is None and activation is not None else 0.0
    tokens = None
    if isinstance(cache, Cache) and available is not None:
        tokens = cache.tokens(max(0, int(available * GIB)))
        if tokens is None:
            unknown.setdefault(
                "kv_tokens", "its layers count tokens by the longest request: give --max-model-len"
            )
    return Estimate(
        verdict=Verdict.NO
        if _nothing_left(available, slack, model) or not divides(model, setup.ranks)
        else _verdict(margin, slack, setup),
        weights_gib=weights,
        non_torch_gib=non_torch,
        activation_gib=activation,
        graphs_gib=graphs,
        available_gib=available,
        needed_gib=needed,
        margin_gib=margin,
        tokens=tokens,
        token_bytes=cache.token_bytes if isinstance(cache, Cache) else 0 if cache is None else None,
        context=context,
        bounded=bounded,
        host_gib=setup.offload_gib,
        unknown=unknown,
    )


def divides(model: Architecture, ranks: int) -> bool:
    """Whether the attention heads can be shared among so many GPUs; vLLM refuses to start otherwise."""
    return not model.heads or model.heads % ranks == 0


def _nothing_left(available: float | None, slack: float, model: Architecture) -> bool:
    """No memory for any cache: the engine does not start, whatever its requests are."""
    return available is not None and available + slack <= 0 and model.generates


def _verdict(margin: float | None, slack: float, setup: Setup) -> Verdict:
    if margin is None:
        return Verdict.UNKNOWN
    if margin + slack < 0:
        return Verdict.NO
    return Verdict.FITS if margin >= MARGIN * setup.memory_gib * setup.taken_share else Verdict.TIGHT


def _weights(model: Architecture, setup: Setup, unknown: dict[str, str]) -> float | None:
    if setup.measured.weights is not None:
        return setup.measured.weights
    wish = LoadWish(
        parameters=setup.parameters,
        stored=setup.stored,
        quantization=setup.quantization,
        ranks=setup.ranks,
        capability=setup.capability,
        version=setup.version,
    )
    size = weigh(model, wish)
    if isinstance(size, Unclear):
        unknown["weights_gib"] = size.reason
        return None
    return size / GIB


def _activation(
    model: Architecture, setup: Setup, batch: int, unknown: dict[str, str]
) -> tuple[float | None, bool]:
    """The peak in GiB, and whether it is only an upper bound."""
    if setup.measured.activation is not None:
        return setup.measured.activation, False
    if setup.measured.available is not None:
        return None, False
    if not model.vocabulary or not model.hidden:
        unknown["activation_gib"] = "config.json does not say `vocab_size` or `hidden_size`"
        return None, False
    sampler = SAMPLER_FACTOR * model.vocabulary * setup.taken_requests * 4 if model.generates else 0.0
    inner = model.intermediate or 4 * model.hidden
    passing = batch * (2 * model.hidden + 3 * inner / setup.ranks) * model.number_bytes
    bounded = setup.version is None or setup.version >= LAW_BEFORE
    return max(sampler, passing) / GIB, bounded


def _graphs(setup: Setup) -> float:
    if setup.measured.graphs is not None:
        return setup.measured.graphs
    counted = setup.version is None or setup.version >= GRAPHS_SINCE
    return 0.0 if setup.eager or not counted else GRAPHS_GIB


def _non_torch(setup: Setup) -> float:
    if setup.measured.non_torch is not None:
        return setup.measured.non_torch
    return NON_TORCH_ALONE_GIB if setup.ranks == 1 else NON_TORCH_TOGETHER_GIB


_NUMBER_BYTES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


def _cache(
    model: Architecture, setup: Setup, context: int | None, batch: int, unknown: dict[str, str]
) -> Cache | Unclear | None:
    number: int | Unclear | None
    if setup.kv_dtype == "auto":
        number = model.kv_bytes if model.kv_bytes is not None else model.number_bytes
    else:
        number = _NUMBER_BYTES.get(setup.kv_dtype)
    if number is None:
        number = Unclear(f"the layout of a `{setup.kv_dtype}` cache is not known here")
    found: Cache | Unclear | None
    if isinstance(number, Unclear):
        found = number
    elif isinstance(model.layers, Unclear):
        found = model.layers
    else:
        wish = CacheWish(
            number_bytes=number,
            ranks=setup.ranks,
            context=context,
            batch=batch,
            block=setup.block,
            version=setup.version,
            speculative=setup.speculative,
            prefixes=setup.prefixes,
        )
        found = plan(model.layers, wish)
    if isinstance(found, Unclear):
        unknown["kv_bytes_per_token"] = unknown["kv_tokens"] = found.reason
    return found


def _needed(cache: Cache | Unclear | None, model: Architecture, unknown: dict[str, str]) -> float | None:
    if cache is None:
        return 0.0 if not model.generates else None
    if isinstance(cache, Unclear):
        return None
    size = cache.needed()
    if size is None:
        unknown["needed_kv_gib"] = "the longest request is not known: give --max-model-len"
        return None
    return size / GIB
