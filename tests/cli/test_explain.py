"""`gpufleet explain`: a log from a file or standard input, as text and as JSON, and what it cannot explain."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from gpufleet.cli.app import main

CAUSE = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."
LOG = (
    "(APIServer pid=1) INFO 01-01 00:00:00 [api_server.py:1] vLLM server version 0.33.0, serving model q\n"
    "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01,  1.00it/s]\r"
    "Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:02<00:00,  1.00it/s]\n"
    f"(EngineCore_DP0 pid=77) ERROR 01-01 00:00:00 [core.py:1] {CAUSE}\n"
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.\n"
)
CASES = Path(__file__).parents[3] / "shared" / "cases" / "fleet"


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


@pytest.fixture
def explain(monkeypatch, capsys):
    def run(*words, given=None, stdin=io.TextIOWrapper):
        if given is not None:
            content = given if isinstance(given, bytes) else given.encode()
            monkeypatch.setattr("sys.stdin", stdin(io.BytesIO(content)))
        return main(["explain", *words]), capsys.readouterr()

    return run


def test_text_names_phase_cause_and_fix(explain, tmp_path):
    path = tmp_path / "vllm.log"
    path.write_text(LOG)
    code, said = explain(str(path))
    assert code == 0
    assert said.out.splitlines()[:3] == [
        "phase: shards (loading weights 4/4)",
        "cause: vllm.kv_none (permanent)",
        f"  {CAUSE}",
    ]
    assert "fix: lower --max-num-seqs" in said.out
    assert "root cause" not in said.out


@pytest.mark.parametrize("words", [(), ("-",)])
def test_json_from_standard_input(explain, words):
    code, said = explain(*words, "-o", "json", given=LOG)
    answer = json.loads(said.out)
    assert (code, answer["command"], answer["outcome"], answer["exit"]) == (0, "explain", "ok", 0)
    assert (answer["phase"], answer["wrapper_skipped"]) == ("shards", True)
    assert (answer["cause"]["id"], answer["cause"]["line"]) == ("vllm.kv_none", CAUSE)
    assert answer["cause"]["fix"]
    assert "tail" not in answer


def test_what_is_not_known_is_exit_4_with_the_last_lines_and_no_secret(explain):
    log = "".join(f"line {number}\n" for number in range(60)) + "token hf_abcdefghijklmnopqrstuv\n"
    code, said = explain("-o", "json", given=log)
    answer = json.loads(said.out)
    assert (code, answer["outcome"], answer["cause"], answer["phase"]) == (4, "failed", None, None)
    assert len(answer["tail"]) == 40
    assert "hf_abc" not in said.out
    code, said = explain(given=log)
    assert code == 4
    assert "line 59" in said.out


def test_a_wrapper_alone_is_named_and_explains_nothing(explain):
    code, said = explain(
        "-o", "json", given="RuntimeError: Engine core initialization failed. See root cause above."
    )
    answer = json.loads(said.out)
    assert (code, answer["cause"]["id"], answer["wrapper_skipped"]) == (4, "vllm.wrapper_core", False)


def test_a_start_that_went_well(explain):
    code, said = explain(given="INFO 401 Client Error\nINFO:     Application startup complete.\n")
    assert code == 0
    assert "none, the engine came up" in said.out


def test_bytes_that_are_no_text(explain):
    code, said = explain(given=b"\xff\xfe\x00\x00\n" + CAUSE.encode() + b"\xff\n")
    assert code == 0
    assert "vllm.kv_none" in said.out


def test_bad_input_is_one_line_and_exit_2(explain, tmp_path):
    for words, given, stdin in (
        ((str(tmp_path / "none.log"),), None, None),
        ((str(tmp_path),), None, None),
        ((), b"  \n", io.TextIOWrapper),
        ((), b"", Terminal),
    ):
        code, said = explain(*words, given=given, stdin=stdin)
        assert code == 2
        assert said.out == ""
        assert said.err.startswith("error: ")
        assert "gpufleet explain" in said.err
    code, said = explain(str(tmp_path / "none.log"), "-o", "json")
    assert json.loads(said.out)["command"] == "explain"


@pytest.mark.skipif(not CASES.is_dir(), reason="the collected cases are not beside this checkout")
@pytest.mark.parametrize(
    ("number", "ids"),
    [
        (13, {"rt.rootless_cgroup"}),
        (14, {"rt.cdi"}),
        (17, {"rt.no_gpu_driver", "rt.libnvml"}),
        (19, {"rt.nvml_lost"}),
        (20, {"vllm.mig_uuid"}),
        (24, {"vllm.free_mem", "vllm.profile_race"}),
    ],
)
def test_collected_cases(explain, number, ids):
    (path,) = CASES.glob(f"{number}-*.txt")
    text = path.read_text().partition("---- input ----")[2]
    found = set()
    for log in (text, *text.splitlines()):
        _, said = explain("-o", "json", given=log or "\n")
        cause = json.loads(said.out).get("cause")
        found |= {cause["id"]} if cause else set()
    assert ids <= found
