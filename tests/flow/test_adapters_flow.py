"""Adapters on all members as one change, in simulated hosts: loaded, unloaded, refused, taken back, resumed."""

import json
from dataclasses import replace

import pytest

from gpufleet.change.events import Goal
from gpufleet.change.records import journal_file
from gpufleet.deploy import commit, diff
from gpufleet.deploy.adapter_flow import carry_out_adapters, prepare_adapters
from gpufleet.deploy.adoption import Join, join
from gpufleet.deploy.drift.flow import drift
from gpufleet.deploy.flow import carry_out, prepare
from gpufleet.errors import PreflightFailed, Refused, RolledBack, UsageError
from gpufleet.lab.faults import Fault, Kind
from gpufleet.lab.vllm.replies import Request
from gpufleet.names import PoolName, RunId
from gpufleet.pools import record
from tests.kit.deploy_site import Site

NAME = PoolName("chat")


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path, 2)
    site.deploy(site.pool(lora={"fr": "/srv/lora/fr"}, lora_from="/srv/lora"))
    return site


def change(site, load=(), unload=(), *faults):
    tools = site.tools(*faults)
    return carry_out_adapters(
        tools, prepare_adapters(tools, NAME, dict(load), tuple(unload), command="pool set chat")
    )


def engines(site):
    """Every engine's adapters, asked past gpufleet."""
    found = []
    for lab in site.fleet:
        for container in lab.containers.containers.values():
            if container.running and container.wish.labels.get("gpufleet.pool") == "chat":
                found.append(lab.containers.engines.models[container.id])
    return found


def adapters(site):
    return [dict(engine.spec.adapters) for engine in engines(site)]


def names(site):
    table = json.loads((site.path / "state" / "routes.json").read_text())
    return next(pool["models"] for pool in table["pools"] if pool["name"] == "chat")


def recorded(site):
    return record.pool_of(site.tools().store.record(NAME)).lora


def test_a_pool_starts_with_its_adapters_and_serves_their_names(site):
    assert adapters(site) == [{"fr": "/srv/lora/fr"}] * 2
    assert names(site) == ["qwen", "fr"]


def test_an_adapter_is_loaded_on_all_members_and_published(site):
    before = site.containers()
    done = change(site, {"sql": "/srv/lora/sql"})
    assert done.outcome == "committed"
    assert adapters(site) == [{"fr": "/srv/lora/fr", "sql": "/srv/lora/sql"}] * 2
    assert names(site) == ["qwen", "fr", "sql"]
    assert recorded(site) == {"fr": "/srv/lora/fr", "sql": "/srv/lora/sql"}
    assert site.containers() == before
    assert site.leases() == []
    assert change(site, {"sql": "/srv/lora/sql"}).outcome == "no_change"


def test_an_adapter_is_unloaded_everywhere(site):
    change(site, {}, ("fr",))
    assert adapters(site) == [{}, {}]
    assert names(site) == ["qwen"]
    assert recorded(site) == {}


def test_one_member_that_cannot_load_it_leaves_none_with_it(site):
    engine = engines(site)[1]
    engine.spec = replace(engine.spec, runtime_lora=False)
    with pytest.raises(RolledBack):
        change(site, {"sql": "/srv/lora/sql"})
    assert adapters(site) == [{"fr": "/srv/lora/fr"}] * 2
    assert names(site) == ["qwen", "fr"]
    with pytest.raises(RolledBack):
        change(site, {}, ("fr",))
    assert adapters(site) == [{"fr": "/srv/lora/fr"}] * 2
    assert names(site) == ["qwen", "fr"]


def test_an_adapter_that_is_not_there_is_told(site):
    with pytest.raises(RolledBack) as caught:
        change(site, {"sql": "/srv/lora/missing"})
    assert "No adapter found" in str(caught.value.rows) + str(caught.value)
    assert adapters(site) == [{"fr": "/srv/lora/fr"}] * 2


def test_a_member_that_does_not_run_stops_it_before_it_begins(site):
    lab = next(iter(site.fleet))
    lab.containers.stop(
        next(one for one in lab.containers.containers.values() if one.wish.labels.get("gpufleet.pool"))
    )
    with pytest.raises(PreflightFailed, match="do not run"):
        change(site, {"sql": "/srv/lora/sql"})


def test_an_adapter_of_that_name_from_elsewhere_is_refused(site):
    body = json.dumps({"lora_name": "sql", "lora_path": "/other"}).encode()
    engine = engines(site)[0]
    key = site.tools().store.key(NAME).reveal()
    headers = {"authorization": f"Bearer {key}"}
    engine.respond(Request("POST", "/v1/load_lora_adapter", headers, body), site.clock.monotonic())
    with pytest.raises(PreflightFailed, match="another adapter"):
        change(site, {"sql": "/srv/lora/sql"})


@pytest.mark.parametrize(
    ("load", "unload", "message"),
    [
        ({"sql": "/elsewhere/sql"}, (), "cannot see"),
        ({"a b": "/srv/lora/x"}, (), "no name of an adapter"),
        ({"sql": "/srv/lora/a=b"}, (), "no place of an adapter"),
        ({"sql": "/srv/lora/../../etc"}, (), "no place of an adapter"),
        ({"qwen": "/srv/lora/x"}, (), "name of the model itself"),
        ({"fr": "/srv/lora/other"}, (), "is loaded from"),
        ({}, ("de",), "has no adapter de"),
    ],
)
def test_what_cannot_be_is_refused(site, load, unload, message):
    with pytest.raises(UsageError, match=message):
        change(site, load, unload)


def test_a_pool_without_adapters_says_what_to_do(tmp_path):
    site = Site(tmp_path, 1)
    site.deploy(site.pool(replicas=1))
    with pytest.raises(UsageError, match="started without adapters"):
        change(site, {"sql": "/srv/lora/sql"})


def test_a_lost_connection_is_looked_into(site):
    fault = Fault(host="gpu-02", kind=Kind.LOSE_AFTER, pattern="/v1/load_lora_adapter")
    assert change(site, {"sql": "/srv/lora/sql"}, (), fault).outcome == "committed"
    assert adapters(site) == [{"fr": "/srv/lora/fr", "sql": "/srv/lora/sql"}] * 2


def test_what_was_committed_is_published_by_whoever_resumes(site):
    from gpufleet.deploy.commit import finish_commit

    context = {"use": "pool-adapters", "pool": "chat", "load": '{"sql":"/srv/lora/sql"}', "unload": "[]"}
    for _ in range(2):
        finish_commit(site.tools().store)(RunId("r"), context)
    assert names(site) == ["qwen", "fr", "sql"]


class Killed(BaseException):
    """The process is gone."""


def killed_after(site, records, monkeypatch):
    """Unload an adapter until this many records are on disk; the run, or None when it ended before."""
    real = journal_file.JournalFile.append

    def append(file, body):
        if len(file.records) >= records:
            raise Killed
        return real(file, body)

    older = {summary.run for summary in site.runs()}
    with monkeypatch.context() as patch:
        patch.setattr(journal_file.JournalFile, "append", append)
        try:
            change(site, {}, ("fr",))
        except Killed:
            (run,) = [summary.run for summary in site.runs() if summary.run not in older]
            return run
    return None


def test_whoever_undoes_an_unload_that_was_killed_puts_the_routes_right_as_well(site, monkeypatch):
    seen = set()
    for records in range(1, 40):
        run = killed_after(site, records, monkeypatch)
        if run is None:
            break
        seen.add((tuple(names(site)), tuple(map(tuple, adapters(site)))))
        try:
            site.take_up(run, Goal.UNDO)
        except Refused:  # it has begun to publish
            site.take_up(run, Goal.RESUME)
            assert (names(site), recorded(site), adapters(site)) == (["qwen"], {}, [{}, {}])
            change(site, {"fr": "/srv/lora/fr"})
        assert names(site) == ["qwen", "fr"]
        assert recorded(site) == {"fr": "/srv/lora/fr"}
        assert adapters(site) == [{"fr": "/srv/lora/fr"}] * 2
    else:
        pytest.fail("the unload never ended")
    # No member lost it while the name was in the routes.
    assert {served for served, has in seen if has != (("fr",), ("fr",))} == {("qwen",)}
    assert (("qwen",), (("fr",), ("fr",))) in seen


def test_adapters_stand_in_the_audit_trail(site):
    done = change(site, {"sql": "/srv/lora/sql"})
    lines = (site.path / "state" / "audit" / "changes.jsonl").read_text().splitlines()
    told = json.loads(lines[-1])
    assert (told["command"], told["run"], told["result"]) == ("pool set chat", done.run, "committed")
    assert told["hosts"] == ["gpu-01", "gpu-02"]


def running(site):
    """Containers of the pool: id and since when their engines are there."""
    return [
        (one.id, one.started)
        for lab in site.fleet
        for one in lab.containers.containers.values()
        if one.running and one.wish.labels.get("gpufleet.pool") == "chat"
    ]


def started_again(site, lab):
    """The runtime starts one replica anew: its engine has what it was first started with."""
    (one,) = [one for one in lab.containers.containers.values() if one.wish.labels.get("gpufleet.pool")]
    lab.containers.stop(one)
    lab.containers.start(one)
    site.clock.sleep(120.0)


def findings(site):
    (found,) = drift(site.tools(), (NAME,), {})
    return found


def asked_now(site):
    """The pool by its record, as `pool scale` takes it up."""
    return record.pool_of(site.tools().store.record(NAME))


def test_a_deploy_leaves_replicas_alone_that_differ_by_adapters_loaded_later(site):
    change(site, {"sql": "/srv/lora/sql"})
    before = running(site)
    assert site.deploy(asked_now(site)).outcome == "no_change"
    site.deploy(replace(asked_now(site), replicas=3))
    assert set(before) < set(running(site))
    assert adapters(site) == [{"fr": "/srv/lora/fr", "sql": "/srv/lora/sql"}] * 3
    change(site, {}, ("fr", "sql"))
    assert site.deploy(asked_now(site)).outcome == "no_change"
    assert set(before) < set(running(site))


def test_a_replica_that_lost_its_adapters_is_found_and_repaired_by_the_next_deploy(site):
    change(site, {"sql": "/srv/lora/sql"})
    started_again(site, next(iter(site.fleet)))
    assert adapters(site) == [{"fr": "/srv/lora/fr"}, {"fr": "/srv/lora/fr", "sql": "/srv/lora/sql"}]
    (found,) = findings(site).findings
    assert (found.replica, found.code, found.fix) == ("gpu-01/0", "adapter", "gpufleet pool deploy chat")
    assert "sql" in found.message
    before = running(site)
    prepared = prepare(site.tools(), asked_now(site), command="pool deploy chat")
    assert "  ~ load adapter sql in gpu-01/0" in diff.lines(prepared.plan)
    assert site.deploy(asked_now(site)).outcome == "committed"
    assert adapters(site) == [{"fr": "/srv/lora/fr", "sql": "/srv/lora/sql"}] * 2
    assert running(site) == before
    assert findings(site).findings == ()


def test_an_unloaded_adapter_that_came_back_with_its_engine_goes_again(site):
    change(site, {}, ("fr",))
    started_again(site, next(iter(site.fleet)))
    (found,) = findings(site).findings
    assert "nobody asked for" in found.message
    assert site.deploy(asked_now(site)).outcome == "committed"
    assert adapters(site) == [{}, {}]


def test_adapters_of_the_definition_are_exchanged_without_a_restart(site):
    before = running(site)
    site.deploy(replace(asked_now(site), lora={"fr": "/srv/lora/fr2", "de": "/srv/lora/de"}))
    assert adapters(site) == [{"fr": "/srv/lora/fr2", "de": "/srv/lora/de"}] * 2
    assert names(site) == ["qwen", "de", "fr"]
    assert running(site) == before
    assert findings(site).findings == ()


def test_a_failed_exchange_leaves_every_member_and_the_names_as_they_were(site):
    engine = engines(site)[1]
    engine.spec = replace(engine.spec, runtime_lora=False)
    with pytest.raises(RolledBack):
        site.deploy(replace(asked_now(site), lora={"de": "/srv/lora/de"}))
    assert adapters(site) == [{"fr": "/srv/lora/fr"}] * 2
    assert names(site) == ["qwen", "fr"]
    assert recorded(site) == {"fr": "/srv/lora/fr"}


def test_adapters_from_a_directory_that_the_containers_do_not_see_need_new_ones(site):
    before = running(site)
    site.deploy(replace(asked_now(site), lora={"fr": "/other/fr"}))
    assert not set(before) & set(running(site))
    assert adapters(site) == [{"fr": "/other/fr"}] * 2


def test_a_pool_that_begins_to_take_adapters_needs_new_containers(tmp_path):
    site = Site(tmp_path, 2)
    site.deploy()
    before = running(site)
    site.deploy(site.pool(lora_from="/srv/lora"))
    assert not set(before) & set(running(site))


def test_an_engine_that_does_not_tell_is_believed_or_refused_but_never_taken_for_empty(site):
    engine = engines(site)[1]
    engine.spec = replace(engine.spec, adapters={"fr": "/srv/lora/fr"})
    blind = Fault(host="gpu-02", kind=Kind.LOSE_BEFORE, pattern="/v1/models", times=9)
    tools = site.tools(blind)
    done = carry_out(tools, prepare(tools, asked_now(site), command="pool deploy chat"))
    assert done.outcome == "no_change"
    assert any("gpu-02/0" in line and "not known" in line for line in site.told)
    with pytest.raises(PreflightFailed, match="do not tell"):
        prepare(site.tools(blind), replace(asked_now(site), lora={}), command="pool deploy chat")


def test_a_member_that_was_added_is_asked_by_its_own_key_and_started_by_no_deploy(site):
    tools = site.tools()
    other = PoolName("other")
    begun = replace(asked_now(site), name=other, replicas=0, lora={}, lora_from="/srv/lora", members=())
    commit.begin(tools.store, begun, tools.engine, at="now")
    join(tools, other, Join(word="gpu-01/0", of="chat"))
    done = carry_out_adapters(
        tools, prepare_adapters(tools, other, {"sql": "/srv/lora/sql"}, (), command="pool set other")
    )
    assert done.outcome == "committed"
    assert adapters(site)[0]["sql"] == "/srv/lora/sql"
    lab = next(iter(site.fleet))
    lab.containers.stop(
        next(one for one in lab.containers.containers.values() if one.wish.labels.get("gpufleet.pool"))
    )
    with pytest.raises(PreflightFailed) as caught:
        prepare_adapters(site.tools(), other, {}, ("sql",), command="pool set other")
    (row,) = caught.value.rows
    assert "gpufleet pool remove other gpu-01/0" in row.hint
    assert "pool deploy" not in row.hint
