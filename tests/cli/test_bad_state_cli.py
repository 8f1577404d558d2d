"""Journals, clocks, disks and inventories that are not as they should be: a clear error or a recovery, nothing lost."""

from __future__ import annotations

import errno
import json
import os
import resource
import threading

import pytest

from gpufleet.change.records import journal_file
from gpufleet.errors import FleetError
from tests.cli.test_two_operators_cli import ann as desk
from tests.cli.test_two_operators_cli import held
from tests.kit.deploy_site import IMAGE, Site

__all__ = ["desk", "held"]


@pytest.fixture
def ann(desk):
    """The name that `held` asks for."""
    return desk


def journal(desk, run):
    return desk.state / "runs" / run / "journal.jsonl"


def empty(desk):
    return all(not found for found in desk.containers().values())


def test_a_truncated_journal_is_made_whole_from_the_hosts(held, ann):
    """A line that was cut off after it had been acted on: the hosts know more, and say so."""
    path = journal(ann, held)
    path.write_bytes(path.read_bytes()[:-20])
    assert ann.json("change", "list")["runs"][0]["state"] == "interrupted"
    refused = ann.json("change", "undo", held)
    assert (refused["exit"], "longer than ours" in refused["error"]["message"]) == (4, True)
    assert "--from gpu-0" in refused["error"]["hints"][0]
    assert ann.json("change", "undo", held, "--from", "gpu-01")["outcome"] == "rolled_back"
    assert empty(ann)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [(b'{"v":1,', b'{"v":2,', "journal schema 2"), (b'"body":{', b'"body":[', "not a journal record")],
)
def test_a_journal_of_a_newer_version_or_with_damage_is_never_guessed_at(held, ann, old, new, words):
    path = journal(ann, held)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(old, new, 2))
    before = ann.containers()
    (run,) = ann.json("change", "list")["runs"]
    assert (run["state"], words in run["problem"]) == ("unreadable", True)
    for verb in ("resume", "undo"):
        answer = ann.json("change", verb, held)
        assert (answer["exit"], words in answer["error"]["message"]) == (2, True)
    assert ann.containers() == before
    path.write_bytes(whole)
    assert ann.json("change", "undo", held)["outcome"] == "rolled_back"


def test_a_clock_that_went_backwards_changes_nothing_that_matters(desk):
    assert desk.json("pool", "deploy", "chat", "--yes")["outcome"] == "committed"
    desk.fleet.clock.elapsed -= 86_400
    answer = desk.json("pool", "deploy", "chat", "--replicas", "1", "--yes")
    assert (answer["outcome"], answer["generation"]) == ("committed", 2)
    assert desk.json("pool", "show", "chat")["served"] == 1
    assert desk.json("pool", "drift")["exit"] == 0
    assert desk.json("pool", "delete", "chat", "--yes")["outcome"] == "committed"
    assert empty(desk)


def test_a_full_local_disk_is_told_before_anything_is_done(desk):
    desk.state.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        answer = desk.json("pool", "deploy", "chat", "--yes")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (answer["exit"], answer["error"]["code"]) == (8, "preflight")
    assert str(desk.state) in answer["error"]["where"]
    assert empty(desk)
    assert desk.json("pool", "deploy", "chat", "--yes")["outcome"] == "committed"


@pytest.mark.parametrize("lines", [0, 1, 2, 5, 9, 14, 17, 18, 19])
def test_a_local_disk_that_fills_up_on_the_way_loses_nothing(desk, monkeypatch, lines):
    """After so many lines of the journal nothing more fits; with room again the run is finished as is advised."""
    append, written = journal_file._write_whole, []

    def fills_up(number, content):
        written.append(content)
        if len(written) > lines:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return append(number, content)

    with monkeypatch.context() as patch:
        patch.setattr(journal_file, "_write_whole", fills_up)
        answer = desk.json("pool", "deploy", "chat", "--yes")
    assert answer["exit"] in ({8} if not lines else {8, 11})
    assert "No space left on device" in answer["error"]["message"]
    runs = desk.json("change", "list")["runs"]
    if runs:
        (command, *others) = runs[0]["next"]
        assert len(others) == (lines < 19)  # what has begun to publish is finished
        assert desk.json(*command.split()[1:], "--yes")["outcome"] == "committed"
        assert desk.json("pool", "drift", "chat")["findings"] == []
    else:
        assert empty(desk)
    assert desk.json("pool", "deploy", "chat", "--yes")["outcome"] in {"committed", "no_change"}
    assert [len(found) for found in desk.containers().values()] == [1, 1]


def test_a_journal_that_lost_its_beginning_is_made_whole_from_the_hosts(held, ann):
    path = journal(ann, held)
    path.write_bytes(path.read_bytes()[:200] + bytes(64))  # as a power cut leaves files
    refused = ann.json("change", "undo", held)
    assert (refused["exit"], "--from HOST" in json.dumps(refused["error"])) == (2, True)
    assert ann.json("change", "undo", held, "--from", "gpu-02")["outcome"] == "rolled_back"
    assert empty(ann)


def test_a_host_that_left_the_inventory_keeps_its_replica_in_mind(desk):
    inventory = desk.path / "inventory.yaml"
    written = inventory.read_text()
    desk.json("pool", "deploy", "chat", "--yes")
    inventory.write_text(written.replace("  gpu-02: {address: 127.77.0.2}\n", ""))
    code, said = desk.run("pool", "deploy", "chat", "--yes")
    assert code == 0
    assert "gpu-02 has replicas of this pool by its record and is no longer in the inventory" in said.err
    refused = desk.json("pool", "delete", "chat", "--yes")
    assert (refused["exit"], refused["error"]["rows"][0]["where"]) == (4, "gpu-02")
    inventory.write_text(written)
    assert desk.json("pool", "delete", "chat", "--yes")["outcome"] == "committed"
    assert empty(desk)


def test_of_two_deploys_of_one_pool_at_once_one_at_most_goes_on_and_both_are_told(tmp_path):
    site = Site(tmp_path)
    start, endings = threading.Barrier(2), []

    def deploy():
        start.wait(30)
        try:
            endings.append(site.deploy().outcome)
        except FleetError as error:
            endings.append(error.code)

    threads = [threading.Thread(target=deploy) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(endings) == 2
    assert set(endings) <= {"committed", "no_change", "lease-held", "stale-plan"}
    assert [len(found) for found in site.pools_containers().values()] in ([1, 1], [0, 0])
    if "committed" not in endings:
        assert site.deploy().outcome == "committed"
    assert site.leases() == []


@pytest.fixture
def named(desk):
    """A pool that was deployed on two hosts by their names, one of which left the inventory since."""
    hosts = ("--hosts", "gpu-01", "--hosts", "gpu-02")
    words = ("--model", "qwen/qwen2.5", "--image", IMAGE, *hosts, "--replicas", "2")
    assert desk.json("pool", "deploy", "named", *words, "--yes")["outcome"] == "committed"
    inventory = desk.path / "inventory.yaml"
    inventory.write_text(inventory.read_text().replace("  gpu-02: {address: 127.77.0.2}\n", ""))
    return desk


def test_a_pool_that_names_a_host_which_left_the_inventory_goes_on_without_it(named):
    for asked in ("plan named", "candidates named", "rollback named --to 1 --dry-run", "scale named 1 --yes"):
        code, said = named.run("pool", *asked.split())
        assert code == 0, said
        assert "was deployed on gpu-02, which the inventory does not know any more: left out" in said.err
    refused = named.json("pool", "deploy", "named", "--hosts", "gpu-02", "--yes")
    assert (refused["exit"], "unknown host `gpu-02`" in refused["error"]["message"]) == (2, True)


def test_a_pool_that_names_a_host_which_left_the_inventory_can_be_forgotten(named):
    refused = named.json("pool", "delete", "named", "--yes")
    assert (refused["exit"], refused["error"]["rows"][0]["where"]) == (4, "gpu-02")
    assert named.json("pool", "delete", "named", "--force", "--yes")["outcome"] == "committed"
    assert [len(found) for found in named.containers().values()] == [0, 1]  # nobody can reach the other
    assert [pool["pool"] for pool in named.json("pool", "list")["pools"]] == ["chat"]


def test_a_pool_of_which_no_host_is_left_says_what_to_do(desk):
    words = ("--model", "qwen/qwen2.5", "--image", IMAGE, "--hosts", "gpu-02,!gpu-01")
    assert desk.json("pool", "deploy", "named", *words, "--yes")["outcome"] == "committed"
    inventory = desk.path / "inventory.yaml"
    inventory.write_text(inventory.read_text().replace("  gpu-02: {address: 127.77.0.2}\n", ""))
    for asked in (("scale", "named", "2"), ("deploy", "named"), ("candidates", "named")):
        refused = desk.json("pool", *asked, *([] if asked[0] == "candidates" else ["--yes"]))
        assert refused["exit"] == 2
        assert "no host of pool named is in the inventory any more: gpu-02" in refused["error"]["message"]
        assert "--force" in refused["error"]["hints"][-1]
    assert desk.containers()["gpu-01"] == []
    assert desk.json("pool", "delete", "named", "--force", "--yes")["outcome"] == "committed"
    assert [pool["pool"] for pool in desk.json("pool", "list")["pools"]] == ["chat"]


def test_a_pool_is_not_created_where_nobody_can_put_it_nor_without_a_model(desk):
    refused = desk.json("pool", "create", "lost", "--model", "m", "--hosts", "nobody")
    assert (refused["exit"], "unknown host `nobody`" in refused["error"]["message"]) == (2, True)
    refused = desk.json("pool", "create", "lost")
    assert (refused["exit"], "which model" in refused["error"]["message"]) == (2, True)
    assert "lost" not in [pool["pool"] for pool in desk.json("pool", "list")["pools"]]
    refused = desk.json("pool", "scale", "chat", "0")
    assert (refused["exit"], "pool delete chat" in refused["error"]["hints"][0]) == (2, True)


def test_whoever_drains_the_last_replica_is_told(desk):
    assert desk.json("pool", "deploy", "chat", "--yes")["outcome"] == "committed"
    assert "503" not in desk.run("pool", "drain", "chat", "gpu-01/0")[1].err
    assert "every replica is drained" in desk.run("pool", "drain", "chat", "gpu-02/0")[1].err
    assert "every replica" not in desk.run("pool", "undrain", "chat", "gpu-02/0")[1].err
