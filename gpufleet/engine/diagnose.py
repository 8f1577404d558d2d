r"""An engine's log -> how far it came, and the first cause that is no wrapper, with the operator's fix.

Wrapper errors ("see root cause above") are never shown as the cause. Order matters: the table is read for each
line from the oldest to the newest, because later errors follow from the first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpufleet.redact import Secret, scrub


@dataclass(frozen=True, slots=True)
class Signature:
    """What a line of a log says about why a container does not come up."""

    id: str
    pattern: re.Pattern[str]
    fix: str


@dataclass(frozen=True, slots=True)
class Cause:
    """The line found and what to do about it."""

    id: str
    line: str
    fix: str


def _signature(name: str, pattern: str, fix: str) -> Signature:
    return Signature(name, re.compile(pattern), fix)


SIGNATURES: tuple[Signature, ...] = (
    _signature("kv-none", r"No available memory for the cache blocks", "lower --max-num-seqs, then raise --gpu-memory-utilization, or use more GPUs"),
    _signature("kv-length", r"KV cache is needed, which is larger than|larger than the maximum number of tokens that can be stored in KV cache", "lower --max-model-len to what the line names, or set --kv-cache-dtype fp8"),
    _signature("free-memory", r"Free memory on device.* on startup is less than desired", "end what else holds this GPU's memory, or lower --gpu-memory-utilization"),
    _signature("profile-race", r"Error in memory profiling", "another process freed GPU memory meanwhile; deploy again"),
    _signature("sampler-memory", r"CUDA out of memory occurred when warming up sampler", "lower --max-num-seqs"),
    _signature("load-memory", r"Failed to load model - not enough GPU memory", "use more GPUs (slice.gpus) or a quantised model"),
    _signature("cuda-memory", r"torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory", "the model does not fit: use more GPUs, a larger slice or a quantised model"),
    _signature("architecture", r"Model architectures \[.*\] are not supported for now|does not recognize this architecture", "use a newer engine image"),
    _signature("remote-code", r"contains custom code which must be executed", "review the code, pin --revision, then add --trust-remote-code to engine.args"),
    _signature("gated", r"Cannot access gated repo|trying to access a gated repo|not in the authorized list|40[13] Client Error", "ask for access on the model's page and set engine.env HF_TOKEN: ${env:HF_TOKEN}"),
    _signature("model-name", r"Invalid repository ID or local directory specified|Repository Not Found for url", "check the pool's model, or the weights directory on this host"),
    _signature("model-offline", r"outgoing traffic has been disabled|LocalEntryNotFoundError|Cannot find an appropriate cached snapshot", "this host cannot reach the model hub: stage the weights and set `weights`"),
    _signature("weights-damaged", r"Error while deserializing header|Should have a `model_type` key in its config", "the weights are damaged: copy them again and compare checksums"),
    _signature("model-length", r"User-specified max_model_len \(\d+\) is greater than the derived", "lower --max-model-len to the model's own limit"),
    _signature("heads", r"attention heads \(\d+\) must be divisible by tensor parallel size", "choose slice.gpus so that it divides the attention heads"),
    _signature("world-size", r"World size \(\d+\) is larger than the number of available GPUs", "fewer GPUs are visible than asked for: check slice.gpus"),
    _signature("slice-uuid", r"invalid literal for int\(\) with base 10: '(?:MIG|GPU)-", "remove CUDA_VISIBLE_DEVICES from engine.env: the runtime chooses the GPU"),
    _signature("arguments", r"error: unrecognized arguments|error: argument --\S+", "correct engine.args for this version of the engine"),
    _signature("no-gpu", r"Failed to infer device type", "the container sees no GPU: run `gpufleet hosts check`"),
    _signature("bfloat16", r"Bfloat16 is only supported on GPUs with compute capability", "add --dtype half to engine.args"),
    _signature("quantization", r"quantization method \S+ is not supported for the current GPU", "choose a quantisation this GPU supports"),
    _signature("driver", r"NVIDIA driver on your system is too old|unsatisfied condition: cuda>=|PTX was compiled with an unsupported toolchain|CUDA driver version is insufficient", "update the driver, or use an image built for an older CUDA"),
    _signature("nvml-lost", r"Failed to initialize NVML", "the container lost its GPU: start it again"),
    _signature("shared-memory", r"shared memory segment \S*nccl|No space left on device.*shm", "raise limits.shm, or leave it unset to share the host's"),
    _signature("nccl", r"NCCL error in|ncclSystemError|ncclUnhandledCudaError", "set engine.env NCCL_DEBUG: INFO and look at the first NCCL warning"),
    _signature("port", r"Address already in use|port is already allocated|bind: address already in use|Failed to bind port", "something else listens there: deploy again, or change the host's ports"),
    _signature("gpu-driver", r'could not select device driver "[^"]*" with capabilities|unknown or invalid runtime name: nvidia|Unknown runtime specified nvidia', "install nvidia-container-toolkit, run `nvidia-ctk runtime configure`, restart the runtime"),
    _signature("cdi", r"unresolvable CDI devices?", "run `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` on the host"),
    _signature("gpu-unknown", r"device error: .*unknown device|unknown device", "that GPU or slice is gone: run `gpufleet hosts facts` and deploy again"),
    _signature("rootless-cgroup", r"bpf_prog_query\(BPF_CGROUP_DEVICE\) failed", "use CDI, or set no-cgroups = true in the toolkit's configuration"),
    _signature("driver-library", r"load library failed: libnvidia-ml|nvml error: (?:driver not loaded|driver/library version mismatch)", "reload or reinstall the driver on the host"),
    _signature("runtime-socket", r"permission denied while trying to connect to the Docker", "add the SSH user to the docker group, or set become: auto"),
    _signature("runtime-down", r"Cannot connect to the Docker daemon|Is the docker daemon running", "start the container runtime on the host"),
    _signature("image-unknown", r"manifest unknown|manifest for \S+ not found|No such image|no matching manifest|pull access denied|repository does not exist", "check engine.image; the registry does not have it for this machine"),
    _signature("registry-tls", r"server gave HTTP response to HTTPS client", "declare the registry as insecure on the host, or give it TLS"),
    _signature("registry", r"dial tcp.*(?:connection refused|no such host|i/o timeout|server misbehaving|no route)|toomanyrequests|net/http: (?:request canceled|TLS handshake timeout)", "the host cannot reach the registry: check its network, or load the image by hand"),
    _signature("disk", r"[Nn]o space left on device|is the disk full", "make room on the host's disk"),
    _signature("name-taken", r"The container name .* is already in use", "another run left it behind: `gpufleet change list`"),
    _signature("entrypoint", r"executable file not found in \$PATH|no such file or directory: unknown", "engine.image is no vLLM image"),
    _signature("limit", r"Minimum memory limit allowed|[Rr]ange of CPUs is from", "correct the pool's limits"),
)  # fmt: skip

WRAPPERS = re.compile(
    r"Engine core initialization failed|See root cause above|WorkerProc initialization failed|failed to be inspected|EngineDeadError"
)

PHASES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("started", r"vLLM (?:API )?server version"),
        ("configured", r"non-default args"),
        ("initialising", r"Initializing a V1 LLM engine"),
        ("loading the model", r"Starting to load model"),
        ("weights downloaded", r"Time spent downloading weights"),
        ("loading shards", r"Loading \S+ checkpoint shards"),
        ("weights read", r"Loading weights took"),
        ("model loaded", r"Model loading took|Loading model weights took"),
        ("compiling", r"Dynamo bytecode transform time"),
        ("compiled", r"torch\.compile (?:takes|took)"),
        ("measuring memory", r"Estimated CUDA graph memory|Available KV cache memory"),
        ("cache ready", r"KV cache size:|Maximum concurrency for"),
        ("graphs captured", r"Graph capturing finished"),
        ("listening", r"Starting vLLM API server|Uvicorn running"),
        ("up", r"Application startup complete"),
    )
)
_PREFIX = re.compile(
    r"^(?:\([\w-]+ pid=\d+\)\s*)?(?:(?:INFO|WARNING|ERROR|CRITICAL)\s+[\d-]+ [\d:.,]+\s*(?:\[[^\]]*\]\s*)?)?"
)
"""Process, level, time and place in front of what vLLM says."""

_SHARD = re.compile(r"(\d+)% Completed|(\d+)/(\d+)")


def first_cause(log: str) -> Cause | None:
    """The first line that names a cause; None when no signature matches."""
    for line in log.splitlines():
        if WRAPPERS.search(line):
            continue
        for signature in SIGNATURES:
            if signature.pattern.search(line):
                return Cause(signature.id, scrub(said(line)), signature.fix)
    return None


def said(line: str) -> str:
    """A line of the log without process, level, time and place in front."""
    return _PREFIX.sub("", line.strip())


def phase(log: str) -> str:
    """How far the start came, with the shard being loaded: changes while something moves, and only then."""
    reached = ""
    for line in log.splitlines():
        for name, pattern in PHASES:
            if pattern.search(line):
                shard = _SHARD.search(line) if name == "loading shards" else None
                reached = f"{name} {shard.group(0)}" if shard else name
    return reached


def tail(log: str, lines: int = 40, known: tuple[Secret[str], ...] = ()) -> str:
    """The end of a log without anything that looks like a credential."""
    return scrub("\n".join(log.splitlines()[-lines:]), known)
