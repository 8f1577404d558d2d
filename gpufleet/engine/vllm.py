"""vLLM: entrypoint, arguments, environment and paths.

Every default that changed between versions, or that vLLM derives from the memory of the whole card even on a
slice of it, is written out: the entrypoint, the share of GPU memory, sequences and tokens a batch. `vllm serve` is
written out for every version: the image's own entrypoint became it only with 0.11.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpufleet.engine.adapters import (
    RUNTIME_VARIABLE,
    adapter_directories,
    adapter_faults,
    adapter_words,
)
from gpufleet.engine.flags import (
    Fault,
    Release,
    Standing,
    instead_of,
    lint,
    release_of,
    standing,
    value_of,
    written,
)
from gpufleet.engine.host_memory import memory_faults
from gpufleet.engine.kinds import POOLING, kind_of
from gpufleet.engine.model import EngineContainer, Mount
from gpufleet.pools.model import Pool
from gpufleet.redact import Secret

PORT = 8000
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - inside the container; what is published is the host's address alone
GPU_MEMORY_UTILIZATION = "0.90"
MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 8192
SLICE_MAX_NUM_SEQS = 128
SLICE_MAX_NUM_BATCHED_TOKENS = 2048
"""On a slice: what vLLM takes from the memory of the whole card costs several GiB there. 2048 is its own choice for
small cards; the sampler's warm-up grows with the sequences."""

POOLING_TOKENS = 32_768
"""For models that pool and whose length nobody said: many of them take a prompt whole or not at all, and this is the
least that vLLM takes for them by itself."""

SHUTDOWN_TIMEOUT = 60
STOP_TIMEOUT = SHUTDOWN_TIMEOUT + 30
KEY_VARIABLE = "VLLM_API_KEY"

OWNED_FLAGS: Mapping[str, str] = {
    "--model": "the pool's `model`",
    "--served-model-name": "the pool's `served_name`",
    "--host": "the host's `service_address`",
    "--port": "the host's `ports`",
    "--uds": "nothing: replicas are reached by TCP, at the host's `ports`",
    "--api-key": "nothing: gpufleet makes a key for each pool and passes it by environment",
    "--hf-token": "`engine.env: {HF_TOKEN: '${env:HF_TOKEN}'}`",
    "--shutdown-timeout": "nothing: gpufleet keeps it below the container's stop time-out",
}

_VISIBLE = "nothing: the runtime gives the container its GPU, and vLLM stops on the UUID of a slice there"
OWNED_VARIABLES: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES": _VISIBLE,
    "NVIDIA_VISIBLE_DEVICES": _VISIBLE,
    KEY_VARIABLE: "nothing: gpufleet makes a key for each pool",
    "VLLM_SERVER_DEV_MODE": "nothing: it opens pages that let anybody reset the engine",
}

_RESERVING = frozenset({"gpu-memory-utilization", "device-memory-utilization", "kv-cache-memory-bytes"})
"""Flags, the second an alias of 0.33, that decide how much of a GPU an engine reserves."""

_SHUTDOWN_TIMEOUT_SINCE = (0, 18)
_LENGTH_FREE_SINCE = (0, 8)
"""Before, the V0 engine refused fewer batched tokens than the model's whole length, and derived them from it."""


def version_of(image: str) -> tuple[int, int] | None:
    """Major and minor version by the image's tag; None for `latest`, a bare digest or a private scheme."""
    release = release_of(image)
    return (release.major, release.minor) if release else None


def release(pool: Pool) -> Release | None:
    """The engine's version, as `engine.version` or the image's tag tells it."""
    return release_of(pool.engine.image, pool.engine.version)


def version(pool: Pool) -> tuple[int, int] | None:
    """Major and minor of the engine's version; None when neither `engine.version` nor the image's tag tells it."""
    found = release(pool)
    return (found.major, found.minor) if found else None


def has_flag(arguments: Sequence[str], flag: str) -> bool:
    """Whether `flag` is among `arguments`, in whatever spelling: `--flag=value`, underscores, a short name."""
    wanted = flag.removeprefix("--").replace("_", "-")
    flags = (written(word) for word in arguments)
    return any(one is not None and one.name == wanted for one in flags)


def arguments(pool: Pool, devices: int) -> tuple[str, ...]:
    """The words after the entrypoint; what the pool's `engine.args` sets is not set twice."""
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
    for flag, value in _defaults(pool, devices):
        if not has_flag(pool.engine.args, flag):
            words += [flag, value]
    version = release(pool)
    if version is None or version.at_least(*_SHUTDOWN_TIMEOUT_SINCE):
        words += ["--shutdown-timeout", str(SHUTDOWN_TIMEOUT)]
    if pool.kv_offload is not None:
        words += ["--kv-offloading-size", f"{pool.kv_offload:g}", "--kv-offloading-backend", "native"]
    words += adapter_words(pool)
    return (*words, *pool.engine.args)


def _defaults(pool: Pool, devices: int) -> list[tuple[str, str]]:
    """What is written unless the pool's arguments say it."""
    sliced = any(one is not None for one in (pool.slice.mig, pool.slice.memory_gib, pool.slice.share))
    tokens = _batched_tokens(pool, SLICE_MAX_NUM_BATCHED_TOKENS if sliced else MAX_NUM_BATCHED_TOKENS)
    defaults = [
        ("--gpu-memory-utilization", utilization(pool)),
        ("--max-num-seqs", str(SLICE_MAX_NUM_SEQS if sliced else MAX_NUM_SEQS)),
    ]
    if tokens is not None:
        defaults.append(("--max-num-batched-tokens", str(tokens)))
    if devices > 1:
        defaults.append(("--tensor-parallel-size", str(devices)))
    return defaults


def utilization(pool: Pool) -> str:
    """What is reserved of a GPU: a share of it is that part of what one engine alone would reserve."""
    if pool.slice.share is None:
        return GPU_MEMORY_UTILIZATION
    percent = pool.slice.share * round(float(GPU_MEMORY_UTILIZATION) * 100) // 100
    return f"{max(percent, 1) / 100:.2f}"


def _batched_tokens(pool: Pool, usual: int) -> int | None:
    """Tokens of a batch: no fewer than sequences, and a whole prompt where prompts are not cut.

    None when the model's length is needed and nobody said it: such an engine takes that length itself.
    """
    least = max(usual, _whole_number(value_of(pool.engine.args, "max-num-seqs")))
    if not _takes_whole_prompts(pool):
        return least
    length = _whole_number(value_of(pool.engine.args, "max-model-len"))
    if length:
        return max(least, length)
    return max(least, POOLING_TOKENS) if kind_of(pool) in POOLING else None


def _takes_whole_prompts(pool: Pool) -> bool:
    if kind_of(pool) in POOLING:
        return True
    version = release(pool)
    if version is not None and not version.at_least(*_LENGTH_FREE_SINCE):
        return True
    flags = (written(word) for word in pool.engine.args)
    return any(one is not None and one.name == "enable-chunked-prefill" and one.negated for one in flags)


def _whole_number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else 0


def devices_of(pool: Pool) -> int:
    """GPUs of one replica; a slice is one."""
    return pool.slice.gpus if pool.slice.mig is None and pool.slice.memory_gib is None else 1


@dataclass(frozen=True, slots=True)
class Vllm:
    """The engine of `vllm/vllm-openai` images."""

    health_path: str = "/health"
    metrics_path: str = "/metrics"
    busy_metrics: str = "^vllm:num_requests_(running|waiting)"
    default_image: str = "vllm/vllm-openai:latest"

    def faults(self, pool: Pool) -> tuple[Fault, ...]:
        """See `model.Engine.faults`."""
        image = pool.engine.image or self.default_image
        return (
            *lint(pool.engine.args, release(pool), owned=OWNED_FLAGS, image=image),
            *_version_faults(pool),
            *_environment_faults(pool),
            *_offload_faults(pool),
            *_share_faults(pool),
            *_parallel_faults(pool),
            *memory_faults(pool, devices_of(pool)),
            *adapter_faults(pool),
        )

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
        if pool.takes_adapters:
            mounts += tuple(Mount(path, path) for path in adapter_directories(pool))
            environment[RUNTIME_VARIABLE] = "1"
        return EngineContainer(
            image=pool.engine.image or self.default_image,
            entrypoint="vllm",
            arguments=arguments(pool, devices),
            environment=environment,
            mounts=mounts,
            stop_timeout=STOP_TIMEOUT,
        )


def _version_faults(pool: Pool) -> tuple[Fault, ...]:
    """A version that cannot be read is refused; one that the tag contradicts is only said."""
    setting = pool.engine.version
    if not setting:
        return ()
    said, tagged = release(pool), release_of(pool.engine.image)
    if said is None:
        return (
            Fault(
                message=f"`version: {setting}` is no version", hint="for example 0.20.1", key="engine.version"
            ),
        )
    if tagged is not None and tagged != said:
        message = f"`version: {setting}` is not what the image's tag says ({tagged}); `version` is believed"
        return (Fault(message=message, key="engine.version", sure=False),)
    return ()


def _environment_faults(pool: Pool) -> tuple[Fault, ...]:
    return tuple(
        Fault(
            message=f"`{name}` is a variable that engine.env may not set",
            hint=instead_of(OWNED_VARIABLES[name]),
            key=f"engine.env.{name}",
        )
        for name in pool.engine.env
        if name in OWNED_VARIABLES
    )


def _parallel_faults(pool: Pool) -> tuple[Fault, ...]:
    """An engine that wants another number of GPUs than its replica gets does not start."""
    args = pool.engine.args
    sizes = [value_of(args, flag) for flag in ("tensor-parallel-size", "pipeline-parallel-size")]
    if not any(sizes) or not all(size is None or size.isdecimal() for size in sizes):
        return ()
    wanted, devices = 1, devices_of(pool)
    for size in sizes:
        wanted *= int(size or 1)
    if wanted == devices or (sizes[0] is None and wanted < devices):
        return ()
    hint = f"set `slice: {{gpus: {wanted}}}`, or leave the flag out: gpufleet writes it"
    if pool.slice.mig is not None:
        hint = f"a process uses one slice: run more replicas, take a larger slice, or `slice: {{gpus: {wanted}}}`"
    return (
        Fault(
            message=f"the arguments ask for {wanted} GPU(s), and a replica gets {devices}",
            hint=hint,
        ),
    )


def _share_faults(pool: Pool) -> tuple[Fault, ...]:
    """A share is what it reserves; an argument that says otherwise would take from the others on the GPU."""
    if pool.slice.share is None:
        return ()
    return tuple(
        Fault(
            message=f"`--{one.name}` is what `slice.share` writes",
            hint="set the share, and leave the argument out",
            at=place,
        )
        for place, word in enumerate(pool.engine.args)
        if (one := written(word)) is not None and one.name in _RESERVING
    )


def _offload_faults(pool: Pool) -> tuple[Fault, ...]:
    """`kv_offload` needs an engine that can, and says the same as two flags."""
    if pool.kv_offload is None:
        return ()
    found = [
        Fault(message=f"`--{flag}` is what `kv_offload` writes", hint="keep one of the two", at=place)
        for flag in ("kv-offloading-size", "kv-offloading-backend")
        for place, word in enumerate(pool.engine.args)
        if (one := written(word)) is not None and one.name == flag
    ]
    version = release(pool)
    match standing("kv-offloading-size", version):
        case Standing.NEWER:
            message = f"`kv_offload` needs vLLM 0.12 or later, and this is {version}"
            found.append(Fault(message=message, hint="use a newer image, or leave it out", key="kv_offload"))
        case Standing.BETWEEN:
            message = f"`kv_offload` may not be there yet in vLLM {version}: first seen in 0.12.0"
            found.append(Fault(message=message, key="kv_offload", sure=False))
        case Standing.OUTSIDE if version is None:
            message = "`kv_offload` needs vLLM 0.12 or later, and the engine's version is not known"
            found.append(Fault(message=message, hint="set engine.version", key="kv_offload", sure=False))
        case _:
            pass
    return tuple(found)
