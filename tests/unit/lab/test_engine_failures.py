"""What simulated engines say as they die is explained, whatever their version and however many they are."""

from dataclasses import replace

import pytest

from gpufleet.engine.diagnose import diagnose
from gpufleet.lab.vllm import log
from gpufleet.lab.vllm.engine_model import EngineModel, Phase
from gpufleet.lab.vllm.failures import FAILURES
from gpufleet.lab.vllm.spec import EngineSpec, Mode, engine_words, with_lab_words

CAUSES = {
    "kv-none": "vllm.kv_none",
    "kv-length": "vllm.kv_len",
    "held-memory": "vllm.free_mem",
    "sampler": "vllm.sampler_oom",
    "load": "vllm.cuda_oom",
    "architecture": "vllm.arch",
    "gated": "hf.401",
    "typo": "hf.bad_repo",
    "offline": "hf.offline_miss",
    "damaged": "hf.corrupt",
    "remote-code": "vllm.remote_code",
    "bfloat16": "vllm.bf16",
    "no-gpu": "vllm.device_type",
    "slice-uuid": "vllm.mig_uuid",
    "shared-memory": "vllm.nccl_shm",
    "old-driver": "rt.driver_cuda",
}
VERSIONS = ("0.6.6", "0.8.5", "0.9.2", "0.10.2", "0.11.0", "0.16.0", "0.20.2", "0.33.0")


def written(spec):
    return "".join(f"{line.text}\n" for line in log.startup(spec))


def test_every_failure_is_expected_to_have_a_cause():
    assert set(CAUSES) == set(FAILURES)


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_first_real_cause_is_found_among_tracebacks_and_wrappers(failure, version):
    for workers in (1, 2, 8):
        spec = replace(
            with_lab_words(EngineSpec(version=version), engine_words(failure)), tensor_parallel=workers
        )
        found = diagnose(written(spec))
        assert found.cause is not None
        assert found.cause.id == CAUSES[failure]
        assert not found.cause.line.startswith(("Traceback", "File", "raise"))
        late = not FAILURES[failure].early
        assert found.wrapper_skipped or not late
        assert found.phase is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_healthy_start_goes_through_the_phases_in_order(version):
    lines = [line.text for line in log.startup(EngineSpec(version=version))]
    reached = []
    for count in range(1, len(lines) + 1):
        found = diagnose("\n".join(lines[:count]))
        assert found.cause is None
        if found.phase and found.phase.id not in reached:
            reached.append(found.phase.id)
    for name in (
        "version",
        "args",
        "engine_init",
        "load_start",
        "shards",
        "model_loaded",
        "dynamo",
        "kv_concurrency",
        "ready",
    ):
        assert name in reached
    assert reached[-1] == "ready"
    assert diagnose("\n".join(lines)).well


def test_it_dies_when_its_time_has_come():
    spec = replace(EngineSpec(load_seconds=100.0), mode=Mode.CRASH, failure="gated")
    engine = EngineModel(spec, started=0.0)
    assert engine.phase(3.0) is Phase.LOADING
    assert engine.exit_code(4.0) == 1
    assert "gated repo" in engine.log(4.0)


@pytest.mark.parametrize("wish", ["", "nonsense", "mode=ok", "ok mode=hang"])
def test_a_wish_that_is_neither_mode_nor_failure_is_refused(wish):
    with pytest.raises(ValueError, match="no engine behaves like"):
        engine_words(wish)
