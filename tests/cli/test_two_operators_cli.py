"""Two operators, each with a state directory of their own, on one fleet: leases, waiting, breaking, taking over."""

from __future__ import annotations

import json

import pytest

from gpufleet.change.leases import lease
from gpufleet.change.records.journal_file import JournalFile
from tests.kit.pool_desk import Desk


@pytest.fixture
def ann(tmp_path, monkeypatch, capsys):
    return Desk(tmp_path, monkeypatch, capsys, gpus="2xH100-80GB")


@pytest.fixture
def ben(ann):
    """The same hosts and inventory from another machine."""
    other = Desk.__new__(Desk)
    other.__dict__.update(ann.__dict__)
    other.state = ann.path / "elsewhere"
    return other


class Killed(BaseException):
    """The process is gone: nothing is tidied up."""


@pytest.fixture
def held(ann, monkeypatch):
    """A run of ann's whose process was killed while replicas started; its leases stay."""
    append, written = JournalFile.append, []

    def killed(self, body):
        written.append(body)
        if len(written) > 7:
            raise Killed
        return append(self, body)

    with monkeypatch.context() as patch:
        patch.setattr(JournalFile, "append", killed)
        with pytest.raises(Killed):
            ann.run("pool", "deploy", "chat", "--yes")
    (run,) = ann.json("change", "list")["runs"]
    assert run["state"] == "interrupted"
    return run["run"]


def audit(desk):
    path = desk.state / "audit" / "changes.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_who_did_what_when_with_what_result_here_and_on_the_hosts(ann):
    ann.json("pool", "deploy", "chat", "--yes")
    ann.json("pool", "deploy", "chat")  # nothing to do is no line
    ann.json("pool", "set", "chat", "--weight", "gpu-01/0=4")
    ann.fleet["gpu-02"].containers.launch_words = {"GPUFLEET_LAB_ENGINE": "mode=crash"}
    ann.json("pool", "deploy", "chat", "--model", "other/model", "--yes")
    ann.json("pool", "delete", "chat", "--yes")
    lines = audit(ann)
    assert [(line["command"].split()[1], line["result"]) for line in lines] == [
        ("deploy", "committed"),
        ("set", "committed"),
        ("deploy", "rolled-back"),
        ("delete", "committed"),
    ]
    first = lines[0]
    assert first["hosts"] == ["gpu-01", "gpu-02"]
    assert first["pool"] == "chat"
    assert first["revision"] == 1
    assert first["run"]
    assert "@" in first["who"]
    on_host = ann.fleet["gpu-01"].host.fs.read("/home/ops/.gpufleet/audit/changes.jsonl", "ops").decode()
    assert [json.loads(line) for line in on_host.splitlines()] == [line for line in lines if line["hosts"]]
    assert (ann.state / "audit" / "changes.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_held_lease_names_its_holder_and_waiting_ends(held, ann, ben):
    refused = ben.json(
        "pool", "deploy", "other", "--model", "m", "--image", "vllm/vllm-openai:v0.20.0", "--yes"
    )
    assert (refused["exit"], refused["error"]["code"]) == (6, "lease-held")
    assert held in refused["error"]["rows"][0]["message"]
    before = ann.fleet.clock.monotonic()
    words = ("--model", "m", "--image", "vllm/vllm-openai:v0.20.0", "--yes", "--lock-wait", "60")
    assert ben.json("pool", "deploy", "other", *words)["exit"] == 6
    assert ann.fleet.clock.monotonic() - before >= 60
    assert ben.json("pool", "list", "--lock-wait", "soon")["exit"] == 2


def test_waiting_goes_on_as_soon_as_the_lease_is_given_back(ann, monkeypatch):
    lab = ann.fleet["gpu-01"]
    home = "/home/ops/.gpufleet"
    token = "a" * 32
    lab.sh(f"mkdir -p {home}/lease; date +%s > {home}/lease/beat-{token}", user="ops")
    holder = {"token": token, "run": "", "seat": "x", "holder": "ben@desk", "operation": "looks"}
    lab.host.fs.write(f"{home}/lease/lease.json", json.dumps(holder).encode())
    clock, rests = ann.fleet.clock, []

    def sleep(seconds):
        clock.elapsed += seconds
        if seconds == 5.0:
            rests.append(seconds)
            if len(rests) == 2:
                lab.sh(f"rm -rf {home}/lease")

    monkeypatch.setattr(clock, "sleep", sleep)
    code, said = ann.run("pool", "deploy", "chat", "--yes", "--lock-wait", "600")
    assert code == 0
    assert len(rests) == 2
    assert said.err.count("waiting: gpu-01: held: ben@desk, looks") == 2


def test_another_operator_ends_the_run_from_the_copies_on_the_hosts(held, ann, ben):
    ann.fleet.clock.sleep(lease.EXPIRES + 1)
    answer = ben.json("change", "undo", held, "--from", "gpu-01")
    assert (answer["outcome"], answer["exit"]) == ("rolled_back", 0), answer
    assert all(not found for found in ann.containers().values())
    assert audit(ben)[-1]["command"] == f"change undo {held}"
    stale = ann.json("change", "resume", held)
    assert stale["exit"] != 0  # it is over, and its own machine learns that
    assert all(not found for found in ann.containers().values())


def test_a_dead_holder_of_hosts_whose_clock_went_back_holds_them_no_longer_than_any(held, ann, ben):
    ann.fleet.clock.elapsed -= 86_400
    deploy = ("pool", "deploy", "other", "--model", "m", "--image", "vllm/vllm-openai:v0.20.0", "--yes")
    assert ben.json(*deploy)["error"]["code"] == "lease-held"
    ann.fleet.clock.sleep(lease.EXPIRES + 1)
    refused = ben.json(*deploy)
    assert (refused["exit"], f"change undo {held}" in json.dumps(refused["error"])) == (6, True)
    undo = ("change", "undo", held, "--from", "gpu-01")
    assert ben.json(*undo)["error"]["where"] == "gpu-02"  # which nobody had asked since
    assert ben.json(*undo, "--lock-wait", str(2 * lease.EXPIRES))["outcome"] == "rolled_back"
    assert all(not found for found in ann.containers().values())


def test_a_broken_lease_is_audited(held, ann, ben):
    assert ben.json("change", "unlock", "gpu-01", "--yes")["exit"] == 2  # a reason is asked for
    answer = ben.json("change", "unlock", "gpu-01", "--reason", "laptop died", "--yes")
    assert answer["exit"] == 0
    (line,) = [json.loads(text) for text in (ben.state / "audit" / "leases.jsonl").read_text().splitlines()]
    assert (line["what"], line["host"], line["reason"], line["run"]) == (
        "unlock",
        "gpu-01",
        "laptop died",
        held,
    )


@pytest.mark.parametrize(
    "asked",
    ["drain chat gpu-01/0", "set chat --weight gpu-01/0=3", "scale chat 1 --yes", "delete chat --yes"],
)
def test_whoever_meets_a_run_of_this_machine_that_was_killed_is_told_how_to_end_it(ann, monkeypatch, asked):
    """Nobody is at work on it: waiting would not help."""
    assert ann.json("pool", "deploy", "chat", "--yes")["outcome"] == "committed"
    append, written = JournalFile.append, []

    def killed(self, body):
        written.append(body)
        if len(written) > 5:
            raise Killed
        return append(self, body)

    with monkeypatch.context() as patch:
        patch.setattr(JournalFile, "append", killed)
        with pytest.raises(Killed):
            ann.run("pool", "deploy", "chat", "--model", "other/model", "--yes")
    run = ann.json("change", "list")["runs"][0]["run"]
    refused = ann.json("pool", *asked.split())
    assert refused["exit"] in {4, 6}
    assert refused["error"]["hints"] == [f"gpufleet change resume {run}", f"gpufleet change undo {run}"]
    assert ann.json("change", "undo", run, "--yes")["outcome"] == "rolled_back"
    assert ann.json("pool", *asked.split())["exit"] == 0


def test_what_an_open_run_started_is_not_committed_by_another_deploy(held, ann):
    ann.fleet.clock.sleep(lease.EXPIRES + 1)
    for host in ("gpu-01", "gpu-02"):
        ann.json("change", "unlock", host, "--reason", "test", "--yes")
    answer = ann.json("pool", "deploy", "chat", "--yes")
    assert answer["exit"] == 6
    assert f"gpufleet change undo {held}" in answer["error"]["hints"]
    code, said = ann.run("pool", "plan", "chat")
    assert code == 0
    assert f"run {held}" in said.err
    assert ann.json("change", "undo", held, "--yes")["outcome"] in {"rolled_back", "ok", "committed"}
    assert ann.json("pool", "deploy", "chat", "--yes")["outcome"] == "committed"


def test_old_runs_are_pruned_here_and_on_hosts_and_open_ones_never(held, ann):
    ann.fleet.clock.sleep(lease.EXPIRES + 1)
    for host in ("gpu-01", "gpu-02"):
        ann.json("change", "unlock", host, "--reason", "test", "--yes")
    for number in range(24):
        ann.fleet.clock.sleep(1)
        length = (
            "--engine-arg=--max-model-len",
            "--engine-arg=2048",
        )  # what the open run started is replaced
        answer = ann.json("pool", "deploy", "chat", "--replicas", str(1 + number % 2), *length, "--yes")
        assert answer["outcome"] == "committed", answer
    runs = ann.json("change", "list")["runs"]
    assert len([run for run in runs if run["state"] == "committed"]) in {20, 21}
    assert held in {run["run"] for run in runs if run["state"] == "interrupted"}
    files = ann.fleet["gpu-02"].host.fs
    folder = "/home/ops/.gpufleet/runs"
    kept = [run for run in files.names(folder) if files.exists(f"{folder}/{run}/journal.jsonl")]
    ended = [run for run in files.names(folder) if files.exists(f"{folder}/{run}/settled")]
    assert held in kept
    assert len(kept) <= 21
    assert len(ended) > 20  # the ending stays, so that nobody resumes what is over
