"""A standing pool is replaced in place and one of three hosts breaks: the old replicas come back, the very same ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real import cases as table
from tests.real.desk import Operator
from tests.real.fleet import Fleet
from tests.real.scene import EXTRA, Case, Scene, Trio, play, tidy
from tests.real.stage import Stage, selected


@pytest.fixture(scope="module")
def stage(
    fleet: Fleet, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Stage[Case]]:
    """All selected cases; on each trio stands a pool that takes all its GPUs, so that new replicas need its room."""
    desks = tmp_path_factory.mktemp("desks")
    operators: dict[Trio, Operator] = {}

    def played(case: Case, trio: Trio) -> None:
        if trio not in operators:
            tidy(fleet, trio)
            operators[trio] = Operator(fleet, desks / trio[0], trio, extra=EXTRA)
            definition = Scene(fleet, operators[trio], trio).define({"slice": {"gpus": 4}})
            answer = operators[trio].run("pool", "deploy", "-f", str(definition), "--yes")
            assert answer.exit == 0, answer
        tidy(fleet, trio, containers=False)
        try:
            play(case, Scene(fleet, operators[trio], trio))
        except BaseException:
            del operators[trio]  # the next case gets a pool of its own
            raise

    with Stage(
        selected(request, "case", Case), played, alone=lambda case: case.alone, trios=fleet.trios
    ) as stage:
        yield stage
    for trio in fleet.trios:
        tidy(fleet, trio)


@pytest.mark.parametrize("case", table.IN_PLACE, ids=lambda case: case.name)
def test_a_fault_while_replacing_brings_the_old_replicas_back(
    case: Case, stage: Stage[Case], cases: list[str]
) -> None:
    stage.wait_for(case.name)
    cases.append(case.name)
