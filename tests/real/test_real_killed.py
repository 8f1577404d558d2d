"""kill -9 of the command line after every journal record of a two-host plan; then resume, and in other runs undo."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.real import snapshot
from tests.real.desk import Operator
from tests.real.fleet import Fleet
from tests.real.scene import EXTRA, Scene, Trio, tidy
from tests.real.stage import Stage, selected

RECORDS = 19
"""The opening, intent and outcome of pull, start, gate and settle on two hosts, the publishing and the end; a test
counts them."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Killed after which record, and how an operator goes on."""

    after: int
    goal: str

    @property
    def name(self) -> str:
        return f"kill -9 after record {self.after} / {self.goal}"


KILLS = [Kill(after, goal) for after in range(1, RECORDS + 1) for goal in ("resume", "undo")]


@pytest.fixture(scope="module")
def stage(
    fleet: Fleet, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Stage[Kill]]:
    desks, numbers = tmp_path_factory.mktemp("desks"), itertools.count()

    def played(kill: Kill, trio: Trio) -> None:
        tidy(fleet, trio)
        play(kill, Operator(fleet, desks / str(next(numbers)), trio[:2], extra=EXTRA))

    with Stage(selected(request, "kill", Kill), played, trios=fleet.trios) as stage:
        yield stage
    for trio in fleet.trios:
        tidy(fleet, trio)


@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: kill.name)
def test_a_killed_deploy_is_finished_or_undone(kill: Kill, stage: Stage[Kill], cases: list[str]) -> None:
    stage.wait_for(kill.name)
    cases.append(kill.name)


def test_no_record_is_left_out(
    fleet: Fleet, tmp_path_factory: pytest.TempPathFactory, stage: Stage[Kill]
) -> None:
    """A kill after one record more comes too late: the deploy has ended by itself."""
    for kill in KILLS:
        stage.wait_until_played(kill.name)
    operator = Operator(fleet, tmp_path_factory.mktemp("whole"), ("h1", "h2"), extra=EXTRA)
    before = snapshot.look(fleet, operator.hosts)
    answer = operator.kill_after(RECORDS + 1, *deploy(operator))
    assert answer.exit == 0, answer
    assert len(journal(operator)[1]) == RECORDS
    assert_committed(operator, before)


def deploy(operator: Operator) -> tuple[str, ...]:
    definition = Scene(operator.fleet, operator).define({"hosts": list(operator.hosts), "replicas": 2})
    return ("pool", "deploy", "-f", str(definition), "--yes")


def journal(operator: Operator) -> tuple[str, list[str]]:
    """The run of this desk and the kinds of its records."""
    (path,) = (operator.state / "runs").glob("*/journal.jsonl")
    return path.parent.name, [json.loads(line)["body"]["type"] for line in path.read_text().splitlines()]


def play(kill: Kill, operator: Operator) -> None:
    """Kill a deploy, finish it as an operator would, and judge what stands on the hosts."""
    before = snapshot.look(operator.fleet, operator.hosts)
    answer = operator.kill_after(kill.after, *deploy(operator))
    assert answer.exit == -signal.SIGKILL, answer
    run, kinds = journal(operator)
    assert len(kinds) == kill.after
    listed = operator.run("change", "list")
    assert run in listed.stdout, listed
    ended = operator.run("change", kill.goal, run, "--yes")
    assert "Traceback" not in ended.text, ended
    if kill.goal == "undo" and "publishing" not in kinds:
        assert ended.exit == 0, ended
        left = snapshot.settled_as(operator.fleet, before)
        assert left == [], f"{left}: {ended}"
    else:
        if kill.goal == "undo":
            assert ended.exit not in {0, 1} or ended.fields["outcome"] == "no_change", ended
            ended = operator.run("change", "resume", run, "--yes")
        assert ended.exit == 0 or "settled" in kinds, ended
        assert_committed(operator, before)
    for name in operator.hosts:
        assert operator.fleet.ssh(name, "ls -d ~/.gpufleet/lease 2>/dev/null; true") == "", ended


def assert_committed(operator: Operator, before: snapshot.Snapshot) -> None:
    """Nothing earlier is lost, and one new replica a host runs; it is removed."""
    after = snapshot.look(operator.fleet, operator.hosts)
    try:
        for name in operator.hosts:
            assert set(before[name]) <= set(after[name]), (before, after)
            added = set(after[name]) - set(before[name])
            assert len(added) == 1, added
            assert "\trunning\t" in next(iter(added)), added
    finally:
        for name in operator.hosts:
            operator.fleet.ssh(
                name, "docker ps -aq --filter label=gpufleet.pool=chat | xargs -r docker rm -f"
            )
