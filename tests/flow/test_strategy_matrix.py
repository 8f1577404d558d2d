"""Every fault at every phase of every strategy: afterwards all is as before or all as asked, and enough of it served.

Three hosts, of which one breaks. *In place* the new replicas need the room of the old ones; *alongside* there is room
for both. Members that get requests and answer are counted after each act: what a strategy promises to keep serving it
keeps on the way forward and on the way back, but for a replica that the fault itself took down.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass

import pytest

from gpufleet.errors import FleetError, InDoubt, RollbackIncomplete, RolledBack
from gpufleet.lab.faults import Fault, Kind
from gpufleet.pools.model import EngineWish, StrategyWish
from tests.flow.test_deploy_faults import attempt, finish
from tests.flow.test_deploy_strategies import Watched
from tests.kit.deploy_site import IMAGE

OTHER = EngineWish(image=IMAGE, args=("--max-model-len", "4096"))
STRATEGIES = ("rolling", "canary", "blue-green")
HOSTS = 3
FIRST, LAST = "gpu-01", f"gpu-0{HOSTS}"
PHASES = {
    "pull": "pull -q",
    "drain": "num_requests_",
    "stop": "update --restart no",
    "start": "run -d --env-file",
    "gate": "/v1/chat/completions",
    "settle": "policy=$3",
}
"""Phase to a part of the script that only this phase sends."""

LINK = (Kind.LOSE_BEFORE, Kind.LOSE_AFTER, Kind.HANG)
RUNTIME = (Kind.DAEMON_STOPPED, Kind.DAEMON_KILLED, Kind.DAEMON_HUNG)
CHANGES = (Kind.DISK_FULL, Kind.PORT_TAKEN, Kind.IMAGE_MISSING)
LASTING = {*RUNTIME, Kind.POWER_OFF}
"""Kinds that take down what runs on the host, until somebody repairs it."""


@dataclass(frozen=True)
class Case:
    """A fault, where and when it strikes, and under which strategy."""

    strategy: str
    in_place: bool
    phase: str
    kind: Kind
    host: str = LAST
    engine: str = ""

    @property
    def name(self) -> str:
        room = "in-place" if self.in_place else "alongside"
        return f"{self.strategy}-{room}-{self.phase}-{self.engine or self.kind}-{self.host}"

    @property
    def floor(self) -> int:
        """Members that get requests and answer, at any time."""
        promised = HOSTS
        if self.in_place:
            promised = 0 if self.strategy == "blue-green" else HOSTS - 1
        return max(0, promised - (self.kind in {*LASTING, Kind.ENGINE}))

    @property
    def fault(self) -> Fault:
        return Fault(
            kind=self.kind,
            host=self.host,
            pattern=PHASES[self.phase],
            seconds=20.0 if self.kind is Kind.POWER_OFF else 0.0,
            after=3,
            detail=("8001" if self.kind is Kind.PORT_TAKEN else self.engine),
        )


def table() -> list[Case]:
    """In place every kind at every phase on the last host; alongside, and on the first host, what differs there."""
    every = (*LINK, *RUNTIME, *CHANGES, Kind.POWER_OFF)
    most = (*LINK, Kind.DAEMON_KILLED, Kind.DISK_FULL, Kind.POWER_OFF)
    some = (Kind.LOSE_AFTER, Kind.HANG, Kind.DAEMON_KILLED, Kind.DISK_FULL)
    engines = ("crash", "cuda-oom", "never-ready", "wrong-model", "degenerate")
    return [
        *itertools.starmap(Case, itertools.product(("rolling",), (True,), PHASES, every)),
        *itertools.starmap(Case, itertools.product(("canary",), (True,), PHASES, most)),
        *itertools.starmap(Case, itertools.product(("blue-green",), (False,), ("pull", "start", "gate", "settle"), most)),
        *itertools.starmap(Case, itertools.product(("rolling", "canary"), (False,), ("start", "settle"), some)),
        *itertools.starmap(Case, itertools.product(("rolling", "blue-green"), (True,), ("stop", "start"), some, (FIRST,))),
        *(
            Case(strategy, strategy != "blue-green", "start", Kind.ENGINE, LAST, engine)
            for strategy, engine in itertools.product(STRATEGIES, engines)
        ),
    ]  # fmt: skip


CASES = table()


def test_the_table_is_as_large_as_promised():
    assert len({case.name for case in CASES}) == len(CASES) >= 150


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_all_or_nothing_and_enough_serves(tmp_path, monkeypatch, case):
    monkeypatch.setattr(os, "fsync", lambda _file: None)  # half of the time; nobody pulls this machine's plug
    site = Watched(tmp_path, count=HOSTS, gpus="1xH100-80GB" if case.in_place else "2xH100-80GB")
    site.deploy(site.pool())
    # A runtime or a host that starts anew leaves containers without a policy down: that is no work of ours.
    life = case.kind not in LASTING
    before, routes = site.containers(life=life), site.routes()
    pool = site.pool(engine=OTHER, strategy=StrategyWish(kind=case.strategy))
    outcome = attempt(site, pool, case.fault)
    if isinstance(outcome, FleetError):
        assert isinstance(outcome, RolledBack | RollbackIncomplete | InDoubt), outcome
        assert case.kind not in LINK, outcome
        assert site.fewest() >= case.floor, outcome
        finish(site, outcome)
        assert site.containers(life=life) == before, outcome
        assert site.routes() == routes, outcome
    else:
        assert case.kind is not Kind.ENGINE
        assert site.fewest() >= case.floor
        assert outcome.outcome == "committed"
        assert outcome.leftovers == ()
        assert len(site.routes()["chat"]) == HOSTS
        assert set(map(len, site.containers().values())) == {3}  # ours, and what others run
        assert not site.changes(pool)
    assert site.environment_files() == {}
    if case.kind not in {Kind.DISK_FULL, Kind.POWER_OFF}:  # there a lease cannot be given back, and expires
        assert site.leases() == []
