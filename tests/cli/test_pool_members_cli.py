"""A pool's life from the command line: created empty, joined by what runs already, scaled, read, left and deleted."""

from __future__ import annotations

import json

import pytest

from gpufleet.cli import pool_life
from gpufleet.lab.containers.model import Published, Wish
from gpufleet.lab.faults import Fault, Kind
from tests.kit.pool_desk import Desk

IMAGE = "vllm/vllm-openai:v0.20.0"


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    return Desk(tmp_path, monkeypatch, capsys, gpus="3xH100-80GB")


def foreign(desk, host="gpu-01", name="by-hand", model="qwen/qwen2.5", port=8050, device="2"):
    """Somebody's vLLM that gpufleet did not start."""
    lab = desk.fleet[host]
    lab.containers.add_image(IMAGE)
    container = lab.containers.create(
        Wish(
            name=name,
            image=IMAGE,
            entrypoint=("vllm",),
            arguments=("serve", model, "--max-num-seqs", "8"),
            devices=(device,),
            published=(Published(lab.wish.address, port, 8000),),
        )
    )
    lab.containers.start(container)
    lab.host.clock.sleep(60)
    return container


def routes(desk):
    table = json.loads((desk.state / "routes.json").read_text())
    return {pool["name"]: {one["id"]: one for one in pool["endpoints"]} for pool in table["pools"]}


def running(desk):
    return {
        lab.name: sorted(one.name for one in lab.containers.containers.values() if one.running)
        for lab in desk.fleet
    }


def test_an_empty_pool_is_created_and_joined_by_a_container_that_runs_already(desk):
    made = desk.json("pool", "create", "mine", "--model", "qwen/qwen2.5", "--hosts", "gpu-01")
    assert (made["outcome"], made["generation"]) == ("committed", 1)
    assert routes(desk) == {"mine": {}}
    again = desk.json("pool", "create", "mine", "--model", "m")
    assert (again["exit"], again["error"]["code"]) == (4, "refused")
    assert desk.json("pool", "deploy", "mine")["exit"] == 2  # nothing asked for
    container = foreign(desk)

    seen = desk.json("pool", "candidates", "mine")
    (one,) = seen["candidates"]
    assert (one["host"], one["container"], one["models"], one["joins"]) == (
        "gpu-01", "by-hand", ["qwen/qwen2.5"], True,
    )  # fmt: skip
    assert len(seen["room"]) == 2
    assert any("by-hand" in row["reason"] for row in seen["taken"])

    joined = desk.json("pool", "add", "mine", "gpu-01/by-hand", "--weight", "3")
    assert (joined["outcome"], joined["replica"]) == ("committed", "gpu-01/0")
    member = routes(desk)["mine"]["gpu-01/0"]
    assert (member["url"], member["weight"], member["key"]) == ("http://127.77.0.1:8050", 3, None)
    assert desk.json("pool", "drift", "mine")["exit"] == 0
    assert desk.json("pool", "add", "mine", "gpu-01/by-hand")["error"]["code"] == "refused"
    assert desk.json("pool", "candidates", "mine")["candidates"][0]["joins"] is False

    grown = desk.json("pool", "scale", "mine", "1", "--yes")
    assert grown["outcome"] == "committed"
    assert set(routes(desk)["mine"]) == {"gpu-01/0", "gpu-01/1"}
    assert routes(desk)["mine"]["gpu-01/0"]["weight"] == 3
    assert desk.json("pool", "scale", "mine", "1")["outcome"] == "no_change"

    left = desk.json("pool", "remove", "mine", "gpu-01/0")
    assert left["outcome"] == "committed"
    assert set(routes(desk)["mine"]) == {"gpu-01/1"}
    assert container.running
    assert desk.json("pool", "delete", "mine", "--yes")["outcome"] == "committed"
    assert running(desk)["gpu-01"] == ["by-hand"]


def test_what_does_not_serve_the_pool_is_refused(desk):
    desk.json("pool", "create", "mine", "--model", "qwen/qwen2.5")
    foreign(desk, name="other", model="bge/m3")
    refused = desk.json("pool", "add", "mine", "gpu-01/other")
    assert (refused["exit"], refused["error"]["code"]) == (4, "refused")
    assert "serves bge/m3, and pool mine serves qwen/qwen2.5" in refused["error"]["message"]
    for word, message in (
        ("gpu-01/nobody", "no one running container"),
        ("gpu-01", "not HOST/CONTAINER"),
        ("gpu-09/x", "not HOST/CONTAINER"),
        ("gpu-01/7", "no one running container"),
    ):
        answer = desk.json("pool", "add", "mine", word)
        assert (answer["exit"], message in answer["error"]["message"]) == (2, True), word
    assert (
        "does not publish port 9"
        in desk.json("pool", "add", "mine", "gpu-01/other", "--port", "9")["error"]["message"]
    )
    assert desk.json("pool", "add", "nowhere", "gpu-01/other")["exit"] == 2
    assert routes(desk) == {"mine": {}}


def test_one_deployment_serves_several_pools_and_leaves_all_of_them_with_its_end(desk):
    desk.json("pool", "deploy", "chat", "--yes")
    desk.json("pool", "create", "urgent", "--model", "qwen/qwen2.5")
    assert desk.json("pool", "add", "urgent", "gpu-01/0")["replica"] == "gpu-01/0"
    first = routes(desk)
    assert first["urgent"]["gpu-01/0"]["url"] == first["chat"]["gpu-01/0"]["url"]
    assert first["urgent"]["gpu-01/0"]["key"] == first["chat"]["gpu-01/0"]["key"]
    assert desk.json("pool", "drift")["exit"] == 0
    assert desk.json("pool", "delete", "urgent", "--yes", "--force")["outcome"] == "committed"
    assert len([name for names in running(desk).values() for name in names]) == 2

    desk.json("pool", "create", "urgent", "--model", "qwen/qwen2.5")
    desk.json("pool", "add", "urgent", "gpu-01/0")
    code, said = desk.run("pool", "delete", "chat", "--yes")
    assert code == 4
    assert "gpu-01/0 serves pool urgent" in said.err
    code, said = desk.run("pool", "delete", "chat", "--yes", "--force")
    assert code == 0
    assert "pool urgent gpu-01/0 was a container that goes now" in said.err
    assert routes(desk) == {"urgent": {}}


def test_a_removed_replica_runs_on_is_not_replaced_and_may_come_back(desk):
    desk.json("pool", "deploy", "chat", "--yes")
    before = running(desk)
    assert desk.json("pool", "remove", "chat", "gpu-02/0")["outcome"] == "committed"
    assert set(routes(desk)["chat"]) == {"gpu-01/0"}
    assert running(desk) == before
    written = (desk.path / "inventory.yaml").read_text()
    assert "state: removed" in written
    assert "replicas: 1" in written
    assert desk.json("pool", "deploy", "chat")["outcome"] == "no_change"
    assert running(desk) == before
    assert desk.json("pool", "add", "chat", "gpu-02/0")["replica"] == "gpu-02/0"
    assert set(routes(desk)["chat"]) == {"gpu-01/0", "gpu-02/0"}
    assert "replicas: 2" in (desk.path / "inventory.yaml").read_text()
    assert desk.json("pool", "deploy", "chat")["outcome"] == "no_change"
    assert desk.json("pool", "remove", "chat", "gpu-02/5")["exit"] == 2


def test_a_pool_goes_and_its_members_stay(desk):
    desk.json("pool", "deploy", "chat", "--yes")
    before = running(desk)
    code, said = desk.run("pool", "delete", "chat", "--keep-members", "--dry-run")
    assert (code, said.out.count("runs on")) == (0, 2)
    assert desk.json("pool", "delete", "chat", "--keep-members", "--yes")["outcome"] == "committed"
    assert (running(desk), routes(desk)) == (before, {})
    assert len(desk.json("pool", "candidates", "chat")["candidates"]) == 2
    assert (
        desk.json("pool", "deploy", "chat", "--yes")["outcome"] == "committed"
    )  # its labels are found again
    assert running(desk) == before


def test_a_container_that_was_added_is_stopped_only_by_force_and_by_name(desk):
    desk.json("pool", "create", "mine", "--model", "qwen/qwen2.5")
    foreign(desk)
    desk.json("pool", "add", "mine", "gpu-01/by-hand")
    code, said = desk.run("pool", "delete", "mine", "--force", "--dry-run")
    assert code == 0
    assert "- gpu-01/0  container by-hand, which gpufleet did not start" in said.out
    assert desk.json("pool", "delete", "mine", "--force", "--yes")["outcome"] == "committed"
    assert running(desk)["gpu-01"] == []


def test_scaling_says_when_the_definition_says_otherwise(desk):
    desk.json("pool", "deploy", "chat", "--yes")
    code, said = desk.run("pool", "scale", "chat", "4", "--yes")
    assert code == 0
    assert "says 2 replica(s)" in said.err
    assert len(routes(desk)["chat"]) == 4
    assert desk.json("pool", "scale", "chat", "4", "--check")["exit"] == 0
    assert desk.json("pool", "scale", "chat", "5", "--check")["exit"] == 3
    assert desk.json("pool", "scale", "chat", "9", "--yes")["error"]["code"] == "unplaceable"
    assert desk.json("pool", "scale", "chat", "1", "--yes")["outcome"] == "committed"
    assert len([name for names in running(desk).values() for name in names]) == 1


def test_logs_of_all_members_are_told_in_the_order_of_time(desk):
    desk.json("pool", "deploy", "chat", "--yes")
    answer = desk.json("pool", "logs", "chat", "--tail", "5")
    assert {line["replica"] for line in answer["lines"]} == {"gpu-01/0", "gpu-02/0"}
    assert len(answer["lines"]) == 10
    assert [line["at"] for line in answer["lines"]] == sorted(line["at"] for line in answer["lines"])
    code, said = desk.run("pool", "logs", "gpu-02/0")
    assert code == 0
    assert said.out
    assert all(line.startswith("gpu-02/0 | ") for line in said.out.splitlines())
    engine = desk.fleet["gpu-01"].containers
    model = engine.engines.models[next(iter(engine.containers))]
    model.extra_log.append("using hf_Q7wLogReaderTokenOfThisTest01")
    texts = [line["text"] for line in desk.json("pool", "logs", "chat", "--tail", "1")["lines"]]
    assert "using •••" in texts
    assert desk.json("pool", "logs", "gpu-07/0")["exit"] == 2
    assert desk.json("pool", "logs", "chta")["exit"] == 2
    assert desk.json("pool", "logs", "chat", "--follow")["exit"] == 2
    desk.faults = (Fault(kind=Kind.REFUSE, host="gpu-02", nth=1, times=9),)
    assert desk.json("pool", "logs", "chat")["exit"] == 7


def test_following_tells_each_line_once(desk, monkeypatch):
    desk.json("pool", "deploy", "chat", "--yes")
    engine = desk.fleet["gpu-01"].containers
    model = engine.engines.models[next(iter(engine.containers))]
    clock = desk.fleet.clock
    rounds = []

    def sleep(seconds):
        if seconds == pool_life.FOLLOW_EVERY:
            rounds.append(seconds)
            if len(rounds) > 3:
                raise KeyboardInterrupt
            model.extra_log.append(f"line {len(rounds)}")
        clock.elapsed += seconds

    monkeypatch.setattr(clock, "sleep", sleep)
    code, said = desk.run("pool", "logs", "gpu-01/0", "--follow", "--tail", "2")
    assert code == 130
    assert [line for line in said.out.splitlines() if "line " in line] == [
        f"gpu-01/0 | line {number}" for number in (1, 2, 3)
    ]
    assert len(said.out.splitlines()) == 5


def test_what_is_set_or_drained_is_in_the_copies_on_the_hosts(desk):
    assert desk.json("pool", "deploy", "chat", "--yes")["exit"] == 0

    def copies():
        found = [json.loads(lab.host.fs.read("/home/ops/.gpufleet/routes.json")) for lab in desk.fleet]
        return [next(pool for pool in table["pools"] if pool["name"] == "chat") for table in found]

    desk.json("pool", "set", "chat", "--algorithm", "least-busy")
    assert [pool["algorithm"] for pool in copies()] == ["least-busy"] * 2
    desk.json("pool", "drain", "chat", "gpu-01/0")
    assert [pool["endpoints"][0]["state"] for pool in copies()] == ["draining"] * 2


def test_a_damaged_record_is_named_with_what_to_do(desk):
    assert desk.json("pool", "deploy", "chat", "--yes")["exit"] == 0
    path = desk.state / "pools" / "chat.json"
    path.write_text("{")
    told = desk.json("pool", "show", "chat")
    assert told["exit"] == 2
    assert told["error"]["where"] == str(path)
    assert any("move the file away" in hint for hint in told["error"]["hints"])
    path.rename(path.with_suffix(".damaged"))
    assert desk.json("pool", "deploy", "chat", "--yes")["exit"] == 0
