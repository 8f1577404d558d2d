"""Bulk deploys on three real hosts of which one breaks: afterwards every host is as it was, asked by plain ssh."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real import cases as table
from tests.real.desk import Operator
from tests.real.fleet import Fleet
from tests.real.scene import EXTRA, TRIO, Case, Scene, play


@pytest.fixture
def scene(fleet: Fleet, tmp_path: Path, request: pytest.FixtureRequest) -> Scene:
    case: Case = request.node.callspec.params["case"]
    return Scene(fleet, Operator(fleet, tmp_path, TRIO, user=case.user, extra=EXTRA))


def test_the_table_names_each_case_once() -> None:
    names = [case.name for case in (*table.CASES, *table.IN_PLACE)]
    assert len(set(names)) == len(names)
    assert len(names) >= 40


@pytest.mark.parametrize("case", table.CASES, ids=lambda case: case.name)
def test_a_fault_leaves_every_host_as_it_was(case: Case, scene: Scene, cases: list[str]) -> None:
    play(case, scene)
    cases.append(case.name)
