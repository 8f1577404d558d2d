"""Counters of one engine and its Prometheus page, with the names, types and labels of vLLM 0.33."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)
FINISHES = ("stop", "length", "abort", "error")


@dataclass(slots=True)
class Histogram:
    """Counts below bounds, and a sum."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """One more value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """Buckets, count and sum in text form."""
        below = 0
        for edge, count in zip((*map(_edge, self.bounds), "+Inf"), self.counts, strict=True):
            below += count
            yield f'{name}_bucket{{{labels},le="{edge}"}} {float(below)}'
        yield f"{name}_count{{{labels}}} {float(below)}"
        yield f"{name}_sum{{{labels}}} {self.total}"


def _edge(bound: float) -> str:
    return f"{float(bound)}"


def _times() -> Histogram:
    return Histogram(_SECONDS)


def _sizes() -> Histogram:
    return Histogram(_TOKENS)


@dataclass(slots=True)
class Counters:
    """What an engine has done since it started."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISHES, 0))
    prompt_sizes: Histogram = field(default_factory=_sizes)
    generation_sizes: Histogram = field(default_factory=_sizes)
    first_token: Histogram = field(default_factory=_times)
    between_tokens: Histogram = field(default_factory=_times)
    in_all: Histogram = field(default_factory=_times)
    queued: Histogram = field(default_factory=_times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """How an engine is at one moment."""

    running: int
    waiting: int
    kv_used: float
    kv_tokens: int
    gpu_memory_utilization: float


def page(model: str, counters: Counters, gauges: Gauges) -> str:
    """The text of /metrics."""
    labels = f'engine="0",model_name="{_escaped(model)}"'
    return "\n".join(
        [
            *_gauge_lines(labels, gauges),
            *_counter_lines(labels, counters),
            *_histogram_lines(labels, counters),
            *_info_lines(gauges),
            "",
        ]
    )


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _family(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"


def _gauge_lines(labels: str, gauges: Gauges) -> Iterator[str]:
    yield from _family("vllm:num_requests_running", "gauge", "Requests that are being worked on.")
    yield f"vllm:num_requests_running{{{labels}}} {float(gauges.running)}"
    yield from _family("vllm:num_requests_waiting", "gauge", "Requests that wait for a place.")
    yield f"vllm:num_requests_waiting{{{labels}}} {float(gauges.waiting)}"
    yield from _family(
        "vllm:num_requests_waiting_by_reason", "gauge", "Waiting requests, each with its reason."
    )
    yield f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} {float(gauges.waiting)}'
    yield f'vllm:num_requests_waiting_by_reason{{{labels},reason="deferred"}} 0.0'
    yield from _family(
        "vllm:engine_sleep_state", "gauge", "Whether the engine is awake, and how deep it sleeps."
    )
    for state, value in (("awake", 1.0), ("weights_offloaded", 0.0), ("discard_all", 0.0)):
        yield f'vllm:engine_sleep_state{{{labels},sleep_state="{state}"}} {value}'
    yield from _family("vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache in use; 1 is all of it.")
    yield f"vllm:kv_cache_usage_perc{{{labels}}} {gauges.kv_used}"


def _counter_lines(labels: str, counters: Counters) -> Iterator[str]:
    rows = (
        ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", counters.prompt_tokens),
        ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", counters.cached_tokens),
        ("num_preemptions", "Requests put back into the queue.", 0),
        ("prompt_tokens", "Prompt tokens processed.", counters.prompt_tokens),
        ("prompt_tokens_cached", "Prompt tokens that were cached.", counters.cached_tokens),
        ("generation_tokens", "Tokens generated.", counters.generation_tokens),
    )
    for name, about, value in rows:
        yield from _family(f"vllm:{name}_total", "counter", about)
        yield f"vllm:{name}_total{{{labels}}} {float(value)}"
    yield from _family("vllm:request_success_total", "counter", "Requests that ended, by reason.")
    for reason in FINISHES:
        yield f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {float(counters.finished[reason])}'


def _histogram_lines(labels: str, counters: Counters) -> Iterator[str]:
    rows = (
        ("request_prompt_tokens", "Prompt tokens of a request.", counters.prompt_sizes),
        ("request_generation_tokens", "Generated tokens of a request.", counters.generation_sizes),
        ("time_to_first_token_seconds", "From arrival to the first token.", counters.first_token),
        ("inter_token_latency_seconds", "From one token to the next.", counters.between_tokens),
        ("e2e_request_latency_seconds", "From arrival to the end.", counters.in_all),
        ("request_queue_time_seconds", "Time spent waiting.", counters.queued),
    )
    for name, about, histogram in rows:
        yield from _family(f"vllm:{name}", "histogram", about)
        yield from histogram.lines(f"vllm:{name}", labels)


def _info_lines(gauges: Gauges) -> Iterator[str]:
    yield from _family("vllm:cache_config_info", "gauge", "How the cache is laid out.")
    fields = (
        ("block_size", 16),
        ("cache_dtype", "auto"),
        ("enable_prefix_caching", "True"),
        ("engine", 0),
        ("gpu_memory_utilization", gauges.gpu_memory_utilization),
        ("kv_cache_size_tokens", gauges.kv_tokens),
        ("num_gpu_blocks", gauges.kv_tokens // 16),
        ("sliding_window", "None"),
    )
    labels = ",".join(f'{name}="{value}"' for name, value in fields)
    yield f"vllm:cache_config_info{{{labels}}} 1.0"
