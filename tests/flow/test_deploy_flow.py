"""Deploys over simulated hosts: what the hosts run afterwards is what counts, asked past gpufleet."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from gpufleet.change.events import Intended
from gpufleet.deploy.deletion import delete, prepare_deletion
from gpufleet.deploy.flow import carry_out, prepare
from gpufleet.errors import (
    ExitCode,
    HostUnreachable,
    PreflightFailed,
    RolledBack,
    SelectionError,
    StalePlan,
    Unplaceable,
)
from gpufleet.lab.faults import Fault, Kind
from gpufleet.lab.memory import MemoryTransport
from gpufleet.names import PoolName
from gpufleet.pools.model import EngineWish, SliceWish
from gpufleet.redact import Secret
from tests.kit.deploy_site import IMAGE, Site

OTHER = EngineWish(image=IMAGE, args=("--max-model-len", "4096"))


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_a_deploy_brings_every_replica_up_and_publishes_them(site):
    done = site.deploy()
    assert done.outcome == "committed"
    assert site.pools_containers() == {"gpu-01": ["gpu-01/0"], "gpu-02": ["gpu-02/0"]}
    assert site.routes() == {"chat": ["http://127.77.0.1:8000", "http://127.77.0.2:8000"]}
    assert [(row["replica"], row["status"], row["endpoint"]) for row in done.hosts] == [
        ("gpu-01/0", "done", "http://127.77.0.1:8000"),
        ("gpu-02/0", "done", "http://127.77.0.2:8000"),
    ]
    assert all(row["gpu"].startswith("GPU-") for row in done.hosts)
    assert site.environment_files() == {}
    assert site.leases() == []
    assert [run.run for run in site.runs()] == [done.run]


def test_a_ready_replica_comes_back_by_itself(site):
    site.deploy()
    for lab in site.fleet:
        (replica,) = [one for one in lab.containers.containers.values() if one.wish.labels]
        assert replica.policy.name == "always"


def test_the_commit_leaves_a_copy_of_the_routes_on_each_host(site):
    site.deploy()
    for lab in site.fleet:
        copy = json.loads(lab.host.fs.read("/home/ops/.gpufleet/routes.json"))
        assert copy == json.loads((site.path / "state" / "routes.json").read_text())


def test_the_same_again_touches_nothing(site):
    site.deploy()
    before, runs = site.containers(), site.runs()
    assert not site.changes()
    again = site.deploy()
    assert (again.outcome, again.run, again.generation) == ("no_change", "", 1)
    assert site.containers() == before
    assert len(site.runs()) == len(runs)


def test_a_dry_look_changes_nothing_anywhere(site):
    before = site.containers()
    assert site.changes()
    assert site.containers() == before
    assert not (site.path / "state").exists()
    assert not any(lab.host.fs.exists("/home/ops/.gpufleet") for lab in site.fleet)


def test_growing_and_shrinking_keep_what_is_there(site):
    site.deploy()
    first = site.containers()
    site.deploy(site.pool(replicas=4))
    assert site.pools_containers() == {
        "gpu-01": ["gpu-01/0", "gpu-01/1"],
        "gpu-02": ["gpu-02/0", "gpu-02/1"],
    }
    site.deploy(site.pool(replicas=2))
    assert site.containers() == first
    assert len(site.routes()["chat"]) == 2


def test_another_configuration_replaces_all_alongside(site):
    site.deploy()
    done = site.deploy(site.pool(engine=OTHER))
    assert done.leftovers == ()
    assert site.pools_containers() == {"gpu-01": ["gpu-01/0"], "gpu-02": ["gpu-02/0"]}
    assert site.routes() == {"chat": ["http://127.77.0.1:8001", "http://127.77.0.2:8001"]}
    assert not site.changes(site.pool(engine=OTHER))


def test_another_configuration_replaces_all_in_place_when_there_is_no_room(tmp_path):
    site = Site(tmp_path, gpus="1xH100-80GB")
    site.deploy()
    site.deploy(site.pool(engine=OTHER))
    assert site.pools_containers() == {"gpu-01": ["gpu-01/0"], "gpu-02": ["gpu-02/0"]}
    assert all(len(found) == 3 for found in site.containers().values())


def test_a_failed_replacement_in_place_starts_the_old_again(tmp_path):
    site = Site(tmp_path, gpus="1xH100-80GB")
    site.deploy()
    before, routes = site.containers(), site.routes()
    with pytest.raises(RolledBack):
        site.deploy(
            site.pool(engine=OTHER), Fault(kind=Kind.ENGINE, host="gpu-02", pattern="run -d", detail="crash")
        )
    assert site.containers() == before
    assert site.routes() == routes


def test_another_algorithm_is_published_and_touches_no_host(site):
    site.deploy()
    before, runs = site.containers(), len(site.runs())
    done = site.deploy(site.pool(algorithm="least-busy"))
    assert (done.outcome, done.run, done.generation) == ("committed", "", 2)
    assert (site.containers(), len(site.runs())) == (before, runs)
    assert not site.changes(site.pool(algorithm="least-busy"))


def test_replicas_move_with_the_hosts_of_the_pool(site):
    site.deploy(site.pool(replicas=1, hosts=("gpu-01",)))
    site.deploy(site.pool(replicas=1, hosts=("gpu-02",)))
    assert site.pools_containers() == {"gpu-01": [], "gpu-02": ["gpu-02/0"]}
    assert site.routes() == {"chat": ["http://127.77.0.2:8000"]}


def test_a_host_that_died_does_not_keep_the_pool_from_moving_on(site):
    site.deploy()
    site.fleet["gpu-02"].power_off(0)
    site.deploy(site.pool(replicas=2, hosts=("gpu-01",)))
    assert site.routes() == {"chat": ["http://127.77.0.1:8000", "http://127.77.0.1:8001"]}
    assert any(line.startswith("gpu-02 has replicas") for line in site.told)
    site.fleet["gpu-02"].power_on()
    site.deploy()
    assert site.pools_containers() == {"gpu-01": ["gpu-01/0"], "gpu-02": ["gpu-02/0"]}


def test_slices_are_served_when_a_slice_is_asked_for(tmp_path):
    site = Site(tmp_path, count=1, gpus="1xH100-80GB", layouts={0: ("3g.40gb:0", "3g.40gb:4")})
    site.deploy(site.pool(replicas=2, slice=SliceWish(mig="3g.40gb")))
    assert site.pools_containers() == {"gpu-01": ["gpu-01/0", "gpu-01/1"]}
    devices = {
        one.wish.devices for one in site.fleet["gpu-01"].containers.containers.values() if one.wish.labels
    }
    assert len(devices) == 2
    assert all(device.startswith("MIG-") for (device,) in devices)


def test_podman_hosts_are_given_cdi_devices(tmp_path):
    site = Site(tmp_path, count=1, runtime="podman", version="5.4.2")
    site.deploy()
    (replica,) = [one for one in site.fleet["gpu-01"].containers.containers.values() if one.wish.labels]
    assert replica.running
    assert replica.wish.cdi[0].startswith("GPU-")


def test_a_user_without_the_runtimes_socket_deploys_by_sudo_and_a_noisy_login_does_no_harm(site):
    transport = MemoryTransport(site.fleet, users={"gpu-01": "nodock", "gpu-02": "noisy"})
    assert site.deploy_by(site.tools(transport=transport), site.pool()).outcome == "committed"
    assert site.pools_containers() == {"gpu-01": ["gpu-01/0"], "gpu-02": ["gpu-02/0"]}
    assert not site.fleet["gpu-01"].host.fs.names("/root/.gpufleet/env")
    assert not site.fleet["gpu-02"].host.fs.names("/home/noisy/.gpufleet/env")


def test_deletion_takes_containers_and_routes(site):
    before = site.containers()
    site.deploy()
    done = site.delete()
    assert done.outcome == "committed"
    assert site.containers() == before
    assert site.routes() == {}
    assert not (site.path / "state" / "keys" / "chat").exists()


def test_a_deletion_that_cannot_stop_one_replica_stops_none(site):
    site.deploy()
    before, routes = site.containers(), site.routes()
    with pytest.raises(RolledBack):
        site.delete(Fault(kind=Kind.LOSE_BEFORE, host="gpu-02", pattern='stop -t "$3"', times=9))
    assert site.containers() == before
    assert site.routes() == routes


def test_secrets_stay_where_they_belong(site, monkeypatch):
    token = "hf_PlantedTokenForTheTest0123456789"
    monkeypatch.setenv("HF_TOKEN", token)
    wish = EngineWish(image=IMAGE, env={"HF_TOKEN": Secret("", reference="${env:HF_TOKEN}")})
    site.deploy(site.pool(engine=wish))
    key = (site.path / "state" / "keys" / "chat").read_text().strip()
    for path in (site.path / "state").rglob("*"):
        if path.is_file() and path.parent.name != "keys":
            text = path.read_text()
            assert token not in text, path
            assert key not in text, path
    for lab in site.fleet:
        for path, node in lab.host.fs.walk("/home/ops"):
            content = getattr(node, "content", b"")
            assert token.encode() not in content, path
            assert key.encode() not in content, path
        (replica,) = [one for one in lab.containers.containers.values() if one.wish.labels]
        assert f"HF_TOKEN={token}" in replica.wish.env
        assert f"VLLM_API_KEY={key}" in replica.wish.env
        assert not any(token in word or key in word for word in replica.wish.arguments)
    assert not any(token in str(event) or key in str(event) for event in site.events)


def test_a_token_in_the_log_of_a_failing_engine_is_not_told(site, monkeypatch):
    token = "hf_PlantedTokenForTheTest0123456789"
    monkeypatch.setenv("HF_TOKEN", token)
    wish = EngineWish(image=IMAGE, env={"HF_TOKEN": Secret("", reference="${env:HF_TOKEN}")})
    with pytest.raises(RolledBack) as caught:
        site.deploy(
            site.pool(engine=wish), Fault(kind=Kind.ENGINE, host="gpu-01", pattern="run -d", detail="crash")
        )
    told = f"{caught.value} {caught.value.rows} {caught.value.fields} {site.events}"
    assert token not in told
    assert token not in (site.path / "state" / "runs" / caught.value.run / "journal.jsonl").read_text()


# -- refused before anything is done -----------------------------------------------------------------------------


def refused(site, error, pool=None, *faults):
    before = site.containers()
    with pytest.raises(error) as caught:
        site.deploy(pool, *faults)
    assert site.containers() == before
    assert site.environment_files() == {}
    assert site.leases() == []
    assert site.routes() == {}
    return caught.value


def test_unreachable_hosts_are_told_together(tmp_path):
    site = Site(tmp_path, count=3)
    dead = [Fault(kind=Kind.REFUSE, host=name, nth=1, times=9) for name in ("gpu-01", "gpu-03")]
    error = refused(site, HostUnreachable, None, *dead)
    assert error.exit is ExitCode.UNREACHABLE
    assert [row.where for row in error.rows] == ["gpu-01", "gpu-03"]


def test_a_host_that_cannot_run_containers_with_gpus_fails_the_preflight(tmp_path):
    site = Site(tmp_path, toolkit=False)
    error = refused(site, PreflightFailed)
    assert error.exit is ExitCode.PREFLIGHT
    assert {row.where for row in error.rows} == {"gpu-01", "gpu-02"}
    assert all(row.hint for row in error.rows)


def test_a_stopped_runtime_fails_the_preflight(site):
    site.fleet["gpu-02"].strike(Fault(kind=Kind.DAEMON_STOPPED, host="gpu-02"))
    error = refused(site, PreflightFailed)
    assert [row.where for row in error.rows] == ["gpu-02"]


def test_too_few_gpus_are_refused(site):
    error = refused(site, Unplaceable, site.pool(replicas=5))
    assert error.exit is ExitCode.REFUSED
    assert "--replicas 4" in error.hints[0]


def test_what_does_not_fit_is_told_with_the_hosts_that_have_room_and_who_is_in_the_way(site):
    error = refused(site, Unplaceable, site.pool(replicas=3, hosts=("gpu-01",)))
    told = error.fields["nearest"]
    assert {"kind": "other-host", "host": "gpu-02", "replicas": 2} in [
        {key: value for key, value in row.items() if key != "text"} for row in told
    ]
    assert any("gpu-02 was not selected and has room for 2" in hint for hint in error.hints)
    assert any(row["kind"] == "stop-container" for row in told) is bool(
        [
            one
            for one in site.fleet["gpu-01"].containers.containers.values()
            if one.wish.devices and one.running
        ]
    )


def test_replicas_share_gpus_one_after_the_other(site):
    site.deploy(site.pool(replicas=4, hosts=("gpu-01",), slice=SliceWish(share=50)))
    replicas = [one for one in site.fleet["gpu-01"].containers.containers.values() if one.wish.labels]
    assert len(replicas) == 4
    assert {one.wish.labels["gpufleet.share"] for one in replicas} == {"50"}
    assert sorted(Counter(one.wish.devices for one in replicas).values()) == [2, 2]
    again = prepare(
        site.tools(), site.pool(replicas=4, hosts=("gpu-01",), slice=SliceWish(share=50)), command="x"
    )
    assert not again.changes


def test_an_unknown_host_is_a_mistake(site):
    assert refused(site, SelectionError, site.pool(hosts=("gpu-9",))).exit is ExitCode.USAGE


def test_a_fleet_that_moved_since_the_plan_makes_it_stale(site):
    prepared = prepare(site.tools(), site.pool(), command="pool deploy chat")
    engine = site.fleet["gpu-02"].containers
    engine.containers.pop(next(one.id for one in engine.containers.values() if one.name == "spare"))
    before = site.containers()
    with pytest.raises(StalePlan) as caught:
        carry_out(site.tools(), prepared)
    assert caught.value.exit is ExitCode.STALE
    assert site.containers() == before
    assert site.environment_files() == {}
    assert site.leases() == []


def test_a_second_pool_goes_where_there_is_room(site):
    site.deploy()
    other = site.pool(name=PoolName("embed"), served_name="bge")
    site.deploy(other)
    assert sorted(site.routes()) == ["chat", "embed"]
    with pytest.raises(Unplaceable) as caught:
        site.deploy(site.pool(name=PoolName("third")))
    assert "gpufleet-chat-0" in caught.value.rows[0].message


def test_a_deletion_stops_nothing_that_may_still_be_sent_to(site):
    site.deploy()
    states: list[set[str]] = []
    tools = site.tools()

    def watch(step, event):
        if step is not None and step.phase == "stop" and isinstance(event, Intended):
            (pool,) = tools.store.routes().pools
            states.append({member.state for member in pool.endpoints})

    watched = replace(tools, change=replace(tools.change, observer=watch))
    hosts = tuple(site.inventory.hosts.values())
    deletion = prepare_deletion(watched, PoolName("chat"), hosts, command="pool delete chat")
    assert [step.phase for step in deletion.plan.steps] == ["route", "drain", "drain", "stop", "stop"]
    delete(watched, deletion)
    assert states == [{"draining"}, {"draining"}]
    assert site.routes() == {}


def test_a_deletion_at_once_drains_nothing(site):
    site.deploy()
    hosts = tuple(site.inventory.hosts.values())
    deletion = prepare_deletion(
        site.tools(), PoolName("chat"), hosts, command="pool delete chat --no-drain", drain=False
    )
    assert [step.phase for step in deletion.plan.steps] == ["stop", "stop"]
