"""Pages of /metrics as each generation of vLLM writes them: names, labels and order real, values of our own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What changed between releases."""

    labelled: bool = True
    kv: tuple[str, ...] = ("kv_cache_usage_perc",)
    prefix: tuple[str, ...] = ("prefix_cache",)
    between: tuple[str, ...] = ("inter_token_latency_seconds",)
    swapped: bool = False
    reasons: bool = False
    size: bool = False
    sleep: bool = False


GENERATIONS = {
    "0.6.6": Generation(
        labelled=False,
        kv=("gpu_cache_usage_perc",),
        prefix=(),
        between=("time_per_output_token_seconds",),
        swapped=True,
    ),
    "0.8.5": Generation(
        labelled=False,
        kv=("gpu_cache_usage_perc",),
        prefix=("gpu_prefix_cache",),
        between=("time_per_output_token_seconds",),
    ),
    "0.10.2": Generation(
        kv=("gpu_cache_usage_perc", "kv_cache_usage_perc"),
        prefix=("gpu_prefix_cache", "prefix_cache"),
        between=("time_per_output_token_seconds", "inter_token_latency_seconds"),
    ),
    "0.12.0": Generation(sleep=True),
    "0.33.0": Generation(reasons=True, size=True, sleep=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What one engine has to tell."""

    running: float = 3
    waiting: float = 2
    used: float = 0.5
    queries: float = 1000
    hits: float = 400
    blocks: int = 2000


def page(release: str, *engines: Engine) -> bytes:
    """The page of these engines, of one when none is named."""
    told = GENERATIONS[release]
    lines: list[str] = ["# HELP python_info Python platform information", "# TYPE python_info gauge"]
    lines += ['python_info{implementation="CPython",version="3.12.1"} 1.0']

    def family(name: str, kind: str, values: list[tuple[str, float]]) -> None:
        lines.extend((f"# HELP vllm:{name} A line with vllm:{name} 77 in it.", f"# TYPE vllm:{name} {kind}"))
        lines.extend(f"vllm:{name}{{{labels}}} {value}" for labels, value in values)

    def each(name: str, kind: str, field: str, extra: str = "") -> None:
        values = [(_labels(told, number, extra), getattr(one, field)) for number, one in enumerate(made)]
        family(name, kind, values)

    made = engines or (Engine(),)
    each("num_requests_running", "gauge", "running")
    each("num_requests_waiting", "gauge", "waiting")
    if told.swapped:
        family("num_requests_swapped", "gauge", [(_labels(told, 0), 1.0)])
    if told.reasons:
        each("num_requests_waiting_by_reason", "gauge", "waiting", ',reason="capacity"')
    for name in told.kv:
        each(name, "gauge", "used")
    for name in told.prefix:
        each(f"{name}_queries_total", "counter", "queries")
        each(f"{name}_queries_created", "gauge", "queries")
        each(f"{name}_hits_total", "counter", "hits")
        each(f"{name}_hits_created", "gauge", "hits")
    each("external_prefix_cache_hits_total", "counter", "queries")
    for reason in ("stop", "length"):
        each("request_success_total", "counter", "hits", f',finished_reason="{reason}"')
    for name in ("time_to_first_token_seconds", *told.between):
        lines += [f"# HELP vllm:{name} Histogram.", f"# TYPE vllm:{name} histogram"]
        for number in range(len(made)):
            for bound, count in (("0.1", 1), ("1.0", 4), ("+Inf", 5)):
                extra = f',le="{bound}"'
                lines.append(f"vllm:{name}_bucket{{{_labels(told, number, extra)}}} {float(count)}")
            lines.append(f"vllm:{name}_sum{{{_labels(told, number)}}} 2.5")
            lines.append(f"vllm:{name}_count{{{_labels(told, number)}}} 5.0")
    if told.sleep:
        for number in range(len(made)):
            family("engine_sleep_state", "gauge", [(_labels(told, number, ',sleep_state="awake"'), 1.0)])
    for number, one in enumerate(made):
        size = f',kv_cache_size_tokens="{one.blocks * 16}"' if told.size else ""
        family(
            "cache_config_info",
            "gauge",
            [(f'block_size="16",engine="{number}"{size},num_gpu_blocks="{one.blocks}"', 1.0)],
        )
    lora = 'max_lora="4",running_lora_adapters="{}",waiting_lora_adapters="{}"'
    family(
        "lora_requests_info",
        "gauge",
        [(lora.format("old", ""), 1.7e9), (lora.format("sql,law", "law"), 1.7e9 + 5)],
    )
    return "\n".join(lines).encode() + b"\n"


def _labels(told: Generation, number: int, extra: str = "") -> str:
    engine = f'engine="{number}",' if told.labelled else ""
    return f'{engine}model_name="org/m"{extra}'
