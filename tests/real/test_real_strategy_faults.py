"""One of two hosts breaks in the middle of a rolling, a canary and a blue-green deploy, at every phase of it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.real import snapshot, strategy_cases
from tests.real.desk import Answer, Operator
from tests.real.fleet import Fleet
from tests.real.scene import EXTRA, Scene, Trio, tidy
from tests.real.stage import Stage, selected
from tests.real.strategy_cases import StrategyCase

PLAIN = "{v0.11.2}"


@dataclass
class Standing:
    """A pool that serves on two hosts of a trio, and the desk it was deployed from."""

    scene: Scene
    in_place: bool

    @property
    def names(self) -> tuple[str, str]:
        return self.scene.trio[0], self.scene.trio[2]

    def turned(self, *, canary: bool) -> None:
        """Let the host break that is first in order, or the one that is last."""
        first, middle, last = sorted(self.scene.trio)
        self.scene.trio = (last, middle, first) if canary else (first, middle, last)

    def define(self, image: str, strategy: str = "all-at-once") -> Path:
        wish: object = strategy
        if strategy == "canary":
            # Nobody asks these replicas anything, so nothing can be known of the canary.
            wish = {"kind": "canary", "observe": 0, "min_requests": 1, "deadline": 1, "unknown": "proceed"}
        return self.scene.define(
            {
                "hosts": list(self.names),
                "replicas": 2,
                "slice": {"gpus": 4 if self.in_place else 1},
                "engine": {"image": image},
                "gate": {"every": 0.2, "stall": 10, "within": 20},
                "strategy": wish,
            }
        )

    def routes(self) -> object:
        """What is published, without generation and time."""
        return json.loads((self.scene.operator.state / "routes.json").read_text())["pools"]

    def deploy(self, image: str) -> None:
        answer = self.scene.operator.run("pool", "deploy", "-f", str(self.define(image)), "--yes")
        assert answer.exit == 0, answer


@pytest.fixture(scope="module")
def stage(
    fleet: Fleet, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Stage[StrategyCase]]:
    """All selected cases, side by side on the trios; a standing pool is made anew when a case left another one."""
    desks, numbers = tmp_path_factory.mktemp("desks"), itertools.count()
    standing: dict[Trio, Standing] = {}

    def played(case: StrategyCase, trio: Trio) -> None:
        there = standing.pop(trio, None)
        if there is None or there.in_place is not case.in_place:
            tidy(fleet, trio)
            operator = Operator(fleet, desks / str(next(numbers)), trio, extra=EXTRA)
            there = Standing(Scene(fleet, operator, trio), case.in_place)
            there.deploy(PLAIN)
        else:
            tidy(fleet, trio, containers=False)
        there.turned(canary=case.strategy == "canary")
        if play(case, there):
            standing[trio] = there

    with Stage(selected(request, "case", StrategyCase), played, trios=fleet.trios) as stage:
        yield stage
    for trio in fleet.trios:
        tidy(fleet, trio)


def play(case: StrategyCase, there: Standing) -> bool:
    """Whether the pool stands as before; False when it was replaced."""
    fleet, operator, names = there.scene.fleet, there.scene.operator, there.names
    before, routes = snapshot.look(fleet, names), there.routes()
    answer = _deploy(case, there)
    assert answer.exit in case.exits, answer
    assert "Traceback" not in answer.text, answer
    if answer.exit == 0:
        _assert_replaced(there, before)
        return False
    if case.away:
        finished = operator.run("change", "undo", str(answer.fields["run"]), "--yes")
        assert finished.exit == 0, finished
    assert snapshot.settled_as(fleet, before) == [], answer
    assert there.routes() == routes, answer
    _assert_no_trace(there)
    return True


def _deploy(case: StrategyCase, there: Standing) -> Answer:
    """Deploy with the fault in it; when this returns, the fault is repaired."""
    scene = there.scene
    words = ("pool", "deploy", "-f", str(there.define(case.image, case.strategy)), "--yes")
    with scene.damage:
        if not case.at:
            scene.damage.enter_context(case.inject(scene))
            return scene.operator.run(*words)
        with scene.operator.pause_at(case.at.format(host=scene.host.name), *words) as started:
            assert started.wait_until_reached(), f"no record like `{case.at}`: {started.answer()}"
            scene.damage.enter_context(case.inject(scene))
            started.let_go()
            if case.midway:
                case.midway(scene, started)
            return started.answer()


def _assert_replaced(there: Standing, before: snapshot.Snapshot) -> None:
    """Somebody else's container is the same, and one new replica a host runs in place of the old one."""
    after = snapshot.look(there.scene.fleet, there.names)
    for name in there.names:
        assert len(after[name]) == len(before[name]), (before, after)
        assert len(set(after[name]) - set(before[name])) == 1, (before, after)
        (new,) = set(after[name]) - set(before[name])
        assert "\trunning\t" in new, after
    _assert_no_trace(there)


def _assert_no_trace(there: Standing) -> None:
    """No lease and no file with an environment is left on a host."""
    asked = "ls -A ~/.gpufleet/env 2>/dev/null; ls -d ~/.gpufleet/lease 2>/dev/null; true"
    found = {name: there.scene.fleet.ssh(name, asked).strip() for name in there.names}
    assert set(found.values()) == {""}, found


def test_the_table_names_each_case_once() -> None:
    names = [case.name for case in strategy_cases.CASES]
    assert len(set(names)) == len(names) >= 40


@pytest.mark.parametrize("case", strategy_cases.CASES, ids=lambda case: case.name)
def test_a_fault_in_the_middle_leaves_all_as_before_or_as_asked(
    case: StrategyCase, stage: Stage[StrategyCase], cases: list[str]
) -> None:
    stage.wait_for(case.name)
    cases.append(case.name)
