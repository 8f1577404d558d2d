"""A log's first cause is never a wrapper; every signature is found in the form vLLM and the runtimes print."""

from pathlib import Path

import pytest

from gpufleet.engine.diagnose import WRAPPERS, first_cause, phase, tail

LINES = {
    "kv-none": "ValueError: No available memory for the cache blocks. Try increasing it.",
    "kv-length": "ValueError: To serve at least one request, 4.0 GiB KV cache is needed, which is larger than 2.0",
    "free-memory": "ValueError: Free memory on device (1.0/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 71 GiB)",
    "cuda-memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "slice-uuid": "ValueError: invalid literal for int() with base 10: 'MIG-377e'",
    "gated": "OSError: You are trying to access a gated repo.",
    "arguments": "vllm: error: unrecognized arguments: --swap-space 4",
    "port": "OSError: [Errno 98] Address already in use",
    "gpu-driver": 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
    "cdi": "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=7.",
    "image-unknown": "manifest for x/y:z not found: manifest unknown: manifest unknown",
    "registry": 'Get "https://r/v2/": dial tcp: lookup r on [::1]:53: read udp: connection refused',
    "disk": "write /var/lib/docker/tmp/GetImageBlob1: no space left on device",
    "runtime-down": "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
}


@pytest.mark.parametrize(("name", "line"), LINES.items(), ids=list(LINES))
def test_each_cause_is_named_with_a_fix(name, line):
    cause = first_cause(f"INFO something before\n{line}\nINFO something after")
    assert cause is not None
    assert (cause.id, cause.line) == (name, line)
    assert cause.fix


def test_the_line_is_told_without_process_level_and_time():
    said = "torch.OutOfMemoryError: CUDA out of memory."
    for prefix in (
        "(EngineCore_DP0 pid=77) ERROR 01-01 00:00:00 [core.py:708] ",
        "ERROR 11-02 10:00:00 [core.py:1] ",
        "(APIServer pid=1) ",
        "",
    ):
        cause = first_cause(prefix + said)
        assert cause is not None
        assert cause.line == said


def test_wrappers_are_passed_over():
    log = "RuntimeError: Engine core initialization failed. See root cause above.\n" + LINES["kv-none"]
    found = first_cause(log)
    assert found is not None
    assert found.id == "kv-none"
    assert (
        first_cause("WorkerProc initialization failed due to an exception in a background process.") is None
    )


def test_the_line_is_shown_without_secrets():
    cause = first_cause("401 Client Error with Bearer abcdefgh12345678")
    assert cause is not None
    assert "abcdefgh" not in cause.line
    assert "abcdefgh" not in tail("Bearer abcdefgh12345678")


def test_the_phase_is_the_last_one_reached():
    assert phase("") == ""
    log = "vLLM API server version 0.11.0\nStarting to load model q...\n"
    assert phase(log) == "loading the model"
    assert (
        phase(log + "Loading safetensors checkpoint shards:  60% Completed | 3/5 [00:02<00:01]")
        == "loading shards 60% Completed"
    )
    assert phase(log + "Application startup complete.") == "up"


def test_samples_of_known_failures():
    samples = Path(__file__).parents[4] / "shared" / "facts" / "vllm" / "failure_signatures.yaml"
    if not samples.exists():
        pytest.skip("the collection of failure samples is not beside this checkout")
    import yaml

    listed = yaml.safe_load(samples.read_text())["signatures"]
    wanted = [one for one in listed if one["layer"] in {"engine", "hub"} and one["kind"] == "permanent"]
    wanted = [one for one in wanted if not WRAPPERS.search(one["sample"])]
    assert len(wanted) > 15
    assert [one["id"] for one in wanted if first_cause(one["sample"]) is None] == []
