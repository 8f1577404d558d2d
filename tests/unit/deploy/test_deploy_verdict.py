"""A pool with a name of the catalogue, and whether its replicas fit what they were given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.deploy.catalogue import entry_of, filled
from gpufleet.deploy.placement.api import Placed, Slot
from gpufleet.deploy.replicas import New
from gpufleet.deploy.verdict import Judgement, Seen, doubts, judge, question_of, refuse
from gpufleet.engine.memory import Measured, Setup, Verdict
from gpufleet.engine.memory_words import setup_of, uncounted
from gpufleet.engine.vllm import Vllm
from gpufleet.errors import MemoryTooSmall, UsageError
from gpufleet.models.load import shipped
from gpufleet.models.model import Cited, Entry, Modality
from gpufleet.names import GpuUuid, HostName, PoolName, ReplicaId
from gpufleet.pools.model import EngineWish, Pool, SliceWish

POOL = Pool(name=PoolName("chat"), model="qwen3-8b")
OURS = Entry(
    name="ours",
    hub="/models/ours",
    modality=Modality.LLM,
    revision="abc",
    image="vllm/vllm-openai:v0.20.0",
    arguments=("--max-model-len", "4096", "--trust-remote-code"),
    memory_gib=Cited(40.0, "measured"),
)


def start(memory_mib: int | None, profile: str = "", count: int = 1, gpus: int = 1) -> tuple[New, ...]:
    slots = tuple(
        Slot(
            host=HostName("gpu-01"),
            gpu=GpuUuid(f"GPU-{number}"),
            device=f"GPU-{number}",
            index=number,
            profile=profile,
            memory_mib=memory_mib,
        )
        for number in range(gpus)
    )
    return tuple(
        New(
            replica=ReplicaId(f"gpu-01/{number}"),
            placed=Placed(HostName("gpu-01"), slots),
            port=8000 + number,
        )
        for number in range(count)
    )


def judged(pool: Pool, new: tuple[New, ...], *extra: Entry) -> tuple[Judgement, ...]:
    models = {**shipped(), **{entry.name: entry for entry in extra}}
    return judge(question_of(Vllm(), filled(pool, models), models), new, {})


def test_a_name_of_the_catalogue_brings_model_image_and_arguments() -> None:
    found = filled(replace(POOL, model="ours"), {"ours": OURS})
    assert (found.model, found.public_name, found.engine.image) == ("/models/ours", "ours", OURS.image)
    assert found.engine.args == ("--max-model-len", "4096", "--trust-remote-code", "--revision", "abc")
    assert len(found.engine.args_at) == len(found.engine.args)


def test_what_the_pool_says_itself_wins() -> None:
    engine = EngineWish(
        image="own/image:v0.33.0", args=("--max_model_len=2048", "--seed", "1"), args_at=("f:1", "f:2", "f:3")
    )
    found = filled(replace(POOL, model="ours", served_name="chat", engine=engine), {"ours": OURS})
    assert (found.public_name, found.engine.image) == ("chat", "own/image:v0.33.0")
    assert found.engine.args == (
        "--trust-remote-code",
        "--revision",
        "abc",
        "--max_model_len=2048",
        "--seed",
        "1",
    )
    assert found.engine.args_at[-3:] == ("f:1", "f:2", "f:3")


def test_a_name_in_no_catalogue_stays_as_it_is() -> None:
    pool = replace(POOL, model="some/model")
    assert filled(pool, shipped()) is pool
    assert entry_of(pool, shipped()) is None
    by_hub = entry_of(replace(POOL, model="Qwen/Qwen3-8B"), shipped())
    assert by_hub is not None
    assert by_hub.name == "qwen3-8b"


def test_speech_needs_an_image_of_its_own() -> None:
    with pytest.raises(UsageError, match="names no image") as caught:
        filled(replace(POOL, model="voxcpm2"), shipped())
    assert "vLLM-Omni" in caught.value.hints[0]
    named = replace(POOL, model="voxcpm2", engine=EngineWish(image="vllm/vllm-omni:v0.21.0"))
    assert filled(named, shipped()).model == "openbmb/VoxCPM2"


def test_a_model_that_fits_says_so() -> None:
    (found,) = judged(POOL, start(81559))
    assert found.verdict is Verdict.FITS
    assert "to spare" in found.line
    assert doubts([found]) == ()
    refuse(POOL, [found], "--x")


def test_a_model_that_does_not_fit_is_refused_with_what_would_help() -> None:
    found = judged(POOL, start(15360, count=3))
    with pytest.raises(MemoryTooSmall) as caught:
        refuse(POOL, found, "--ignore-memory")
    assert len(caught.value.rows) == 3
    assert any("--tensor-parallel-size" in hint for hint in caught.value.hints)
    assert "--ignore-memory" in caught.value.hints[-1]


def test_a_slice_is_judged_by_its_own_memory() -> None:
    pool = replace(POOL, model="qwen3-0.6b", slice=SliceWish(mig="1g.10gb"))
    (found,) = judged(pool, start(9728, profile="1g.10gb"))
    assert found.verdict is Verdict.FITS
    assert found.place.startswith("1g.10gb")
    (small,) = judged(replace(pool, model="qwen3-4b"), start(9728, profile="1g.10gb"))
    assert small.verdict is Verdict.NO


def test_two_gpus_share_the_weights() -> None:
    pool = replace(POOL, model="qwen3-32b", slice=SliceWish(gpus=2))
    assert judged(pool, start(81559, gpus=2))[0].verdict is Verdict.FITS
    assert judged(pool, start(46068, gpus=2))[0].verdict is Verdict.TIGHT


@pytest.mark.parametrize(
    ("pool", "new", "reason"),
    [
        (replace(POOL, model="some/model"), start(81559), "not in the catalogue"),
        (POOL, start(None), "could not be read"),
        (replace(POOL, model="whisper-large-v3"), start(81559), "no config.json of it"),
        (replace(POOL, engine=EngineWish(args=("--enable-lora",))), start(81559), "LoRA"),
        (replace(POOL, engine=EngineWish(args=("--speculative-config={}",))), start(81559), "draft"),
    ],
)
def test_what_nobody_can_tell_is_said_and_not_refused(pool: Pool, new: tuple[New, ...], reason: str) -> None:
    (found,) = judged(pool, new)
    assert found.verdict is Verdict.UNKNOWN
    assert reason in found.line
    refuse(pool, [found], "--x")
    assert reason in doubts([found])[0]


def test_a_cited_minimum_refuses_where_nothing_can_be_reckoned() -> None:
    (found,) = judged(replace(POOL, model="ours"), start(24576), OURS)
    assert found.verdict is Verdict.NO
    assert "40 GiB" in found.line
    (enough,) = judged(replace(POOL, model="ours"), start(81559), OURS)
    assert enough.verdict is Verdict.UNKNOWN


def test_memory_of_the_host_is_counted() -> None:
    (found,) = judged(replace(POOL, kv_offload=32.0), start(81559))
    assert found.fields()["host_memory_gib"] == 32.0


def test_words_mean_what_vllm_takes_them_for() -> None:
    words = (
        "serve", "m", "--gpu-memory-utilization=0.8", "--max_model_len", "8k", "--max-num-seqs", "64", "--block-size", "32",
        "--enforce-eager", "--no-enable-prefix-caching", "--kv-cache-dtype", "fp8", "--kv-cache-memory-bytes", "4G", "-tp", "2",
    )  # fmt: skip
    found = setup_of(words, Setup(memory_gib=80.0), ranks=1)
    assert (found.share, found.context, found.requests, found.block) == (0.8, 8000, 64, 32)
    assert (found.eager, found.prefixes, found.kv_dtype, found.ranks) == (True, False, "fp8", 2)
    assert found.measured.available == 4.0
    plain = setup_of(("serve", "m", "--max-model-len", "auto"), Setup(memory_gib=80.0, share=0.9), ranks=4)
    assert (plain.context, plain.share, plain.ranks, plain.prefixes) == (None, 0.9, 4, True)


def test_one_stage_of_a_pipeline_is_all_layers() -> None:
    assert uncounted(("--pipeline-parallel-size", "1")) == ""
    assert "share of the layers" in uncounted(("--pipeline-parallel-size", "2"))


def test_what_an_earlier_start_measured_wins() -> None:
    def ask(pool: Pool, seen: Seen, memory: int = 81559) -> Judgement:
        question = question_of(Vllm(), filled(pool, shipped()), shipped(), lambda _place: seen)
        return judge(question, start(memory), {})[0]

    small = Seen(measured=Measured(weights=15.3, available=2.0), at="2026-01-01T00:00:00", same_context=False)
    assert ask(POOL, small).verdict is Verdict.NO, "40,960 tokens need 5.6 GiB"
    ample = Seen(measured=Measured(weights=15.3, available=30.0), at="2026-01-01T00:00:00", same_context=True)
    found = ask(POOL, ample)
    assert (found.verdict, found.reason) == (Verdict.FITS, "it started so on 2026-01-01")
    assert found.found is not None
    assert found.found.available_gib == 30.0
    unknown = ask(replace(POOL, model="some/model"), ample)
    assert (unknown.verdict, unknown.found) == (Verdict.FITS, None)
    other = ask(replace(POOL, model="some/model"), replace(ample, same_context=False))
    assert other.verdict is Verdict.UNKNOWN
