"""How vLLM dies while it starts: which process says what, and what the others say of it.

Theory of operation. An engine is several processes. Settings are checked in the API server, which then prints one
traceback. What fails in the engine core is logged there line by line as an error, printed once more as the process
ends, and answered by the API server with an error that only points to it. With tensor parallelism each worker logs
the failure first, all at once, and the core's own error points to them. Forms as in logs of 0.10 to 0.20 that users
show in vLLM's issues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

PACKAGE = "/usr/local/lib/python3.12/dist-packages"
CHAINED = "\nThe above exception was the direct cause of the following exception:\n"

Say = Callable[[str, str, str, str], str]
"""(process, level, place, text) to a line of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One way to die.

    Attributes:
        at: how far the start has come, as a part of the time it takes.
        error: the exception's line.
        code: the line of source code that the traceback quotes.
        first: the exception that it was raised from.
        before: lines of libraries, without a level.
        early: whether it is found in the API server, before there is an engine core.
    """

    at: float
    error: str
    code: str = "raise ValueError("
    first: str = ""
    before: tuple[str, ...] = ()
    early: bool = False


_HUB = "huggingface_hub.errors."
FAILURES: Mapping[str, Failure] = {
    "kv-none": Failure(at=0.75, error="ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."),
    "kv-length": Failure(at=0.77, error="ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (9.10 GiB). Based on the available memory, the estimated maximum model length is 74512. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."),
    "held-memory": Failure(at=0.15, error="ValueError: Free memory on device (12.40/79.18 GiB) on startup is less than desired GPU memory utilization (0.9, 71.26 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."),
    "sampler": Failure(at=0.74, first="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 79.18 GiB of which 900.00 MiB is free.", code="raise RuntimeError(", error="RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."),
    "load": Failure(at=0.4, code="return func(*args, **kwargs)", error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total capacity of 79.18 GiB of which 1.20 GiB is free."),
    "architecture": Failure(at=0.05, early=True, error="  Value error, Model architectures ['TinyForCausalLM'] are not supported for now. Supported architectures: dict_keys(['LlamaForCausalLM', 'Qwen3ForCausalLM']) [type=value_error, input_value=ArgsKwargs((), {'model': ...}), input_type=ArgsKwargs]", first="pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"),
    "gated": Failure(at=0.04, early=True, first="requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/acme/tiny/resolve/main/config.json", code="raise EnvironmentError(", error="OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/acme/tiny."),
    "typo": Failure(at=0.04, early=True, first=f"{_HUB}RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1-0)\n\nRepository Not Found for url: https://huggingface.co/api/models/acme/tinny.", error="ValueError: Invalid repository ID or local directory specified: 'acme/tinny'."),
    "offline": Failure(at=0.04, early=True, code="raise LocalEntryNotFoundError(", error=f"{_HUB}LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the specified revision on the local disk and outgoing traffic has been disabled."),
    "damaged": Failure(at=0.3, code="with safe_open(st_file, framework='pt') as f:", error="safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered"),
    "remote-code": Failure(at=0.04, early=True, error="ValueError: The repository acme/tiny contains custom code which must be executed to correctly load the model. You can inspect the repository content at https://hf.co/acme/tiny.\nPlease pass the argument `trust_remote_code=True` to allow custom code to be run."),
    "bfloat16": Failure(at=0.16, error="ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has compute capability 7.5. You can use float16 instead by explicitly setting the `dtype` flag in CLI, for example: --dtype=half."),
    "no-gpu": Failure(at=0.03, early=True, code="raise RuntimeError(", error="RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG` to turn on verbose logging to help debug the issue."),
    "slice-uuid": Failure(at=0.06, early=True, first="ValueError: invalid literal for int() with base 10: 'MIG-4c0f3a50-17a4-52eb-8450-e29e24c80885'", error="  Value error, Model architectures ['LlamaForCausalLM'] failed to be inspected. Please check the logs for more details. [type=value_error, input_value=ArgsKwargs((), {'model': ...}), input_type=ArgsKwargs]"),
    "shared-memory": Failure(at=0.18, before=("gpu-01:77:301 [0] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-Q3vXyZ to 33030532 bytes", "gpu-01:77:301 [0] misc/shmutils.cc:129 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Q3vXyZ (size 33030528), error: No space left on device (28)"), code="self.device_group = torch.distributed.new_group(", error="torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3"),
    "old-driver": Failure(at=0.12, code="torch._C._cuda_init()", error="RuntimeError: The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver by downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"),
}  # fmt: skip


def last_words(failure: Failure, say: Say, workers: int) -> Iterator[str]:
    """Everything that is printed from the failure to the end of the last process."""
    yield from failure.before
    if failure.early:
        for line in _traceback(failure, "vllm/engine/arg_utils.py", "create_model_config"):
            yield say("APIServer", "", "", line)
        return
    if workers > 1:
        yield from _workers(failure, say, workers)
        wrapper = Failure(
            at=failure.at,
            code="raise e from None",
            error="Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.",
        )
        inner = tuple(_traceback(wrapper, "vllm/v1/executor/multiproc_executor.py", "wait_for_ready"))
    else:
        inner = tuple(_traceback(failure, "vllm/v1/engine/core.py", "_initialize_kv_caches"))
    yield say("EngineCore", "ERROR", "core.py:866", "EngineCore failed to start.")
    for line in inner:
        yield say("EngineCore", "ERROR", "core.py:866", line)
    yield say("EngineCore", "", "", "Process EngineCore_DP0:")
    for line in inner:
        yield say("EngineCore", "", "", line)
    answer = Failure(
        at=failure.at,
        code="raise RuntimeError(",
        error="RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': 1}",
    )
    for line in _traceback(answer, "vllm/v1/engine/utils.py", "wait_for_engine_startup"):
        yield say("APIServer", "", "", line)


def _workers(failure: Failure, say: Say, workers: int) -> Iterator[str]:
    """Every rank fails the same way; their lines come turn by turn."""
    lines = (
        "WorkerProc failed to start.",
        *_traceback(failure, "vllm/v1/worker/gpu_worker.py", "init_device"),
    )
    for line in lines:
        for rank in range(workers):
            yield say(f"Worker_TP{rank}", "ERROR", "multiproc_executor.py:559", line)


def _traceback(failure: Failure, file: str, function: str) -> Iterator[str]:
    head = "Traceback (most recent call last):"
    validation = failure.error.startswith(" ")
    if failure.first and not validation:
        yield from (head, f'  File "{PACKAGE}/{file}", line 203, in {function}', "    return inner(*args)")
        yield from f"{failure.first}\n{CHAINED}".split("\n")
    elif failure.first.startswith("ValueError"):
        yield from (
            head,
            f'  File "{PACKAGE}/vllm/platforms/cuda.py", line 41, in device_id',
            "    return int(physical)",
        )
        yield from f"{failure.first}\n".split("\n")
    yield head
    yield f'  File "{PACKAGE}/{file}", line 857, in {function}'
    yield f"    {failure.code}"
    if validation:
        yield (
            failure.first
            if failure.first.startswith("pydantic")
            else "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"
        )
    yield from failure.error.split("\n")
