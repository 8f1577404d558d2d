"""What one engine says of its own load, whichever release of vLLM wrote the page.

Names changed twice, and one member may be several engines, each with a series of its own:

    meaning         0.6 (V0) to 0.8     0.9.2 to 0.10: both     0.11: old hidden; 0.12 and later
    KV cache used   gpu_cache_usage_perc                        kv_cache_usage_perc
    prefix cache    gpu_prefix_cache_*  (V0: only a hit rate)   prefix_cache_*
    between tokens  time_per_output_token_seconds               inter_token_latency_seconds

For each meaning the first name that stands on the page counts and the others are not added. Requests, tokens and other
counts are summed over engines; of the KV cache the fullest engine and the mean are kept. Counters stand with or
without `_total`. Three answers: a figure that is missing, or NaN, or that one of the engines does not give, is None and
never zero. Source: vllm/engine/metrics.py and vllm/v1/metrics/loggers.py of the releases 0.6.6 to 0.33.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpufleet.proxy.wire.exposition import Picker, parse_labels, upper_bound

_RUNNING = ("vllm:num_requests_running",)
_WAITING = ("vllm:num_requests_waiting",)
_SWAPPED = ("vllm:num_requests_swapped",)
_KV_USED = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_PREFIX_QUERIES = ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries")
_PREFIX_HITS = ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits")
_PREFIX_RATE = ("vllm:gpu_prefix_cache_hit_rate",)
_PREEMPTIONS = ("vllm:num_preemptions",)
_PROMPT_TOKENS = ("vllm:prompt_tokens",)
_GENERATION_TOKENS = ("vllm:generation_tokens",)
_FINISHED = ("vllm:request_success",)
_TTFT = ("vllm:time_to_first_token_seconds",)
_BETWEEN = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
_SLEEP = ("vllm:engine_sleep_state",)
_CACHE = ("vllm:cache_config_info",)
_LORA = ("vllm:lora_requests_info",)

_GAUGES = (_RUNNING, _WAITING, _SWAPPED, _KV_USED, _PREFIX_RATE, _SLEEP, _CACHE, _LORA)
_COUNTERS = (_PREFIX_QUERIES, _PREFIX_HITS, _PREEMPTIONS, _PROMPT_TOKENS, _GENERATION_TOKENS, _FINISHED)
_HISTOGRAMS = (_TTFT, _BETWEEN)

_PARTS = ("_bucket", "_sum", "_count")


def _names() -> Iterator[str]:
    for meanings in _GAUGES:
        yield from meanings
    for meanings in _COUNTERS:
        for name in meanings:
            yield from (name, f"{name}_total")
    for meanings in _HISTOGRAMS:
        for name in meanings:
            yield from (f"{name}{part}" for part in _PARTS)


_PICKER = Picker(_names())

_Series = dict[bytes, float]
"""Labels to value, of one name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A histogram summed over engines. `buckets`: upper bound to the count of values up to it, bounds growing."""

    total: float
    count: float
    buckets: tuple[tuple[float, float], ...] = ()

    @property
    def mean(self) -> float | None:
        """None before the first value."""
        return self.total / self.count if self.count else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """One page. None: the page does not say.

    Attributes:
        waiting: requests in the engine's queue; `swapped` are those that V0 has put out of the GPU.
        kv_used: share of the KV cache of the fullest engine, 0 to 1; `kv_used_mean` over all engines.
        kv_tokens: tokens that the KV caches of all engines hold together.
        prefix_queries: tokens that were looked up in the prefix cache since the start, and how many were there.
        prefix_hit_rate: V0's own figure, where there are no counters.
        finished: requests by the reason for which they ended.
        asleep: an engine sleeps and answers nothing.
        adapters: LoRA adapters that run or wait.
        engines: how many wrote series.
    """

    running: float | None = None
    waiting: float | None = None
    swapped: float | None = None
    kv_used: float | None = None
    kv_used_mean: float | None = None
    kv_tokens: int | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    prefix_hit_rate: float | None = None
    preemptions: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    finished: Mapping[str, float] = field(default_factory=dict)
    ttft: Distribution | None = None
    inter_token: Distribution | None = None
    asleep: bool | None = None
    adapters: tuple[str, ...] | None = None
    engines: int = 0

    @property
    def missing(self) -> tuple[str, ...]:
        """The figures that balancing wants and that this page does not give."""
        wanted = {"running": self.running, "waiting": self.waiting, "kv_used": self.kv_used}
        return tuple(name for name, value in wanted.items() if value is None)


def parse(page: bytes) -> EngineLoad:
    """Any page; of one that is none of vLLM's every figure is None."""
    found: dict[str, _Series] = {}
    for name, labels, value in _PICKER.samples(page):
        found.setdefault(name, {})[labels] = value
    used = _shares(_first(found, _KV_USED))
    return EngineLoad(
        running=_sum(_first(found, _RUNNING)),
        waiting=_sum(_first(found, _WAITING)),
        swapped=_sum(_first(found, _SWAPPED)),
        kv_used=max(used) if used else None,
        kv_used_mean=sum(used) / len(used) if used else None,
        kv_tokens=_capacity(_first(found, _CACHE)),
        prefix_queries=_sum(_counter(found, _PREFIX_QUERIES)),
        prefix_hits=_sum(_counter(found, _PREFIX_HITS)),
        prefix_hit_rate=_mean(_shares(_first(found, _PREFIX_RATE))),
        preemptions=_sum(_counter(found, _PREEMPTIONS)),
        prompt_tokens=_sum(_counter(found, _PROMPT_TOKENS)),
        generation_tokens=_sum(_counter(found, _GENERATION_TOKENS)),
        finished=_by_reason(_counter(found, _FINISHED)),
        ttft=_distribution(found, _TTFT),
        inter_token=_distribution(found, _BETWEEN),
        asleep=_asleep(_first(found, _SLEEP)),
        adapters=_adapters(_first(found, _LORA)),
        engines=_engines(_first(found, _RUNNING)),
    )


def _first(found: Mapping[str, _Series], names: Sequence[str]) -> _Series:
    return next((found[name] for name in names if name in found), {})


def _counter(found: Mapping[str, _Series], names: Sequence[str]) -> _Series:
    return _first(found, [spelling for name in names for spelling in (f"{name}_total", name)])


def _sum(series: _Series) -> float | None:
    """None as soon as one engine's figure is none: the sum of the others would look like less load."""
    if not series or not all(math.isfinite(value) and value >= 0 for value in series.values()):
        return None
    return math.fsum(series.values())


def _shares(series: _Series) -> list[float]:
    """Figures of 0 to 1 (V0 writes -1 for none); no list at all when one of them is something else."""
    shares = list(series.values())
    return [min(share, 1.0) for share in shares] if all(0.0 <= share <= 1.01 for share in shares) else []


def _mean(shares: list[float]) -> float | None:
    return sum(shares) / len(shares) if shares else None


def _by_reason(series: _Series) -> dict[str, float]:
    found: dict[str, float] = {}
    for labels, value in series.items():
        if math.isfinite(value):
            reason = parse_labels(labels).get("finished_reason", "")
            found[reason] = found.get(reason, 0.0) + value
    return found


def _distribution(found: Mapping[str, _Series], names: Sequence[str]) -> Distribution | None:
    """None unless sum and count stand there: one part of a histogram says nothing."""
    for name in names:
        total, count = _sum(found.get(f"{name}_sum", {})), _sum(found.get(f"{name}_count", {}))
        if total is not None and count is not None:
            return Distribution(total=total, count=count, buckets=_buckets(found.get(f"{name}_bucket", {})))
    return None


def _buckets(series: _Series) -> tuple[tuple[float, float], ...]:
    counts: dict[float, float] = {}
    for labels, value in series.items():
        try:
            bound = float(upper_bound(labels))
        except ValueError:
            continue
        if math.isfinite(value) and not math.isnan(bound):
            counts[bound] = counts.get(bound, 0.0) + value
    return tuple(sorted(counts.items()))


def _capacity(series: _Series) -> int | None:
    """`kv_cache_size_tokens` (0.25 and later; right for hybrid models), else blocks times their size."""
    tokens = 0
    for labels in series:
        given = parse_labels(labels)
        size = _whole(given.get("kv_cache_size_tokens"))
        if size is None:
            blocks, block = _whole(given.get("num_gpu_blocks")), _whole(given.get("block_size"))
            if blocks is None or block is None:
                return None
            size = blocks * block
        tokens += size
    return tokens or None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else None


def _asleep(series: _Series) -> bool | None:
    awake = [value for labels, value in series.items() if parse_labels(labels).get("sleep_state") == "awake"]
    return any(value == 0 for value in awake) if awake else None


def _adapters(series: _Series) -> tuple[str, ...] | None:
    """Each state is a series of its own and its value the time of it, so the newest is the one that holds."""
    finite = [(value, labels) for labels, value in series.items() if math.isfinite(value)]
    if not finite:
        return None
    given = parse_labels(max(finite)[1])
    names = (given.get(name, "") for name in ("running_lora_adapters", "waiting_lora_adapters"))
    return tuple(sorted({name for text in names for name in text.split(",") if name}))


def _engines(series: _Series) -> int:
    return len({parse_labels(labels).get("engine", "") for labels in series})
