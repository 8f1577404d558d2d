"""vLLM's words: what drifts between versions is written out, what a person sets is not set twice."""

import pytest

from gpufleet.engine.host_memory import bytes_of, host_memory_gib
from gpufleet.engine.vllm import SHUTDOWN_TIMEOUT, Vllm, arguments, has_flag, version_of
from gpufleet.names import PoolName
from gpufleet.pools.model import EngineWish, Limits, Pool, SliceWish
from gpufleet.redact import Secret


def pool(image="vllm/vllm-openai:v0.20.0", args=(), env=None, version="", **changes):
    engine = EngineWish(image=image, args=tuple(args), env=env or {}, version=version)
    return Pool(name=PoolName("chat"), model="qwen", engine=engine, **changes)


def faults(**changes):
    return list(Vllm().faults(pool(**changes)))


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


def test_a_slice_is_never_given_what_fits_its_parent():
    words = arguments(pool(slice=SliceWish(mig="1g.10gb")), 1)
    assert value(words, "--max-num-seqs") == "128"
    assert value(words, "--max-num-batched-tokens") == "2048"
    assert value(arguments(pool(), 1), "--max-num-batched-tokens") == "8192"


def test_a_batch_holds_the_sequences_and_a_whole_prompt_where_prompts_are_not_cut():
    assert value(arguments(pool(args=("--max-num-seqs", "9000")), 1), "--max-num-batched-tokens") == "9000"
    whole = ("--no-enable-chunked-prefill", "--max-model-len", "32768")
    assert value(arguments(pool(args=whole), 1), "--max-num-batched-tokens") == "32768"
    old = "vllm/vllm-openai:v0.6.6"
    assert "--max-num-batched-tokens" not in arguments(pool(image=old), 1)
    long = arguments(pool(image=old, args=("--max-model-len=32768",)), 1)
    assert value(long, "--max-num-batched-tokens") == "32768"


def test_models_that_pool_take_prompts_whole():
    embed = ("--runner", "pooling")
    assert value(arguments(pool(args=embed), 1), "--max-num-batched-tokens") == "32768"
    long = (*embed, "--max-model-len", "40000")
    assert value(arguments(pool(args=long), 1), "--max-num-batched-tokens") == "40000"


def test_a_short_name_is_not_set_twice():
    assert "--tensor-parallel-size" not in arguments(pool(args=("-tp", "2")), 2)


def test_key_value_cache_goes_to_the_host_where_the_version_can():
    assert value(arguments(pool(kv_offload=32), 1), "--kv-offloading-size") == "32"
    assert faults(kv_offload=32) == []
    (old,) = faults(image="vllm/vllm-openai:v0.11.0", kv_offload=32)
    assert old.sure and old.key == "kv_offload" and "0.12 or later" in old.message
    (unknown,) = faults(image="vllm/vllm-openai:latest", kv_offload=32)
    assert not unknown.sure
    (twice,) = faults(args=("--kv-offloading-size=3",), kv_offload=32)
    assert twice.sure and twice.at == 0


def test_the_memory_limit_holds_what_is_moved_to_the_host():
    (tight,) = faults(kv_offload=32, limits=Limits(memory="32g"))
    assert tight.sure and tight.key == "limits.memory" and "36g" in tight.hint
    (scarce,) = faults(kv_offload=32, limits=Limits(memory="33g"))
    assert not scarce.sure
    assert faults(kv_offload=32, limits=Limits(memory="64g")) == []
    assert faults(limits=Limits(memory="4m"))[0].sure
    assert host_memory_gib(pool(kv_offload=32, args=("--cpu-offload-gb", "10")), 2) == 52


@pytest.mark.parametrize(
    ("text", "size"),
    [("64g", 64 << 30), ("512M", 512 << 20), ("7", 7), ("2k", 2048), ("g", None), ("1.5g", None), ("", None)],
)
def test_sizes_in_the_notation_of_a_runtime(text, size):
    assert bytes_of(text) == size


@pytest.mark.parametrize(
    "name", ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "VLLM_API_KEY", "VLLM_SERVER_DEV_MODE"]
)
def test_variables_that_gpufleet_owns_are_refused(name):
    (fault,) = faults(env={name: "MIG-377e0049-554c-540b-93c6-d0976f8426cb"})
    assert fault.sure and fault.key == f"engine.env.{name}"
    assert "MIG-" not in fault.message + fault.hint


def test_the_version_that_is_set_is_believed_and_must_be_one():
    assert faults(image="private/engine:7", version="0.20.1", args=("--enforce-eager",)) == []
    (wrong,) = faults(version="newest")
    assert wrong.sure and wrong.key == "engine.version"
    (other,) = faults(version="0.19.0")
    assert not other.sure and "0.20.0" in other.message
    assert "--shutdown-timeout" not in arguments(pool(image="private/engine:7", version="0.11.0"), 1)
