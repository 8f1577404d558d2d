"""Drained is known or not known; a shift of the routes is undone by its exchange."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.change.here import Errand, perform
from gpufleet.change.model import CannotTell, Fails, Holds, Waits
from gpufleet.clock import SystemClock
from gpufleet.deploy import traffic, traffic_acts
from gpufleet.pools.membership import shifted
from gpufleet.pools.routes import EndpointRoute, PoolRoute, RouteTable
from gpufleet.pools.store import PoolStore
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit, Lost
from tests.kit.lab_kit import LabClock
from tests.kit.places import PLACE


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("0\n0\nready x\n", Holds),
        ("?\n0\nready x\n", Holds),
        ("0\n?\nrunning x\n", Holds),
        ("0\n0\nexited\n", Holds),
        ("?\n?\n?\n", Waits),
        ("0\n2\nready x\n", Waits),
        ("1\n0\nready x\n", Waits),
        ("", CannotTell),
    ],
)
def test_drained(text, verdict):
    assert isinstance(traffic.nothing_in_flight(Exit(code=0, stdout=text), ()), verdict)


@pytest.mark.parametrize(
    ("text", "verdict"), [("?\n0\nready\n", Holds), ("?\n?\nrunning\n", Waits), ("0\n0\nexited\n", Fails)]
)
def test_ready_again(text, verdict):
    assert isinstance(traffic.healthy(Exit(code=0, stdout=text), ()), verdict)


def errand(answer):
    return Errand(
        ask=lambda _host, _command: answer,
        clock=LabClock(),
        called_off=lambda: False,
        progress=lambda _text: None,
    )


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        (Exit(code=0, stdout="== state\nexited\n== log\nbye\n"), ["0", "0", "exited"]),
        (
            Exit(
                code=0,
                stdout="== state\nrunning\n== health\nok\nstatus 200\n== metrics\n"
                'vllm:num_requests_running{e="0"} 2.0\nvllm:num_requests_waiting 1.0\nstatus 200\n== log\nhi\n',
            ),
            ["?", "3", "ready hi"],
        ),
        (Exit(code=0, stdout="== state\nrunning\n== metrics\nstatus 000\n"), ["?", "?", "running "]),
        (Lost(reason="gone", sent=True), ["?", "?", "?"]),
        (Exit(code=1), ["?", "?", "?"]),
    ],
)
def test_what_is_told_of_a_member(tmp_path, answer, lines):
    acts = traffic_acts.acts(PoolStore(tmp_path, SystemClock()), ())
    outcome = perform(traffic.drained(PLACE).look, acts, errand(answer))
    assert isinstance(outcome, Exit)
    assert outcome.stdout.splitlines() == lines


def test_an_act_that_nobody_knows_is_not_begun(tmp_path):
    outcome = perform(Command(argv=("newer",), mutates=True), {}, errand(None))
    assert isinstance(outcome, Lost)
    assert not outcome.sent


routes = st.builds(
    EndpointRoute,
    id=st.sampled_from("abcdef"),
    url=st.sampled_from("123456"),
    weight=st.integers(0, 3),
    state=st.sampled_from(["active", "draining"]),
)
members = st.lists(routes, max_size=5, unique_by=lambda one: one.url).map(
    lambda found: tuple(sorted(found, key=lambda one: (one.id, one.url)))
)


@given(members, st.data())
def test_a_shift_is_idempotent_and_its_exchange_undoes_it(now, data):
    before = data.draw(st.lists(st.sampled_from(now), unique_by=lambda one: one.url) if now else st.just([]))
    free = {one.url for one in now} - {one.url for one in before}
    after = tuple(one for one in data.draw(members) if one.url not in free)
    head = PoolRoute(name="chat", models=("q",))
    other = PoolRoute(name="other")
    chat = (PoolRoute(name="chat", models=("q",), endpoints=now),) if now else ()
    table = RouteTable(generation=3, pools=(*chat, other))
    once = shifted(table, head, before, after)
    assert shifted(once, head, before, after) == once
    assert shifted(once, head, after, before) == table


def test_a_shift_is_seen_where_it_holds_and_survives_a_second_time(tmp_path):
    store = PoolStore(tmp_path, SystemClock())
    old = EndpointRoute(id="gpu-01/0", url="http://10.0.0.1:8000")
    store.publish(lambda table: shifted(table, PoolRoute(name="chat", models=("q",)), (), (old,)))
    new = EndpointRoute(id="gpu-01/0", url="http://10.0.0.1:8001")
    shift = traffic.Shift(pool="chat", models=("q",), algorithm="round-robin", before=(old,), after=(new,))
    step = traffic.shift_step("publish", "t", shift, after=frozenset())
    acts, where = traffic_acts.acts(store, ()), errand(None)
    assert step.absent is not None
    assert isinstance(step.undo, tuple)

    def succeeds(command):
        outcome = perform(command, acts, where)
        assert isinstance(outcome, Exit)
        return outcome.ok

    assert not succeeds(step.verify.look)
    for _ in range(2):
        assert succeeds(step.do[0])
        assert succeeds(step.verify.look)
        assert [one.url for one in store.routes().pools[0].endpoints] == [new.url]
    assert where.clock.monotonic() == traffic_acts.READ_BY_ALL
    assert succeeds(step.undo[0])
    assert succeeds(step.absent.look)
    assert [one.url for one in store.routes().pools[0].endpoints] == [old.url]


def test_a_machine_that_does_not_publish_the_pool_shifts_nothing(tmp_path):
    store = PoolStore(tmp_path, SystemClock())
    one = EndpointRoute(id="gpu-01/0", url="http://10.0.0.1:8000")
    shift = traffic.Shift(pool="chat", models=("q",), algorithm="round-robin", before=(), after=(one,))
    step = traffic.shift_step("publish", "t", shift, after=frozenset())
    assert isinstance(step.undo, tuple)
    acts, where = traffic_acts.acts(store, ()), errand(None)
    for command in (*step.do, step.verify.look, *step.undo):
        outcome = perform(command, acts, where)
        assert isinstance(outcome, Exit)
        assert outcome.ok
        assert store.routes().pools == ()


def test_the_time_for_proxies_is_slept_once_however_the_clock_rounds(tmp_path):
    """At a large reading, what is left of two seconds may be less than the clock can tell."""
    store = PoolStore(tmp_path, SystemClock())
    one = EndpointRoute(id="gpu-01/0", url="http://10.0.0.1:8000")
    store.publish(lambda table: shifted(table, PoolRoute(name="chat", models=("q",)), (), (one,)))
    slept: list[float] = []

    class Coarse(LabClock):
        def sleep(self, seconds):
            slept.append(seconds)
            assert len(slept) < 5
            self.elapsed += seconds - 1e-9

    where = Errand(
        ask=lambda _host, _command: Lost(reason="", sent=False),
        clock=Coarse(),
        called_off=lambda: False,
        progress=lambda _text: None,
    )
    shift = traffic.Shift(pool="chat", models=("q",), algorithm="round-robin", before=(one,), after=())
    outcome = perform(
        traffic.shift_step("out", "t", shift, after=frozenset()).do[0], traffic_acts.acts(store, ()), where
    )
    assert isinstance(outcome, Exit)
    assert slept == [traffic_acts.READ_BY_ALL]
