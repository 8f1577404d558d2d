"""The state directory: whole files, growing generations, keys that nobody else reads."""

import stat
import threading

import pytest

from gpufleet.errors import DocumentError, PreflightFailed, StalePlan
from gpufleet.names import HostName, PoolName, ReplicaId
from gpufleet.pools import document, membership, record
from gpufleet.pools.model import Endpoint, MemberState, Pool
from gpufleet.pools.record import PoolRecord
from gpufleet.pools.routes import PoolRoute
from gpufleet.pools.store import PoolStore


@pytest.fixture
def store(tmp_path, clock):
    return PoolStore(tmp_path / "state", clock)


def pool(**changes):
    return Pool(name=PoolName("chat"), model="m", **changes)


def endpoint(replica, url="http://10.0.0.1:8000"):
    return Endpoint(replica=ReplicaId(replica), host=HostName(replica.partition("/")[0]), url=url)


def test_nothing_published_yet_is_generation_nought(store):
    assert store.routes().generation == 0
    assert not store.routes_path.exists()


def test_each_publication_is_one_generation_more_and_an_equal_one_is_none(store):
    first = store.publish(lambda table: membership.with_pool(table, PoolRoute(name="a")))
    second = store.publish(lambda table: membership.with_pool(table, PoolRoute(name="b")))
    again = store.publish(lambda table: table)
    assert (first.generation, second.generation, again.generation) == (1, 2, 2)
    assert [route.name for route in store.routes().pools] == ["a", "b"]
    assert store.routes().written_at == "2026-01-01T00:00:00+00:00"


def test_publications_at_the_same_time_lose_nothing(store):
    def publish(number):
        store.publish(lambda table: membership.with_pool(table, PoolRoute(name=f"p{number:02}")))

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.routes().generation == 12
    assert len(store.routes().pools) == 12


def test_no_half_written_file_is_left(store):
    store.publish(lambda table: membership.with_pool(table, PoolRoute(name="a")))
    assert sorted(path.name for path in store.routes_path.parent.iterdir()) == ["routes.json", "routes.lock"]


def test_a_damaged_table_is_named_and_never_overwritten(store):
    store.routes_path.parent.mkdir(parents=True)
    store.routes_path.write_text("{")
    with pytest.raises(DocumentError) as caught:
        store.publish(lambda table: table)
    assert caught.value.where == str(store.routes_path)
    assert store.routes_path.read_text() == "{"


def test_a_key_is_made_once_and_only_its_owner_reads_it(store):
    assert store.key(PoolName("chat")) is None
    key = store.new_key(PoolName("chat"))
    assert store.key(PoolName("chat")) is None
    assert not store.key_path(PoolName("chat")).parent.exists()
    store.keep_key(PoolName("chat"), key)
    store.keep_key(PoolName("chat"), key)
    assert store.key(PoolName("chat")) == key
    assert key != store.new_key(PoolName("other"))
    with pytest.raises(StalePlan):
        store.keep_key(PoolName("chat"), store.new_key(PoolName("chat")))
    assert store.key(PoolName("chat")) == key
    path = store.key_path(PoolName("chat"))
    assert key.reference == f"${{file:{path}}}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_record_comes_back_as_it_was(store):
    wanted = pool(replicas=2)
    written = PoolRecord(
        revision=3,
        run="r",
        pool=document.from_model(wanted),
        endpoints=record.endpoint_records([endpoint("a/0")]),
    )
    store.save(wanted.name, written)
    found = store.record(wanted.name)
    assert found == written
    assert record.pool_of(found) == wanted
    assert record.endpoints_of(found) == (endpoint("a/0"),)
    assert store.names() == ("chat",)
    store.forget(wanted.name)
    assert store.record(wanted.name) is None


def test_weights_and_states_reach_the_route():
    set_up = membership.set_weights(pool(), {ReplicaId("a/0"): 4})
    set_up = membership.set_state(set_up, [ReplicaId("b/0")], MemberState.DRAINING)
    route = membership.route(
        set_up, [endpoint("b/0"), endpoint("a/0")], key="${file:/k}", health="/health", metrics="/metrics"
    )
    assert [(one.id, one.weight, one.state, one.key) for one in route.endpoints] == [
        ("a/0", 4, "active", "${file:/k}"),
        ("b/0", 1, "draining", "${file:/k}"),
    ]
    back = membership.set_state(set_up, [ReplicaId("b/0")], MemberState.ACTIVE)
    assert [member.replica for member in back.members] == ["a/0"]


def test_a_state_directory_that_is_a_file_is_named(tmp_path, clock):
    (tmp_path / "state").write_text("")
    blocked = PoolStore(tmp_path / "state", clock)
    for attempt in (
        lambda: blocked.keep_key(PoolName("chat"), blocked.new_key(PoolName("chat"))),
        lambda: blocked.publish(lambda table: table),
    ):
        with pytest.raises(PreflightFailed) as caught:
            attempt()
        assert str(tmp_path) in caught.value.where
        assert "--state-dir" in caught.value.hints[0]


def test_a_write_that_fails_leaves_nothing_behind(store):
    store.record_path(PoolName("chat")).mkdir(parents=True)
    with pytest.raises(PreflightFailed):
        store.save(PoolName("chat"), PoolRecord(pool={}))
    assert [path.name for path in store.record_path(PoolName("chat")).parent.iterdir()] == ["chat.json"]
