"""`pool plan` and `pool deploy --plan`: what a plan says, and every way in which a saved one is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpufleet import __version__
from gpufleet.deploy import document
from gpufleet.errors import DocumentError
from gpufleet.lab.containers.model import Wish
from tests.kit.pool_desk import Desk


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    return Desk(tmp_path, monkeypatch, capsys)


@pytest.fixture
def plan(desk):
    path = desk.path / "plan.json"
    assert desk.json("pool", "plan", "chat", "--save", str(path))["outcome"] == "changes"
    return path


def refused(desk, plan, exit_code):
    """The error of `pool deploy --plan`; nothing was changed by it."""
    before = desk.containers(), sorted(desk.state.rglob("*"))
    answer = desk.json("pool", "deploy", "--plan", str(plan))
    assert answer["exit"] == exit_code
    assert answer["error"]["hints"]
    assert (desk.containers(), sorted(desk.state.rglob("*"))) == before
    return answer["error"]


def test_a_plan_says_ports_image_order_downtime_and_the_exact_commands(desk):
    answer = desk.json("pool", "plan", "chat")
    assert answer["ports"] == {"gpu-01": [8000], "gpu-02": [8000]}
    assert answer["images"] == ["vllm/vllm-openai:v0.20.0"]
    assert answer["downtime"].startswith("none")
    assert answer["order"] == [
        "2 pull on 2 host(s)",
        "2 start on 2 host(s)",
        "2 gate on 2 host(s)",
        "2 settle on 2 host(s)",
        "publish the routes",
    ]
    start = next(step for step in answer["steps"] if step["phase"] == "start")
    assert start["after"] == ["pull-gpu-01", "pull-gpu-02"]
    (command,) = start["commands"]
    assert "--entrypoint vllm" in command
    assert "VLLM_API_KEY •••" in command
    assert command.rpartition(" < ")[2] in answer["scripts"]
    assert all(word not in json.dumps(answer) for word in ("gfk-",))
    code, said = desk.run("pool", "plan", "chat", "--commands")
    assert code == 0
    assert f"  {command}" not in said.out  # another run has another id
    assert said.out.count("--entrypoint vllm") == 2
    assert "run -d --env-file" in said.out  # the script itself
    assert "--entrypoint" not in desk.run("pool", "plan", "chat")[1].out


def test_downtime_names_who_is_down(desk):
    assert desk.json("pool", "deploy", "chat", "--yes")["outcome"] == "committed"
    answer = desk.json("pool", "plan", "chat", "--model", "other/model")
    assert answer["downtime"].startswith("all 2 replica(s) are down")
    assert answer["order"][-1].startswith("remove 2 container(s)")


def test_a_saved_plan_is_private_and_holds_no_secret(desk, plan):
    assert plan.stat().st_mode & 0o777 == 0o600
    saved = json.loads(plan.read_text())
    assert (saved["schema"], saved["gpufleet"]) == (document.SCHEMA, __version__)
    assert "gfk-" not in plan.read_text()
    assert [path.name for path in desk.path.iterdir() if "plan.json" in path.name] == ["plan.json"]


def test_a_saved_plan_is_carried_out_and_then_stale(desk, plan):
    assert desk.json("pool", "deploy", "--plan", str(plan))["outcome"] == "committed"
    error = refused(desk, plan, 5)
    assert error["code"] == "stale-plan"
    assert {row["where"] for row in error["rows"]} == {"gpu-01", "gpu-02"}
    assert all("is new" in row["message"] for row in error["rows"])


def test_a_saved_plan_that_was_rolled_back_may_be_carried_out_again(desk, plan):
    desk.fleet["gpu-02"].containers.launch_words = {"GPUFLEET_LAB_ENGINE": "mode=crash"}
    assert desk.json("pool", "deploy", "--plan", str(plan))["outcome"] == "rolled_back"
    desk.fleet["gpu-02"].containers.launch_words = {}
    assert desk.json("pool", "deploy", "--plan", str(plan))["outcome"] == "committed"


def test_a_plan_with_nothing_to_do_is_an_answer(desk):
    path = desk.path / "plan.json"
    desk.json("pool", "deploy", "chat", "--yes")
    before = desk.containers()
    assert desk.json("pool", "plan", "chat", "--save", str(path))["outcome"] == "no_change"
    assert desk.json("pool", "deploy", "--plan", str(path))["outcome"] == "no_change"
    assert desk.containers() == before


def stopped(desk):
    engine = desk.fleet["gpu-01"].containers
    engine.stop(next(iter(engine.containers.values())))
    return "gpu-01", "has stopped"


def labelled(desk):
    engine = desk.fleet["gpu-02"].containers
    one = next(iter(engine.containers.values()))
    one.wish = replace(one.wish, labels={**one.wish.labels, "gpufleet.spec": "0123456789abcdef"})
    return "gpu-02", "has spec 0123456789abcdef"


def removed(desk):
    engine = desk.fleet["gpu-02"].containers
    engine.remove(next(iter(engine.containers.values())), force=True)
    return "gpu-02", "is gone"


def joined(desk):
    engine = desk.fleet["gpu-01"].containers
    engine.add_image("busybox:1")
    engine.create(Wish(name="somebody", image="busybox:1"))
    return "gpu-01", "container somebody"


def booted(desk):
    desk.fleet["gpu-01"].power_on()
    return "gpu-01", "it was booted since"


def cut(desk):
    (gpu,) = desk.fleet["gpu-02"].gpus.gpus
    gpu.set_mig(enabled=True)
    return "gpu-02", "MIG of GPU 0 is on, and was off"


@pytest.mark.parametrize("move", [stopped, labelled, removed, joined, booted, cut])
def test_a_fleet_that_moved_is_exit_5_with_what_moved_where(desk, move):
    desk.json("pool", "deploy", "chat", "--yes")
    path = desk.path / "plan.json"
    desk.json("pool", "plan", "chat", "--model", "other/model", "--save", str(path))
    host, words = move(desk)
    error = refused(desk, path, 5)
    assert error["code"] == "stale-plan"
    assert {row["where"] for row in error["rows"]} == {host}
    assert any(words in row["message"] for row in error["rows"])


def test_a_changed_inventory_or_record_is_stale_too(desk, plan):
    inventory = desk.path / "inventory.yaml"
    written = inventory.read_text()
    inventory.write_text(written.replace("127.77.0.2}", "127.77.0.2, ports: {first: 9000, last: 9010}}"))
    assert [row["where"] for row in refused(desk, plan, 5)["rows"]] == ["gpu-02"]
    inventory.write_text(written.replace("  gpu-02: {address: 127.77.0.2}\n", ""))
    assert [row["where"] for row in refused(desk, plan, 5)["rows"]] == ["gpu-02"]
    inventory.write_text(written)
    desk.json("pool", "deploy", "chat", "--yes")
    desk.json("pool", "plan", "chat", "--replicas", "1", "--save", str(plan))
    desk.json("pool", "set", "chat", "--weight", "gpu-01/0=4")
    assert "its record is another one" in refused(desk, plan, 5)["rows"][0]["message"]


def edited(content):
    return content.replace(b"qwen/qwen2.5", b"qwen/qwen2.6", 1)


def resealed(content):
    """Somebody who knows how the checksum is made: the plan is made anew all the same, and differs."""
    saved = json.loads(content)
    start = next(step for step in saved["plan"]["steps"] if step["phase"] == "start")
    start["do"][0]["script"] = "rm -rf /"
    saved["checksum"] = document.checksum(json.dumps(saved).encode())
    return json.dumps(saved).encode()


def flipped(content):
    at = content.index(b'"boot_id": "') + len(b'"boot_id": "')
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize(
    ("alter", "exit_code", "words"),
    [
        (edited, 2, "changed after it was saved"),
        (flipped, 2, "changed after it was saved"),
        (resealed, 5, "no longer what this plan says"),
        (lambda content: content[: len(content) // 2], 2, "only a part of one"),
        (lambda _content: b"", 2, "only a part of one"),
        (lambda _content: b"\xff\xfe\x00", 2, "no saved plan"),
        (lambda _content: b"pool: chat\n", 2, "no saved plan"),
        (lambda _content: b"[]", 2, "no saved plan"),
        (lambda content: content.replace(__version__.encode(), b"9.9.9", 1), 2, "saved by gpufleet 9.9.9"),
        (lambda content: content.replace(b'"schema": 1', b'"schema": 2', 1), 2, "(schema 2)"),
    ],
)
def test_a_damaged_plan_is_one_clear_error(desk, plan, alter, exit_code, words):
    plan.write_bytes(alter(plan.read_bytes()))
    error = refused(desk, plan, exit_code)
    assert words in error["message"]
    assert str(plan) in error["where"]


def test_every_byte_of_a_saved_plan_counts(desk, plan):
    """A flipped bit anywhere is refused, unless it stood in a blank that means nothing."""
    content = plan.read_bytes()
    for at in range(0, len(content), 97):
        altered = content[:at] + bytes([content[at] ^ 2]) + content[at + 1 :]
        if content[at : at + 1].isspace():
            continue
        with pytest.raises(DocumentError):
            document.decode(altered, "plan.json", version=__version__)


def test_a_plan_goes_nowhere_else_and_alone(desk, plan):
    assert "stands alone" in desk.json("pool", "deploy", "chat", "--plan", str(plan))["error"]["message"]
    answer = desk.json("pool", "plan", "chat", "--save", str(desk.path))
    assert (answer["exit"], answer["error"]["where"]) == (2, str(desk.path))
    answer = desk.json("pool", "plan", "chat", "--save", str(desk.path / "inventory.yaml" / "plan.json"))
    assert answer["exit"] == 2
    assert "was not saved" in answer["error"]["message"]
