"""Command lines of vLLM to specs, and the log of a start-up over time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpufleet.engine.vllm import arguments
from gpufleet.lab.vllm import log
from gpufleet.lab.vllm.spec import DEFAULT_MODEL, LAB_VARIABLE, EngineSpec, Mode, parse_spec
from gpufleet.names import PoolName
from gpufleet.pools.model import Pool


def spec_of(*words: str, **env: str) -> EngineSpec:
    return parse_spec(("vllm", "serve", *words), env)


def test_what_gpufleet_itself_starts_is_understood():
    pool = Pool(name=PoolName("chat"), model="org/model", served_name="chat")
    spec = parse_spec(("vllm", *arguments(pool, 2)), {"VLLM_API_KEY": "k"})
    assert spec.refusal == ""
    assert (spec.model, spec.names, spec.tensor_parallel, spec.port) == ("org/model", ("chat",), 2, 8000)
    assert [key.reveal() for key in spec.keys] == ["k"]
    assert "VLLM" not in str(spec.arguments)


def test_flags_in_every_spelling():
    spec = spec_of(
        "m", "--served-model-name", "a", "b", "--port=8001", "--max_num_seqs", "3", "-tp", "2", "--enforce-eager",
        "--api-key", "one", "two", "--gpu-memory-utilization", "0.5", "--enable-request-id-headers",
    )  # fmt: skip
    assert spec.names == ("a", "b")
    assert (spec.port, spec.max_num_seqs, spec.tensor_parallel, spec.gpu_memory_utilization) == (
        8001,
        3,
        2,
        0.5,
    )
    assert len(spec.keys) == 2
    assert spec.request_id_headers
    assert spec.refusal == ""


def test_the_old_entrypoint_and_a_lost_model():
    module = ("python3", "-m", "vllm.entrypoints.openai.api_server")
    assert parse_spec((*module, "--model", "m"), {}).model == "m"
    assert spec_of("--port", "8001").names == (DEFAULT_MODEL,)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("m", "--swap-space", "4"), "unrecognized arguments: --swap-space 4"),
        (("m", "serve"), "unrecognized arguments: serve"),
        (("m", "--max-num-seqs 8"), "unrecognized arguments: --max-num-seqs 8"),
        (("m", "--max-num-seqs", "many"), "argument --max-num-seqs: invalid int value: 'many'"),
    ],
)
def test_words_that_vllm_does_not_know_end_it(words, says):
    spec = spec_of(*words)
    assert says in spec.refusal
    assert log.ending(spec) == log.Ending(0.0, 2)
    assert says in log.startup(spec)[-1].text


@pytest.mark.parametrize(
    ("version", "words", "says"),
    [
        ("0.12.0", ("m", "--task", "embed"), ""),
        ("0.14.1", ("m", "--task", "embed"), "vllm: error: unrecognized arguments: --task embed"),
        ("0.16.0", ("m", "--swap-space=4"), ""),
        ("0.16.0", ("m", "--shutdown-timeout", "3"), "unrecognized arguments: --shutdown-timeout 3"),
        ("0.17.0", ("m", "--shutdown-timeout", "3"), ""),
        ("0.33.0", ("m", "--no-enable-prefix-caching", "--max-model", "8"), ""),
        ("0.33.0", ("m", "--enable-lora=True"), "argument --enable-lora: ignored explicit argument 'True'"),
        ("0.33.0", ("m", "--max-model-len", "--enforce-eager"), "--max-model-len: expected one argument"),
        ("0.33.0", ("m", "--enforce-eager", "true"), "unrecognized arguments: true"),
        ("0.40.0", ("m", "--swap-space=4"), ""),
    ],
)
def test_each_version_has_its_own_flags(version, words, says):
    spec = spec_of(*words, **{LAB_VARIABLE: f"version={version}"})
    assert says in spec.refusal if says else spec.refusal == ""
    assert says in log.startup(spec)[-1].text


def test_the_old_entrypoint_speaks_under_its_own_name():
    module = ("python3", "-m", "vllm.entrypoints.openai.api_server", "m", "--model", "x")
    assert parse_spec(module, {}).refusal == "api_server.py: error: unrecognized arguments: m"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("BAAI/bge-m3",), "embedding"),
        (("m", "--runner", "pooling"), "embedding"),
        (("m", "--convert", "classify"), "pooling"),
        (("qwen/reranker",), "rerank"),
        (("m",), "generate"),
    ],
)
def test_arguments_and_names_tell_what_a_model_does(words, kind):
    assert spec_of(*words).kind == kind


def test_another_program_is_refused():
    assert "invalid choice" in parse_spec(("vllm", "chat"), {}).refusal


def test_words_for_the_lab():
    spec = spec_of(
        "m", **{LAB_VARIABLE: "mode=hang load_seconds=0.5 token_seconds=0 version=0.30.0 kv_tokens=160"}
    )
    assert (spec.mode, spec.load_seconds, spec.token_seconds, spec.version) == (Mode.HANG, 0.5, 0.0, "0.30.0")
    with pytest.raises(ValueError, match="does not know `mood`"):
        spec_of("m", **{LAB_VARIABLE: "mood=bad"})


def test_a_start_up_is_in_order_and_ends_listening():
    lines = log.startup(spec_of("m"))
    assert [line.at for line in lines] == sorted(line.at for line in lines)
    assert lines[-1].at == 1.0
    assert lines[-1].text.endswith("Application startup complete.")


def test_keys_are_never_in_the_log():
    lines = log.startup(spec_of("m", "--api-key", "a-secret-key", VLLM_API_KEY="another-secret"))
    assert "secret" not in "".join(line.text for line in lines)


@pytest.mark.parametrize("mode", list(Mode))
def test_every_mode_has_its_ending(mode):
    end = log.ending(EngineSpec(mode=mode))
    expected = {Mode.NEVER_READY: None, Mode.OOM: 137, Mode.CUDA_OOM: 1, Mode.CRASH: 1}
    assert (end.status if end else "listens") == expected.get(mode, "listens")


def test_the_log_has_the_phases_that_operators_know():
    path = Path(__file__).parents[4] / "shared/facts/vllm/failure_signatures.yaml"
    if not path.exists():
        pytest.skip("the collected facts are not on this machine")
    import yaml

    text = "\n".join(line.text for line in log.startup(EngineSpec()))
    phases = yaml.safe_load(path.read_text())["startup_phases"]
    missing = [phase["id"] for phase in phases if not re.search(phase["regex"], text, re.MULTILINE)]
    assert missing == ["download_done"]
