"""LoRA adapters of an engine: the words and directories it starts with, and what it is asked to load and unload one.

vLLM serves an adapter under its own name beside the model, lists it in /v1/models with the model as `parent` and its
place as `root`, and takes more of them while it runs when `VLLM_ALLOW_RUNTIME_LORA_UPDATING` is set (vLLM,
docs/features/lora.md). Whoever has the engine's key may then do so: gpufleet's proxy relays no such request.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from gpufleet.engine.flags import Fault, written
from gpufleet.pools.model import Pool

RUNTIME_VARIABLE = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
LOAD = "/v1/load_lora_adapter"
UNLOAD = "/v1/unload_lora_adapter"
MODELS = "/v1/models"


@dataclass(frozen=True, slots=True)
class Loaded:
    """One model that an engine lists: the adapter's place, and whether it is an adapter at all."""

    name: str
    root: str
    adapter: bool


def adapter_words(pool: Pool) -> list[str]:
    """What the engine is started with."""
    if not pool.takes_adapters:
        return []
    modules = [f"{name}={path}" for name, path in sorted(pool.lora.items())]
    return ["--enable-lora", *(["--lora-modules", *modules] if modules else [])]


def adapter_directories(pool: Pool) -> tuple[str, ...]:
    """Directories of the host that hold adapters and are not below another that is mounted anyway."""
    wanted = [path for path in (pool.lora_from, *pool.lora.values()) if path and path.startswith("/")]
    found: list[str] = []
    for path in sorted({path.rstrip("/") or "/" for path in wanted}, key=len):
        if not any(inside(path, known) for known in (*found, *([pool.weights] if pool.weights else []))):
            found.append(path)
    return tuple(found)


def reachable(pool: Pool, path: str) -> bool:
    """Whether a running container of `pool` can see the adapter: below a mounted directory, or on the hub."""
    if not path.startswith("/"):
        return pool.weights is None
    mounted = (*adapter_directories(pool), *([pool.weights] if pool.weights else []))
    return any(inside(path, known) for known in mounted)


def inside(path: str, directory: str) -> bool:
    """Whether a path is a directory or lies below it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def adapter_faults(pool: Pool) -> tuple[Fault, ...]:
    """The same said twice, and adapters of the hub for an engine that may not ask it."""
    if not pool.takes_adapters:
        return ()
    twice = tuple(
        Fault(
            message=f"`--{one.name}` is what the pool's `lora` writes", hint="keep one of the two", at=place
        )
        for place, word in enumerate(pool.engine.args)
        if (one := written(word)) is not None and one.name in {"lora-modules", "enable-lora"}
    )
    offline = tuple(
        Fault(
            message=f"adapter `{name}` is on the hub, which an engine with staged `weights` does not ask",
            hint="copy it to the hosts and name its directory",
            key=f"lora.{name}",
        )
        for name, path in pool.lora.items()
        if pool.weights is not None and not path.startswith("/") and "HF_HUB_OFFLINE" not in pool.engine.env
    )
    return twice + offline


def load_body(name: str, path: str) -> str:
    """What LOAD is sent."""
    return msgspec.json.encode({"lora_name": name, "lora_path": path}).decode()


def unload_body(name: str) -> str:
    """What UNLOAD is sent."""
    return msgspec.json.encode({"lora_name": name}).decode()


def loaded(body: str) -> tuple[Loaded, ...] | None:
    """What an answer of /v1/models lists; None when it is no such answer."""
    try:
        answer = msgspec.json.decode(body.strip())
    except (msgspec.DecodeError, RecursionError):
        return None
    models = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(models, list):
        return None
    return tuple(
        Loaded(str(one.get("id")), str(one.get("root") or ""), adapter=bool(one.get("parent")))
        for one in models
        if isinstance(one, dict)
    )
