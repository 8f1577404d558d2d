"""`gpufleet lab replay`: the table, the JSON, and what it refuses."""

from __future__ import annotations

import json

import pytest

from gpufleet.cli.app import main


@pytest.fixture
def say(capsys):
    def run(*words):
        code = main([*words])
        caught = capsys.readouterr()
        return code, caught.out, caught.err

    return run


def test_the_table_names_every_policy_best_first(say):
    code, out, err = say("lab", "replay", "chat", "--first", "300")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["POLICY", "TTFT", "MEAN"]
    assert {line.split()[0] for line in lines[1:12]} >= {"cache-aware", "round-robin", "least-busy", "greedy"}
    means = [float(line.split()[1]) for line in lines[1:12]]
    assert means == sorted(means)
    assert "trust the order" in lines[-1]
    assert "300 requests" in err


def test_json_has_the_figures_of_the_policies_that_were_named(say):
    words = ("--policy", "cache-aware", "--policy", "random", "--speeds", "1,0.5", "--first", "200")
    code, out, _ = say("-o", "json", "lab", "replay", "documents", *words)
    answer = json.loads(out)
    assert (code, answer["command"], answer["engines"], answer["requests"]) == (0, "lab replay", 2, 200)
    assert sorted(row["policy"] for row in answer["policies"]) == ["cache-aware", "random"]
    assert all(0 <= row["hit_rate"] <= 1 and row["ttft_p50"] <= row["ttft_p99"] for row in answer["policies"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("no-such-file.jsonl",), "no-such-file.jsonl"),
        (("chat", "--policy", "fastest"), "there is no policy `fastest`"),
        (("chat", "--speeds", "1,0"), "not a list of factors"),
        (("chat", "--speeds", "quick"), "not a list of factors"),
        (("chat", "--members", "0"), "--members"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(say, words, told):
    code, _, err = say("lab", "replay", *words)
    assert code == 2
    assert told in err
    assert "Traceback" not in err
