"""`gpufleet change` as a process: runs that died half-way are listed, shown, resumed, undone; leases are broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpufleet.change.flow import Tools, run_change
from gpufleet.change.leases import lease
from gpufleet.change.leases.lease import Holder
from gpufleet.change.model import Check, Plan
from gpufleet.change.records import journal_file
from gpufleet.clock import SystemClock
from gpufleet.deploy.gate import PREDICATES
from gpufleet.errors import FleetError, LeaseHeld
from gpufleet.names import HostName, RunId
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from tests.kit.change_plans import plan, step
from tests.kit.shell_hosts import ShellHosts

RUN = RunId("20260101T000000-abcdef")
HERE = HostName("here")
THERE = Command(script='ls "$HOME/things/$1" 2>/dev/null || :', argv=("x",), mutates=False)


def checked(name: str, *after: str, **changes):
    look = Command(script='ls "$HOME/things/$1" 2>/dev/null || :', argv=(name,), mutates=False)
    return step(
        name,
        "here",
        *after,
        verify=Check(look=look, expect="image-present", data=(name,)),
        absent=Check(look=look, expect="nothing-left"),
        **changes,
    )


class Killed(BaseException):
    pass


class Desk:
    """An operator's machine, and one host: a folder that the command line reaches as `connection: local`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        self.hosts = ShellHosts(root)
        self.home = self.hosts.home("here")
        (root / "inventory.yaml").write_text(
            "version: 1\nhosts:\n  here: {address: 127.0.0.1, connection: local}\n"
        )

    def gpufleet(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUFLEET")}
        return subprocess.run(
            [sys.executable, "-m", "gpufleet", *words],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd=self.root,
            env={
                **kept,
                "HOME": str(self.home),
                "GPUFLEET_STATE": str(self.state),
                "PYTHONPATH": str(Path(__file__).parents[2]),
                "NO_COLOR": "1",
                **environment,
            },
        )

    def json(self, *words: str, status: int = 0, **environment: str) -> dict[str, Any]:
        ended = self.gpufleet("-o", "json", *words, **environment)
        assert ended.returncode == status, ended
        answer: dict[str, Any] = json.loads(ended.stdout)
        assert (answer["schema"], answer["exit"]) == (1, status)
        return answer

    def killed_run(self, the_plan: Plan, records: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """A run whose process died when it had written so many records."""
        real = journal_file.JournalFile.append

        def append(file, body):
            if len(file.records) == records:
                self.hosts.cut = True
                raise Killed
            return real(file, body)

        tools = Tools(
            transport=self.hosts,
            clock=SystemClock(),
            predicates=PREDICATES,
            state_dir=self.state,
            operator="ann@desk pid 7",
        )
        with monkeypatch.context() as patch:
            patch.setattr(journal_file.JournalFile, "append", append)
            try:
                run_change(the_plan, tools, on_commit=lambda _run, _context: None, run=RUN)
            except Killed:
                self.hosts.wait_idle()
            except FleetError:
                assert records == ENDS

    def things(self) -> set[str]:
        return {item.name for item in self.home.glob("things/*")}


ENDS = 1000
TWO = plan(checked("x"), checked("y", "x"), context={"use": "retire"})


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


def test_without_runs_the_list_is_empty(desk):
    assert desk.json("change", "list")["runs"] == []
    assert desk.gpufleet("change", "list").stdout == "no runs\n"


def test_an_interrupted_run_is_named_with_what_ends_it(desk, monkeypatch):
    desk.killed_run(TWO, 4, monkeypatch)
    (run,) = desk.json("change", "list")["runs"]
    assert (run["run"], run["state"], run["operator"]) == (RUN, "interrupted", "ann@desk pid 7")
    assert run["next"] == [f"gpufleet change resume {RUN}", f"gpufleet change undo {RUN}"]
    text = desk.gpufleet("change", "list").stdout
    assert f"interrupted: {RUN}: gpufleet change resume {RUN} or gpufleet change undo {RUN}" in text
    shown = desk.json("change", "show", RUN)
    assert [(item["step"], item["state"]) for item in shown["steps"]] == [("x", "done"), ("y", "running")]
    assert "put y" in desk.gpufleet("change", "show", RUN).stdout


def test_resume_finishes_it(desk, monkeypatch):
    desk.killed_run(TWO, 4, monkeypatch)
    answer = desk.json("change", "resume", RUN)
    assert (answer["outcome"], answer["run"]) == ("committed", RUN)
    assert [(row["host"], row["status"]) for row in answer["hosts"]] == [("here", "done")]
    assert desk.things() == {"x", "y"}
    assert not (desk.home / ".gpufleet" / "lease").exists()
    assert desk.json("change", "resume", RUN)["outcome"] == "committed"
    refused = desk.json("change", "undo", RUN, status=4)
    assert "the run is committed and over" in refused["error"]["message"]
    assert desk.things() == {"x", "y"}


def test_undo_leaves_nothing(desk, monkeypatch):
    desk.killed_run(TWO, 5, monkeypatch)
    answer = desk.json("change", "undo", RUN)
    assert (answer["outcome"], answer["exit"]) == ("rolled_back", 0)
    assert desk.things() == set()
    assert desk.json("change", "list")["runs"][0]["state"] == "undone"


def test_showing_first_changes_nothing(desk, monkeypatch):
    desk.killed_run(TWO, 5, monkeypatch)
    before = desk.things()
    assert desk.json("change", "undo", RUN, "--dry-run")["outcome"] == "changes"
    assert desk.json("change", "resume", RUN, "--check", status=3)["outcome"] == "changes"
    assert desk.things() == before
    assert desk.json("change", "list")["runs"][0]["state"] == "interrupted"


def test_a_resume_that_fails_rolls_back_and_exits_with_9(desk, monkeypatch):
    broken = Command(script="echo 'no space left' >&2; exit 1", mutates=True)
    desk.killed_run(plan(checked("x"), checked("y", "x", do=(broken,))), 3, monkeypatch)
    answer = desk.json("change", "resume", RUN, status=9)
    assert answer["outcome"] == "rolled_back"
    assert "no space left" in answer["error"]["message"]
    assert answer["run"] == RUN
    assert desk.things() == set()


def test_another_machine_finishes_it_from_the_host(desk, monkeypatch):
    desk.killed_run(TWO, 4, monkeypatch)
    elsewhere = {"GPUFLEET_STATE": str(desk.root / "elsewhere")}
    held = desk.json("change", "resume", RUN, status=6, **elsewhere)
    assert "ann@desk pid 7" in held["error"]["rows"][0]["message"]
    for beat in (desk.home / ".gpufleet" / "lease").glob("beat-*"):
        beat.write_text("1000\n")
    answer = desk.json("change", "resume", RUN, "--from", "here", **elsewhere)
    assert answer["outcome"] == "committed"
    assert desk.things() == {"x", "y"}
    stale = desk.json("change", "undo", RUN, status=4)
    assert "was taken up on another machine: it is committed" in stale["error"]["message"]
    assert desk.things() == {"x", "y"}


def test_secrets_are_followed_again_and_never_shown(desk, monkeypatch):
    secret = Secret("hf_planted0123456789", reference="${env:HF_TOKEN}")
    keep = Command(
        script='mkdir -p "$HOME/things"; printf "%s" "$1" >"$HOME/things/x"', argv=(secret,), mutates=True
    )
    desk.killed_run(plan(checked("x", do=(keep,)), context={"use": "retire"}), 2, monkeypatch)
    (desk.home / "things" / "x").unlink(missing_ok=True)
    missing = desk.json("change", "resume", RUN, status=2)
    assert "HF_TOKEN" in missing["error"]["message"]
    for words in (("show", RUN), ("list",), ("resume", RUN)):
        ended = desk.gpufleet("change", *words, HF_TOKEN=secret.reveal())
        assert ended.returncode == 0, ended
        assert secret.reveal() not in ended.stdout + ended.stderr
    assert (desk.home / "things" / "x").read_text() == secret.reveal()


@pytest.mark.parametrize(
    ("verb", "run"),
    [
        ("show", "20200101T000000-000000"),
        ("resume", "20200101T000000-000000"),
        ("undo", "../../etc"),
        ("show", "x"),
    ],
)
def test_a_run_that_does_not_exist(desk, verb, run):
    answer = desk.json("change", verb, run, status=2)
    assert answer["error"]["hints"]


def test_a_broken_journal_is_named_with_its_line(desk, monkeypatch):
    desk.killed_run(TWO, 4, monkeypatch)
    path = desk.state / "runs" / RUN / "journal.jsonl"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], b"rubbish", *lines[1:]]))
    (run,) = desk.json("change", "list")["runs"]
    assert run["state"] == "unreadable"
    assert f"{path}:2" in run["problem"]
    answer = desk.json("change", "resume", RUN, status=2)
    assert answer["error"]["where"] == f"{path}:2"


def test_unlock_needs_a_reason_and_keeps_a_record(desk, monkeypatch):
    desk.killed_run(TWO, 4, monkeypatch)
    assert "--reason" in desk.json("change", "unlock", "here", status=2)["error"]["hints"][0]
    assert (desk.home / ".gpufleet" / "lease").exists()
    asked = desk.json("change", "unlock", "here", "--reason", "the runner is gone", status=2)
    assert "--yes" in asked["error"]["hints"][0]
    answer = desk.json("change", "unlock", "here", "--reason", "the runner is gone", "--yes")
    (row,) = answer["hosts"]
    assert (row["holder"], row["run"], row["open_run"]) == ("ann@desk pid 7", RUN, True)
    assert not (desk.home / ".gpufleet" / "lease").exists()
    (record,) = [
        json.loads(line) for line in (desk.state / "audit" / "leases.jsonl").read_text().splitlines()
    ]
    assert (record["what"], record["host"], record["reason"]) == ("unlock", "here", "the runner is gone")
    assert desk.json("change", "unlock", "here", "--reason", "again", "--yes")["outcome"] == "no_change"


def test_a_lease_of_somebody_else_is_respected(desk, monkeypatch):
    desk.killed_run(TWO, 4, monkeypatch)
    desk.hosts.cut = False
    session = desk.hosts.open(HERE)
    token = next((desk.home / ".gpufleet" / "lease").glob("beat-*")).name.removeprefix("beat-")
    session.run(lease.break_lease(token))
    other = Holder(
        who="bob@other pid 9", run="20260102T000000-abcdef", operation="deploy", token="b" * 32, seat="b"
    )
    session.run(lease.take(other, b""))
    answer = desk.json("change", "resume", RUN, status=6)
    assert "bob@other pid 9" in answer["error"]["rows"][0]["message"]
    assert desk.json("change", "list")["runs"][0]["state"] == "interrupted"


def test_a_run_that_died_here_is_offered_before_its_lease_is_broken(desk, monkeypatch):
    desk.killed_run(TWO, 4, monkeypatch)
    desk.hosts.cut = False
    following = Tools(
        transport=desk.hosts, clock=SystemClock(), predicates=PREDICATES, state_dir=desk.state, operator="ann"
    )
    with pytest.raises(LeaseHeld) as caught:
        run_change(TWO, following, on_commit=lambda _run, _context: None)
    assert caught.value.hints == (f"gpufleet change resume {RUN}", f"gpufleet change undo {RUN}")
    elsewhere = replace(following, state_dir=desk.root / "other")
    with pytest.raises(LeaseHeld, match="held by another run") as caught:
        run_change(TWO, elsewhere, on_commit=lambda _run, _context: None)
    assert "it expires" in caught.value.hints[0]


def test_a_host_that_left_the_inventory_holds_up_only_itself(desk, monkeypatch):
    desk.killed_run(TWO, 4, monkeypatch)
    inventory = desk.root / "inventory.yaml"
    before = inventory.read_text()
    inventory.write_text(before.replace("here:", "there:"))
    answer = desk.json("change", "undo", RUN, status=10)
    assert [(row["host"], row["status"]) for row in answer["hosts"]] == [("here", "left")]
    inventory.write_text(before)
    assert desk.json("change", "undo", RUN)["run"] == RUN
    assert desk.things() == set()


@pytest.mark.parametrize("words", [("list",), ("show", RUN)])
def test_a_state_directory_that_is_none_is_no_empty_one(desk, words):
    (desk.root / "file").write_text("")
    answer = desk.json("change", *words, "--state-dir", str(desk.root / "file"), status=8)
    assert answer["error"]["message"] == "the state directory cannot be used: not a directory"
