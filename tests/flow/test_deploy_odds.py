"""Deploys beside dead hosts, silent runtimes, other pools and other commands: nothing is lost and nothing is hidden."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpufleet.change.events import Ended, Goal, Intended
from gpufleet.deploy import adoption, commit, saved_plan
from gpufleet.deploy.adapter_flow import carry_out_adapters, prepare_adapters
from gpufleet.deploy.adoption import Join, join
from gpufleet.deploy.deletion import delete, prepare_deletion
from gpufleet.deploy.flow import prepare
from gpufleet.engine.vllm import Vllm
from gpufleet.errors import FleetError, PreflightFailed, Refused, RolledBack, UsageError
from gpufleet.lab.faults import Fault, Kind
from gpufleet.names import PoolName, ReplicaId
from gpufleet.pools import membership
from gpufleet.pools.model import EngineWish, MemberState, StrategyWish
from gpufleet.pools.store import PoolStore
from tests.kit.deploy_site import IMAGE, Site

OTHER = EngineWish(image=IMAGE, args=("--max-model-len", "4096"))
CHAT = PoolName("chat")
Watch = Callable[[Any, Any], None]


class Watched(Site):
    """A site where something happens in the middle of a run."""

    watch: Watch = staticmethod(lambda _step, _event: None)

    def tools(self, *faults: Fault, transport: Any = None) -> Any:
        tools = super().tools(*faults, transport=transport)
        return replace(tools, change=replace(tools.change, observer=self.watch))


def states(site: Site, pool: str = "chat") -> dict[str, str]:
    """Members as proxies see them."""
    (found,) = [one for one in site.tools().store.routes().pools if one.name == pool]
    return {member.id: member.state for member in found.endpoints}


def made(site: Site, name: str) -> PoolName:
    """Another pool, without members."""
    tools = site.tools()
    commit.begin(tools.store, site.pool(name=PoolName(name), replicas=0), tools.engine, at="now")
    return PoolName(name)


def test_a_dead_host_does_not_keep_the_others_out_of_the_routes(tmp_path):
    site = Site(tmp_path, count=3, gpus="1xH100-80GB")
    site.deploy(site.pool(replicas=3))
    dies = Fault(kind=Kind.POWER_OFF, host="gpu-01", pattern=" start-gpu-01-")
    with pytest.raises(FleetError):
        site.deploy(site.pool(replicas=3, engine=OTHER), dies)
    with pytest.raises(FleetError):
        site.take_up(site.runs()[-1].run, Goal.UNDO)
    seen = states(site)
    assert (seen["gpu-02/0"], seen["gpu-03/0"]) == ("active", "active")


def test_a_runtime_that_does_not_answer_keeps_its_pool(tmp_path):
    site = Site(tmp_path)
    site.deploy()
    before = site.containers()
    site.fleet["gpu-01"].strike(Fault(kind=Kind.DAEMON_STOPPED, host="gpu-01"))
    with pytest.raises(PreflightFailed) as caught:
        site.delete()
    assert caught.value.rows[0].where == "gpu-01"
    assert site.tools().store.record(CHAT) is not None
    site.fleet["gpu-01"].strike(Fault(kind=Kind.DAEMON_BACK, host="gpu-01"))
    assert site.containers() == before


def test_a_former_host_whose_runtime_does_not_answer_keeps_an_orphan_in_the_record(tmp_path):
    site = Site(tmp_path)
    site.deploy()
    site.fleet["gpu-02"].strike(Fault(kind=Kind.DAEMON_STOPPED, host="gpu-02"))
    site.deploy(site.pool(hosts=("gpu-01",), replicas=2))
    known = site.tools().store.record(CHAT)
    assert known is not None
    assert [one.replica for one in known.orphans] == ["gpu-02/0"]
    assert any("gpu-02" in line and "its containers are not known" in line for line in site.told)


def test_what_is_said_of_a_pool_waits_for_the_run_that_changes_it(tmp_path):
    site = Watched(tmp_path, count=3, gpus="1xH100-80GB")
    site.deploy(site.pool(replicas=3))
    refused: list[str] = []

    def drained(pool, endpoints):
        return membership.set_state(pool, [ReplicaId("gpu-03/0")], MemberState.DRAINING), endpoints

    def say(_step, event):
        if isinstance(event, Ended) and event.step.startswith("publish") and not refused:
            with pytest.raises(Refused) as caught:
                commit.rewrite(PoolStore(site.path / "state", site.clock), CHAT, drained, Vllm())
            refused.append(caught.value.summary)

    site.watch = say
    site.deploy(site.pool(replicas=3, engine=OTHER, strategy=StrategyWish(kind="rolling")))
    assert refused
    assert set(states(site).values()) == {"active"}
    commit.rewrite(site.tools().store, CHAT, drained, Vllm())
    assert states(site)["gpu-03/0"] == "draining"


def test_a_replica_that_serves_another_pool_is_not_deleted_unasked(tmp_path):
    site = Site(tmp_path)
    site.deploy()
    other = made(site, "other")
    join(site.tools(), other, Join(word="gpu-01/0", of="chat"))
    with pytest.raises(Refused) as caught:
        site.delete()
    assert "serves pool other" in caught.value.rows[0].message
    hosts = tuple(site.inventory.hosts.values())
    tools = site.tools()
    assert (
        delete(tools, prepare_deletion(tools, CHAT, hosts, command="delete", force=True)).outcome
        == "committed"
    )
    assert states(site, "other") == {}


def shared(site: Site) -> PoolName:
    """Pool chat deployed, and its replica on gpu-01 in pool other as well."""
    site.deploy()
    other = made(site, "other")
    join(site.tools(), other, Join(word="gpu-01/0", of="chat"))
    return other


def seen_when(site: Watched, phase: str) -> list[dict[str, str]]:
    """Members of pool other at each act of a phase, filled in while a run goes on."""
    seen: list[dict[str, str]] = []

    def look(step, event):
        if isinstance(event, Intended) and step is not None and step.phase == phase:
            seen.append(states(site, "other"))

    site.watch = look
    return seen


def test_a_replica_is_drained_in_every_pool_before_it_stops_and_leaves_all_of_them(tmp_path):
    site = Watched(tmp_path, gpus="1xH100-80GB")
    shared(site)
    seen = seen_when(site, "stop")
    site.deploy(site.pool(engine=OTHER))
    assert seen == [{"gpu-01/0": "draining"}] * 2
    assert states(site, "other") == {}
    assert set(states(site).values()) == {"active"}


def test_an_undo_puts_a_replica_back_into_every_pool(tmp_path):
    site = Watched(tmp_path, gpus="1xH100-80GB")
    shared(site)
    seen = seen_when(site, "stop")
    with pytest.raises(FleetError):
        site.deploy(site.pool(engine=OTHER), Fault(kind=Kind.ENGINE, host="gpu-02", nth=1, detail="crash"))
    assert seen
    assert all(one == {"gpu-01/0": "draining"} for one in seen)
    assert states(site, "other") == {"gpu-01/0": "active"}
    assert set(states(site).values()) == {"active"}


def test_a_replica_that_is_relieved_leaves_every_pool_before_it_is_removed(tmp_path):
    site = Watched(tmp_path, gpus="2xH100-80GB")
    shared(site)
    seen = seen_when(site, "remove")
    site.deploy(site.pool(engine=OTHER))
    assert seen
    assert all(one == {} for one in seen)


def test_a_forced_delete_drains_in_other_pools_too(tmp_path):
    site = Watched(tmp_path)
    shared(site)
    seen = seen_when(site, "stop")
    tools, hosts = site.tools(), tuple(site.inventory.hosts.values())
    delete(tools, prepare_deletion(tools, CHAT, hosts, command="delete", force=True, drain=True))
    assert seen
    assert all(one == {"gpu-01/0": "draining"} for one in seen)
    assert states(site, "other") == {}


def test_two_that_join_at_once_do_not_take_one_name(tmp_path, monkeypatch):
    site = Site(tmp_path, 1, gpus="4xH100-80GB")
    site.deploy(site.pool(replicas=2))
    other = made(site, "other")
    checks: list[int] = []
    real = adoption._check_serves

    def check(*words, **more):
        real(*words, **more)
        if not checks:
            checks.append(1)
            join(site.tools(), other, Join(word="gpu-01/1", of="chat"))

    monkeypatch.setattr(adoption, "_check_serves", check)
    with pytest.raises(Refused, match="meanwhile"):
        join(site.tools(), other, Join(word="gpu-01/0", of="chat"))
    monkeypatch.undo()
    join(site.tools(), other, Join(word="gpu-01/0", of="chat"))
    assert len(states(site, "other")) == 2


def test_adapters_with_names_that_are_almost_one(tmp_path):
    site = Site(tmp_path)
    site.deploy(site.pool(lora={"fr": "/srv/lora/fr"}, lora_from="/srv/lora"))
    tools = site.tools()
    names = {"a.b": "/srv/lora/ab", "a-b": "/srv/lora/a_b"}
    done = carry_out_adapters(tools, prepare_adapters(tools, CHAT, names, (), command="pool set chat"))
    assert done.outcome == "committed"
    (pool,) = tools.store.routes().pools
    assert set(pool.models) == {"qwen", "fr", "a.b", "a-b"}


def test_a_pool_with_adapters_may_be_rolled(tmp_path):
    site = Site(tmp_path, gpus="1xH100-80GB")
    loras = {"lora": {"fr": "/srv/lora/fr"}, "lora_from": "/srv/lora"}
    site.deploy(site.pool(**loras))
    rolling = site.pool(**loras, engine=OTHER, strategy=StrategyWish(kind="rolling"))
    assert site.deploy(rolling).outcome == "committed"


def test_a_plan_is_not_saved_over_another_file(tmp_path):
    site = Site(tmp_path)
    tools = site.tools()
    prepared = prepare(tools, site.pool(), command="pool plan chat")
    precious = tmp_path / "inventory.yaml"
    precious.write_text("version: 1\n")
    with pytest.raises(UsageError, match="another file"):
        saved_plan.save(tools, prepared, precious)
    assert precious.read_text() == "version: 1\n"
    plan = tmp_path / "plan.json"
    saved_plan.save(tools, prepared, plan)
    first = plan.read_bytes()
    saved_plan.save(tools, prepared, plan)
    assert plan.read_bytes()[:20] == first[:20]


def test_an_old_replica_that_does_not_get_ready_again_is_told_and_left_to_the_health_checks(tmp_path):
    site = Site(tmp_path, gpus="1xH100-80GB")
    site.deploy()
    silent = Fault(kind=Kind.ENGINE, host="gpu-02", pattern="run -d", detail="never-ready")
    with pytest.raises(RolledBack) as caught:
        site.deploy(site.pool(engine=OTHER), silent)
    error = caught.value
    assert "put back are not ready yet" in error.summary
    hosts: Any = error.fields["hosts"]
    (row,) = [row for row in hosts if row["status"] == "undone" and row["phase"] == "drain"]
    assert "gpu-02/0 was started again and is not ready yet" in row["reason"]
    assert "gpufleet pool logs chat gpu-02/0" in row["hint"]
    assert row["hint"] in error.hints
    assert states(site) == {"gpu-01/0": "active", "gpu-02/0": "active"}
