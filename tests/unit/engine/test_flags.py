"""What `vllm serve` of a version would refuse, told before anything is started."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.engine import flag_table
from gpufleet.engine.flags import (
    Release,
    Standing,
    known_in,
    lint,
    release_of,
    samples,
    spans,
    standing,
    value_of,
    written,
)
from gpufleet.engine.vllm import OWNED_FLAGS

FACTS = Path(__file__).parents[4] / "shared" / "facts" / "vllm" / "serve_flags.json"


def faults(*args, version="0.20.2", owned=OWNED_FLAGS):
    return lint(args, release_of("", version) if version else None, owned=owned)


def errors(*args, version="0.20.2"):
    return [fault.message for fault in faults(*args, version=version) if fault.sure]


@pytest.mark.parametrize(
    ("image", "setting", "release"),
    [
        ("vllm/vllm-openai:v0.20.1", "", Release(0, 20, 1)),
        ("vllm/vllm-openai:v0.26.0-cu129", "", Release(0, 26, 0)),
        ("vllm/vllm-openai:v0.8.5.post1", "", Release(0, 8, 5)),
        ("vllm/vllm-openai:v0.21.0rc1", "", Release(0, 21, 0)),
        ("registry:5000/vllm:0.9.2@sha256:00ff", "", Release(0, 9, 2)),
        ("mirror/vllm:v0.20", "", Release(0, 20)),
        ("mirror/vllm:production-7", "0.18.1", Release(0, 18, 1)),
        ("vllm/vllm-openai:v0.20.1", "v0.19.0", Release(0, 19, 0)),
        ("vllm/vllm-openai:latest", "", None),
        ("vllm/vllm-openai@sha256:00ff", "", None),
        ("registry:5000/vllm", "", None),
        ("vllm/vllm-openai:v0.20.1", "newest", None),
    ],
)
def test_the_version_comes_from_the_setting_else_from_the_tag(image, setting, release):
    assert release_of(image, setting) == release


@pytest.mark.parametrize(
    ("flag", "version", "expected"),
    [
        ("task", "0.12.0", Standing.KNOWN),
        ("task", "0.13.0", Standing.BETWEEN),
        ("task", "0.14.1", Standing.GONE),
        ("task", "0.20.0", Standing.GONE),
        ("shutdown-timeout", "0.16.0", Standing.NEWER),
        ("shutdown-timeout", "0.17.0", Standing.BETWEEN),
        ("shutdown-timeout", "0.18.1", Standing.KNOWN),
        ("max-model-len", "0.19.3", Standing.KNOWN),
        ("no-such-flag", "0.19.3", Standing.NEVER),
        ("max-model-len", "0.34.0", Standing.OUTSIDE),
        ("max-model-len", "0.5.0", Standing.OUTSIDE),
        ("task", "0.14", Standing.BETWEEN),
        ("max-model-len", "0.14", Standing.KNOWN),
    ],
)
def test_what_is_known_of_a_flag_in_a_version(flag, version, expected):
    assert standing(flag, release_of("", version)) is expected


def test_without_a_version_nothing_is_known():
    assert standing("max-model-len", None) is Standing.OUTSIDE


MISTAKES = [
    (("--task", "embed"), "0.20.2", "`--task` is gone in vLLM 0.20.2: last seen in 0.12.0, first missing in 0.14.1"),
    (("--swap-space=4",), "0.20.2", "`--swap-space` is gone"),
    (("--shutdown_timeouts", "3"), "0.20.2", "has no flag `--shutdown_timeouts`"),
    (("--max-num-queued-reqs", "5"), "0.20.2", "needs a newer vLLM than 0.20.2: first seen in 0.30.0"),
    (("--max-modle-len", "8192"), "0.20.2", "has no flag `--max-modle-len`"),
    (("--port", "9000"), "0.20.2", "`--port` is a flag that gpufleet sets itself"),
    (("--served_model_name=x",), "0.20.2", "gpufleet sets itself"),
    (("--served-model", "x"), "0.20.2", "short for `--served-model-name`"),
    (("--api-key", "k"), "0.20.2", "gpufleet sets itself"),
    (("serve", "--enforce-eager"), "0.20.2", "`serve` is said already"),
    (("qwen/qwen3", "--enforce-eager"), "0.20.2", "`qwen/qwen3` belongs to no flag"),
    (("vllm/vllm-openai:v0.20.1",), "0.20.2", "is an image"),
    (("--enable-prefix-caching", "True"), "0.20.2", "follows a flag that takes no value"),
    (("--enable-prefix-caching=True",), "0.20.2", "takes no value"),
    (("--max-model-len", "--enforce-eager"), "0.20.2", "`--max-model-len` has no value"),
    (("--enforce-eager", "--max-model-len"), "0.20.2", "`--max-model-len` has no value"),
    (("--max-model-len", "8192", "16384"), "0.20.2", "`16384` belongs to no flag"),
    (("--no-max-model-len",), "0.20.2", "has no `--no-` form"),
    (("--enforce-eager", "\\"), "0.20.2", "line continuation"),
    (("--max-model-len", "20480 \\"), "0.20.2", "line continuation"),
    (("--", "x"), "0.20.2", "`--` ends the flags"),
    (("-q", "awq", "more"), "0.20.2", "`more` belongs to no flag"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "version", "message"), MISTAKES, ids=[" ".join(row[0]) for row in MISTAKES])
def test_a_mistake_is_named(args, version, message):
    assert any(message in said for said in errors(*args, version=version))


RIGHT = [
    ("--max-model-len", "8192", "--max-num-seqs=16", "--gpu_memory_utilization", "0.8"),
    ("--enable-prefix-caching", "--no-enable-chunked-prefill", "--trust-remote-code"),
    ("-tp", "2", "-O3", "-q", "awq", "-dp=2"),
    ("--hf-overrides", '{"a": -1}', "--compilation-config.level", "3", "--hf_overrides.rope_theta=1"),
    ("--max-model-len", "-1"),
    ("--lora-modules", "a=/x", "b=/y", "--middleware", "x.y"),
    ("--disable-access-log-for-endpoints", "/health"),
    ("--cudagraph-capture-sizes", "1", "2", "4"),
    ("--structured-outputs-config.backend", "xgrammar"),
]


@pytest.mark.parametrize("args", RIGHT, ids=" ".join)
def test_what_the_engine_takes_is_left_alone(args):
    assert faults(*args) == ()


def test_old_switches_that_took_a_value_are_left_alone():
    assert errors("--enable-chunked-prefill", "False", version="0.8.5") == []
    assert errors("--enable-chunked-prefill=False", version="0.8.5") == []
    assert errors("--enable-chunked-prefill", "False", version="0.11.0") != []


def test_a_renamed_flag_comes_with_its_successor():
    (fault,) = faults("--cuda-graph-sizes", "4", version="0.20.2")
    assert fault.hint == "use --cudagraph-capture-sizes"
    (fault,) = faults("--worker-use-ray", version="0.20.2")
    assert fault.hint == "use --distributed-executor-backend ray"
    (fault,) = faults("--calculate-kv-scales", version="0.30.0")
    assert fault.hint.startswith("leave it out")
    (fault,) = faults("--max-modle-len", "1", version="0.20.2")
    assert fault.hint == "did you mean `--max-model-len`?"


def test_all_mistakes_are_told_at_once_in_their_order():
    found = faults("--task", "embed", "--port", "1", "stray", "--max-modle-len", "1")
    assert [fault.at for fault in found] == [0, 2, 4, 5]


def test_what_is_not_known_is_said_and_is_no_error():
    between = faults("--task", "embed", version="0.13.0")
    assert [fault.sure for fault in between] == [False]
    assert "last seen in 0.12.0, first missing in 0.14.1" in between[0].message
    coming = faults("--shutdown-timeouts", version="0.13.0")
    assert coming[0].sure
    unknown = lint(
        ("--task", "embed", "--brand-new"), None, owned=OWNED_FLAGS, image="vllm/vllm-openai:latest"
    )
    assert [fault.sure for fault in unknown] == [False, False]
    assert "not known from vllm/vllm-openai:latest" in unknown[-1].message
    beyond = faults("--brand-new", version="0.40.0")
    assert not any(fault.sure for fault in beyond)
    assert "not those of 0.40.0" in beyond[-1].message
    assert lint((), None, owned=OWNED_FLAGS) == ()


def test_an_unknown_version_still_refuses_what_no_version_takes():
    found = lint(("serve", "--port=1", "--enforce-eager", "true"), None, owned=OWNED_FLAGS)
    assert [fault.at for fault in found if fault.sure] == [0, 1, 3]


def test_a_beginning_of_a_name_is_said():
    (fault,) = faults("--max-model", "8192")
    assert "taken for `--max-model-len`" in fault.message
    assert not fault.sure


def test_a_lost_line_continuation_leaves_words_that_are_found():
    """Case 22: the command line that was pasted, word by word."""
    words = [
        "serve",
        "some/model",
        "--max-model-len",
        "20480",
        "\\",
        "--reasoning-config",
        "{}",
        "--enable-prefix-caching",
        "\\",
    ]
    found = faults(*words)
    assert [fault.at for fault in found] == [0, 1, 4, 8]
    assert all(fault.sure for fault in found)


def test_a_secret_in_a_stray_word_is_not_repeated():
    secret = "hf_abcdefghijklmnopqrstuvwx"
    assert secret not in str(faults(secret, f"--{secret}"))


@given(
    st.lists(st.text(max_size=12) | st.sampled_from([f"--{name}" for name in sorted(spans())]), max_size=8)
)
def test_any_words_give_faults_that_name_a_word_of_theirs(words):
    for version in ("0.20.2", "0.13.0", "0.99.0", None):
        for fault in lint(words, release_of("", version) if version else None, owned=OWNED_FLAGS):
            assert fault.message
            assert fault.at is None or 0 <= fault.at < len(words)


@given(st.sampled_from(sorted(spans())), st.sampled_from(samples()))
def test_at_a_version_that_was_read_every_flag_is_there_or_not(flag, version):
    found = standing(flag, Release(*version))
    assert found in {Standing.KNOWN, Standing.GONE, Standing.NEWER}
    assert (flag in known_in(Release(*version))) == (found is Standing.KNOWN)


def test_values_are_found_in_every_spelling():
    assert value_of(("--max_model_len", "4", "--max-model-len=8"), "max-model-len") == "8"
    assert value_of(("--max-model-len", "--x"), "max-model-len") is None
    assert value_of(("-tp", "2"), "tensor-parallel-size") == "2"
    assert value_of((), "x") is None
    assert written("-1") is None


def test_replacements_are_of_flags_that_went():
    last = len(flag_table.SAMPLES) - 1
    assert all(spans()[flag].last < last for flag in flag_table.REPLACEMENTS)


@pytest.mark.skipif(not FACTS.exists(), reason="the collected facts are not beside this checkout")
def test_the_table_says_what_was_collected():
    facts = json.loads(FACTS.read_text())
    plain = [text.partition(".post")[0] for text in facts["sampled_versions"]]
    assert tuple(plain) == flag_table.SAMPLES
    for flag, seen in facts["flags"].items():
        span = spans()[flag.removeprefix("--")]
        assert flag_table.SAMPLES[span.first] == seen["first_seen"].partition(".post")[0]
        assert flag_table.SAMPLES[span.last] == seen["last_seen"].partition(".post")[0]
        if seen.get("gone_in") and seen["replacement"] != "unverified":
            assert flag.removeprefix("--") in flag_table.REPLACEMENTS
    assert len(spans()) == len(facts["flags"])
