"""Everything that may go wrong between clients and engines, thousands of times over real sockets.

Each request has a plan (`tests.kit.chaos_plans`): how its engine answers, where it fails, when its client leaves. After
each run every client that stayed was answered whole, with an error in its dialect, or with a stream that says that it
broke; no request was repeated once a byte of its answer had arrived; and nothing is left: no request in flight, no
connection, no task, no file descriptor.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpufleet.pools.routes import EndpointRoute, PoolRoute, RouteTable
from gpufleet.proxy.decide.deadline import Timeouts
from gpufleet.proxy.decide.health import HealthRules
from gpufleet.proxy.decide.retry import RETRIED_STATUSES
from tests.kit.chaos_clients import Client, judge
from tests.kit.chaos_engines import ChaosEngine, Listener, cut_off, hang_up
from tests.kit.chaos_plans import Act, Leaves, Phase, Plan, drawn, grid
from tests.kit.engines import PATIENCE
from tests.kit.proxies import NO_PROBES, Proxy, eventually, proxy

pytestmark = [pytest.mark.wire, pytest.mark.long, pytest.mark.timeout(600)]
SEEDS = [int(seed) for seed in os.environ.get("CHAOS_SEEDS", "1 2").split()]
FORGIVING = HealthRules(every=3600.0, eject_after=10**9, late_after=10**9, least=10**9)
"""Nobody is left out, so that each plan meets the engine that it is for."""
LIMITS = Timeouts(connect=1.0, first_byte=5.0, between=5.0, total=10.0, upstream_idle=0.5)
AT_ONCE = 100
STARVED = 0.2
"""Seconds that this process was late for its own alarm: then a request without a fault may be too late as well."""


@dataclass
class Site:
    """The engines of one run, and what it has seen."""

    plans: dict[int, Plan] = field(default_factory=dict)
    engines: list[ChaosEngine] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    lag: float = 0.0

    def nobody_waits(self) -> bool:
        """No engine waits for the proxy to hang up."""
        return all(plan.stalls == plan.seen_gone for plan in self.plans.values())

    async def run(self, port: int, plans: Iterator[Plan], *, trouble: bool) -> None:
        alarm = asyncio.create_task(self._alarm())
        await asyncio.gather(*(self._client(port, plans, trouble=trouble) for _ in range(AT_ONCE)))
        alarm.cancel()

    async def _alarm(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + 0.05
            await asyncio.sleep(0.05)
            self.lag = max(self.lag, loop.time() - due)

    async def _client(self, port: int, plans: Iterator[Plan], *, trouble: bool) -> None:
        client = Client(port)
        for plan in plans:
            self.plans[plan.number] = plan
            began = asyncio.get_running_loop().time()
            try:
                outcome = await asyncio.wait_for(client.carry_out(plan), PATIENCE)
            except TimeoutError:
                self.wrong.append(f"{plan}: never answered")
                client.leave(Act.RESET)
                continue
            if outcome is None:
                self.seen["left"] += 1
                continue
            waited = asyncio.get_running_loop().time() - began
            late = waited >= LIMITS.between and self.lag > STARVED
            self.seen["late by the machine's doing"] += late and not plan.fault
            complaint = judge(plan, outcome, trouble=trouble or late)
            if complaint:
                self.wrong.append(f"{plan}: {complaint}")
            self.seen[f"{outcome.status} {'whole' if outcome.complete else 'cut'}"] += 1
        client.leave(Act.CLOSE)


def route(name: str, model: str, *ports: int, algorithm: str = "round-robin") -> PoolRoute:
    endpoints = [
        EndpointRoute(id=f"{name}-{place}/0", url=f"http://127.0.0.1:{port}")
        for place, port in enumerate(ports)
    ]
    return PoolRoute(name=name, models=(model,), endpoints=tuple(endpoints), algorithm=algorithm)


def repeated_wrongly(plan: Plan) -> str:
    """A request goes out again only when its engine cannot have begun, or said itself that it did not."""
    for before in plan.attempts[:-1]:
        unheard = before.kept and before.sent == 0
        busy = before.status in RETRIED_STATUSES and before.sent >= before.head > 0
        if not unheard and not busy:
            return f"{plan}: repeated after {before}"
    return f"{plan}: too often" if len(plan.attempts) > 6 else ""


def nothing_left(running: Proxy, tasks: int) -> None:
    """Asked over the admin address and of the process itself."""
    state = running.started.state
    eventually(lambda: not any(running.in_flight()) and state.in_flight == 0, "nothing in flight")
    eventually(lambda: not state.clients and state.buffered == 0, "no client, no body")
    page = running.admin("GET", "/metrics")[1]
    assert not [line for line in page.splitlines() if re.match(r"gpufleet_proxy_\w*in_flight.* [1-9]", line)]
    works = [member.work for member in state.fleet.members.values()]
    assert [(work.running, work.pending, work.burden) for work in works] == [(0, 0, 0.0)] * len(works)
    pools = [member.connections for member in state.fleet.members.values()]
    eventually(lambda: not any(pool.open or pool.idle for pool in pools), "no connection to an engine")
    eventually(lambda: len(asyncio.all_tasks(state.loop)) <= tasks, "no task")


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


@contextlib.asynccontextmanager
async def engines(site: Site, algorithm: str) -> AsyncIterator[RouteTable]:
    """Four that follow plans, and for the pool `rough` some that cannot be reached or hang up at once."""
    site.engines = [ChaosEngine(site.plans) for _ in range(4)]
    rude = [Listener(hang_up), Listener(cut_off)]
    for listener in rude:
        listener.open()
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))  # and does not listen
        ports = [engine.port for engine in site.engines]
        rough = (refusing.getsockname()[1], rude[0].port, ports[0], rude[1].port)
        try:
            chat = route("chat", "m", *ports, algorithm=algorithm)
            yield RouteTable(pools=(chat, route("rough", "rough", *rough, algorithm=algorithm)))
        finally:
            for listener in rude:
                await listener.end()
            for engine in site.engines:
                await engine.stop()


async def chaos(
    folder: Path, plans: Iterator[Plan], *, trouble: bool, algorithm: str = "round-robin", **fields: Any
) -> Site:
    """One run of all plans, judged, and a look at what is left."""
    site = Site()
    settings: dict[str, Any] = {"timeouts": LIMITS, **fields}
    async with engines(site, algorithm) as routes:
        context = proxy(folder, routes, **settings)
        running = await asyncio.to_thread(context.__enter__)
        try:
            await asyncio.to_thread(running.in_flight)
            tasks, before = len(asyncio.all_tasks(running.started.state.loop)), descriptors()
            await site.run(running.started.listen.port, plans, trouble=trouble)
            await asyncio.to_thread(eventually, site.nobody_waits, "engines were hung up on")
            settle(site)
            await asyncio.to_thread(nothing_left, running, tasks)
            await asyncio.to_thread(eventually, lambda: descriptors() <= before, "no file descriptor")
        finally:
            await asyncio.to_thread(context.__exit__, None, None, None)
    return site


def settle(site: Site) -> None:
    """Judge a run."""
    complaints = [*site.wrong, *filter(None, map(repeated_wrongly, site.plans.values()))]
    complaints += [text for engine in site.engines for text in engine.spoilt]
    print(f"{len(site.plans)} requests: {dict(sorted(site.seen.items()))}")
    assert site.seen["late by the machine's doing"] <= len(site.plans) / 20
    assert not complaints, "\n".join([f"{len(complaints)} complaints", *complaints[:20]])


def test_every_fault_in_every_phase(tmp_path, caplog):
    site = asyncio.run(chaos(tmp_path, iter(list(grid(0))), trouble=False, health=FORGIVING))
    assert len(site.plans) > 2000
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("seed", SEEDS)
def test_anything_at_all(tmp_path, caplog, seed):
    """By uvloop and by asyncio's own loop in turns, by turns and by caches."""
    dice = random.Random(seed)
    print(f"seed {seed}")
    plans = iter([drawn(number, dice) for number in range(1500)])
    algorithm = "cache-aware" if seed % 2 else "round-robin"
    run = chaos(tmp_path, plans, trouble=False, algorithm=algorithm, health=FORGIVING, uvloop=seed % 2 == 1)
    asyncio.run(run)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("seed", SEEDS)
def test_anything_while_engines_die_and_are_left_out(tmp_path, caplog, seed):
    dice = random.Random(seed)
    print(f"seed {seed}")
    rules = HealthRules(every=0.2, eject_for=0.1, eject_most=0.3, warm_up=0.3, timeout=2.0)
    plans = iter([drawn(number, dice, kills=True) for number in range(1000)])
    site = asyncio.run(chaos(tmp_path, plans, trouble=True, algorithm="cache-aware", health=rules))
    assert sum(engine.deaths for engine in site.engines)
    assert "Traceback" not in caplog.text


def leaves_in_time(plan: Plan) -> bool:
    """Whether it leaves at all when its engine stalls in this phase."""
    answered = plan.phase is not Phase.BEFORE
    return plan.leaves in {Leaves.SENT, Leaves.WAITING} or (
        answered and plan.leaves in {Leaves.ANSWER_HEAD, Leaves.ANSWER}
    )


def test_engines_are_hung_up_on_because_the_client_left_and_for_no_other_reason(tmp_path):
    """Without any time-out: were a departure missed in one phase, its engine would wait for ever."""
    patient = Timeouts(connect=1.0, first_byte=9e3, between=9e3, total=9e3, head=9e3, upstream_idle=0.5)
    plans = [plan for plan in grid(0) if plan.act is Act.STALL and leaves_in_time(plan)]
    asyncio.run(chaos(tmp_path, iter(plans), trouble=False, health=NO_PROBES, timeouts=patient))
    waits = sorted(plan.gone_at - plan.left_at for plan in plans if plan.gone_at)
    print(f"hung up after {waits[len(waits) // 2] * 1000:.1f} ms, at most {waits[-1] * 1000:.1f} ms")
    assert sum(plan.seen_gone for plan in plans) > len(plans) // 2
