"""The operator's process dies after each journal record of a deploy; another takes it up."""

from __future__ import annotations

import pytest

from gpufleet.change.events import Ending, Goal
from gpufleet.deploy.flow import prepare
from gpufleet.errors import LeaseHeld, Refused, SecretUnresolved
from gpufleet.names import RunId
from gpufleet.pools.model import EngineWish, StrategyWish
from gpufleet.redact import Secret
from tests.kit import killed
from tests.kit.deploy_site import IMAGE, Site

OTHER = EngineWish(image=IMAGE, args=("--max-model-len", "4096"))


def killed_after(site, pool, records, monkeypatch):
    """Deploy until this many records are on disk; the run, or None when it ended before."""
    return killed.killed_after(site, lambda tools: site.deploy_by(tools, pool), records, monkeypatch)


def scene(tmp_path, *, in_place):
    site = Site(tmp_path, gpus="1xH100-80GB")
    if in_place:
        site.deploy()
    return site, site.pool(engine=OTHER)


FIRST, IN_PLACE = 1 + 2 * 8 + 1, 1 + 2 * 13 + 1
"""Records up to `publishing`: opened, an intent and an outcome a step, publishing."""
CASES = [(False, count) for count in range(1, FIRST + 1)] + [
    (True, count) for count in range(1, IN_PLACE + 1)
]
IDS = [f"{'in-place' if in_place else 'first'}-{count}" for in_place, count in CASES]


@pytest.mark.parametrize(("in_place", "records"), CASES, ids=IDS)
def test_resumed_it_is_all_new(tmp_path, monkeypatch, in_place, records):
    site, pool = scene(tmp_path, in_place=in_place)
    run = killed_after(site, pool, records, monkeypatch)
    assert run is not None
    assert site.take_up(run, Goal.RESUME).ending is Ending.COMMITTED
    assert site.pools_containers() == {"gpu-01": ["gpu-01/0"], "gpu-02": ["gpu-02/0"]}
    assert {name: len(found) for name, found in site.containers().items()} == {"gpu-01": 3, "gpu-02": 3}
    assert len(site.routes()["chat"]) == 2
    assert not site.changes(pool)
    assert site.environment_files() == {}
    assert site.leases() == []


@pytest.mark.parametrize(("in_place", "records"), CASES, ids=IDS)
def test_undone_it_is_all_as_before(tmp_path, monkeypatch, in_place, records):
    site, pool = scene(tmp_path, in_place=in_place)
    before, routes = site.containers(), site.routes()
    run = killed_after(site, pool, records, monkeypatch)
    assert run is not None
    if records == (IN_PLACE if in_place else FIRST):
        with pytest.raises(Refused):
            site.take_up(run, Goal.UNDO)
        assert site.take_up(run, Goal.RESUME).ending is Ending.COMMITTED
        return
    assert site.take_up(run, Goal.UNDO).ending is Ending.UNDONE
    assert site.containers() == before
    assert site.routes() == routes
    assert site.environment_files() == {}
    assert site.leases() == []


def test_nobody_else_deploys_over_a_run_that_was_killed(tmp_path, monkeypatch):
    site, pool = scene(tmp_path, in_place=False)
    run = killed_after(site, pool, 8, monkeypatch)
    half = site.containers()
    other = Site.__new__(Site)
    other.__dict__ = {**site.__dict__, "path": tmp_path / "another-desk"}
    with pytest.raises(LeaseHeld):
        other.deploy(pool)
    assert site.containers() == half
    site.clock.sleep(3600)  # the lease has expired, and the run is open all the same
    with pytest.raises(LeaseHeld) as caught:
        other.deploy(pool)
    assert run in f"{caught.value} {caught.value.rows} {caught.value.hints}"
    assert site.containers() == half


def test_an_undo_needs_no_secret_and_a_resume_names_the_one_it_lacks(tmp_path, monkeypatch):
    site = Site(tmp_path, gpus="1xH100-80GB")
    before = site.containers()
    monkeypatch.setenv("HF_TOKEN", "hf_PlantedTokenForTheTest0123456789")
    wish = EngineWish(image=IMAGE, env={"HF_TOKEN": Secret("", reference="${env:HF_TOKEN}")})
    run = killed_after(site, site.pool(engine=wish), 6, monkeypatch)
    assert run is not None
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(SecretUnresolved, match="HF_TOKEN"):
        site.take_up(run, Goal.RESUME)
    assert site.take_up(run, Goal.UNDO).ending is Ending.UNDONE
    assert site.containers() == before


def test_a_run_that_is_over_is_tidied_without_the_secrets_it_had(tmp_path, monkeypatch):
    site = Site(tmp_path, gpus="1xH100-80GB")
    monkeypatch.setenv("HF_TOKEN", "hf_PlantedTokenForTheTest0123456789")
    wish = EngineWish(image=IMAGE, env={"HF_TOKEN": Secret("", reference="${env:HF_TOKEN}")})
    done = site.deploy(site.pool(engine=wish))
    after = site.containers()
    monkeypatch.delenv("HF_TOKEN")
    assert site.take_up(RunId(done.run), Goal.RESUME).ending is Ending.COMMITTED
    assert site.containers() == after


def test_a_resume_misses_no_secret_of_what_is_done(tmp_path, monkeypatch):
    site = Site(tmp_path, gpus="1xH100-80GB")
    monkeypatch.setenv("HF_TOKEN", "hf_PlantedTokenForTheTest0123456789")
    wish = EngineWish(image=IMAGE, env={"HF_TOKEN": Secret("", reference="${env:HF_TOKEN}")})
    run = killed_after(site, site.pool(engine=wish), FIRST - 1, monkeypatch)
    assert run is not None
    monkeypatch.delenv("HF_TOKEN")
    assert site.take_up(run, Goal.RESUME).ending is Ending.COMMITTED


def waved(tmp_path, kind):
    """Two hosts whose replicas are replaced one after another, and a pool that does so."""
    site = Site(tmp_path, gpus="2xH100-80GB" if kind == "blue-green" else "1xH100-80GB")
    site.deploy(site.pool(replicas=2))
    canary = StrategyWish(kind="canary", observe=5.0, deadline=5.0, unknown="proceed")
    wish = canary if kind == "canary" else StrategyWish(kind=kind)
    return site, site.pool(replicas=2, engine=OTHER, strategy=wish)


def records_of(tmp_path, kind):
    """Records up to `publishing`."""
    site, pool = waved(tmp_path / "once", kind)
    plan = prepare(site.tools(), pool, command="pool deploy chat").plan.bring_up
    return 1 + 2 * len(plan.steps) + 1


KINDS = ("rolling", "canary", "blue-green")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("goal", Goal)
def test_killed_after_every_record_of_a_strategy(tmp_path, monkeypatch, kind, goal):
    last = records_of(tmp_path, kind)
    for records in range(1, last + 1):
        site, pool = waved(tmp_path / str(records), kind)
        before, routes = site.containers(), site.routes()
        run = killed_after(site, pool, records, monkeypatch)
        assert run is not None, records
        if goal is Goal.UNDO and records < last:
            assert site.take_up(run, Goal.UNDO).ending is Ending.UNDONE, records
            assert site.containers() == before, records
            assert site.routes() == routes, records
        else:
            assert site.take_up(run, Goal.RESUME).ending is Ending.COMMITTED, records
            assert sum(map(len, site.pools_containers().values())) == 2, records
            assert len(site.routes()["chat"]) == 2, records
            assert not site.changes(pool), records
        assert site.environment_files() == {}, records
        assert site.leases() == [], records
