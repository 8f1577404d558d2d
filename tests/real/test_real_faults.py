"""Bulk deploys on three real hosts of which one breaks: afterwards every host is as it was, asked by plain ssh."""

from __future__ import annotations

import itertools
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
    """All selected cases, played on two trios side by side."""
    desks, numbers = tmp_path_factory.mktemp("desks"), itertools.count()

    def played(case: Case, trio: Trio) -> None:
        tidy(fleet, trio)
        operator = Operator(fleet, desks / str(next(numbers)), trio, user=case.user, extra=EXTRA)
        play(case, Scene(fleet, operator, trio))

    with Stage(
        selected(request, "case", Case), played, alone=lambda case: case.alone, trios=fleet.trios
    ) as stage:
        yield stage
    for trio in fleet.trios:
        tidy(fleet, trio)


def test_the_table_names_each_case_once() -> None:
    names = [case.name for case in (*table.CASES, *table.IN_PLACE)]
    assert len(set(names)) == len(names)
    assert len(names) >= 40


@pytest.mark.parametrize("case", table.CASES, ids=lambda case: case.name)
def test_a_fault_leaves_every_host_as_it_was(case: Case, stage: Stage[Case], cases: list[str]) -> None:
    stage.wait_for(case.name)
    cases.append(case.name)
