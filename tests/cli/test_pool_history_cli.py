"""`pool history` and `pool rollback`: what was asked for is kept, and comes back when its containers are gone."""

from __future__ import annotations

import pytest

from gpufleet.lab.faults import Fault, Kind
from tests.kit.pool_desk import Desk


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    return Desk(tmp_path, monkeypatch, capsys)


def deployed(desk, *words):
    answer = desk.json("pool", "deploy", "chat", "--yes", *words)
    assert answer["outcome"] == "committed", answer
    return answer


def arguments(desk):
    """The engines' lengths, by host, asked past gpufleet."""
    return {
        lab.name: [
            one.wish.arguments[one.wish.arguments.index("--max-model-len") + 1]
            for one in lab.containers.containers.values()
            if one.running and "--max-model-len" in one.wish.arguments
        ]
        for lab in desk.fleet
    }


def length(number):
    return "--engine-arg=--max-model-len", f"--engine-arg={number}"


def test_history_says_what_changed_and_what_did_not_come_to_be(desk):
    deployed(desk, *length(1000))
    deployed(desk, *length(2000), "--strategy", "rolling")
    desk.faults = (Fault(kind=Kind.ENGINE, host="gpu-02", pattern="run -d --env-file", detail="crash"),)
    assert desk.run("pool", "deploy", "chat", "--yes", *length(3000))[0] in {9, 10}
    rows = desk.json("pool", "history", "chat")["revisions"]
    assert [(row["revision"], row["result"]) for row in rows[:2]] == [(1, "replaced"), (2, "serving")]
    assert rows[0]["changed"] == ["first known"]
    assert "engine.args: --max-model-len 1000 -> --max-model-len 2000" in rows[1]["changed"]
    assert all(row["run"] and row["by"] and row["at"] for row in rows)
    assert rows[2]["result"] in {"rolled back", "stuck"}
    code, said = desk.run("pool", "history", "chat")
    assert code == 0
    assert "--max-model-len 2000" in said.out


def test_rollback_deploys_what_was_asked_for_although_its_containers_are_gone(desk):
    deployed(desk, *length(1000))
    deployed(desk, *length(2000))
    deployed(desk, *length(3000))
    assert arguments(desk) == {"gpu-01": ["3000"], "gpu-02": ["3000"]}
    assert desk.json("pool", "rollback", "chat", "--to", "1", "--check")["exit"] == 3
    answer = desk.json("pool", "rollback", "chat", "--to", "1", "--yes", "--strategy", "rolling")
    assert answer["outcome"] == "committed"
    assert arguments(desk) == {"gpu-01": ["1000"], "gpu-02": ["1000"]}
    assert desk.json("pool", "rollback", "chat", "--yes")["outcome"] == "committed"
    assert arguments(desk) == {"gpu-01": ["3000"], "gpu-02": ["3000"]}
    kept = [row["revision"] for row in desk.json("pool", "history", "chat")["revisions"]]
    assert kept == [1, 2, 3, 4, 5]


def test_ten_revisions_are_kept(desk):
    for number in range(12):
        deployed(desk, "--replicas", "1", *length(1000 + number))
    kept = [row["revision"] for row in desk.json("pool", "history", "chat")["revisions"]]
    assert kept == list(range(3, 13))
    code, said = desk.run("pool", "rollback", "chat", "--to", "2", "--yes")
    assert code == 2
    assert "kept are 3, 4" in said.err


def test_what_is_not_there_is_said(desk):
    assert desk.run("pool", "history", "nope")[0] == 2
    assert desk.run("pool", "rollback", "nope", "--yes")[0] == 2
    deployed(desk)
    code, said = desk.run("pool", "rollback", "chat", "--yes")
    assert code == 2
    assert "no revision before" in said.err
    (desk.state / "pools" / "revisions" / "chat" / "7.json").write_text("{")
    code, said = desk.run("pool", "history", "chat")
    assert code == 2
    assert "revision 7 of pool chat is damaged" in said.err


def test_a_deleted_pool_has_no_history(desk):
    deployed(desk)
    assert desk.run("pool", "delete", "chat", "--yes")[0] == 0
    assert desk.run("pool", "history", "chat")[0] == 2


def test_a_rollback_runs_the_digest_that_the_revision_ran(desk):
    registry = desk.fleet.registry
    registry.asked_by_plugin = True
    image = "vllm/vllm-openai:v0.20.0"
    ran = []
    for number, digest in ((1000, "1" * 64), (2000, "2" * 64)):
        registry.moved[image] = f"sha256:{digest}"
        for lab in desk.fleet:
            lab.containers.images.clear()
        deployed(desk, "--image", image, *length(number))
        ran.append(f"vllm/vllm-openai@sha256:{digest}")
    rows = desk.json("pool", "history", "chat")["revisions"]
    assert [row["image"] for row in rows] == ran
    for lab in desk.fleet:
        lab.containers.images.clear()
    assert desk.json("pool", "rollback", "chat", "--yes")["outcome"] == "committed"
    running = {
        one.wish.image
        for lab in desk.fleet
        for one in lab.containers.containers.values()
        if one.running and one.wish.labels.get("gpufleet.pool") == "chat"
    }
    assert running == {ran[0]}
    assert desk.json("pool", "history", "chat")["revisions"][-1]["image"] == ran[0]
