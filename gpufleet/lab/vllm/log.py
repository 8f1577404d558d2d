"""The log of an engine that starts, as lines over time, in the wording of vLLM 0.33.

Theory of operation. A start-up is a list of lines, each at a fraction of `load_seconds`. How it ends depends on
the mode: it listens, stalls in the middle of its weights, or stops with an exit status. So the log at any moment
is a function of the spec and of the seconds since the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpufleet.lab.vllm.spec import EngineSpec, Mode

SHARDS = 4
LATE = "See stack trace (above) for the root cause."


@dataclass(frozen=True, slots=True)
class Line:
    """One line, at `at` of the time that loading takes (1.0: it listens)."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Ending:
    """A start-up that does not listen: None is a stall, a number the exit status."""

    at: float
    status: int | None


def ending(spec: EngineSpec) -> Ending | None:
    """How the start-up ends; None when it listens."""
    if spec.refusal:
        return Ending(0.0, 2)
    return {
        Mode.NEVER_READY: Ending(0.45, None),
        Mode.OOM: Ending(0.4, 137),
        Mode.CUDA_OOM: Ending(0.5, 1),
        Mode.CRASH: Ending(0.75, 1),
    }.get(spec.mode)


def startup(spec: EngineSpec) -> tuple[Line, ...]:
    """Every line of the start-up, in order."""
    if spec.refusal:
        usage = "usage: vllm serve [model_tag] [options]"
        return (Line(0.0, usage), Line(0.0, spec.refusal))
    end = ending(spec)
    lines = [line for line in _healthy(spec) if end is None or line.at <= end.at]
    if end is not None:
        lines += [Line(end.at, text) for text in _last_words(spec)]
    return tuple(lines)


_API, _CORE = "(APIServer pid=1) ", "(EngineCore_DP0 pid=77) "
_INFO = "INFO 01-01 00:00:00"


def _healthy(spec: EngineSpec) -> Iterator[Line]:
    yield from _loading(spec)
    yield from _warming_up(spec)


def _loading(spec: EngineSpec) -> Iterator[Line]:
    api, core, info = _API, _CORE, _INFO
    shown = {
        "model_tag": spec.model,
        **{flag.strip("-").replace("-", "_"): value for flag, value in spec.arguments.items()},
    }
    yield Line(
        0.0,
        f"{api}{info} [api_server.py:1351] vLLM server version {spec.version}, serving model {spec.model}",
    )
    yield Line(0.02, f"{api}{info} [utils.py:233] non-default args: {shown}")
    yield Line(
        0.1,
        f"{core}{info} [core.py:103] Initializing a V1 LLM engine (v{spec.version}) with config: model={spec.model!r}",
    )
    yield Line(0.2, f"{core}{info} [gpu_model_runner.py:4012] Starting to load model {spec.model}...")
    for shard in range(SHARDS + 1):
        percent = 100 * shard // SHARDS
        yield Line(
            0.25 + 0.25 * shard / SHARDS,
            f"Loading safetensors checkpoint shards: {percent:3d}% Completed | {shard}/{SHARDS} [00:0{shard}<00:0{SHARDS - shard},  1.00it/s]",
        )
    yield Line(
        0.5,
        f"{core}{info} [default_loader.py:314] Loading weights took {spec.load_seconds * 0.25:.2f} seconds",
    )
    yield Line(
        0.52,
        f"{core}{info} [gpu_model_runner.py:4090] Model loading took 15.27 GiB memory and {spec.load_seconds * 0.3:.6f} seconds",
    )


def _warming_up(spec: EngineSpec) -> Iterator[Line]:
    api, core, info = _API, _CORE, _INFO
    yield Line(
        0.6, f"{core}{info} [backends.py:643] Dynamo bytecode transform time: {spec.load_seconds * 0.1:.2f} s"
    )
    yield Line(
        0.7, f"{core}{info} [monitor.py:48] torch.compile takes {spec.load_seconds * 0.1:.2f} s in total"
    )
    yield Line(0.72, f"{core}{info} [gpu_worker.py:420] Estimated CUDA graph memory: 0.55 GiB total")
    available = spec.kv_tokens * 131_072 / 2**30
    yield Line(0.76, f"{core}{info} [gpu_worker.py:436] Available KV cache memory: {available:.2f} GiB")
    concurrency = spec.kv_tokens / spec.max_model_len
    yield Line(
        0.78,
        f"{core}{info} [kv_cache_utils.py:1314] GPU KV cache size: {spec.kv_tokens:,} tokens, "
        f"Maximum concurrency for {spec.max_model_len:,} tokens per request: {concurrency:.2f}x",
    )
    yield Line(
        0.88,
        f"{core}{info} [gpu_model_runner.py:4811] Graph capturing finished in {int(spec.load_seconds * 0.1)} secs, took 0.55 GiB",
    )
    yield Line(
        0.9,
        f"{core}{info} [core.py:270] init engine (profile, create kv cache, warmup model) took {spec.load_seconds * 0.4:.2f} seconds",
    )
    yield Line(
        0.98, f"{api}{info} [api_server.py:1425] Starting vLLM server on http://{spec.host}:{spec.port}"
    )
    yield Line(0.98, f"{api}{info} [launcher.py:38] Available routes are:")
    yield Line(0.99, f"{api}INFO:     Started server process [1]")
    yield Line(0.99, f"{api}INFO:     Waiting for application startup.")
    yield Line(1.0, f"{api}INFO:     Application startup complete.")


def _last_words(spec: EngineSpec) -> tuple[str, ...]:
    """What is printed before an end with a status; a process that the kernel kills says nothing."""
    core = "(EngineCore_DP0 pid=77) ERROR 01-01 00:00:00 [core.py:866] "
    wrapper = (
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. "
        "See root cause above. Failed core proc(s): {'EngineCore_DP0': 1}"
    )
    trace = "(APIServer pid=1) Traceback (most recent call last):"
    if spec.mode is Mode.CUDA_OOM:
        return (
            f"{core}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB.",
            trace,
            wrapper,
        )
    if spec.mode is Mode.CRASH:
        reason = (
            "ValueError: No available memory for the cache blocks. "
            "Try increasing `gpu_memory_utilization` when initializing the engine."
        )
        return (f"{core}EngineCore failed to start.", f"{core}{reason}", trace, wrapper)
    return ()
