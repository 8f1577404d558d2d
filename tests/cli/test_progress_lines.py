"""What a person reads while a change goes on: every event of a few hosts, counts of many."""

from __future__ import annotations

import pytest

from gpufleet.change.events import Act, Begun, Ended, Ending, Progress, Result, Settled, Turned
from gpufleet.change.model import Step
from gpufleet.cli.progress import EVERY, Narrator
from tests.kit.change_plans import step
from tests.kit.lab_kit import LabClock

PHASES = ("pull", "start", "gate")


def steps(hosts: int) -> tuple[Step, ...]:
    return tuple(
        step(f"{phase}-{number}", f"gpu-{number:03}", phase=phase)
        for phase in PHASES
        for number in range(hosts)
    )


def play(hosts: int, clock: LabClock) -> Narrator:
    """A deploy whose engines load for a minute and tell of it every second."""
    plan = steps(hosts)
    narrator = Narrator(clock)
    narrator(None, Begun(steps=plan, done=frozenset()))
    for one in plan:
        clock.sleep(0.05)
        if one.phase == "gate":
            break
        narrator(one, Ended(step=one.id, act=Act.DO, result=Result.SUCCEEDED))
    gates = [one for one in plan if one.phase == "gate"]
    for second in range(60):
        for one in gates:
            text = f"loading shards {second}% Completed; the log's last line: 7 of 9"
            narrator(one, Progress(step=one.id, text=text))
        clock.sleep(1.0)
    for one in gates:
        narrator(one, Ended(step=one.id, act=Act.DO, result=Result.SUCCEEDED))
    narrator(None, Settled(ending=Ending.COMMITTED))
    return narrator


def test_many_hosts_are_told_in_counts(capsys):
    play(200, LabClock())
    said = capsys.readouterr().err.splitlines()
    assert len(said) < 20
    assert any("pull 200/200" in line for line in said)
    assert any("start 200/200, 199 wait: loading shards " in line for line in said)
    assert said[-2].endswith("pull 200/200, start 200/200, gate 200/200")
    assert said[-1] == "run committed"
    assert not any("gpu-" in line for line in said)
    assert max(len(line) for line in said) < 200


def test_few_hosts_are_told_one_by_one(capsys):
    play(2, LabClock())
    said = capsys.readouterr().err.splitlines()
    assert sum(line.endswith(": done") for line in said) == 6
    assert sum("loading shards" in line for line in said) == 120


def test_what_goes_wrong_is_told_with_its_host_and_the_way_back_in_counts(capsys):
    clock = LabClock()
    narrator = play(200, clock)
    capsys.readouterr()
    plan = steps(200)
    narrator(None, Begun(steps=plan, done=frozenset(one.id for one in plan[:200])))
    bad = plan[207]
    narrator(bad, Ended(step=bad.id, act=Act.DO, result=Result.FAILED, reason="no space left\nand more"))
    narrator(None, Turned(reason="no space left"))
    for one in plan[:200]:
        clock.sleep(EVERY / 50)
        narrator(one, Ended(step=one.id, act=Act.UNDO, result=Result.SUCCEEDED))
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"gpu-007: {bad.title}: failed: no space left"
    assert said[1] == "turning back: no space left"
    assert said[-1].startswith("0:")
    assert "pull 200/200, undone " in said[-1]
    assert len(said) == pytest.approx(2 + 4, abs=1)
