"""What an engine was started with: `vllm serve` words and environment to an EngineSpec."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import msgspec

from gpufleet.engine.adapters import RUNTIME_VARIABLE
from gpufleet.engine.flag_table import takes_one
from gpufleet.engine.flags import release_of, written
from gpufleet.engine.kinds import TASKS
from gpufleet.lab.vllm.failures import FAILURES
from gpufleet.lab.vllm.flags import LISTS, is_switch, meant
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
        lora: whether it serves adapters (`--enable-lora`).
        runtime_lora: whether they may be loaded and unloaded while it runs.
        stores_responses: whether `/v1/responses` are kept to be read again.
        adapters: their places, by name.
        kind: `generate`, or what else the model does; there are no weights here, so arguments and name tell it.
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
    kind: str = "generate"
    lora: bool = False
    runtime_lora: bool = False
    stores_responses: bool = False
    adapters: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)

    def is_from(self, major: int, minor: int) -> bool:
        """Whether this version is that release or a later one; one that has no number is a new one."""
        release = release_of("", self.version)
        return release is None or (release.major, release.minor) >= (major, minor)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model itself."""
        if self.mode is Mode.WRONG_MODEL:
            return (DEFAULT_MODEL if self.model != DEFAULT_MODEL else "facebook/opt-125m",)
        return self.served_names or (self.model,)

    @property
    def known(self) -> tuple[str, ...]:
        """Every name that a request may carry: those of the model and of its adapters."""
        return (*self.names, *self.adapters)


_NUMBERS: Mapping[str, tuple[str, type]] = {
    "--port": ("port", int),
    "--max-num-seqs": ("max_num_seqs", int),
    "--max-model-len": ("max_model_len", int),
    "--gpu-memory-utilization": ("gpu_memory_utilization", float),
    "--tensor-parallel-size": ("tensor_parallel", int),
    "--shutdown-timeout": ("shutdown_timeout", float),
}
_MODULE = "vllm.entrypoints.openai.api_server"


@dataclass(slots=True)
class _Line:
    """A command line as argparse takes it apart; `wrong` is what it says of one flag."""

    positional: list[str] = field(default_factory=list)
    given: dict[str, list[str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    wrong: str = ""


def parse_spec(argv: Sequence[str], env: Mapping[str, str], base: EngineSpec | None = None) -> EngineSpec:
    """The engine that `argv` (entrypoint included) and `env` start; times and mode come from `base`.

    A word that this version of vLLM does not know gives a spec with a `refusal`.
    """
    base = with_lab_words(base or EngineSpec(), env.get(LAB_VARIABLE, ""))
    words = list(argv)
    if _MODULE in words:
        program, words = "api_server.py", words[words.index(_MODULE) + 1 :]
    elif "serve" in words:
        program, words = "vllm", words[words.index("serve") + 1 :]
    else:
        return replace(base, refusal=f"vllm: error: argument subparser: invalid choice: {words[1:2]}")
    spec = _spec(base, program, _taken_apart(words, base.version), env)
    return _blinded(spec, env.get("CUDA_VISIBLE_DEVICES", ""))


def _blinded(spec: EngineSpec, visible: str) -> EngineSpec:
    """VLLM reads each entry of CUDA_VISIBLE_DEVICES as a number (its issue 41848, open as of 0.20.1)."""
    if any(word.startswith(("GPU-", "MIG-")) for word in visible.split(",")):
        return replace(spec, failure="slice-uuid", mode=Mode.CRASH)
    return spec


def _taken_apart(words: Sequence[str], version: str) -> _Line:
    line, release, place = _Line(), release_of("", version), 0
    while place < len(words):
        word = words[place]
        place += 1
        if written(word) is None:
            line.positional.append(word)
            continue
        flag = meant(word, release)
        if flag is None:
            line.unknown.append(word)
            continue
        name, _ = flag
        values = line.given.setdefault(f"--{name}", [])
        equals, value = word.partition("=")[1:]
        if equals:
            values.append(value)
            if is_switch(name):
                line.wrong = line.wrong or f"argument --{name}: ignored explicit argument {value!r}"
        elif not is_switch(name):
            limit = len(words) if name in LISTS else place + 1
            while place < min(limit, len(words)) and written(words[place]) is None:
                values.append(words[place])
                place += 1
            if not values and takes_one(name):
                line.wrong = line.wrong or f"argument --{name}: expected one argument"
    return line


def _refusal(program: str, line: _Line) -> str:
    """What the argument parser says before it ends the process; flags are looked at before strangers."""
    inner = f"{program} serve" if program == "vllm" else program
    if line.wrong:
        return f"{inner}: error: {line.wrong}"
    for flag, (_, kind) in _NUMBERS.items():
        for value in line.given.get(flag, ())[-1:]:
            try:
                kind(value)
            except ValueError:
                return f"{inner}: error: argument {flag}: invalid {kind.__name__} value: {value!r}"
    beyond = [*line.unknown, *line.positional[0 if program != "vllm" else 1 :]]
    return f"{program}: error: unrecognized arguments: {' '.join(beyond)}" if beyond else ""


def _spec(base: EngineSpec, program: str, line: _Line, env: Mapping[str, str]) -> EngineSpec:
    given, refusal = line.given, _refusal(program, line)
    changes: dict[str, Any] = {}
    if not refusal:
        changes = {name: kind(given[flag][-1]) for flag, (name, kind) in _NUMBERS.items() if given.get(flag)}
    model = line.positional[0] if line.positional else next(iter(given.get("--model", ())), base.model)
    keys = [*given.get("--api-key", ()), *([env["VLLM_API_KEY"]] if env.get("VLLM_API_KEY") else [])]
    return replace(
        base,
        model=model,
        served_names=tuple(given.get("--served-model-name", ())),
        host=next(iter(given.get("--host", ())), base.host),
        keys=tuple(Secret(key) for key in keys),
        request_id_headers="--enable-request-id-headers" in given,
        prompt_tokens_details="--enable-prompt-tokens-details" in given,
        force_usage="--enable-force-include-usage" in given,
        refusal=refusal,
        lora="--enable-lora" in given,
        runtime_lora=env.get(RUNTIME_VARIABLE, "").casefold() in {"1", "true"},
        stores_responses=env.get("VLLM_ENABLE_RESPONSES_API_STORE", "") == "1",
        adapters=_adapters(given),
        kind=_kind(given, model) or base.kind,
        arguments={flag: " ".join(values) or "True" for flag, values in given.items() if flag != "--api-key"},
        **changes,
    )


def _adapters(given: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """`NAME=PATH` words, or JSON with `name` and `path`."""
    found: dict[str, str] = {}
    for word in given.get("--lora-modules", ()):
        if "=" in word and "," not in word:
            name, _, path = word.partition("=")
            found[name] = path
        else:
            module = msgspec.json.decode(word)
            found[str(module["name"])] = str(module["path"])
    return found


_NAMES = {
    "rerank": "rerank",
    "embed": "embedding",
    "bge-": "embedding",
    "gte-": "embedding",
    "whisper": "transcription",
    "tts": "speech",
}
"""Parts of names that tell what a model does; vLLM reads it from the weights."""


def _kind(given: Mapping[str, Sequence[str]], model: str) -> str:
    for flag in ("--task", "--convert"):
        for value in given.get(flag, ())[-1:]:
            if value in TASKS:
                return TASKS[value]
    named = next((kind for part, kind in _NAMES.items() if part in model.casefold()), "")
    pooling = next(iter(given.get("--runner", ())), "") == "pooling"
    return named or ("embedding" if pooling else "")


def engine_words(wish: str) -> str:
    """The words of `LAB_VARIABLE` for an engine that behaves as `wish` says: a mode, or a way to fail.

    Settings may follow: `ok prefill_seconds=0.05`.

    Raises:
        ValueError: it is neither; the message names them all.
    """
    modes = [mode.value for mode in Mode]
    name, *settings = wish.split() or [""]
    timed = all(re.fullmatch(r"(?:load|token|prefill)_seconds=[0-9.]+", word) for word in settings)
    if settings and timed and (name in modes or name in FAILURES):
        return " ".join([engine_words(name), *settings])
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
