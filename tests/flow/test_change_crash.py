"""A change whose process dies after each journal record, taken up by another: the hosts are new or old, never between."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.change.events import Ending, Goal
from gpufleet.change.flow import Tools, run_change, take_up
from gpufleet.change.model import Plan, Step
from gpufleet.change.records import journal_file
from gpufleet.change.records.journal import Settled
from gpufleet.change.table import RunPhase
from gpufleet.clock import SystemClock
from gpufleet.errors import FleetError, InDoubt, Refused, RollbackIncomplete, RolledBack
from gpufleet.names import HostName, RunId, StepId
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from tests.kit.change_plans import PREDICATES, plan, step
from tests.kit.shell_hosts import LOSE_AFTER, LOSE_BEFORE, NOT_SENT, ShellHosts

RUN = RunId("20260101T000000-abcdef")
CHAIN = plan(step("a1", "a"), step("a2", "a", "a1"), step("b1", "b"), step("b2", "b", "b1", "a2"))
RECORDS = 1 + 2 * len(CHAIN.steps) + 2
"""Of a run without trouble: opened, an intent and an outcome a step, publishing, settled."""


class Killed(BaseException):
    """The process is gone."""


class QuickClock(SystemClock):
    def sleep(self, seconds: float) -> None:
        super().sleep(min(seconds, 0.005))


class DyingJournal:
    """Lets `alive` records through to the disk; with the last one the process dies, and its connections with it."""

    def __init__(self, hosts: ShellHosts, alive: int) -> None:
        self.hosts = hosts
        self.alive = alive
        self.real = journal_file.JournalFile.append

    def method(self):
        """As an attribute of the class, where a bound method would not get the file."""

        def append(file, body):
            return self.append(file, body)

        return append

    def append(self, file, body):
        if len(file.records) >= self.alive:
            self.die()
        record = self.real(file, body)
        if len(file.records) >= self.alive:
            self.die()
        return record

    def die(self):
        self.hosts.cut = True
        raise Killed


class Scene:
    """The hosts' folders, which outlive every process, and the operator's state directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = path / "state"
        self.published: list[str] = []

    def tools(self, hosts: ShellHosts) -> Tools:
        return Tools(
            transport=hosts,
            clock=QuickClock(),
            predicates=PREDICATES,
            state_dir=self.state,
            operator="ann@desk",
            forks=4,
        )

    def hosts(self) -> ShellHosts:
        return ShellHosts(self.path / "hosts")

    def run_until(self, the_plan: Plan, records: int, monkeypatch, hosts: ShellHosts | None = None) -> bool:
        """Whether it died before it ended."""
        hosts = hosts or self.hosts()
        dying = DyingJournal(hosts, records)
        with monkeypatch.context() as patch:
            patch.setattr(journal_file.JournalFile, "append", dying.method())
            try:
                run_change(the_plan, self.tools(hosts), on_commit=self.commit, run=RUN)
            except Killed:
                hosts.wait_idle()
                return True
        return False

    def take_up(self, goal: Goal, hosts: ShellHosts | None = None) -> Ending:
        change = take_up(
            RUN, self.tools(hosts or self.hosts()), goal, resolve=no_secrets, on_commit=self.commit
        )
        return change.ending

    def commit(self, run, context) -> None:
        self.published.append(run)

    def things(self, the_plan: Plan) -> set[str]:
        return {
            item.name for host in the_plan.hosts for item in (self.path / "hosts" / host / "things").glob("*")
        }

    def ended(self) -> str:
        (summary,) = journal_file.summaries(self.state)
        return summary.ending


def no_secrets(reference: str) -> Secret[str]:
    raise AssertionError(reference)


@pytest.mark.parametrize("goal", list(Goal))
@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("records", range(1, RECORDS + 1))
def test_a_crash_after_each_record(tmp_path, monkeypatch, records, torn, goal):
    scene = Scene(tmp_path)
    assert scene.run_until(CHAIN, records, monkeypatch)
    assert scene.ended() == ("committed" if records == RECORDS else "")
    journal = scene.state / "runs" / RUN / "journal.jsonl"
    if torn:
        with journal.open("ab") as file:
            file.write(b'{"v":1,"seq":99,"at":"2026')
    publishing = records >= RECORDS - 1
    if goal is Goal.UNDO and publishing:
        with pytest.raises(Refused):
            scene.take_up(goal)
        goal = Goal.RESUME
    ending = scene.take_up(goal)
    if goal is Goal.RESUME:
        assert ending is Ending.COMMITTED
        assert scene.things(CHAIN) == {"a1", "a2", "b1", "b2"}
        assert scene.published[-1] == RUN
    else:
        assert ending is Ending.UNDONE
        assert scene.things(CHAIN) == set()
        assert scene.published == []
    assert scene.ended() == ending.value
    assert not list((tmp_path / "hosts").glob("*/.gpufleet/lease"))


def failing_plan() -> Plan:
    broken = Command(script="exit 1", mutates=True)
    return plan(step("a1", "a"), step("b1", "b", "a1"), step("b2", "b", "b1", do=(broken,)))


UNTIL_FAILED = 1 + 3 * 2


@pytest.mark.parametrize("goal", list(Goal))
def test_a_crash_after_each_record_of_a_rollback_goes_on_undoing(tmp_path, monkeypatch, goal):
    records = UNTIL_FAILED
    while True:
        scene = Scene(tmp_path / str(records))
        try:
            scene.run_until(failing_plan(), records, monkeypatch)
        except RolledBack:
            break
        try:
            assert scene.take_up(goal) is Ending.UNDONE
        except (RolledBack, Refused):
            assert goal is Goal.RESUME
        assert scene.things(CHAIN) == set()
        assert scene.ended() == "undone"
        records += 1
    assert records == UNTIL_FAILED + 1 + 3 * 2 + 1 + 1


def test_a_resume_whose_host_is_away_starts_nothing_and_undo_undoes_the_rest(tmp_path, monkeypatch):
    scene = Scene(tmp_path)
    assert scene.run_until(CHAIN, 6, monkeypatch)
    before = scene.things(CHAIN)
    away = scene.hosts()
    away.dead.add(HostName("b"))
    with pytest.raises(InDoubt, match="not reached: b; nothing was started"):
        scene.take_up(Goal.RESUME, away)
    assert scene.things(CHAIN) == before
    with pytest.raises(RollbackIncomplete):
        scene.take_up(Goal.UNDO, away)
    assert {name for name in scene.things(CHAIN) if name.startswith("a")} == set()
    assert scene.take_up(Goal.UNDO) is Ending.UNDONE
    assert scene.things(CHAIN) == set()


def test_two_resumes_cannot_collide(tmp_path, monkeypatch):
    scene = Scene(tmp_path)
    assert scene.run_until(CHAIN, 3, monkeypatch)
    with (
        journal_file.reopen(scene.state, RUN, QuickClock()),
        pytest.raises(Refused, match="another process works on run"),
    ):
        scene.take_up(Goal.RESUME)
    assert scene.take_up(Goal.RESUME) is Ending.COMMITTED


CHILD = """
import os, signal, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from gpufleet.change.records import journal_file
from gpufleet.change.flow import run_change
from tests.flow.test_change_crash import CHAIN, RUN, Scene
alive = int(sys.argv[2])
real = journal_file.JournalFile.append
def append(self, body):
    record = real(self, body)
    if len(self.records) == alive:
        os.kill(os.getpid(), signal.SIGKILL)
    return record
journal_file.JournalFile.append = append
scene = Scene(Path(sys.argv[1]))
run_change(CHAIN, scene.tools(scene.hosts()), on_commit=scene.commit, run=RUN)
"""


@pytest.mark.parametrize("records", [2, 5, 10])
def test_kill_minus_nine_of_a_real_process(tmp_path, records):
    root = str(Path(__file__).parents[2])
    code = textwrap.dedent(CHILD.format(root=root))
    child = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(records)], check=False, timeout=100
    )
    assert child.returncode == -9
    scene = Scene(tmp_path)
    (summary,) = journal_file.summaries(scene.state)
    assert (summary.ending, summary.busy, len(summary.records)) == ("", False, records)
    assert scene.take_up(Goal.RESUME) is Ending.COMMITTED
    assert scene.things(CHAIN) == {"a1", "a2", "b1", "b2"}


@st.composite
def plans(draw):
    steps: list[Step] = []
    for number in range(draw(st.integers(1, 5))):
        names = [item.id for item in steps]
        after = draw(st.frozensets(st.sampled_from(names), max_size=2)) if names else frozenset[StepId]()
        steps.append(step(f"s{number}", draw(st.sampled_from("ab")), *after))
    return plan(*steps)


@settings(max_examples=20, deadline=None)
@given(plans(), st.integers(0, 2**32), st.integers(1, 30), st.lists(st.sampled_from(Goal), max_size=2))
def test_random_faults_and_a_crash_leave_the_hosts_new_or_old(
    tmp_path_factory, the_plan, seed, records, goals
):
    scene = Scene(tmp_path_factory.mktemp("scene"))
    hosts = scene.hosts()
    hosts.fault = faults(random.Random(seed))
    with pytest.MonkeyPatch.context() as monkeypatch:
        try:
            scene.run_until(the_plan, records, monkeypatch, hosts)
        except FleetError:
            hosts.wait_idle()
    for goal in [*goals, Goal.UNDO]:
        if not journal_file.summaries(scene.state) or scene.ended() in {"committed", "undone"}:
            break
        try:
            scene.take_up(goal)
        except Refused:
            scene.take_up(Goal.RESUME)
        except RolledBack:
            assert goal is Goal.RESUME
    everything = {item.id for item in the_plan.steps}
    if journal_file.summaries(scene.state) and scene.ended() == "committed":
        assert scene.things(the_plan) == everything
        assert scene.published
    else:
        assert scene.things(the_plan) == set()
        assert not scene.published


def faults(dice: random.Random):
    def fault(_host: HostName, command: Command) -> str | None:
        if dice.random() < 0.1:
            return dice.choice([LOSE_BEFORE, LOSE_AFTER, NOT_SENT])
        return None

    return fault


def test_the_journal_says_what_the_run_became(tmp_path, monkeypatch):
    scene = Scene(tmp_path)
    assert not scene.run_until(CHAIN, 1000, monkeypatch)
    (summary,) = journal_file.summaries(scene.state)
    assert len(summary.records) == RECORDS
    assert summary.records[-1].body == Settled(Ending.COMMITTED)
    assert RunPhase(summary.ending) is RunPhase.COMMITTED
