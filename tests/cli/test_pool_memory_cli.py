"""The memory verdict of a deploy, as an operator meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.pool_desk import Desk


def define(desk: Desk, model: str, more: str = "") -> None:
    path = desk.path / "inventory.yaml"
    path.write_text(path.read_text().replace("qwen/qwen2.5", model) + more)


def test_a_model_that_does_not_fit_is_refused_and_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk(tmp_path, monkeypatch, capsys)
    define(desk, "llama-3.3-70b-instruct")
    answer = desk.json("pool", "deploy", "chat", "--yes")
    assert (answer["exit"], answer["outcome"], answer["error"]["code"]) == (4, "refused", "memory-too-small")
    assert [row["where"] for row in answer["error"]["rows"]] == ["gpu-01/0", "gpu-02/0"]
    assert any("--tensor-parallel-size" in hint for hint in answer["error"]["hints"])
    plan = desk.json("pool", "plan", "chat", "--ignore-memory")
    assert [one["verdict"] for one in plan["memory"]] == ["no", "no"]
    code, said = desk.run("pool", "plan", "chat", "--ignore-memory")
    assert code == 0
    assert "memory of gpu-01/0, gpu-02/0: no on NVIDIA H100 80GB HBM3" in said.out


def test_a_name_of_the_catalogue_is_deployed_under_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk(tmp_path, monkeypatch, capsys)
    define(desk, "qwen3-8b")
    code, said = desk.run("pool", "plan", "chat", "--commands")
    assert code == 0
    assert "serve Qwen/Qwen3-8B --served-model-name qwen3-8b" in said.out
    answer = desk.json("pool", "deploy", "chat", "--yes")
    assert answer["outcome"] == "committed"
    again = desk.json("pool", "deploy", "chat", "--yes")
    assert again["outcome"] == "no_change"


def test_what_is_not_known_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk(tmp_path, monkeypatch, capsys)
    code, said = desk.run("pool", "plan", "chat")
    assert code == 0
    assert said.err.count("it is not in the catalogue") == 1


def test_what_the_engine_measured_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk(tmp_path, monkeypatch, capsys)
    assert "it is not in the catalogue" in desk.run("pool", "deploy", "chat", "--yes")[1].err
    (kept,) = (desk.state / "measured").iterdir()
    found = json.loads(kept.read_text())
    assert (found["model"], found["weights_gib"], found["replica"]) == ("qwen/qwen2.5", 15.27, "gpu-01/0")
    desk.json("pool", "delete", "chat", "--yes")
    plan = desk.json("pool", "plan", "chat")
    assert [one["verdict"] for one in plan["memory"]] == ["fits", "fits"]
    assert plan["memory"][0]["reason"].startswith("it started so on ")
