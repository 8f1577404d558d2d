"""The log of an engine that starts, as lines over time, in the wording of its version of vLLM.

Theory of operation. A start-up is a list of lines, each at a fraction of `load_seconds`. How it ends depends on
the mode: it listens, stalls in the middle of its weights, or stops with an exit status. So the log at any moment
is a function of the spec and of the seconds since the start. Versions differ in what stands in front of a line
(the process since 0.10, the place in brackets since 0.8.3), and in some of the words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpufleet.lab.vllm.failures import FAILURES, Failure, last_words
from gpufleet.lab.vllm.spec import EngineSpec, Mode

SHARDS = 4


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
        Mode.CRASH: Ending(_failure(spec).at, 1),
    }.get(spec.mode)


def startup(spec: EngineSpec) -> tuple[Line, ...]:
    """Every line of the start-up, in order."""
    if spec.refusal:
        program = spec.refusal.partition(":")[0]
        usage = f"usage: {program} [-h] [-v] {{chat,complete,serve,bench,collect-env,run-batch}} ..."
        inner = f"usage: {program} [model_tag] [options]"
        return (Line(0.0, usage if program == "vllm" else inner), Line(0.0, spec.refusal))
    end = ending(spec)
    lines = [line for line in _healthy(spec) if end is None or line.at <= end.at]
    if end is not None:
        lines += [Line(end.at, text) for text in _last_words(spec)]
    return tuple(lines)


def _failure(spec: EngineSpec) -> Failure:
    return FAILURES[spec.failure or ("load" if spec.mode is Mode.CUDA_OOM else "kv-none")]


def _release(spec: EngineSpec) -> tuple[int, ...]:
    """The version as numbers; an odd one counts as new."""
    numbers = [int(part) for part in spec.version.split("+")[0].split(".")[:3] if part.isdigit()]
    return tuple(numbers) or (1,)


def _front(spec: EngineSpec, process: str, level: str, place: str) -> str:
    """Process, level, time and place, as this version puts them in front."""
    release = _release(spec)
    if process == "EngineCore" and release < (0, 17):
        process = "EngineCore_DP0"
    pid = 1 if process == "APIServer" else 77 + sum(int(sign) for sign in process[-1:] if sign.isdigit())
    front = f"({process} pid={pid}) " if release >= (0, 10) else ""
    if not level:
        return front
    return f"{front}{level} 01-01 00:00:00 {'[' if release >= (0, 8, 3) else ''}{place}] "


def _info(spec: EngineSpec, process: str, place: str, text: str) -> str:
    return f"{_front(spec, process, 'INFO', place)}{text}"


def _healthy(spec: EngineSpec) -> Iterator[Line]:
    yield from _loading(spec)
    yield from _warming_up(spec)


def _loading(spec: EngineSpec) -> Iterator[Line]:
    release = _release(spec)
    shown = {
        "model_tag": spec.model,
        **{flag.strip("-").replace("-", "_"): value for flag, value in spec.arguments.items()},
    }
    begins = (
        f"vLLM server version {spec.version}, serving model {spec.model}"
        if release >= (0, 18)
        else f"vLLM API server version {spec.version}"
    )
    yield Line(0.0, _info(spec, "APIServer", "api_server.py:1351", begins))
    yield Line(0.02, _info(spec, "APIServer", "utils.py:233", f"non-default args: {shown}"))
    config = f"Initializing a V1 LLM engine (v{spec.version}) with config: model={spec.model!r}, trust_remote_code=False"
    yield Line(0.1, _info(spec, "EngineCore", "core.py:103", config))
    yield Line(
        0.2, _info(spec, "EngineCore", "gpu_model_runner.py:4012", f"Starting to load model {spec.model}...")
    )
    for shard in range(SHARDS + 1):
        percent = 100 * shard // SHARDS
        yield Line(
            0.25 + 0.25 * shard / SHARDS,
            f"Loading safetensors checkpoint shards: {percent:3d}% Completed | {shard}/{SHARDS} [00:0{shard}<00:0{SHARDS - shard},  1.00it/s]",
        )
    yield Line(
        0.5,
        _info(
            spec,
            "EngineCore",
            "default_loader.py:314",
            f"Loading weights took {spec.load_seconds * 0.25:.2f} seconds",
        ),
    )
    size = "15.27 GiB memory" if release >= (0, 12) else "15.2700 GiB"
    took = f"Model loading took {size} and {spec.load_seconds * 0.3:.6f} seconds"
    yield Line(0.52, _info(spec, "EngineCore", "gpu_model_runner.py:4090", took))


def _warming_up(spec: EngineSpec) -> Iterator[Line]:
    release, tenth = _release(spec), spec.load_seconds * 0.1
    steps = [
        (0.6, "backends.py:643", f"Dynamo bytecode transform time: {tenth:.2f} s"),
        (0.7, "monitor.py:48", f"torch.compile takes {tenth:.2f} s in total"),
    ]
    if release >= (0, 18, 1):
        steps.append((0.72, "gpu_worker.py:420", "Estimated CUDA graph memory: 0.55 GiB total"))
    available = spec.kv_tokens * 131_072 / 2**30
    steps.append((0.76, "gpu_worker.py:436", f"Available KV cache memory: {available:.2f} GiB"))
    size = f"GPU KV cache size: {spec.kv_tokens:,} tokens"
    often = f"Maximum concurrency for {spec.max_model_len:,} tokens per request: {spec.kv_tokens / spec.max_model_len:.2f}x"
    if release >= (0, 25):
        steps.append((0.78, "kv_cache_utils.py:1314", f"{size}, {often}"))
    else:
        steps += [(0.78, "kv_cache_utils.py:1314", size), (0.78, "kv_cache_utils.py:1319", often)]
    warm = f"init engine (profile, create kv cache, warmup model) took {spec.load_seconds * 0.4:.2f} seconds"
    steps += [
        (0.88, "gpu_model_runner.py:4811", f"Graph capturing finished in {int(tenth)} secs, took 0.55 GiB"),
        (0.9, "core.py:270", warm),
    ]
    for at, place, text in steps:
        yield Line(at, _info(spec, "EngineCore", place, text))
    address = f"http://{spec.host}:{spec.port}"
    begins = (
        f"Starting vLLM server on {address}"
        if release >= (0, 18)
        else f"Starting vLLM API server 0 on {address}"
    )
    yield Line(0.98, _info(spec, "APIServer", "api_server.py:1425", begins))
    yield Line(0.98, _info(spec, "APIServer", "launcher.py:38", "Available routes are:"))
    front = _front(spec, "APIServer", "", "")
    yield Line(0.99, f"{front}INFO:     Started server process [1]")
    yield Line(0.99, f"{front}INFO:     Waiting for application startup.")
    yield Line(1.0, f"{front}INFO:     Application startup complete.")


def _last_words(spec: EngineSpec) -> tuple[str, ...]:
    """What is printed before an end with a status; a process that the kernel kills says nothing."""
    if spec.mode not in {Mode.CRASH, Mode.CUDA_OOM}:
        return ()
    return tuple(
        last_words(
            _failure(spec),
            lambda process, level, place, text: f"{_front(spec, process, level, place)}{text}",
            spec.tensor_parallel,
        )
    )
