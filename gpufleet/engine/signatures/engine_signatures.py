"""Failures of the engine itself: the model hub, arguments, memory, devices.

Sources: message texts of vLLM 0.6.6 to 0.33.0, huggingface_hub 0.36, safetensors 0.6, PyTorch 2.9 and NCCL 2.27.
Within one line the first row that matches wins, so that the exact stands before the general.
"""

from __future__ import annotations

from gpufleet.engine.signatures.model import Kind, signature

HUB = (
    signature("hf.403", ("you are not in the authorized list", "403 Client Error", "awaiting a review from the repo authors"), "the token is good, but its owner has no access: ask for it on the model's page"),
    signature("hf.bad_repo", ("Invalid repository ID or local directory specified", "Repository Not Found for url", "RepositoryNotFoundError"), "check the pool's model for a typo, and that a local directory is mounted on this host; a private repository needs a token", narrows=("hf.401",)),
    signature("hf.401", ("access a gated repo", "Cannot access gated repo", "401 Client Error", "Invalid user token", "Invalid credentials in Authorization header"), "set engine.env HF_TOKEN: '${env:HF_TOKEN}' to a token that may read this model"),
    signature("hf.offline_miss", ("outgoing traffic has been disabled", "couldn't connect to 'https://huggingface.co'", "LocalEntryNotFoundError", "Cannot find an appropriate cached snapshot"), "the host cannot reach the hub and has not all files of this revision: stage the weights and set `weights`"),
    signature("hf.corrupt", ("Error while deserializing header", "Should have a `model_type` key in its config", "MetadataIncompleteBuffer", "InvalidHeaderDeserialization"), "the weights on this host are damaged or incomplete: stage them again, with checksums and one writer only"),
)  # fmt: skip

ENGINE = (
    signature("vllm.unrecognized", "error: ", "correct engine.args: this version of the engine has no such flag, or one item holds two words", r"\berror: (?:unrecognized arguments: |argument -\S{1,100}: |ambiguous option: )"),
    signature("vllm.kv_none", "No available memory for the cache blocks", "lower --max-num-seqs first (it decides the activation peak), then raise --gpu-memory-utilization, use more GPUs or a quantised model"),
    signature("vllm.kv_len", "KV cache is needed, which is larger than the available KV cache memory", "set --max-model-len to the estimated maximum in the line, or --kv-cache-dtype fp8, or use more GPUs"),
    signature("vllm.kv_len_v0", "is larger than the maximum number of tokens that can be stored in KV cache", "set --max-model-len to the number of tokens in the line, or --kv-cache-dtype fp8, or use more GPUs"),
    signature("vllm.free_mem", "on startup is less than desired GPU memory utilization", "something else holds this GPU's memory: end it or wait until it lets go, or lower --gpu-memory-utilization", r"Free memory on device[^\n]{0,200} on startup is less than desired", kind=Kind.TRANSIENT),
    signature("vllm.profile_race", "Error in memory profiling", "another process let go of GPU memory while this one measured it: start the replicas of one GPU one after the other", kind=Kind.TRANSIENT),
    signature("vllm.sampler_oom", "CUDA out of memory occurred when warming up sampler", "lower --max-num-seqs: its default follows the whole card, also on a slice", narrows=("vllm.cuda_oom",)),
    signature("vllm.load_oom", "Failed to load model - not enough GPU memory", "the weights alone do not fit: use more GPUs (slice.gpus), a larger slice or a quantised model", narrows=("vllm.cuda_oom",)),
    signature("vllm.cuda_oom", ("OutOfMemoryError", "CUDA out of memory"), "the GPU's memory ran out: while loading, use more GPUs, a larger slice or a quantised model; after it, lower --max-num-seqs or add --enforce-eager", r"torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory"),
    signature("vllm.arch", "are not supported for now", "use a newer engine image, or --model-impl transformers", r"Model architectures \[[^\]\n]{0,500}\] are not supported for now"),
    signature("vllm.mig_uuid", "invalid literal for int() with base 10: ", "remove CUDA_VISIBLE_DEVICES from engine.env: the runtime chooses the GPU, and this version cannot read a UUID there", r"invalid literal for int\(\) with base 10: '(?:MIG|GPU)-"),
    signature("vllm.transformers_old", ("does not recognize this architecture", "but Transformers does not recognize"), "the image's transformers library is older than the model: use a newer engine image"),
    signature("vllm.remote_code", ("contains custom code which must be executed", "pass the argument `trust_remote_code=True`", "pass the option `trust_remote_code=True`"), "review the model's code, pin it with --revision, then add --trust-remote-code to engine.args"),
    signature("vllm.tp_heads", "must be divisible by tensor parallel size", "choose slice.gpus so that it divides the number of attention heads", r"attention heads \(\d{1,9}\) must be divisible by tensor parallel size"),
    signature("vllm.maxlen", "is greater than the derived max_model_len", "lower --max-model-len to the model's own limit, or extend that with rope scaling in --hf-overrides"),
    signature("vllm.world_size", "is larger than the number of available GPUs", "the container sees fewer GPUs than tensor times pipeline parallel: check slice.gpus against --tensor-parallel-size", r"World size \(\d{1,9}\) is larger than the number of available GPUs"),
    signature("vllm.device_type", "Failed to infer device type", "the container sees no GPU: `gpufleet hosts check HOST`, and check that the image is built for this kind of GPU"),
    signature("vllm.bf16", "Bfloat16 is only supported on GPUs with compute capability", "this card has no bfloat16: add --dtype half to engine.args"),
    signature("vllm.quant_cc", "is not supported for the current GPU", "this card is too old for the model's quantisation: choose another build of the model, or another card", r"quantization method \S{1,100} is not supported for the current GPU"),
    signature("vllm.nccl_shm", ("shm/nccl-", "shared memory segment"), "raise limits.shm, or leave it unset so that the container shares the host's", r"\bshm/nccl-|creating shared memory segment \S{0,50}nccl"),
    signature("vllm.nccl", ("NCCL error", "ncclSystemError", "ncclUnhandledCudaError", "DistBackendError"), "set engine.env NCCL_DEBUG: INFO and look at the first NCCL warning; shared memory, P2P (NCCL_P2P_DISABLE=1 tests it) and NCCL_SOCKET_IFNAME are the usual reasons", r"NCCL error|ncclSystemError|ncclUnhandledCudaError|DistBackendError", kind=Kind.TRANSIENT),
    signature("vllm.shm_wait", "No available shared memory broadcast block found in ", "no failure by itself: one rank is busy or hangs; look at the last phase, and at NCCL when it does not move", kind=Kind.PROGRESS),
    signature("vllm.arch_inspect", "failed to be inspected", "the cause stands above this line: give a longer log", r"Model architectures [^\n]{0,500} failed to be inspected", kind=Kind.WRAPPER),
    signature("vllm.engine_dead", ("EngineDeadError", "EngineCore encountered a fatal error", "EngineCore encountered an issue"), "the engine died and says why above this line: give a longer log", kind=Kind.WRAPPER),
    signature("vllm.wrapper_core", ("Engine core initialization failed", "EngineCore failed to start", "EngineCore hit an exception"), "the cause stands above this line: give a longer log", kind=Kind.WRAPPER),
    signature("vllm.wrapper_worker", "WorkerProc initialization failed", "the cause stands above this line, from another process: give a longer log", kind=Kind.WRAPPER),
)  # fmt: skip
