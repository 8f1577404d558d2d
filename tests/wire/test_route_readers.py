"""Whether proxies have read a new route table, asked of real ones at their admin addresses."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

import pytest

from gpufleet.change.here import Errand, perform
from gpufleet.clock import SystemClock
from gpufleet.deploy import traffic, traffic_acts
from gpufleet.pools.membership import shifted
from gpufleet.pools.routes import EndpointRoute, PoolRoute
from gpufleet.pools.store import PoolStore
from gpufleet.remote.result import Exit, Lost
from tests.kit.proxies import proxy

pytestmark = pytest.mark.wire

OLD = EndpointRoute(id="gpu-01/0", url="http://127.0.0.1:9")
NEW = EndpointRoute(id="gpu-01/0", url="http://127.0.0.1:10", weight=3)
SHIFT = traffic.Shift(pool="chat", models=("q",), algorithm="round-robin", before=(OLD,), after=(NEW,))


@dataclass
class Watched:
    """A clock that passes as it does, and knows how long somebody slept."""

    real: SystemClock = field(default_factory=SystemClock)
    slept: list[float] = field(default_factory=list)

    def now(self):
        return self.real.now()

    def monotonic(self):
        return self.real.monotonic()

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.real.sleep(seconds)


@pytest.fixture
def store(tmp_path):
    made = PoolStore(tmp_path, SystemClock())
    made.publish(lambda table: shifted(table, PoolRoute(name="chat", models=("q",)), (), (OLD,)))
    return made


def publish(store, proxies, *, named, shift=SHIFT):
    """What a step does that shifts the routes; how long it slept each time."""
    clock = Watched()
    errand = Errand(
        ask=lambda _host, _command: Lost(reason="none", sent=False),
        clock=clock,
        called_off=lambda: False,
        progress=lambda _text: None,
    )
    step = traffic.shift_step("publish", "t", shift, after=frozenset())
    outcome = perform(step.do[0], traffic_acts.acts(store, proxies, named=named), errand)
    assert isinstance(outcome, Exit)
    assert outcome.ok
    return clock.slept


def admin(front):
    return f"127.0.0.1:{front.started.admin.port}"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def long_waits(monkeypatch):
    """Whoever waits a fixed time here is seen to do so."""
    monkeypatch.setattr(traffic_acts, "READ_BY_ALL", 0.7)
    monkeypatch.setattr(traffic_acts, "READ_AT_LAST", 20.0)


@pytest.mark.usefixtures("long_waits")
def test_proxies_that_were_named_are_waited_for_until_they_show_the_new_routes(store, tmp_path):
    with proxy(tmp_path, store.routes()) as one, proxy(tmp_path, store.routes()) as two:
        proxies = (admin(one), admin(two))
        assert [traffic_acts.has_read(place, SHIFT) for place in proxies] == [False, False]
        slept = publish(store, proxies, named=True)
        assert [traffic_acts.has_read(place, SHIFT) for place in proxies] == [True, True]
        assert set(slept) <= {0.1}  # asked again and again, and no fixed time behind it
        drained = EndpointRoute(id=NEW.id, url=NEW.url, weight=3, state="draining")
        out = traffic.Shift(
            pool="chat", models=("q",), algorithm="round-robin", before=(NEW,), after=(drained,)
        )
        assert [traffic_acts.has_read(place, out) for place in proxies] == [False, False]
        publish(store, proxies, named=True, shift=out)
        assert [traffic_acts.has_read(place, out) for place in proxies] == [True, True]


@pytest.mark.usefixtures("long_waits")
@pytest.mark.parametrize("why", ["nobody named it", "it does not answer", "it serves other pools"])
def test_where_it_is_not_known_that_all_have_read_them_the_time_is_given(store, tmp_path, why):
    (tmp_path / "other").mkdir()
    table = store.routes()
    if why == "it serves other pools":
        other = PoolStore(tmp_path / "other", SystemClock())
        other.publish(lambda table: shifted(table, PoolRoute(name="else", models=("q",)), (), (OLD,)))
        table = other.routes()
    with proxy(tmp_path / "other" if why == "it serves other pools" else tmp_path, table) as one:
        place = f"127.0.0.1:{free_port()}" if why == "it does not answer" else admin(one)
        slept = publish(store, (place,), named=why != "nobody named it")
    assert sum(slept) >= 0.6


def test_a_proxy_that_never_reads_them_is_not_waited_for_for_ever(store, tmp_path, monkeypatch):
    monkeypatch.setattr(traffic_acts, "READ_BY_ALL", 0.0)
    monkeypatch.setattr(traffic_acts, "READ_AT_LAST", 0.5)
    (tmp_path / "elsewhere").mkdir()
    with proxy(tmp_path / "elsewhere", store.routes()) as one:  # its table is a copy that nobody renews
        slept = publish(store, (admin(one),), named=True)
        assert traffic_acts.has_read(admin(one), SHIFT) is False
        assert len(slept) >= 2
