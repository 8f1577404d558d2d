"""A standing pool is replaced in place and one of three hosts breaks: the old replicas come back, the very same ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real import cases as table
from tests.real.desk import Operator
from tests.real.fleet import Fleet
from tests.real.scene import EXTRA, TRIO, Case, Scene, play


@pytest.fixture(scope="module")
def standing_pool(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """A pool whose replicas take all GPUs of three hosts, so that new ones need their room."""
    operator = Operator(fleet, tmp_path_factory.mktemp("standing"), TRIO, extra=EXTRA)
    definition = Scene(fleet, operator).define({"slice": {"gpus": 4}})
    answer = operator.run("pool", "deploy", "-f", str(definition), "--yes")
    assert answer.exit == 0, answer
    yield operator
    for name in TRIO:
        fleet.ssh(name, "docker rm -f $(docker ps -aq --filter label=gpufleet.pool=chat); true")


@pytest.mark.parametrize("case", table.IN_PLACE, ids=lambda case: case.name)
def test_a_fault_while_replacing_brings_the_old_replicas_back(
    case: Case, standing_pool: Operator, cases: list[str]
) -> None:
    play(case, Scene(standing_pool.fleet, standing_pool))
    cases.append(case.name)
