"""What traffic and pages tell of a member: ejection, trial, slow start, and engines that hang behind a good `/health`."""

from __future__ import annotations

import threading

import pytest

from gpufleet.proxy.config import ScrapeRules
from gpufleet.proxy.decide.deadline import Timeouts
from gpufleet.proxy.decide.health import HealthRules
from tests.kit.engine_pages import Engine, page
from tests.kit.engines import PATIENCE, chat, engines
from tests.kit.proxies import eventually, proxy, table

pytestmark = pytest.mark.wire
ASK = {"model": "m", "messages": []}


def states(running):
    return [row["health"] for row in running.admin("GET", "/admin/members")[1]["pools"][0]["members"]]


def served(running, number):
    return [running.post(ASK)[1].get("x-gpufleet-endpoint") for _ in range(number)]


class Sick:
    """Takes requests and cuts them until it is cured; a trial asks it for one token."""

    def __init__(self):
        self.cured = False
        self.trials = 0

    def __call__(self, call):
        if b"/v1/completions " in call.head:
            self.trials += 1
            assert b'"max_tokens":1' in call.body
        if not self.cured:
            call.reset()
        else:
            call.answer()


@pytest.mark.parametrize("uvloop", [True, False])
def test_a_member_that_breaks_requests_is_left_out_tried_and_taken_back(tmp_path, uvloop):
    sick = Sick()
    rules = HealthRules(every=0.02, timeout=PATIENCE, eject_for=0.1, eject_most=0.1, warm_up=0.2)
    with (
        engines(sick, chat) as members,
        proxy(tmp_path, table(*members), health=rules, uvloop=uvloop) as running,
    ):
        eventually(lambda: states(running) == ["up", "up"])  # its `/health` is good all the time
        answers = [running.post(ASK)[0] for _ in range(10)]
        assert answers.count(502) == 5
        eventually(lambda: sick.trials > 1)  # tried again and again, and no client with it
        assert set(served(running, 6)) == {"gpu-1/0"}
        sick.cured = True
        eventually(lambda: states(running) == ["up", "up"])
        eventually(lambda: "gpu-0/0" in served(running, 2))
        assert all(status == 200 for status in (running.post(ASK)[0] for _ in range(6)))


def test_no_more_than_half_of_a_pool_is_left_out(tmp_path):
    first, second = Sick(), Sick()
    rules = HealthRules(every=3600.0)
    with engines(first, second) as members, proxy(tmp_path, table(*members), health=rules) as running:
        for _ in range(16):
            running.post(ASK)
        first.cured = second.cured = True
        assert set(served(running, 4)) == {"gpu-0/0", "gpu-1/0"}  # all were guesses, so all are asked


def test_an_engine_that_makes_no_token_is_left_out(tmp_path, caplog):
    rules = HealthRules(every=3600.0, frozen_after=0.05)
    often = ScrapeRules(every=0.02, timeout=PATIENCE)
    with engines(chat, chat) as members:
        for member in members:
            member.page = page("0.33.0", Engine(running=2)) + b"vllm:generation_tokens_total 100\n"
        done = threading.Event()

        def work():
            for number in range(100_000):
                members[1].page = page("0.33.0") + b"vllm:generation_tokens_total %d\n" % number
                if done.wait(0.005):
                    return

        worker = threading.Thread(target=work)
        worker.start()
        try:
            with proxy(tmp_path, table(*members), health=rules, scrape=often) as running:
                eventually(
                    lambda: running.started.state.fleet.table.pools["chat"].seats[0].verdict.value != "up"
                )
                assert set(served(running, 4)) == {"gpu-1/0"}
                assert "is ejected: frozen" in caplog.text
        finally:
            done.set()
            worker.join()


def test_three_requests_that_are_too_slow_leave_a_member_out(tmp_path):
    gate = threading.Event()

    def hang(call):
        gate.wait(PATIENCE)

    rules = HealthRules(every=3600.0)
    with (
        engines(hang, chat) as members,
        proxy(tmp_path, table(*members), health=rules, timeouts=Timeouts(first_byte=0.4)) as running,
    ):
        statuses = [running.post({**ASK, "stream": True})[0] for _ in range(6)]
        assert statuses.count(504) >= 3
        assert set(served(running, 4)) == {"gpu-1/0"}
        gate.set()


def test_a_member_that_comes_back_gets_little_at_first(tmp_path):
    rules = HealthRules(every=0.02, timeout=PATIENCE, warm_up=3600.0)
    with engines(chat, chat) as (first, second):
        first.healthy = False
        with proxy(tmp_path, table(first, second), health=rules) as running:
            eventually(lambda: states(running) == ["down", "up"])
            first.healthy = True
            eventually(lambda: states(running) == ["up", "up"])
            seen = served(running, 60)
            assert seen.count("gpu-0/0") < 30  # a tenth of the time, and then every other
            eventually(lambda: "gpu-0/0" in served(running, 3))


def test_a_probe_that_is_late_while_tokens_flow_is_no_failure(tmp_path):
    """`/health` never answers within its time; the engine's own counters grew lately."""
    rules = HealthRules(every=0.001, timeout=0.005, down_after=50)
    with engines(chat) as (engine,):
        late = []

        def script(call):
            late.append(call)
            threading.Event().wait(0.1)
            call.answer()

        engine.script, engine.page = script, page("0.33.0")
        endpoint = type(table(engine).pools[0].endpoints[0])(id="gpu-0/0", url=engine.url, health="/slow")
        with proxy(
            tmp_path, table(engine, endpoints=(endpoint,)), health=rules, scrape=ScrapeRules(every=3600.0)
        ) as running:
            eventually(lambda: len(late) > 120)
            (member,) = running.started.state.fleet.members.values()
            assert member.health.verdict.value == "up"
