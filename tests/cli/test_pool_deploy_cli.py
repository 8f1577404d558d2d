"""`gpufleet pool deploy` and its kin from the command line to simulated hosts: exit codes, JSON, and what is left."""

from __future__ import annotations

import json

import pytest

from gpufleet.lab.faults import Fault, Kind
from tests.kit.pool_desk import Desk


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    return Desk(tmp_path, monkeypatch, capsys)


def test_plan_check_deploy_and_check_again(desk):
    planned = desk.json("pool", "plan", "chat")
    assert (planned["outcome"], planned["exit"]) == ("changes", 0)
    assert [(row["replica"], row["status"], row["endpoint"]) for row in planned["hosts"]] == [
        ("gpu-01/0", "starts", "http://127.77.0.1:8000"),
        ("gpu-02/0", "starts", "http://127.77.0.2:8000"),
    ]
    assert desk.json("pool", "deploy", "chat", "--check")["exit"] == 3
    assert desk.json("pool", "deploy", "chat", "--dry-run")["exit"] == 0
    assert desk.containers() == {"gpu-01": [], "gpu-02": []}

    done = desk.json("pool", "deploy", "chat", "--yes")
    assert (done["outcome"], done["exit"], done["generation"]) == ("committed", 0, 1)
    assert done["run"]
    for row in done["hosts"]:
        assert {
            "host",
            "status",
            "phase",
            "reason",
            "hint",
            "duration_s",
            "replica",
            "gpu",
            "slice",
            "endpoint",
        } <= set(row)
        assert row["status"] == "done"

    assert desk.json("pool", "deploy", "chat", "--check")["exit"] == 0
    assert desk.json("pool", "deploy", "chat")["outcome"] == "no_change"
    code, said = desk.run("pool", "list")
    assert code == 0
    assert said.out.splitlines()[1].split() == ["chat", "qwen/qwen2.5", "round-robin", "2", "2", "1"]


def test_without_a_terminal_the_option_that_answers_is_named(desk):
    code, said = desk.run("pool", "deploy", "chat")
    assert code == 2
    assert "--yes" in said.err
    assert desk.containers() == {"gpu-01": [], "gpu-02": []}


def test_progress_goes_to_standard_error_and_is_silent_when_asked(desk):
    code, said = desk.run("pool", "deploy", "chat", "--yes")
    assert code == 0
    assert said.out.startswith("pool chat: committed, run ")
    assert "gpu-01: wait until gpu-01/0 streams a token: done" in said.err
    code, said = desk.run("pool", "deploy", "chat", "--replicas", "1", "--yes", "--quiet")
    assert (code, said.err) == (0, "")


def test_a_rollback_is_exit_9_with_the_host_the_phase_and_the_fix(desk):
    desk.faults = (Fault(kind=Kind.ENGINE, host="gpu-02", pattern="run -d --env-file", detail="crash"),)
    answer = desk.json("pool", "deploy", "chat", "--yes")
    assert (answer["outcome"], answer["exit"]) == ("rolled_back", 9)
    assert desk.containers() == {"gpu-01": [], "gpu-02": []}
    rows = {row["host"]: row for row in answer["hosts"]}
    assert rows["gpu-02"]["phase"] == "gate"
    assert "No available memory" in rows["gpu-02"]["reason"]
    assert "--max-num-seqs" in rows["gpu-02"]["hint"]
    assert answer["error"]["code"] == "rolled-back"
    assert answer["run"]


def test_a_saved_plan_is_carried_out_without_a_question_and_refused_when_stale(desk):
    plan = desk.path / "plan.json"
    definition = desk.path / "pool.yaml"
    definition.write_text(
        'pool: embed\nmodel: bge\nengine: {image: "vllm/vllm-openai:v0.20.0"}\n'
        "gate: {every: 0.05, stall: 100, within: 110}\n"
    )
    assert desk.json("pool", "plan", "-f", str(definition), "--save", str(plan))["outcome"] == "changes"
    assert desk.json("pool", "deploy", "--plan", str(plan))["outcome"] == "committed"
    before = desk.containers()
    stale = desk.json("pool", "deploy", "--plan", str(plan))
    assert (stale["exit"], stale["error"]["code"]) == (5, "stale-plan")
    assert desk.containers() == before


def test_options_win_over_the_definition(desk):
    answer = desk.json(
        "pool", "deploy", "chat", "--replicas", "1", "--hosts", "gpu-02", "--algorithm", "least-busy", "--yes"
    )
    assert [row["replica"] for row in answer["hosts"]] == ["gpu-02/0"]
    shown = desk.json("pool", "show", "chat")
    assert (shown["algorithm"], shown["served"]) == ("least-busy", 1)


def test_what_does_not_fit_is_exit_4_with_reasons(desk):
    answer = desk.json("pool", "deploy", "chat", "--replicas", "3", "--yes")
    assert (answer["outcome"], answer["exit"], answer["error"]["code"]) == ("refused", 4, "unplaceable")
    assert "--replicas 2" in answer["error"]["hints"][0]


def test_an_unreachable_host_is_exit_7(desk):
    desk.faults = (Fault(kind=Kind.REFUSE, host="gpu-02", nth=1, times=9),)
    answer = desk.json("pool", "deploy", "chat", "--yes")
    assert (answer["exit"], answer["error"]["where"]) == (7, "gpu-02")
    assert desk.containers() == {"gpu-01": [], "gpu-02": []}


def test_delete_takes_everything_away(desk):
    deployed = desk.json("pool", "deploy", "chat", "--yes")
    assert desk.json("pool", "delete", "chat", "--check")["exit"] == 3
    assert desk.run("pool", "delete", "chat")[0] == 2
    deleted = desk.json("pool", "delete", "chat", "--yes")
    assert deleted["outcome"] == "committed"
    fields = ("host", "replica", "gpu", "slice", "status")
    told = [[{name: row[name] for name in fields} for row in one["hosts"]] for one in (deployed, deleted)]
    assert told[0] == told[1]
    assert len(told[0]) == 2
    assert desk.containers() == {"gpu-01": [], "gpu-02": []}
    assert json.loads((desk.path / "state" / "routes.json").read_text())["pools"] == []


@pytest.mark.parametrize(
    ("fault", "pattern", "reason", "hint"),
    [
        (Kind.PORT_TAKEN, "run -d --env-file", "address already in use", "something else listens there"),
        (Kind.IMAGE_MISSING, "pull -q", "pull access denied", "check engine.image"),
        (
            Kind.DAEMON_STOPPED,
            "pull -q",
            "Cannot connect to the Docker daemon",
            "start the container runtime",
        ),
    ],
)
def test_what_a_runtime_refuses_has_a_fix_at_once_and_later(desk, fault, pattern, reason, hint):
    desk.faults = (Fault(kind=fault, host="gpu-02", pattern=pattern),)
    failed = desk.json("pool", "deploy", "chat", "--yes")
    shown = desk.json("change", "show", failed["run"])
    for answer in (failed, shown):
        row = next(row for row in answer["hosts"] if row["host"] == "gpu-02")
        assert reason in row["reason"]
        assert row["hint"].startswith(hint)
    _, said = desk.run("change", "show", failed["run"])
    assert f"gpu-02: hint: {hint}" in said.out


def test_an_engine_that_dies_is_named_with_its_first_cause_and_no_wrapper(desk):
    desk.faults = (Fault(kind=Kind.ENGINE, host="gpu-01", pattern="run -d --env-file", detail="kv-length"),)
    code, said = desk.run("pool", "deploy", "chat", "--yes")
    assert code == 9
    assert "KV cache is needed, which is larger than" in said.err
    assert "set --max-model-len to the estimated maximum" in said.err
    assert "root cause" not in said.err
