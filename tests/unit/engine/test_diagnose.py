"""A log's first cause is never a wrapper; every signature is found in the form vLLM and the runtimes print."""

import itertools
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.engine import diagnose as engine_log
from gpufleet.engine.diagnose import SIGNATURES, diagnose, first_cause, phase, said, tail
from gpufleet.engine.signatures.model import Kind
from gpufleet.engine.signatures.phases import PHASES

OWN = yaml.safe_load((Path(__file__).parents[2] / "tables" / "failure_samples.yaml").read_text())
SAMPLES = {one["id"]: one["line"] for one in OWN["failures"]}
PHASE_LINES = {one["id"]: one["line"] for one in OWN["phases"]}
KINDS = {one.id: one.kind for one in SIGNATURES}
WRAPPERS = [SAMPLES[name] for name, kind in KINDS.items() if kind is Kind.WRAPPER]
REAL = {name: SAMPLES[name] for name, kind in KINDS.items() if kind in {Kind.PERMANENT, Kind.TRANSIENT}}
SHARED = Path(__file__).parents[4] / "shared" / "facts" / "vllm" / "failure_signatures.yaml"


def cause_of(log):
    found = diagnose(log).cause
    return found.id if found else None


def test_every_signature_and_phase_has_a_sample():
    assert sorted(SAMPLES) == sorted(KINDS)
    assert list(PHASE_LINES) == [one.id for one in PHASES]
    assert all(one.fix and one.needles for one in SIGNATURES)


@pytest.mark.parametrize("name", SAMPLES)
def test_each_sample_gives_its_id_and_a_needle_stands_in_it(name):
    found = diagnose(f"INFO something before\n{SAMPLES[name]}\nINFO something after").cause
    assert found is not None
    assert (found.id, found.line) == (name, SAMPLES[name])


@pytest.mark.parametrize("name", PHASE_LINES)
def test_each_line_of_a_start_gives_its_phase(name):
    reached = diagnose(PHASE_LINES[name]).phase
    assert reached is not None
    assert reached.id == name
    assert "{" not in reached.told


@pytest.mark.parametrize("name", REAL)
def test_the_cause_is_found_on_either_side_of_every_wrapper(name):
    for wrapper in WRAPPERS:
        for log in (f"{wrapper}\n{REAL[name]}\n", f"{REAL[name]}\n{wrapper}\n"):
            found = diagnose(log)
            assert found.cause is not None
            assert (found.cause.id, found.wrapper_skipped) == (name, True)


def test_of_two_causes_the_first_is_told():
    names = list(REAL)
    further = [names[step:] + names[:step] for step in (1, 7, len(names) - 1)]
    for first, second in itertools.chain.from_iterable(zip(names, other, strict=True) for other in further):
        assert cause_of(f"{REAL[first]}\nsomething else\n{REAL[second]}\n") == first


def test_a_wrapper_alone_is_told_as_such_and_never_as_a_real_cause():
    for wrapper in WRAPPERS:
        found = diagnose(wrapper)
        assert found.cause is not None
        assert found.cause.kind is Kind.WRAPPER
        assert not found.wrapper_skipped
        assert found.real_cause is None
        assert first_cause(wrapper) is None


def test_what_is_no_failure_by_itself_gives_way():
    waits = SAMPLES["vllm.shm_wait"]
    assert cause_of(f"{waits}\n{SAMPLES['vllm.kv_none']}") == "vllm.kv_none"
    assert cause_of(f"{WRAPPERS[0]}\n{waits}") == "vllm.shm_wait"


FRONTS = (
    "(EngineCore_DP0 pid=77) ERROR 01-01 00:00:00 [core.py:708] ",
    "(Worker_TP1 pid=78) ERROR 01-01 00:00:00 [multiproc_executor.py:559] (Worker_TP1 pid=78) ",
    "\x1b[1;36m(EngineCore_DP0 pid=77)\x1b[0;0m ERROR 01-01 00:00:00 [core.py:708] ",
    "2026-07-01T10:11:12.123456789Z (APIServer pid=1) ",
    "vllm-1  | (APIServer pid=1) ",
    "Jul 01 10:11:12 gpu-01 dockerd[812]: ",
    "[rank0]: ",
    "ERROR 11-02 10:00:00 [core.py:1] ",
    "",
)


@pytest.mark.parametrize("front", FRONTS)
def test_the_line_is_told_without_what_stands_in_front(front):
    words = "torch.OutOfMemoryError: CUDA out of memory."
    found = first_cause(f"{front}{words}\r\n")
    assert found is not None
    assert found.line == words


def test_a_log_file_of_docker_itself_is_read_too():
    line = SAMPLES["rt.no_gpu_driver"]
    log = "".join(json.dumps({"log": f"{text}\n", "stream": "stderr"}) + "\n" for text in ("begin", line))
    found = first_cause(log)
    assert found is not None
    assert found.line == line


def test_quoted_source_code_warnings_and_what_is_said_in_passing_do_not_hide_the_cause():
    quoted = '    raise ValueError("No available memory for the cache blocks")'
    warned = "WARNING 01-01 00:00:00 [x.py:1] CUDA out of memory, trying again"
    passing = "INFO 01-01 00:00:00 [x.py:1] 401 Client Error"
    assert cause_of("\n".join((quoted, warned, passing, SAMPLES["vllm.nccl"]))) == "vllm.nccl"
    assert cause_of(f"{passing}\n{warned}") == "vllm.cuda_oom"
    assert cause_of(passing) is None


def test_a_narrower_error_of_the_same_chain_is_told():
    chain = "The above exception was the direct cause of the following exception:"
    general, narrow = SAMPLES["vllm.cuda_oom"], SAMPLES["vllm.sampler_oom"]
    assert cause_of(f"{general}\n\n{chain}\n\n{narrow}") == "vllm.sampler_oom"
    assert cause_of(f"{general}\n{narrow}") == "vllm.cuda_oom"
    assert cause_of(f"{general}\n\n{chain}\n\n{SAMPLES['vllm.nccl']}") == "vllm.cuda_oom"


def start(*names):
    return "".join(f"{PHASE_LINES[name]}\n" for name in names)


def test_of_several_lives_the_last_gives_the_phase_and_the_first_cause_of_the_last_that_has_one():
    first = start("version", "load_start", "shards") + SAMPLES["vllm.free_mem"] + "\n"
    second = (
        start("version", "load_start", "kv_size") + f"{SAMPLES['vllm.kv_none']}\n{SAMPLES['vllm.nccl']}\n"
    )
    found = diagnose(first + second)
    assert found.phase is not None
    assert (found.phase.id, cause_of(first + second)) == ("kv_size", "vllm.kv_none")
    third = first + second + start("version", "args")
    assert phase(third) == "reading its arguments"
    assert cause_of(third) == "vllm.kv_none"
    assert cause_of(third + start("load_start", "ready")) is None
    assert cause_of(third + start("ready") + SAMPLES["vllm.engine_dead"]) == "vllm.engine_dead"


def test_what_stands_before_the_first_version_belongs_to_the_first_life():
    assert (
        cause_of(SAMPLES["rt.nvml_lost"] + "\n" + start("version") + SAMPLES["vllm.device_type"])
        == "rt.nvml_lost"
    )


def test_progress_bars_that_overwrite_themselves():
    bar = "\r".join(
        f"Loading safetensors checkpoint shards: {12 * i:3d}% Completed | {i}/8 [00:00<00:07]"
        for i in range(4)
    )
    assert phase(f"INFO Starting to load model q...\n{bar}") == "loading weights 3/8"


def test_workers_that_talk_at_once():
    log = (
        "(Worker_TP0 pid=1) INFO 01-01 00:00:00 [x.py:1] Model loading took 15.27 GiB memory and 4.5 seconds\n"
        "(Worker_TP1 pid=2) INFO 01-01 00:00:00 [x.py:1] Loading weights took 2.31 seconds\n"
    )
    assert phase(log) == "model loaded, 15.27 GiB"


def test_neither_line_nor_tail_shows_a_secret():
    found = first_cause("401 Client Error with Bearer abcdefgh12345678")
    assert found is not None
    assert "abcdefgh" not in found.line
    assert "abcdefgh" not in tail("Bearer abcdefgh12345678")
    token = "hf_" + "x" * 40
    for size in range(0, 40, 8):  # wherever a very long line is cut, no part of a secret stays
        long = f"{'y' * size} " * 3 + f"{'z ' * 200_000}{token} CUDA out of memory {token}"
        found = first_cause(long)
        assert found is not None
        assert "xxx" not in found.line + tail(long)


def test_the_tail_is_forty_lines():
    assert tail("\n".join(map(str, range(100))), 40).split("\n") == [str(number) for number in range(60, 100)]


def test_said_is_the_line_alone():
    assert (
        said("(APIServer pid=12) INFO 07-01 10:11:12 [utils.py:233] non-default args: {}")
        == "non-default args: {}"
    )


NOISE = st.lists(
    st.one_of(
        st.text(max_size=60),
        st.sampled_from([needle for one in SIGNATURES for needle in one.needles]),
        st.sampled_from(list(SAMPLES.values())),
        st.sampled_from(list(PHASE_LINES.values())),
        st.sampled_from(["\n", "\r", "\0", "\x1b[0m", "\x1b", "INFO ", '{"log":"', "    ", "�"]),
    ),
    max_size=30,
).map("".join)


@given(NOISE)
def test_any_text_is_read(log):
    found = diagnose(log)
    assert engine_log.phase(log) == (found.phase.told if found.phase else "")
    if found.cause is not None:
        assert found.cause.id in KINDS
        assert len(found.cause.line) <= 500
        assert "\n" not in found.cause.line
    assert len(tail(log).split("\n")) <= 40


@given(st.text(alphabet="ab \n\r\0\x1b[", max_size=200), st.sampled_from(sorted(REAL)))
def test_noise_around_it_does_not_hide_a_cause(noise, name):
    assert cause_of(f"{noise}\n{REAL[name]}\n{noise}") == name


HOSTILE = {
    "one long line": "Free memory on device " * 100_000,
    "a needle on every line": "INFO Free memory on device a on startup is less than desired GPU memory utilization\n"
    * 20_000,
    "escapes": "\x1b[" * 500_000,
    "versions": "vLLM server version 1\n" * 50_000,
    "brackets": "Model architectures [" * 50_000 + " are not supported for now",
    "fronts": "(" * 1_000_000 + "CUDA out of memory",
    "half json": '{"log":"' * 100_000,
    "shards": "Loading safetensors checkpoint shards: " * 50_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_logs_cost_no_more_than_their_length(name):
    """The deadline of the test run ends a search that backtracks; here any answer will do."""
    found = diagnose(HOSTILE[name])
    assert found.cause is None or found.cause.id in KINDS
    tail(HOSTILE[name])


@pytest.mark.skipif(
    not SHARED.exists(), reason="the collection of failure samples is not beside this checkout"
)
def test_collected_samples_give_their_ids_and_phases():
    listed = yaml.safe_load(SHARED.read_text())
    wrong = [one["id"] for one in listed["signatures"] if cause_of(one["sample"]) != one["id"]]
    assert wrong == []
    reached = {one["id"]: diagnose(one["sample"]).phase for one in listed["startup_phases"]}
    assert {name: one.id if one else None for name, one in reached.items()} == {
        name: name for name in reached
    }


@pytest.mark.skipif(
    not SHARED.exists(), reason="the collection of failure samples is not beside this checkout"
)
def test_of_two_collected_samples_the_first_real_one_is_told_whatever_wraps_it():
    samples = {one["id"]: one["sample"] for one in yaml.safe_load(SHARED.read_text())["signatures"]}
    real = {name: text for name, text in samples.items() if KINDS[name] in {Kind.PERMANENT, Kind.TRANSIENT}}
    wrappers = [text for name, text in samples.items() if KINDS[name] is Kind.WRAPPER]
    assert len(wrappers) >= 3
    assert len(real) > 40
    wrong = [
        (first, second)
        for (first, one), (second, other) in itertools.permutations(real.items(), 2)
        if cause_of(f"{wrappers[0]}\n{one}\nsomething else\n{other}\n{wrappers[-1]}\n") != first
    ]
    assert wrong == []
