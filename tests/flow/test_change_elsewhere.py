"""Runs finished from another machine, and by Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from gpufleet.change.events import Ending, Goal
from gpufleet.change.flow import run_change, take_up
from gpufleet.change.leases.lease_keeper import wait_until_free
from gpufleet.change.reach import Reach
from gpufleet.change.records import copies, document, journal_file
from gpufleet.errors import HostUnreachable, InDoubt, LeaseHeld, RollbackIncomplete, RolledBack, UsageError
from gpufleet.names import HostName, RunId
from gpufleet.remote.command import Command
from tests.flow.test_change_crash import CHAIN, RUN, QuickClock, Scene, no_secrets
from tests.kit.change_plans import look, plan, step

A, B = HostName("a"), HostName("b")


def expire(scene: Scene) -> None:
    """Nobody has renewed the leases for a long time, by the hosts' own clocks."""
    for beat in (scene.path / "hosts").glob("*/.gpufleet/lease/beat-*"):
        beat.write_text("1000\n")


def elsewhere(scene: Scene) -> Scene:
    """Another machine that reaches the same hosts."""
    other = Scene(scene.path)
    other.state = scene.path / "elsewhere"
    return other


def fetch(scene: Scene, hosts, *sources: HostName) -> None:
    reach = Reach(hosts, QuickClock())
    copies.fetch(RUN, sources, reach, state_dir=scene.state, clock=QuickClock(), resolve=no_secrets)


@pytest.mark.parametrize("goal", list(Goal))
@pytest.mark.parametrize("records", [2, 3, 5, 7, 8, 9])
def test_another_machine_finishes_a_run_from_the_copies(tmp_path, monkeypatch, records, goal):
    scene = Scene(tmp_path)
    assert scene.run_until(CHAIN, records, monkeypatch)
    expire(scene)
    other = elsewhere(scene)
    fetch(other, other.hosts(), B)
    ending = other.take_up(goal)
    assert ending is (Ending.COMMITTED if goal is Goal.RESUME else Ending.UNDONE)
    assert other.things(CHAIN) == ({"a1", "a2", "b1", "b2"} if goal is Goal.RESUME else set())


@pytest.mark.parametrize("goal", list(Goal))
def test_another_machine_finishes_a_run_from_packed_copies(tmp_path, monkeypatch, goal):
    monkeypatch.setattr(document, "READABLE", 0)
    scene = Scene(tmp_path)
    assert scene.run_until(CHAIN, 5, monkeypatch)
    heads = [path.read_text() for path in (scene.path / "hosts").glob("*/.gpufleet/runs/*/journal.jsonl")]
    assert len(heads) == 2
    assert all('"packed":' in head and '"steps":' not in head for head in heads)
    expire(scene)
    other = elsewhere(scene)
    fetch(other, other.hosts(), B)
    ending = other.take_up(goal)
    assert ending is (Ending.COMMITTED if goal is Goal.RESUME else Ending.UNDONE)
    assert other.things(CHAIN) == ({"a1", "a2", "b1", "b2"} if goal is Goal.RESUME else set())


def test_a_host_that_cannot_be_asked_counts_as_begun(tmp_path, monkeypatch):
    scene = Scene(tmp_path)
    assert scene.run_until(CHAIN, 8, monkeypatch)
    expire(scene)
    other = elsewhere(scene)
    away = other.hosts()
    away.dead.add(A)
    fetch(other, away, B)
    with pytest.raises(InDoubt, match="not reached: a"):
        other.take_up(Goal.RESUME, away)
    with pytest.raises(RollbackIncomplete):
        other.take_up(Goal.UNDO, away)
    assert {name for name in other.things(CHAIN) if name.startswith("b")} == set()
    assert other.take_up(Goal.UNDO) is Ending.UNDONE
    assert other.things(CHAIN) == set()


def test_where_no_copy_is(tmp_path):
    scene = Scene(tmp_path)
    hosts = scene.hosts()
    with pytest.raises(UsageError, match="no host that was asked knows run"):
        fetch(scene, hosts, A, B)
    hosts.dead = {A, B}
    with pytest.raises(HostUnreachable, match="no host could be asked"):
        fetch(scene, hosts, A, B)


def test_waiting_for_a_lease(tmp_path, monkeypatch):
    scene = Scene(tmp_path)
    assert scene.run_until(CHAIN, 5, monkeypatch)
    reach = Reach(scene.hosts(), QuickClock())
    with pytest.raises(LeaseHeld):
        wait_until_free(reach, [A, B], QuickClock(), within=0.0)
    assert scene.take_up(Goal.UNDO) is Ending.UNDONE
    wait_until_free(reach, [A, B], QuickClock(), within=0.0)


def test_heartbeats_are_sent_while_a_run_waits(tmp_path):
    scene = Scene(tmp_path)
    hosts = scene.hosts()
    beats = threading.Event()
    renewals = []

    def fault(_host: HostName, command: Command) -> str | None:
        if "renewed" in command.script:
            renewals.append(command)
            if len(renewals) > 2:
                beats.set()
        return None

    def wait(_run, _context) -> None:
        beats.wait(30)

    hosts.fault = fault
    tools = scene.tools(hosts)
    tools = type(tools)(**{name: getattr(tools, name) for name in tools.__slots__} | {"heartbeat": 0.05})
    run_change(plan(step("a1", "a")), tools, on_commit=wait, run=RUN)
    assert beats.is_set()


WAITING = plan(step("a1", "a"), step("b1", "b", "a1", verify=look("never", "there", within=3600.0)))

CHILD = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from gpufleet.change.flow import run_change
from gpufleet.errors import FleetError
from tests.flow.test_change_crash import RUN, Scene
from tests.flow.test_change_elsewhere import WAITING
scene = Scene(Path(sys.argv[1]))
hosts = scene.hosts()
if len(sys.argv) > 2:
    hosts.fault = lambda host, command: __import__("time").sleep(3600) if 'rm -f "$HOME/things' in command.script else None
try:
    run_change(WAITING, scene.tools(hosts), on_commit=scene.commit, run=RUN)
except FleetError as error:
    print(error)
    sys.exit(int(error.exit))
"""


def child(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    code = textwrap.dedent(CHILD.format(root=str(Path(__file__).parents[2])))
    return subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), *words], stdout=subprocess.PIPE, text=True
    )


def wait_for(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_interrupt_undoes_and_ends_an_hour_long_wait(tmp_path, number):
    scene = Scene(tmp_path)
    with child(tmp_path) as process:
        try:
            wait_for(lambda: "b1" in scene.things(WAITING))
            os.kill(process.pid, number)
            said, _ = process.communicate(timeout=90)
        finally:
            process.kill()
    assert process.returncode == 9, said
    assert "interrupted by the operator" in said
    assert scene.things(WAITING) == set()
    assert scene.ended() == "undone"


def test_two_interrupts_stop_at_once_in_doubt(tmp_path):
    scene = Scene(tmp_path)
    with child(tmp_path, "stuck") as process:
        try:
            wait_for(lambda: "b1" in scene.things(WAITING))
            os.kill(process.pid, signal.SIGINT)
            wait_for(lambda: b'"turned"' in (scene.state / "runs" / RUN / "journal.jsonl").read_bytes())
            os.kill(process.pid, signal.SIGINT)
            said, _ = process.communicate(timeout=90)
        finally:
            process.kill()
    assert process.returncode == 11, said
    assert scene.ended() == ""
    with pytest.raises(RolledBack):
        take_up(RUN, scene.tools(scene.hosts()), Goal.RESUME, resolve=no_secrets, on_commit=scene.commit)
    assert scene.things(WAITING) == set()
    assert journal_file.summary(scene.state, RunId(RUN)).ending == "undone"
