"""vLLM: entrypoint, arguments, environment and paths.

Every default that changed between versions, or that vLLM derives from the memory of the whole card even on a
slice of it, is written out: the entrypoint, the share of GPU memory, sequences and tokens a batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpufleet.engine.model import EngineContainer, Mount
from gpufleet.pools.model import Pool
from gpufleet.redact import Secret

PORT = 8000
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - inside the container; what is published is the host's address alone
GPU_MEMORY_UTILIZATION = "0.90"
MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 8192
SHUTDOWN_TIMEOUT = 60
STOP_TIMEOUT = 90
KEY_VARIABLE = "VLLM_API_KEY"

OWNED_FLAGS: Mapping[str, str] = {
    "--model": "the pool's `model`",
    "--served-model-name": "the pool's `served_name`",
    "--host": "the host's `service_address`",
    "--port": "the host's `ports`",
    "--api-key": "nothing: gpufleet makes a key for each pool and passes it by environment",
    "--hf-token": "`engine.env: {HF_TOKEN: '${env:HF_TOKEN}'}`",
    "--shutdown-timeout": "nothing: gpufleet keeps it below the container's stop time-out",
}

_SHUTDOWN_TIMEOUT_SINCE = (0, 18)
_VERSION = re.compile(r":v?(\d+)\.(\d+)(?:\.\d+)?(?:[-+.][\w.-]*)?(?:@sha256:[0-9a-f]+)?$")


def version_of(image: str) -> tuple[int, int] | None:
    """Major and minor version by the image's tag; None for `latest`, a bare digest or a private scheme."""
    found = _VERSION.search(image)
    return (int(found[1]), int(found[2])) if found else None


def has_flag(arguments: tuple[str, ...], flag: str) -> bool:
    """Whether `flag` is among `arguments` as `--flag value`, `--flag=value`, or with underscores."""
    wanted = flag.replace("_", "-")
    return any(
        word.split("=", 1)[0].replace("_", "-") == wanted for word in arguments if word.startswith("--")
    )


def arguments(pool: Pool, devices: int) -> tuple[str, ...]:
    """The words after the entrypoint; what the pool's `engine.args` sets is not set twice."""
    defaults: list[tuple[str, str]] = [
        ("--gpu-memory-utilization", GPU_MEMORY_UTILIZATION),
        ("--max-num-seqs", str(MAX_NUM_SEQS)),
        ("--max-num-batched-tokens", str(MAX_NUM_BATCHED_TOKENS)),
    ]
    if devices > 1:
        defaults.append(("--tensor-parallel-size", str(devices)))
    words = [
        "serve",
        pool.model,
        "--served-model-name",
        pool.public_name,
        "--host",
        EVERY_ADDRESS,
        "--port",
        str(PORT),
    ]
    for flag, value in defaults:
        if not has_flag(pool.engine.args, flag):
            words += [flag, value]
    version = version_of(pool.engine.image)
    if version is None or version >= _SHUTDOWN_TIMEOUT_SINCE:
        words += ["--shutdown-timeout", str(SHUTDOWN_TIMEOUT)]
    return (*words, *pool.engine.args)


@dataclass(frozen=True, slots=True)
class Vllm:
    """The engine of `vllm/vllm-openai` images."""

    health_path: str = "/health"
    metrics_path: str = "/metrics"
    busy_metrics: str = "^vllm:num_requests_(running|waiting)"
    default_image: str = "vllm/vllm-openai:latest"

    @property
    def owned_flags(self) -> Mapping[str, str]:
        return OWNED_FLAGS

    def container(self, pool: Pool, *, key: Secret[str] | None, devices: int) -> EngineContainer:
        """See `model.Engine.container`.

        GPUs are chosen by the runtime alone: CUDA_VISIBLE_DEVICES with the UUID of a slice stops many versions.
        """
        environment: dict[str, str | Secret[str]] = dict(pool.engine.env)
        if key is not None:
            environment[KEY_VARIABLE] = key
        mounts: tuple[Mount, ...] = ()
        if pool.weights is not None:
            mounts = (Mount(pool.weights, pool.weights),)
            environment.setdefault("HF_HUB_OFFLINE", "1")
        return EngineContainer(
            image=pool.engine.image or self.default_image,
            entrypoint="vllm",
            arguments=arguments(pool, devices),
            environment=environment,
            mounts=mounts,
            stop_timeout=STOP_TIMEOUT,
        )
