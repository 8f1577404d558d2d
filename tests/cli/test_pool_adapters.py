"""`pool set --load-adapter` and `--unload-adapter` as an operator types them."""

from dataclasses import replace

import pytest

from tests.kit.pool_desk import INVENTORY, Desk


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    desk = Desk(tmp_path, monkeypatch, capsys)
    (tmp_path / "inventory.yaml").write_text(f"{INVENTORY}    lora_from: /srv/lora\n")
    code, said = desk.run("pool", "deploy", "chat", "--yes")
    assert code == 0, said.err
    return desk


def test_an_adapter_comes_and_goes(desk):
    shown = desk.json("pool", "set", "chat", "--load-adapter", "sql=/srv/lora/sql", "--check")
    assert (shown["exit"], shown["outcome"]) == (3, "changes")
    assert len(shown["steps"]) == 2
    done = desk.json("pool", "set", "chat", "--load-adapter", "sql=/srv/lora/sql", "--yes")
    assert (done["outcome"], len(done["hosts"])) == ("committed", 2)
    assert done["run"]
    again = desk.json("pool", "set", "chat", "--load-adapter", "sql=/srv/lora/sql", "--yes")
    assert again["outcome"] == "no_change"
    inventory = desk.path / "inventory.yaml"
    assert "sql: /srv/lora/sql" in inventory.read_text()
    assert desk.json("pool", "deploy", "chat", "--check")["outcome"] == "no_change"
    gone = desk.json("pool", "set", "chat", "--unload-adapter", "sql", "--yes")
    assert gone["outcome"] == "committed"
    assert "sql" not in inventory.read_text()
    assert desk.json("pool", "deploy", "chat", "--check")["outcome"] == "no_change"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--load-adapter", "sql", "--yes"), "is not NAME=PATH"),
        (("--load-adapter", "sql=/else/where", "--yes"), "cannot see /else/where"),
        (("--unload-adapter", "sql", "--yes"), "has no adapter sql"),
        (("--load-adapter", "a=/srv/lora/a", "--unload-adapter", "a", "--yes"), "loaded and unloaded"),
        (("--load-adapter", "a=/srv/lora/a", "--algorithm", "random"), "a command of their own"),
        (("--algorithm", "random", "--dry-run"), "go with adapters"),
        (("--load-adapter", "a=/srv/lora/a"), "--yes"),
    ],
)
def test_mistakes_are_one_clear_line(desk, words, says):
    code, said = desk.run("pool", "set", "chat", *words)
    assert code == 2
    assert says in said.err
    assert "Traceback" not in said.err


def test_a_pool_that_nobody_knows(desk):
    code, said = desk.run("pool", "set", "chta", "--load-adapter", "a=/srv/lora/a", "--yes")
    assert code == 2
    assert "did you mean `chat`?" in said.err


def test_a_member_that_lost_an_adapter_is_told_and_repaired(desk):
    desk.run("pool", "set", "chat", "--load-adapter", "sql=/srv/lora/sql", "--yes")
    (one,) = desk.fleet["gpu-01"].containers.containers.values()
    engine = desk.fleet["gpu-01"].containers.engines.models[one.id]
    engine.spec = replace(engine.spec, adapters={})
    found = desk.json("pool", "drift", "chat")
    assert (found["exit"], [row["code"] for row in found["findings"]]) == (3, ["adapter"])
    plan = desk.json("pool", "deploy", "chat", "--check")
    assert [step["title"] for step in plan["steps"]] == ["load adapter sql in gpu-01/0"]
    done = desk.json("pool", "deploy", "chat", "--yes")
    assert [row["status"] for row in done["hosts"]] == ["done", "unchanged"]
    assert desk.json("pool", "drift", "chat")["exit"] == 0
