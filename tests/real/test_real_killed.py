"""kill -9 of the command line after every journal record of a two-host plan; then resume, and in other runs undo."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real import snapshot
from tests.real.desk import Answer, Operator
from tests.real.fleet import Fleet
from tests.real.scene import EXTRA, Scene

PAIR = ("h1", "h2")


def operators(fleet: Fleet, tmp_path: Path) -> Iterator[tuple[int, Operator, tuple[str, ...]]]:
    """A fresh desk for each record number, with the words of its deploy."""
    for number in itertools.count(1):
        operator = Operator(fleet, tmp_path / str(number), PAIR, extra=EXTRA)
        definition = Scene(fleet, operator).define({"hosts": list(PAIR), "replicas": 2})
        yield number, operator, ("pool", "deploy", "-f", str(definition), "--yes")


def last_record(operator: Operator) -> tuple[str, str]:
    """Run and kind of the last record of the run that was killed."""
    journals = sorted((operator.state / "runs").glob("*/journal.jsonl"))
    lines = journals[-1].read_text().splitlines()
    return journals[-1].parent.name, json.loads(lines[-1])["body"]["type"]


def committed(fleet: Fleet, before: snapshot.Snapshot) -> None:
    """Nothing earlier is lost, and one new replica a host runs; it is removed."""
    after = snapshot.look(fleet, PAIR)
    try:
        for name in PAIR:
            assert set(before[name]) <= set(after[name]), (before, after)
            added = set(after[name]) - set(before[name])
            assert len(added) == 1, added
            assert "\trunning\t" in next(iter(added)), added
    finally:
        for name in PAIR:
            fleet.ssh(name, "docker ps -aq --filter label=gpufleet.pool=chat | xargs -r docker rm -f")


def as_before(fleet: Fleet, before: snapshot.Snapshot, what: object) -> None:
    assert snapshot.settled_as(fleet, before) == [], what


@pytest.mark.parametrize("goal", ["resume", "undo"])
def test_killed_after_every_record(fleet: Fleet, tmp_path: Path, goal: str, cases: list[str]) -> None:
    before = snapshot.look(fleet, PAIR)
    for number, operator, words in operators(fleet, tmp_path):
        answer = operator.kill_after(number, *words)
        if answer.exit != -signal.SIGKILL:
            assert answer.exit == 0, answer
            committed(fleet, before)
            break
        run, kind = last_record(operator)
        end(fleet, operator, run, kind, goal, before)
        cases.append(f"kill -9 / after record {number} ({kind}) / {goal}")
    assert number > 10, "a two-host plan has more records than that"


def end(fleet: Fleet, operator: Operator, run: str, kind: str, goal: str, before: snapshot.Snapshot) -> None:
    """Finish a killed run as an operator would and judge what stands on the hosts."""
    listed = operator.run("change", "list")
    assert listed.exit == 0, listed
    assert run in listed.stdout, listed
    answer = operator.run("change", goal, run, "--yes")
    assert "Traceback" not in answer.text, answer
    if goal == "undo" and kind not in {"publishing", "settled"}:
        assert answer.exit == 0, answer
        as_before(fleet, before, answer)
        return
    if goal == "undo":
        assert answer.exit in {0, 2, 4}, answer
        answer = operator.run("change", "resume", run, "--yes")
    assert kind == "settled" or answer.exit == 0, answer
    committed(fleet, before)
    assert_free(fleet, answer)


def assert_free(fleet: Fleet, answer: Answer) -> None:
    """No lease is left on a host."""
    for name in PAIR:
        assert fleet.ssh(name, "ls -d ~/.gpufleet/lease 2>/dev/null; true") == "", answer
