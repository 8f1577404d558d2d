"""What makes two replicas interchangeable: the hash of all that a container is made from, and what beside it may differ.

Adapters are not part of the hash: an engine loads and unloads them while it runs, so which it has is asked of it and
put right there. What a running container cannot change is what it sees: whether it takes adapters at all, and from
which directories. That is written on it as a label when it is started, and compared with what the pool needs now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from gpufleet.deploy.replicas import LABEL
from gpufleet.engine.adapters import adapter_directories, inside
from gpufleet.engine.model import Engine, EngineContainer
from gpufleet.engine.vllm import devices_of
from gpufleet.pools.model import Pool
from gpufleet.redact import Secret

ADAPTERS_LABEL = f"{LABEL}.adapters"
"""JSON list of directories whose adapters the container sees; there only when its engine takes adapters."""


def spec_of(engine: Engine, pool: Pool, key: Secret[str] | None) -> str:
    """Hash of all that a replica's container is made from, adapters apart; `pool`: with its weights where hosts have them.

    Secrets enter by their reference, the engine's key by a digest of its value: another key is another container.
    """
    bare = replace(pool, lora={}, lora_from=None)
    container, limits, wanted = (
        engine.container(bare, key=key, devices=devices_of(bare)),
        pool.limits,
        pool.slice,
    )
    parts = (
        container.image,
        container.entrypoint,
        container.arguments,
        sorted(
            (name, value.reference if isinstance(value, Secret) else value)
            for name, value in pool.engine.env.items()
        ),
        hashlib.sha256(key.reveal().encode()).hexdigest() if key is not None else "",
        [(mount.source, mount.target) for mount in container.mounts],
        (
            limits.memory,
            limits.cpus,
            limits.shm,
            *([limits.memlock] if limits.memlock != "unlimited" else []),
        ),
        (
            wanted.gpus,
            wanted.mig,
            wanted.memory_gib,
            *([wanted.share] if wanted.share is not None else []),
            *(["across"] if wanted.across else []),
        ),
    )
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def adapters_label(pool: Pool, container: EngineContainer) -> dict[str, str]:
    """The label of a container that takes adapters; none for others."""
    if not pool.takes_adapters:
        return {}
    seen = sorted({mount.source for mount in container.mounts})
    return {ADAPTERS_LABEL: msgspec.json.encode(seen).decode()}


def can_serve_adapters(pool: Pool, labels: Mapping[str, str]) -> bool:
    """Whether a container that runs can have the pool's adapters; one that could and needs none is as good."""
    if not pool.takes_adapters:
        return True
    try:
        seen = msgspec.json.decode(labels.get(ADAPTERS_LABEL, ""), type=list[str])
    except msgspec.MsgspecError:
        return False
    return all(any(inside(path, known) for known in seen) for path in adapter_directories(pool))
