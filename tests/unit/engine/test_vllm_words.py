"""vLLM's words: what drifts between versions is written out, what a person sets is not set twice."""

import pytest

from gpufleet.engine.vllm import SHUTDOWN_TIMEOUT, Vllm, arguments, has_flag, version_of
from gpufleet.names import PoolName
from gpufleet.pools.model import EngineWish, Pool
from gpufleet.redact import Secret


def pool(image="vllm/vllm-openai:v0.20.0", args=(), env=None, **changes):
    engine = EngineWish(image=image, args=tuple(args), env=env or {})
    return Pool(name=PoolName("chat"), model="qwen", engine=engine, **changes)


def value(words, flag):
    return words[words.index(flag) + 1]


def test_defaults_that_drift_are_written_out():
    words = arguments(pool(served_name="q"), 1)
    assert words[:4] == ("serve", "qwen", "--served-model-name", "q")
    for flag in (
        "--gpu-memory-utilization",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--host",
        "--port",
    ):
        assert words.count(flag) == 1
    assert value(words, "--shutdown-timeout") == "60"
    assert "--tensor-parallel-size" not in words
    assert value(arguments(pool(), 2), "--tensor-parallel-size") == "2"


@pytest.mark.parametrize("args", [("--max-num-seqs", "16"), ("--max-num-seqs=16",), ("--max_num_seqs=16",)])
def test_what_a_person_sets_is_not_set_twice(args):
    words = arguments(pool(args=args), 1)
    assert sum(word.replace("_", "-").startswith("--max-num-seqs") for word in words) == 1
    assert words[-len(args) :] == args


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.11.0", (0, 11)),
        ("vllm/vllm-openai:v0.26.0-cu129", (0, 26)),
        ("registry:5000/vllm:0.9.2@sha256:00ff", (0, 9)),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai@sha256:00ff", None),
        ("registry:5000/vllm", None),
    ],
)
def test_versions_are_read_from_tags(image, version):
    assert version_of(image) == version


def test_an_old_version_is_not_given_a_flag_it_does_not_know():
    assert "--shutdown-timeout" not in arguments(pool(image="vllm/vllm-openai:v0.11.0"), 1)
    assert "--shutdown-timeout" in arguments(pool(image="vllm/vllm-openai:latest"), 1)


def test_the_key_goes_by_environment_and_never_by_argument():
    key = Secret("gfk-secret-secret", reference="${file:/k}")
    container = Vllm().container(pool(env={"A": "1"}), key=key, devices=1)
    assert container.environment == {"A": "1", "VLLM_API_KEY": key}
    assert not any("secret" in word for word in container.arguments)
    assert container.stop_timeout > SHUTDOWN_TIMEOUT
    assert "CUDA_VISIBLE_DEVICES" not in container.environment


def test_weights_are_mounted_read_only_and_the_hub_is_left_alone():
    container = Vllm().container(pool(weights="/models/q"), key=None, devices=1)
    assert [(mount.source, mount.target) for mount in container.mounts] == [("/models/q", "/models/q")]
    assert container.environment["HF_HUB_OFFLINE"] == "1"


def test_a_flag_is_not_found_inside_a_value():
    assert not has_flag(("--a", "x--port"), "--port")
    assert has_flag(("--port=1",), "--port")
