"""`cache-aware` in a proxy over real sockets: caches are used, load is spread, counters come back to zero."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from gpufleet.lab.vllm.engine import EngineServer
from gpufleet.lab.vllm.spec import EngineSpec
from gpufleet.pools.routes import EndpointRoute, PoolRoute, RouteTable
from gpufleet.proxy.config import ScrapeRules
from gpufleet.proxy.decide.engine_load import EngineLoad
from gpufleet.proxy.decide.health import HealthRules
from tests.kit.engine_pages import Engine, page
from tests.kit.engines import PATIENCE, chat, engines
from tests.kit.proxies import eventually, proxy, table, write

pytestmark = pytest.mark.wire
SYSTEM = "You are a helpful program. " * 80


def asked(*texts, **fields):
    roles = ("system", "user", "assistant")
    messages = [{"role": roles[min(at, 1 + at % 2)], "content": text} for at, text in enumerate(texts)]
    return {"model": "m", "messages": messages, **fields}


def who(answer):
    status, fields, _ = answer
    assert status == 200
    return fields["x-gpufleet-endpoint"]


def works(running):
    return [member.work for member in running.started.state.fleet.members.values()]


def pages_read(running):
    return all(work.cache_tokens for work in works(running))


def at_rest(running):
    return all((work.running, work.pending, work.burden) == (0, 0, 0.0) for work in works(running))


def test_conversations_stay_and_the_system_prompt_is_no_monopoly(tmp_path):
    """Case 25, and turns of eight conversations in between each other."""
    with (
        engines(chat, chat, chat, chat) as members,
        proxy(tmp_path, table(*members, algorithm="cache-aware")) as running,
    ):
        homes = []
        for turn in range(1, 5):
            for number in range(8):
                words = [f"conversation {number} turn {each} " * 60 for each in range(2 * turn - 1)]
                homes.append((number, who(running.post(asked(SYSTEM, *words, stream=turn % 2 == 0)))))
        assert len(set(homes)) == 8  # each has one home
        got = Counter(home for _, home in homes)
        assert max(got.values()) <= 1.5 * len(homes) / 4, got
        assert at_rest(running)
        metrics = running.admin("GET", "/metrics")[1]
        assert 'gpufleet_proxy_pending_prompt_tokens{pool="chat",endpoint="gpu-0/0"} 0' in metrics
        (index,) = [
            line for line in metrics.splitlines() if line.startswith("gpufleet_proxy_prefix_index_blocks{")
        ]
        assert float(index.split()[-1]) > 8


@contextlib.contextmanager
def lab(count):
    """Engines of the lab, with prefix caches of their own."""
    with EngineServer() as server:
        spec = EngineSpec(model="m", load_seconds=0.0, token_seconds=0.0)
        started = [server.start((("127.0.0.1", 0),), spec) for _ in range(count)]
        yield started


def lab_table(started, algorithm):
    endpoints = tuple(
        EndpointRoute(id=f"gpu-{number}/0", url=f"http://127.0.0.1:{engine.addresses[0][1]}")
        for number, engine in enumerate(started)
    )
    return RouteTable(
        generation=1, pools=(PoolRoute(name="chat", models=("m",), algorithm=algorithm, endpoints=endpoints),)
    )


def test_engines_find_more_in_their_caches_than_by_turns(tmp_path):
    rates = {}
    for algorithm in ("round-robin", "cache-aware"):
        folder = tmp_path / algorithm
        folder.mkdir()
        often = ScrapeRules(every=0.05, timeout=PATIENCE)
        with lab(3) as started, proxy(folder, lab_table(started, algorithm), scrape=often) as running:
            eventually(partial(pages_read, running), "pages are read")
            for turn in range(1, 5):
                for number in range(7):
                    words = [f"talk {number} turn {each} of words " * 80 for each in range(2 * turn - 1)]
                    assert running.post(asked("Be kind. " * 200, *words, max_tokens=2))[0] == 200
            counters = [engine.model.counters for engine in started]
            rates[algorithm] = sum(one.cached_tokens for one in counters) / sum(
                one.prompt_tokens for one in counters
            )
            assert at_rest(running)
    assert rates["cache-aware"] > rates["round-robin"] + 0.15, rates


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/inference/v1/generate", "/v1/messages"])
def test_a_crowd_with_one_prefix_is_spread_on_every_path(tmp_path, path):
    """Case 08: what is in flight counts whatever the path is."""
    gate = threading.Event()

    def slow(call):
        gate.wait(PATIENCE)
        call.answer()

    with (
        engines(*[slow] * 4) as members,
        proxy(tmp_path, table(*members, algorithm="cache-aware")) as running,
        ThreadPoolExecutor(48) as clients,
    ):
        body = asked(SYSTEM, "the same for all")
        waiting = [clients.submit(running.post, body, path) for _ in range(48)]
        eventually(lambda: sum(running.in_flight()) == 48)
        counts = running.in_flight()
        pending = [work.pending for work in works(running)]
        gate.set()
        assert all(one.result()[0] == 200 for one in waiting)
        assert max(counts) <= 1.5 * 12, counts
        assert any(pending)
        eventually(lambda: at_rest(running))


def test_counters_are_zero_after_every_kind_of_end(tmp_path):
    def reset(call):
        call.reset()

    def broken(call):
        call.start_stream()
        call.event("one")
        call.reset()

    def busy(call):
        call.answer(b"{}", b"503 Service Unavailable")

    def silent(call):
        call.wait_gone()

    with engines(chat, reset, broken, busy, silent) as members:
        routes = table(*members, algorithm="cache-aware")
        calm = HealthRules(every=3600.0, eject_after=10**6, late_after=10**6, least=10**6)
        with proxy(tmp_path, routes, health=calm) as running:
            for number in range(25):
                with running.dial() as client:
                    client.ask(asked(SYSTEM, f"question {number} " * 200, stream=number % 2 == 0))
                    client.sock.settimeout(0.1)
                    with contextlib.suppress(OSError):
                        while client.sock.recv(65536):
                            pass
            assert {len(member.calls) > 0 for member in members} == {True}
            eventually(lambda: at_rest(running) and running.started.state.in_flight == 0)


def test_the_algorithm_can_be_changed_while_answers_stream(tmp_path):
    gate = threading.Event()

    def held(call):
        call.start_stream()
        call.event("one")
        gate.wait(PATIENCE)
        call.end_stream()

    with engines(held, held) as members, proxy(tmp_path, table(*members)) as running:
        with running.dial() as first, running.dial() as second:
            first.ask(asked(SYSTEM, "x", stream=True))
            first.until(b"one")
            write(running.routes, table(*members, generation=2, algorithm="cache-aware"))
            eventually(lambda: running.admin("GET", "/admin/members")[1]["generation"] == 2)
            second.ask(asked(SYSTEM, "y", stream=True))
            second.until(b"one")
            assert running.in_flight() == [1, 1]  # the second went where nothing was in flight
            write(running.routes, table(*members, generation=3, algorithm="least-busy"))
            eventually(lambda: running.admin("GET", "/admin/members")[1]["generation"] == 3)
            gate.set()
            assert first.until(b"0\r\n\r\n")
            assert second.until(b"0\r\n\r\n")
        eventually(lambda: at_rest(running))


@pytest.mark.parametrize("algorithm", ["round-robin", "random", "cache-aware"])
def test_a_session_that_names_itself_has_one_member_over_reloads(tmp_path, algorithm):
    with engines(chat, chat, chat) as members:
        routes = table(*members, algorithm=algorithm)
        with proxy(tmp_path, routes) as running:
            named = {
                number: who(running.post(asked("x"), **{"X-Session-ID": f"s{number}"})) for number in range(9)
            }
            assert len(set(named.values())) == 3 or algorithm == "random"
            write(running.routes, table(*members, generation=2, algorithm="least-busy"))
            eventually(lambda: running.admin("GET", "/admin/members")[1]["generation"] == 2)
            for number, home in named.items():
                for _ in range(3):
                    assert who(running.post(asked("x"), **{"x-session-id": f"s{number}"})) == home


def test_a_member_that_was_down_is_thought_to_have_nothing(tmp_path):
    quick = HealthRules(every=0.02, timeout=PATIENCE)
    with engines(chat, chat) as members:
        routes = table(*members, algorithm="cache-aware")
        with proxy(tmp_path, routes, health=quick) as running:
            home = who(running.post(asked(SYSTEM, "long " * 900)))
            learner = running.started.state.fleet.table.pools["chat"].learner
            assert learner is not None
            assert learner.entries
            members[int(home[4])].healthy = False
            eventually(lambda: learner.entries == 0)
            assert who(running.post(asked(SYSTEM, "long " * 900))) != home


def test_requests_of_others_count_while_the_page_is_fresh(tmp_path):
    """Least-busy takes what the proxy counts, and from pages only what others send; an old page says nothing (case 15)."""
    often = ScrapeRules(every=0.02, timeout=PATIENCE)
    with engines(chat, chat) as members:
        members[0].page = page("0.33.0", Engine(running=5, waiting=2))
        members[1].page = page("0.33.0", Engine(running=0, waiting=0))
        with proxy(tmp_path, table(*members, algorithm="least-busy"), scrape=often) as running:
            eventually(lambda: [work.outside for work in works(running)] == [7, 0])
            assert {who(running.post(asked("x"))) for _ in range(6)} == {"gpu-1/0"}
            assert running.in_flight() == [0, 0]  # nobody here waits for what others sent
            members[0].page = None
            eventually(lambda: [work.outside for work in works(running)] == [0, 0], "the page grew old")
            assert {who(running.post(asked("x"))) for _ in range(6)} == {"gpu-0/0", "gpu-1/0"}


def test_our_own_requests_are_not_counted_twice(tmp_path):
    with engines(chat) as members, proxy(tmp_path, table(*members)) as running:
        (member,) = running.started.state.fleet.members.values()
        for _ in range(2):
            member.told(EngineLoad(running=3.0, waiting=1.0), 1.0, 4)
        assert member.work.outside == 0
        member.told(EngineLoad(running=9.0, waiting=None), 2.0, 4)
        assert member.work.outside == 0  # one page may have been written at a bad moment
        member.told(EngineLoad(running=6.0, waiting=None), 3.0, 4)
        assert member.work.outside == 2
        member.told(EngineLoad(), 4.0, 0)
        assert member.work.outside == 2  # a page that does not say so does not say that there is none
