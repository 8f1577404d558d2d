"""Whole changes over folders behind real shells: what the hosts look like afterwards is what counts."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from gpufleet.change.events import Ending, Goal, Progress
from gpufleet.change.flow import Change, Tools, run_change, take_up
from gpufleet.change.leases import fence
from gpufleet.change.records import journal_file
from gpufleet.change.records.journal import Intent, opening
from gpufleet.clock import SystemClock
from gpufleet.errors import (
    ExitCode,
    FleetError,
    HostUnreachable,
    InDoubt,
    LeaseHeld,
    Refused,
    RollbackIncomplete,
    RolledBack,
    StalePlan,
)
from gpufleet.names import HostName, RunId
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from tests.kit.change_plans import PREDICATES, look, plan, step
from tests.kit.shell_hosts import LOSE_AFTER, LOSE_BEFORE, NOT_SENT, ShellHosts

RUN = RunId("20260101T000000-abcdef")


class QuickClock(SystemClock):
    """Real time, but nobody waits a whole second for a host that is only a folder."""

    def sleep(self, seconds: float) -> None:
        super().sleep(min(seconds, 0.01))


class Site:
    """One operator's machine and the hosts."""

    def __init__(self, path: Path) -> None:
        self.hosts = ShellHosts(path / "hosts")
        self.state = path / "state"
        self.published: list[dict[str, str]] = []
        self.seen: list[object] = []

    def tools(self, **changes) -> Tools:
        fields = {
            "transport": self.hosts,
            "clock": QuickClock(),
            "predicates": PREDICATES,
            "state_dir": self.state,
            "operator": "ann@desk pid 1",
            "observer": lambda _step, event: self.seen.append(event),
        }
        return Tools(**{**fields, **changes})

    def commit(self, run: RunId, context) -> None:
        self.published.append({"run": run, **context})

    def run(self, the_plan, **changes) -> Change:
        return run_change(the_plan, self.tools(), **{"on_commit": self.commit, "run": RUN, **changes})

    def take_up(self, goal: Goal, **changes) -> Change:
        return take_up(
            RUN, self.tools(), goal, **{"resolve": no_secrets, "on_commit": self.commit, **changes}
        )

    def things(self, *hosts: str) -> dict[str, set[str]]:
        return {host: {item.name for item in self.hosts.home(host).glob("things/*")} for host in hosts}

    def leases(self, *hosts: str) -> list[str]:
        return [host for host in hosts if (self.hosts.home(host) / ".gpufleet" / "lease").exists()]


def no_secrets(reference: str) -> Secret[str]:
    raise AssertionError(f"no secret expected, {reference} asked")


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path)


CHAIN = plan(step("a1", "a"), step("a2", "a", "a1"), step("b1", "b"), step("b2", "b", "b1", "a2"))


def test_a_change_commits_whole_and_says_so_everywhere(site):
    change = site.run(CHAIN)
    assert change.ending is Ending.COMMITTED
    assert site.things("a", "b") == {"a": {"a1", "a2"}, "b": {"b1", "b2"}}
    assert site.published == [{"run": RUN, "pool": "chat"}]
    assert [row.status for row in change.rows] == ["done", "done"]
    assert site.leases("a", "b") == []
    (summary,) = journal_file.summaries(site.state)
    assert (summary.run, summary.ending, summary.busy) == (RUN, "committed", False)
    for host in ("a", "b"):
        folder = site.hosts.home(host) / ".gpufleet" / "runs" / RUN
        assert (folder / "settled").read_text() == "committed\n"
        records = journal_file.parse((folder / "journal.jsonl").read_bytes(), host)[0]
        assert opening(records, no_secrets).plan == CHAIN
        assert {record.body.step for record in records if isinstance(record.body, Intent)} == {
            f"{host}1",
            f"{host}2",
        }


def test_it_costs_one_exec_a_command_two_for_the_lease_and_one_for_the_commit(site):
    site.run(plan(step("a1", "a"), step("a2", "a", "a1")))
    assert len(site.hosts.ran) == 2 * 2 + 2 + 1


def test_a_holder_whose_lease_was_taken_over_publishes_nothing(site):
    def fault(host: HostName, command: Command) -> str | None:
        if host == "b" and command.script.endswith('exit "$status"\n') and "\n:\n" in command.script:
            (site.hosts.home("b") / ".gpufleet" / "lease" / "lease.json").write_text('{"token":"other"}')
        return None

    site.hosts.fault = fault
    with pytest.raises(InDoubt, match="another operator took over the lease"):
        site.run(CHAIN)
    assert site.published == []


def test_the_copies_know_that_a_run_publishes_before_it_does(site):
    def seen(_run, _context) -> None:
        for host in ("a", "b"):
            copy = site.hosts.home(host) / ".gpufleet" / "runs" / RUN / "journal.jsonl"
            assert b'"publishing"' in copy.read_bytes()
        site.published.append({})

    site.run(CHAIN, on_commit=seen)
    assert site.published == [{}]


def test_a_failure_leaves_every_host_as_it_was(site):
    broken = Command(script="echo 'no space left on device' >&2; exit 1", mutates=True)
    with pytest.raises(RolledBack) as caught:
        site.run(plan(*CHAIN.steps, step("c1", "c", do=(broken,))))
    assert caught.value.run == RUN
    assert "c: put c1: no space left on device (exit status 1)" in caught.value.summary
    assert site.things("a", "b", "c") == {"a": set(), "b": set(), "c": set()}
    assert site.published == []
    assert site.leases("a", "b", "c") == []
    hosts = {row["host"]: row for row in caught.value.fields["hosts"]}  # type: ignore[attr-defined]  # a list here
    assert hosts["c"]["reason"] == "no space left on device (exit status 1)"
    assert hosts["c"]["phase"] == "put"


def test_a_permanent_no_ends_a_long_wait_at_once_and_others_do_not_wait_on(site):
    waiting = step("slow", "b", verify=look("never", "there", within=3600.0))
    broken_look = Command(script="echo broken", mutates=False)
    verify = look("x", "there", within=3600.0)
    broken = step(
        "bad", "a", verify=type(verify)(look=broken_look, expect="said", data=("there",), within=3600.0)
    )
    with pytest.raises(RolledBack) as caught:
        site.run(plan(waiting, broken))
    assert caught.value.hints[0] == "give it more memory"
    assert "the engine exited with code 1" in caught.value.summary
    assert site.things("a", "b") == {"a": set(), "b": set()}


def test_a_wait_without_progress_stalls(site):
    patient = step("slow", "a", verify=look("never", "there", within=3600.0, stall=0.2, every=0.01))
    with pytest.raises(RolledBack) as caught:
        site.run(plan(patient))
    assert "no progress for 0 s: it is gone" in caught.value.summary


@pytest.mark.parametrize("moment", [LOSE_BEFORE, LOSE_AFTER, NOT_SENT])
def test_one_lost_answer_is_looked_into_and_the_run_goes_on(site, moment: str):
    lost: list[Command] = []

    def fault(_host: HostName, command: Command) -> str | None:
        if command.mutates and "things" in command.script and not lost:
            lost.append(command)
            return moment
        return None

    site.hosts.fault = fault
    assert site.run(CHAIN).ending is Ending.COMMITTED
    assert lost
    assert site.things("a", "b") == {"a": {"a1", "a2"}, "b": {"b1", "b2"}}


@pytest.mark.parametrize("moment", [LOSE_BEFORE, LOSE_AFTER])
def test_an_answer_lost_again_and_again_never_counts_as_a_no(site, moment):
    site.hosts.fault = lambda host, command: (
        moment if host == "b" and 'printf "%s" "$2"' in command.script else None
    )
    if moment == LOSE_AFTER:
        assert site.run(CHAIN).ending is Ending.COMMITTED
    else:
        with pytest.raises(RolledBack):
            site.run(CHAIN)
        assert site.things("a", "b") == {"a": set(), "b": set()}


def dies_when(site: Site, host: str, name: str) -> None:
    """`host` is gone right after the step `name` took effect there."""

    def fault(on: HostName, command: Command) -> str | None:
        if on == host and name in command.argv and 'printf "%s" "$2"' in command.script:
            site.hosts.execute(on, command)
            site.hosts.dead.add(on)
            return LOSE_BEFORE
        return None

    site.hosts.fault = fault


def test_a_host_that_dies_is_named_the_others_are_undone_and_undo_finishes_later(site):
    dies_when(site, "b", "b2")
    with pytest.raises(RollbackIncomplete) as caught:
        site.run(CHAIN)
    assert caught.value.exit is ExitCode.INCOMPLETE
    assert site.things("a", "b") == {"a": set(), "b": {"b1", "b2"}}
    (row,) = [row for row in caught.value.rows if row.where == "b"]
    assert "left: put b1, put b2" in row.message
    assert f"gpufleet change undo {RUN}" in caught.value.hints[0]
    with pytest.raises(RollbackIncomplete):
        site.take_up(Goal.UNDO)
    site.hosts.dead.clear()
    assert site.take_up(Goal.UNDO).ending is Ending.UNDONE
    assert site.things("a", "b") == {"a": set(), "b": set()}
    assert site.leases("a", "b") == []
    assert site.take_up(Goal.UNDO).ending is Ending.UNDONE
    with pytest.raises(Refused, match="the run is undone and over"):
        site.take_up(Goal.RESUME)


def test_a_host_that_is_dead_before_its_first_act_needs_no_undo(site):
    def fault(host: HostName, command: Command) -> str | None:
        return NOT_SENT if host == "b" and "things" in command.script else None

    site.hosts.fault = fault
    with pytest.raises(RolledBack):
        site.run(plan(step("a1", "a"), step("b1", "b", "a1")))
    assert site.things("a") == {"a": set()}


def test_an_unreachable_host_stops_everything_before_anything(site):
    site.hosts.dead.add(HostName("b"))
    with pytest.raises(HostUnreachable) as caught:
        site.run(CHAIN)
    assert caught.value.where == "b"
    assert site.things("a", "b") == {"a": set(), "b": set()}
    assert site.leases("a") == []
    assert journal_file.summaries(site.state) == ()


def test_a_held_lease_stops_everything_and_says_who(site, tmp_path):
    other = Site(tmp_path / "other")
    other.hosts = site.hosts
    held, go = threading.Event(), threading.Event()

    def slow_commit(_run, _context) -> None:
        held.set()
        go.wait(30)

    thread = threading.Thread(
        target=lambda: other.run(
            plan(step("b9", "b")), on_commit=slow_commit, run=RunId("20260101T000001-abcdef")
        )
    )
    thread.start()
    assert held.wait(30)
    try:
        with pytest.raises(LeaseHeld) as caught:
            site.run(CHAIN)
    finally:
        go.set()
        thread.join()
    assert "ann@desk pid 1" in caught.value.rows[0].message
    assert site.things("a") == {"a": set()}
    assert site.leases("a", "b") == []


def test_facts_that_moved_are_found_under_the_lease(site):
    def moved() -> None:
        raise StalePlan("the fleet moved")

    with pytest.raises(StalePlan):
        site.run(CHAIN, recheck=moved)
    assert site.leases("a", "b") == []
    assert journal_file.summaries(site.state) == ()


def test_a_lease_taken_over_in_the_middle_stops_the_run_in_doubt(site):
    def fault(host: HostName, command: Command) -> str | None:
        if host == "b" and "b2" in command.argv:
            (site.hosts.home("b") / ".gpufleet" / "lease" / "lease.json").write_text('{"token":"other"}')
        return None

    site.hosts.fault = fault
    with pytest.raises(InDoubt) as caught:
        site.run(CHAIN)
    assert "another operator took over the lease" in caught.value.summary
    assert site.things("b") == {"b": {"b1"}}


def test_a_refused_commit_undoes_and_a_failed_one_is_resumed(site):
    def refuse(_run, _context) -> None:
        raise Refused("routes moved")

    with pytest.raises(RolledBack, match="routes moved"):
        site.run(CHAIN, on_commit=refuse)
    assert site.things("a", "b") == {"a": set(), "b": set()}

    def fail(_run, _context) -> None:
        raise OSError(28, "No space left on device")

    again = RunId("20260101T000002-abcdef")
    with pytest.raises(InDoubt, match="publishing failed") as caught:
        site.run(CHAIN, on_commit=fail, run=again)
    assert caught.value.hints == (f"gpufleet change resume {again}",)
    with pytest.raises(Refused):
        take_up(again, site.tools(), Goal.UNDO, resolve=no_secrets, on_commit=site.commit)
    change = take_up(again, site.tools(), Goal.RESUME, resolve=no_secrets, on_commit=site.commit)
    assert change.ending is Ending.COMMITTED
    assert site.published == [{"run": again, "pool": "chat"}]


def test_a_full_disk_under_the_journal_stops_before_the_act(site, monkeypatch):
    real = journal_file.JournalFile.append
    written: list[object] = []

    def full(self, body):
        written.append(body)
        if len(written) == 4:
            monkeypatch.setattr(journal_file, "_write_whole", no_space)
        return real(self, body)

    def no_space(_number, _content) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal_file.JournalFile, "append", full)
    before = len(site.hosts.ran)
    with pytest.raises(InDoubt, match="No space left on device"):
        site.run(plan(step("a1", "a"), step("a2", "a", "a1")))
    assert before == 0
    assert site.things("a") == {"a": {"a1"}}
    monkeypatch.undo()
    assert site.take_up(Goal.RESUME).ending is Ending.COMMITTED


def test_secrets_are_on_no_disk_and_in_no_error(site):
    secret = Secret("hf_planted0123456789", reference="${env:HF_TOKEN}")
    leak = Command(script='echo "bad token $1" >&2; exit 1', argv=(secret,), mutates=True)
    with pytest.raises(RolledBack) as caught:
        site.run(plan(step("a1", "a"), step("b1", "b", "a1", do=(leak,))))
    everything = [path.read_bytes() for path in site.state.parent.rglob("*") if path.is_file()]
    assert any(b"${env:HF_TOKEN}" in content for content in everything)
    assert not any(secret.reveal().encode() in content for content in everything)
    assert secret.reveal() not in str(caught.value) + json.dumps(caught.value.fields, default=str)


def test_progress_is_told_and_never_journaled(site):
    counting = Command(
        script='n=$(cat "$HOME/n" 2>/dev/null); n=$((${n:-0} + 1)); echo $n >"$HOME/n"; echo $n',
        mutates=False,
    )

    def third(answer, _words):
        from gpufleet.change.model import Holds, Waits

        text = answer.stdout.strip()
        return Holds() if text == "3" else Waits(progress=text, reason=f"loading {text}/3")

    check = look("x", "there", within=600.0, every=0.01)
    the_step = step("a1", "a", verify=type(check)(look=counting, expect="third", within=600.0, every=0.01))
    tools = site.tools(predicates={**PREDICATES, "third": third})
    run_change(plan(the_step), tools, on_commit=site.commit, run=RUN)
    told = [event.text for event in site.seen if isinstance(event, Progress)]
    assert told == ["loading 1/3", "loading 2/3"]


def test_an_observer_whose_terminal_is_gone_stops_nothing(site):
    def gone(_step, _event) -> None:
        raise OSError(5, "Input/output error")

    run_change(CHAIN, site.tools(observer=gone), on_commit=site.commit, run=RUN)
    assert site.things("a", "b") == {"a": {"a1", "a2"}, "b": {"b1", "b2"}}


def test_a_command_that_outlives_its_connection_is_waited_for(site, monkeypatch):
    monkeypatch.setattr(fence, "PATIENCE", 1)
    home = site.hosts.home("a")
    slow = 'touch "$HOME/begun"; while [ ! -e "$HOME/go" ]; do sleep 0.05; done; mkdir -p "$HOME/things"; touch "$HOME/things/a1"'
    the_plan = plan(step("a1", "a", do=(Command(script=slow, mutates=True, timeout=100.0),)))
    cut: list[threading.Thread] = []

    def fault(host: HostName, command: Command) -> str | None:
        if "begun" in command.script and not cut:
            cut.append(threading.Thread(target=site.hosts.execute, args=(host, command)))
            cut[0].start()
            while not (home / "begun").exists():
                site.tools().clock.sleep(0.01)
            return LOSE_BEFORE
        return None

    def told(_step, event) -> None:
        if isinstance(event, Progress):
            (home / "go").touch()
        site.seen.append(event)

    site.hosts.fault = fault
    run_change(the_plan, site.tools(observer=told), on_commit=site.commit, run=RUN)
    cut[0].join()
    assert any(isinstance(event, Progress) for event in site.seen)
    assert site.things("a") == {"a": {"a1"}}
    assert len([command for _host, command in site.hosts.ran if "begun" in command.script]) == 1


def test_failures_are_fleet_errors(site):
    with pytest.raises(FleetError):
        take_up(
            RunId("20200101T000000-000000"),
            site.tools(),
            Goal.RESUME,
            resolve=no_secrets,
            on_commit=site.commit,
        )
