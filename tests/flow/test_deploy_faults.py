"""Every fault at every phase of a deploy: afterwards each host is as it was, or runs the whole new pool."""

from __future__ import annotations

import itertools
import os

import pytest

from gpufleet.change.events import Ending, Goal
from gpufleet.errors import FleetError, InDoubt, RollbackIncomplete, RolledBack
from gpufleet.lab.faults import Fault, FaultScript, Kind
from gpufleet.names import RunId
from gpufleet.pools.model import EngineWish, StrategyWish
from tests.kit.deploy_site import IMAGE, Site

OTHER = EngineWish(image=IMAGE, args=("--max-model-len", "4096"))
PHASES = {
    "look": "begin lease",
    "pull": "pull -q",
    "stop": "update --restart no",
    "start": "run -d --env-file",
    "gate": "/v1/chat/completions",
    "settle": "policy=$3",
}
"""Phase to a part of the script that only this phase sends."""

LINK = (Kind.LOSE_BEFORE, Kind.LOSE_AFTER, Kind.HANG)
RUNTIME = (Kind.DAEMON_STOPPED, Kind.DAEMON_KILLED, Kind.DAEMON_HUNG)
KINDS = (*LINK, *RUNTIME, Kind.DISK_FULL, Kind.PORT_TAKEN, Kind.IMAGE_MISSING, Kind.POWER_OFF)
CASES = [
    *((phase, kind, False) for phase, kind in itertools.product(PHASES, KINDS) if phase != "stop"),
    *((phase, kind, True) for phase, kind in itertools.product(("stop", "start", "gate", "settle"), KINDS)),
]
SETTLED = {"gate", "settle"}
"""Phases in which the container runs already."""


def expected(phase, kind):
    """The exit code; None where it depends on how long the host was away."""
    if kind is Kind.POWER_OFF:
        return None
    if phase == "look":
        return (
            7
            if kind in LINK
            else 8
            if kind in {*RUNTIME, Kind.DISK_FULL}
            else {Kind.PORT_TAKEN: 0}.get(kind, 9)
        )
    if kind in LINK:
        return 0
    if kind in RUNTIME:
        return 9 if phase == "pull" else 10
    return 9 if kind is Kind.DISK_FULL or phase not in SETTLED else 0


def attempt(site, pool, *faults):
    try:
        return site.deploy(pool, *faults)
    except FleetError as error:
        return error


def code(outcome):
    return int(outcome.exit) if isinstance(outcome, FleetError) else 0


def finish(site, outcome):
    """What the operator is told to do: when the hosts answer again, undo."""
    if isinstance(outcome, (InDoubt, RollbackIncomplete)):
        assert any(f"gpufleet change undo {outcome.run}" in hint for hint in outcome.hints)
        site.heal()
        assert site.take_up(RunId(outcome.run), Goal.UNDO).ending is Ending.UNDONE


@pytest.mark.parametrize(
    ("phase", "kind", "in_place"),
    CASES,
    ids=[f"{phase}-{kind}-{'in-place' if in_place else 'first'}" for phase, kind, in_place in CASES],
)
def test_all_or_nothing(tmp_path, phase, kind, in_place):
    site = Site(tmp_path, gpus="1xH100-80GB")
    pool = site.pool()
    if in_place:
        site.deploy(pool)
        pool = site.pool(engine=OTHER)
    # A runtime or a host that starts anew leaves containers without a policy down: that is no work of ours.
    life = kind not in {*RUNTIME, Kind.POWER_OFF}
    before, routes = site.containers(life=life), site.routes()
    outcome = attempt(
        site,
        pool,
        Fault(
            kind=kind,
            host="gpu-02",
            pattern=PHASES[phase],
            seconds=20.0 if kind is Kind.POWER_OFF else 0.0,
            after=3,
            detail=("8001" if in_place else "8000") if kind is Kind.PORT_TAKEN else "",
        ),
    )
    assert expected(phase, kind) in {None, code(outcome)}, outcome
    finish(site, outcome)
    if isinstance(outcome, FleetError):
        assert site.containers(life=life) == before
        assert site.routes() == routes
    else:
        assert outcome.outcome == "committed"
        assert len(site.routes()["chat"]) == 2
        assert {name: len(found) for name, found in site.containers().items()} == {"gpu-01": 3, "gpu-02": 3}
    assert site.environment_files() == {}
    if kind not in {Kind.DISK_FULL, Kind.POWER_OFF}:  # there a lease cannot be given back, and expires
        assert site.leases() == []


ENGINES = {
    "crash": "No available memory",
    "oom": "ran out of memory",
    "cuda-oom": "CUDA out of memory",
    "never-ready": "no progress for 30 s",
    "unhealthy": "/health answers 503",
    "degenerate": "over and over",
    "wrong-model": "not qwen",
    "hang": "no token came",
    "held-memory": "Free memory on device",  # the runtime restarts it three times, in vain
    "sampler": "warming up sampler",
    "shared-memory": "/dev/shm/nccl",
    "gated": "401 Client Error",
}


@pytest.mark.parametrize("mode", ENGINES)
def test_an_engine_that_is_never_ready_is_rolled_back_with_its_reason(tmp_path, mode):
    site = Site(tmp_path, gpus="1xH100-80GB")
    before = site.containers()
    outcome = attempt(
        site, site.pool(), Fault(kind=Kind.ENGINE, host="gpu-02", pattern="run -d --env-file", detail=mode)
    )
    assert isinstance(outcome, RolledBack), outcome
    assert ENGINES[mode] in str(outcome)
    assert site.containers() == before
    rows = outcome.fields["hosts"]
    assert isinstance(rows, list)
    (row,) = [row for row in rows if row["reason"]]
    assert (row["host"], row["phase"], row["replica"]) == ("gpu-02", "gate", "gpu-02/0")
    assert row["hint"]
    assert "root cause" not in row["reason"]


STRATEGIES = (
    StrategyWish(),
    StrategyWish(kind="rolling"),
    StrategyWish(kind="canary", observe=5.0, deadline=5.0, unknown="proceed"),
    StrategyWish(kind="blue-green"),
)
SCRIPTS = {"dev": 50, "ci": 2_000, "deep": 10_000}[os.environ.get("HYPOTHESIS_PROFILE", "dev")]
CHUNK = 25


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, SCRIPTS, CHUNK))
def test_random_fault_scripts(tmp_path, first):
    """Twenty-five seeds from `first` on: up to three faults anywhere, then a repairman and an undo."""
    for seed in range(first, first + CHUNK):
        site = Site(tmp_path / str(seed), gpus="1xH100-80GB")
        pool = site.pool()
        if seed % 2 == 0:
            site.deploy(pool)
            pool = site.pool(engine=OTHER, strategy=STRATEGIES[seed // 2 % len(STRATEGIES)])
        before, routes = site.containers(life=False), site.routes()
        script = FaultScript.random(seed, tuple(site.fleet.hosts))
        outcome = attempt(site, pool, *script.faults)
        site.heal()
        told = f"seed {seed}: {pool.strategy.kind}: {script}: {outcome}"
        if isinstance(outcome, FleetError):
            if isinstance(outcome, (InDoubt, RollbackIncomplete)):
                assert site.take_up(RunId(outcome.run), Goal.UNDO).ending is Ending.UNDONE, told
            assert site.containers(life=False) == before, told
            assert site.routes() == routes, told
        else:
            assert len(site.routes()["chat"]) == 2, told
            if outcome.leftovers:  # named, and removed as the hint says
                assert {row.hint for row in outcome.leftovers} == {f"gpufleet change resume {outcome.run}"}, (
                    told
                )
                site.clock.sleep(150.0)  # a lease on a host that died in between expires
                site.take_up(RunId(outcome.run), Goal.RESUME)
            assert {name: len(found) for name, found in site.containers().items()} == {
                "gpu-01": 3,
                "gpu-02": 3,
            }, told
        assert site.environment_files() == {}, told
