"""`pool drift`: each thing that can drift is changed by hand on a simulated host, and is told; unknown is not drift."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpufleet.lab.containers.model import Daemon, Policy, Published, Wish
from gpufleet.lab.faults import Fault, Kind
from gpufleet.lab.fleet import build_fleet, wishes_of
from gpufleet.lab.vllm.engines import ModelEngines
from gpufleet.lab.vllm.spec import EngineSpec
from tests.kit.lab_kit import LabClock
from tests.kit.pool_desk import Desk


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    found = Desk(tmp_path, monkeypatch, capsys)
    assert found.json("pool", "deploy", "chat", "--yes")["outcome"] == "committed"
    return found


def replica(desk, host="gpu-01"):
    engine = desk.fleet[host].containers
    return engine, next(one for one in engine.containers.values() if "gpufleet.pool" in one.wish.labels)


def relabel(one, **labels):
    named = {f"gpufleet.{key}": value for key, value in labels.items()}
    one.wish = replace(one.wish, labels={**one.wish.labels, **named})


def test_a_pool_as_it_was_deployed_has_not_drifted(desk):
    answer = desk.json("pool", "drift", "chat")
    assert (answer["exit"], answer["outcome"]) == (0, "no_change")
    assert answer["pools"] == [{"pool": "chat", "replicas": 2, "drift": False}]
    assert (answer["findings"], answer["unknown"], answer["notes"]) == ([], [], [])
    assert desk.run("pool", "drift")[1].out == "pool chat: 2 replica(s), as asked\n"


def gone(desk):
    engine, one = replica(desk)
    engine.remove(one, force=True)


def stopped(desk):
    engine, one = replica(desk)
    engine.stop(one)


def restarting(desk):
    replica(desk)[1].status = "restarting"


def spec(desk):
    relabel(replica(desk)[1], spec="0123456789abcdef")


def revision(desk):
    relabel(replica(desk)[1], revision="7")


def image(desk):
    _, one = replica(desk)
    one.wish = replace(one.wish, image="vllm/vllm-openai:v0.9.0")


def digest(desk):
    engine = desk.fleet["gpu-01"].containers
    known = (
        engine.images["docker.io/vllm/vllm-openai:v0.20.0"]
        if ("docker.io/vllm/vllm-openai:v0.20.0" in engine.images)
        else next(iter(engine.images.values()))
    )
    engine.images[known.reference] = replace(known, id="sha256:" + "9" * 64)


def mode(desk):
    desk.fleet["gpu-01"].gpus.gpus[0].set_mig(enabled=True)


def lost_gpu(desk):
    desk.fleet["gpu-01"].gpus.gpus[0].uuid = "GPU-00000000-0000-5000-a000-000000000000"


def handles(desk):
    desk.fleet["gpu-01"].strike(Fault(kind=Kind.HANDLES_LOST, host="gpu-01"))


def booted(desk):
    desk.fleet["gpu-01"].power_on()


def policy(desk):
    engine, one = replica(desk)
    engine.update(one, Policy(name="no"))


def port(desk):
    _, one = replica(desk)
    one.wish = replace(one.wish, published=(Published("127.77.0.1", 8055, 8000),))


def leftover(desk):
    engine, one = replica(desk)
    labels = {**one.wish.labels, "gpufleet.replica": "gpu-01/5"}
    engine.create(replace(one.wish, name="left", labels=labels, devices=(), published=()))


def other_pool(desk):
    engine, one = replica(desk)
    labels = {**one.wish.labels, "gpufleet.pool": "embed"}
    engine.create(replace(one.wish, name="embed-0", labels=labels, devices=(), published=()))


def foreign(desk):
    engine, one = replica(desk)
    engine.start(engine.create(Wish(name="notebook", image=one.wish.image, devices=("0",))))


def weight(desk):
    path = desk.state / "routes.json"
    table = json.loads(path.read_text())
    table["pools"][0]["endpoints"][0]["weight"] = 9
    path.write_text(json.dumps(table))


def unrouted(desk):
    (desk.state / "routes.json").unlink()


@pytest.mark.parametrize(
    ("alter", "code", "asked", "seen"),
    [
        (gone, "container-gone", "running", "none"),
        (stopped, "container-stopped", "running", "exited"),
        (restarting, "container-restarting", "running", "restarting"),
        (spec, "spec", "", "0123456789abcdef"),
        (revision, "revision", "1", "7"),
        (image, "image", "vllm/vllm-openai:v0.20.0", "vllm/vllm-openai:v0.9.0"),
        (digest, "image-digest", "9" * 64, ""),
        (mode, "slice", "whole GPU", "MIG mode"),
        (lost_gpu, "gpu-gone", "GPU-", "none"),
        (handles, "gpu-lost", "GPU-", "none"),
        (booted, "booted", "", ""),
        (policy, "restart-policy", "always", "no"),
        (port, "port", "8000", "8055"),
        (leftover, "not-asked-for", "none", "left (created)"),
        (other_pool, "not-asked-for", "none", "embed-0 (created)"),
        (foreign, "foreign", "none", "notebook (running)"),
        (weight, "routes", "1", "9"),
        (unrouted, "routes", "served", "none"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_each_thing_that_was_changed_by_hand_is_found(desk, alter, code, asked, seen):
    alter(desk)
    answer = desk.json("pool", "drift", "chat")
    assert (answer["exit"], answer["outcome"]) == (3, "changes")
    assert answer["pools"][0]["drift"] is True
    found = [one for one in answer["findings"] if one["code"] == code]
    assert len(found) == 1, answer["findings"]
    assert asked in found[0]["asked"]
    assert seen in found[0]["seen"]
    assert found[0]["hint"]
    assert "gpu-02" not in {one["host"] for one in answer["findings"]} or code == "image-digest"
    code_, said = desk.run("pool", "drift")
    assert code_ == 3
    assert found[0]["message"] in said.out


def cut_desk(tmp_path, monkeypatch, capsys):
    clock = LabClock()
    wish = replace(wishes_of(1, "1xH100-80GB")[0], layouts={0: ("3g.40gb:0", "3g.40gb:4")})
    fleet = build_fleet(
        [wish], clock, engines=lambda _host: ModelEngines(clock, EngineSpec(load_seconds=0.1))
    )
    desk = Desk(tmp_path, monkeypatch, capsys, fleet=fleet)
    written = (desk.path / "inventory.yaml").read_text().replace("  gpu-02: {address: 127.77.0.2}\n", "")
    (desk.path / "inventory.yaml").write_text(written)
    assert desk.json("pool", "deploy", "chat", "--mig", "3g.40gb", "--yes")["outcome"] == "committed"
    return desk, fleet["gpu-01"].gpus.gpus[0]


def test_a_slice_is_its_profile_and_its_place_and_not_only_its_uuid(tmp_path, monkeypatch, capsys):
    desk, gpu = cut_desk(tmp_path, monkeypatch, capsys)
    assert desk.json("pool", "drift")["exit"] == 0
    first = next(one for one in gpu.instances if one.start == 0)
    first.uuid = "MIG-00000000-0000-5000-a000-000000000000"  # destroyed and cut again in the same place
    (found,) = desk.json("pool", "drift")["findings"][:1]
    assert (found["code"], found["asked"]) == ("slice", first.uuid)
    assert "cut anew" in found["message"]
    gpu.destroy(first.gi)
    gpu.create("1g.10gb", 0)
    (found,) = [one for one in desk.json("pool", "drift")["findings"] if "not there" in one["message"]]
    assert found["asked"] == "3g.40gb@0"
    assert "1g.10gb@0" in found["seen"]


def test_what_cannot_be_looked_at_is_unknown_and_no_drift(desk):
    desk.faults = (Fault(kind=Kind.REFUSE, host="gpu-02", nth=1, times=9),)
    answer = desk.json("pool", "drift", "chat")
    assert (answer["exit"], answer["outcome"], answer["error"]["where"]) == (7, "failed", "gpu-02")
    assert answer["pools"][0]["drift"] is None
    assert answer["findings"] == []
    assert [one["replica"] for one in answer["unknown"]] == ["gpu-02/0"]
    policy(desk)
    answer = desk.json("pool", "drift", "chat")
    assert (answer["exit"], answer["pools"][0]["drift"]) == (3, True)
    assert len(answer["unknown"]) == 1


def test_a_dead_daemon_and_a_host_that_left_the_inventory_are_unknown(desk):
    desk.fleet["gpu-01"].containers.daemon = Daemon.STOPPED
    written = (desk.path / "inventory.yaml").read_text()
    (desk.path / "inventory.yaml").write_text(written.replace("  gpu-02: {address: 127.77.0.2}\n", ""))
    answer = desk.json("pool", "drift", "chat")
    assert answer["exit"] == 7
    assert {one["host"]: one["message"].split(":")[0] for one in answer["unknown"]}["gpu-02"] == (
        "it is not in the inventory any more"
    )
    assert {one["host"] for one in answer["unknown"]} == {"gpu-01", "gpu-02"}


def test_a_container_without_nvidia_smi_is_a_note(desk, monkeypatch):
    monkeypatch.setattr(desk.fleet["gpu-01"].containers, "smi_inside", None)
    answer = desk.json("pool", "drift", "chat")
    assert answer["exit"] == 0
    assert [one["replica"] for one in answer["notes"]] == ["gpu-01/0"]


def test_a_boot_is_accepted_when_all_else_is_as_asked(desk):
    booted(desk)
    policy(desk)
    assert desk.json("pool", "drift", "chat", "--accept-boots")["exit"] == 3
    engine, one = replica(desk)
    engine.update(one, Policy(name="always"))
    if not one.running:
        engine.start(one)
    answer = desk.json("pool", "drift", "chat", "--accept-boots")
    assert answer["exit"] == 0, answer["findings"]
    assert desk.json("pool", "drift")["exit"] == 0


def test_which_pool(desk):
    answer = desk.json("pool", "drift", "chta")
    assert (answer["exit"], answer["error"]["code"]) == (2, "usage")
    (desk.path / "inventory.yaml").write_text(
        (desk.path / "inventory.yaml").read_text() + "  embed: {model: bge}\n"
    )
    answer = desk.json("pool", "drift", "embed")
    assert (answer["exit"], answer["error"]["hints"]) == (2, ["gpufleet pool deploy embed"])
