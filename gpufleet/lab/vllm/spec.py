"""What an engine was started with: `vllm serve` words and environment to an EngineSpec."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from gpufleet.lab.vllm.failures import FAILURES
from gpufleet.lab.vllm.flags import KNOWN, is_switch
from gpufleet.redact import Secret

DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
"""What vLLM serves when nobody names a model: a lost argument starts this."""

LAB_VARIABLE = "GPUFLEET_LAB_ENGINE"
"""Words for the lab alone, in the engine's environment: `mode=hang load_seconds=0.2 token_seconds=0`."""


class Mode(Enum):
    """How an engine behaves.

    NEVER_READY stalls while it loads; UNHEALTHY answers 503 on /health once it is up; CRASH, CUDA_OOM and OOM
    end while they load (the last one killed, without a word); DEGENERATE says one sign over and over; WRONG_MODEL
    serves another name; HANG is healthy and never says a token.
    """

    OK = "ok"
    NEVER_READY = "never-ready"
    UNHEALTHY = "unhealthy"
    CRASH = "crash"
    CUDA_OOM = "cuda-oom"
    OOM = "oom"
    DEGENERATE = "degenerate"
    WRONG_MODEL = "wrong-model"
    HANG = "hang"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine.

    Attributes:
        served_names: names that clients may send; the model's own when empty.
        keys: API keys; none means that anybody may ask.
        kv_tokens: tokens that the KV cache holds.
        load_seconds: from the start until it listens.
        prefill_seconds: for one prompt token that is not cached.
        token_seconds: for one generated token.
        failure: how it ends in the mode CRASH: a name of `lab.vllm.failures`.
        refusal: what the argument parser says; the process ends at once with exit status 2.
    """

    model: str = DEFAULT_MODEL
    served_names: tuple[str, ...] = ()
    host: str = "0.0.0.0"
    port: int = 8000
    keys: tuple[Secret[str], ...] = ()
    version: str = "0.33.0"
    max_num_seqs: int = 256
    max_model_len: int = 32_768
    gpu_memory_utilization: float = 0.92
    tensor_parallel: int = 1
    kv_tokens: int = 432_000
    shutdown_timeout: float = 0.0
    request_id_headers: bool = False
    prompt_tokens_details: bool = False
    force_usage: bool = False
    load_seconds: float = 1.0
    prefill_seconds: float = 0.00002
    token_seconds: float = 0.01
    mode: Mode = Mode.OK
    failure: str = ""
    refusal: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The ids that /v1/models lists."""
        if self.mode is Mode.WRONG_MODEL:
            return (DEFAULT_MODEL if self.model != DEFAULT_MODEL else "facebook/opt-125m",)
        return self.served_names or (self.model,)


_NUMBERS: Mapping[str, tuple[str, type]] = {
    "--port": ("port", int),
    "--max-num-seqs": ("max_num_seqs", int),
    "--max-model-len": ("max_model_len", int),
    "--gpu-memory-utilization": ("gpu_memory_utilization", float),
    "--tensor-parallel-size": ("tensor_parallel", int),
    "--shutdown-timeout": ("shutdown_timeout", float),
}
_SHORT = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size"}
_LISTS = frozenset({"--served-model-name", "--api-key", "--middleware", "--lora-modules"})


def parse_spec(argv: Sequence[str], env: Mapping[str, str], base: EngineSpec | None = None) -> EngineSpec:
    """The engine that `argv` (entrypoint included) and `env` start; times and mode come from `base`.

    A word that vLLM does not know gives a spec with a `refusal`.
    """
    base = base or EngineSpec()
    words = list(argv)
    positional: list[str] = []
    given: dict[str, list[str]] = {}
    unknown: list[str] = []
    as_module = "vllm.entrypoints.openai.api_server" in words
    if as_module:
        words = words[words.index("vllm.entrypoints.openai.api_server") + 1 :]
    elif "serve" in words:
        words = words[words.index("serve") + 1 :]
    else:
        return replace(base, refusal=f"vllm: error: argument subparser: invalid choice: {words[1:2]}")
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not word.startswith("-"):
            positional.append(word)
            continue
        flag, equals, value = word.partition("=")
        flag = _SHORT.get(flag, flag).replace("_", "-")
        if flag not in KNOWN:
            unknown.append(word)
            continue
        values = given.setdefault(flag, [])
        if equals:
            values.append(value)
        elif not is_switch(flag):
            limit = len(words) if flag in _LISTS else place + 1
            while place < min(limit, len(words)) and not words[place].startswith("--"):
                values.append(words[place])
                place += 1
    return _spec(base, positional, given, unknown, env)


def _spec(
    base: EngineSpec,
    positional: Sequence[str],
    given: Mapping[str, Sequence[str]],
    unknown: Sequence[str],
    env: Mapping[str, str],
) -> EngineSpec:
    changes: dict[str, Any] = {}
    refusal = ""
    for flag, (name, kind) in _NUMBERS.items():
        for value in given.get(flag, ())[-1:]:
            try:
                changes[name] = kind(value)
            except ValueError:
                refusal = f"vllm serve: error: argument {flag}: invalid {kind.__name__} value: {value!r}"
    beyond = [*unknown, *positional[1:]]
    if beyond:
        refusal = f"vllm: error: unrecognized arguments: {' '.join(beyond)}"
    model = positional[0] if positional else next(iter(given.get("--model", ())), base.model)
    keys = [*given.get("--api-key", ()), *([env["VLLM_API_KEY"]] if env.get("VLLM_API_KEY") else [])]
    spec = replace(
        base,
        model=model,
        served_names=tuple(given.get("--served-model-name", ())),
        host=next(iter(given.get("--host", ())), base.host),
        keys=tuple(Secret(key) for key in keys),
        request_id_headers="--enable-request-id-headers" in given,
        prompt_tokens_details="--enable-prompt-tokens-details" in given,
        force_usage="--enable-force-include-usage" in given,
        refusal=refusal,
        arguments={flag: " ".join(values) or "True" for flag, values in given.items() if flag != "--api-key"},
        **changes,
    )
    return with_lab_words(spec, env.get(LAB_VARIABLE, ""))


def engine_words(wish: str) -> str:
    """The words of `LAB_VARIABLE` for an engine that behaves as `wish` says: a mode, or a way to fail.

    Raises:
        ValueError: it is neither; the message names them all.
    """
    modes = [mode.value for mode in Mode]
    if wish in modes:
        return f"mode={wish}"
    if wish in FAILURES:
        return f"failure={wish}"
    raise ValueError(f"no engine behaves like `{wish}`: it may be {', '.join([*modes, *FAILURES])}")


def with_lab_words(spec: EngineSpec, text: str) -> EngineSpec:
    """`spec` with the words of `LAB_VARIABLE`.

    Raises:
        ValueError: a word that the lab does not know.
    """
    changes: dict[str, Any] = {}
    for word in shlex.split(text):
        name, _, value = word.partition("=")
        if name == "mode":
            changes[name] = Mode(value)
        elif name in {"load_seconds", "token_seconds", "prefill_seconds"}:
            changes[name] = float(value)
        elif name == "failure" and value in FAILURES:
            changes |= {"failure": value, "mode": Mode.CRASH}
        elif name == "version":
            changes[name] = value
        elif name == "kv_tokens":
            changes[name] = int(value)
        else:
            raise ValueError(f"{LAB_VARIABLE} does not know `{name}`")
    return replace(spec, **changes)
