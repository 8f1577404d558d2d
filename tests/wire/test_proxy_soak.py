"""One proxy process under everything that may go wrong for minutes: its memory and its descriptors stay where they are.

Three minutes by default; `SOAK_SECONDS=1200` for twenty.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.chaos_clients import Client, judge
from tests.kit.chaos_plans import Act, drawn
from tests.kit.engines import PATIENCE
from tests.kit.proxies import write
from tests.wire.test_proxy_chaos import Site, engines, repeated_wrongly

SECONDS = float(os.environ.get("SOAK_SECONDS", "180"))
CLIENTS = 24
PAUSE = 0.15
"""Seconds between two requests of a client: the soak shares its machine with other tests."""
pytestmark = [pytest.mark.wire, pytest.mark.long, pytest.mark.timeout(SECONDS + 300)]
MOST = 6.0
"""MiB that the process may seem to grow by from the end of the warm-up to the end: the noise of an allocator."""

SERVE = """
import json, sys
from gpufleet.proxy.config import Address, ProxyConfig
from gpufleet.proxy.decide.deadline import Timeouts
from gpufleet.proxy.decide.health import HealthRules
from gpufleet.proxy.run.server import run
folder = sys.argv[1]
here = Address(host="127.0.0.1", port=0)
config = ProxyConfig(
    listen=here, admin=here, routes=folder + "/routes.json", tokens=folder + "/tokens.db", allow_anonymous=True,
    timeouts=Timeouts(connect=1.0, first_byte=5.0, between=5.0, total=10.0, upstream_idle=1.0),
    health=HealthRules(every=0.5, eject_for=0.2, eject_most=0.5, warm_up=0.5), drain=5.0,
)
run(config, on_started=lambda started: print(json.dumps([started.listen.port, started.admin.port]), flush=True))
"""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """The proxy in a process of its own: its ports for clients and for operators."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", SERVE, str(folder)]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            listen, admin = json.loads(process.stdout.readline())
            yield process, listen, admin
            process.terminate()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def resident(pid: int) -> float:
    """MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def asked(port: int, path: str) -> Any:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())


def growth(samples: list[float]) -> float:
    """By how much a straight line through the samples rises from the first to the last (least squares)."""
    count = len(samples)
    middle = (count - 1) / 2
    mean = sum(samples) / count
    over = sum((place - middle) * (value - mean) for place, value in enumerate(samples))
    return over / sum((place - middle) ** 2 for place in range(count)) * (count - 1)


async def traffic(site: Site, port: int, dice: random.Random, numbers: Iterator[int], until: float) -> None:
    client, loop = Client(port), asyncio.get_running_loop()
    while loop.time() < until:
        plan = drawn(next(numbers), dice, kills=True)
        site.plans[plan.number] = plan
        began = loop.time()
        outcome = await asyncio.wait_for(client.carry_out(plan), PATIENCE)
        late = loop.time() - began >= 5.0
        complaint = judge(plan, outcome, trouble=True) if outcome is not None else ""
        site.wrong += [f"{plan}: {complaint}"] if complaint and not late else []
        plan.done = True
        site.seen["left" if outcome is None else "whole" if outcome.complete else "cut"] += 1
        await asyncio.sleep(PAUSE * 2 * dice.random())
    client.leave(Act.CLOSE)


async def soak(folder: Path, seed: int) -> list[float]:
    site, dice, numbers = Site(), random.Random(seed), itertools.count()
    loop = asyncio.get_running_loop()
    async with engines(site, "cache-aware") as routes:
        write(folder / "routes.json", routes)
        with serving(folder) as (process, listen, admin):
            before = descriptors(process.pid)
            until = loop.time() + SECONDS
            clients = [
                asyncio.create_task(traffic(site, listen, dice, numbers, until)) for _ in range(CLIENTS)
            ]
            samples: list[float] = []
            while loop.time() < until:
                await asyncio.sleep(SECONDS / 180)
                samples.append(resident(process.pid))
                settled = [plan for plan in site.plans.values() if plan.done]
                site.wrong += filter(None, map(repeated_wrongly, settled))
                for plan in settled:
                    del site.plans[plan.number]
            await asyncio.gather(*clients)
            await asyncio.sleep(3.0)
            page = await asyncio.to_thread(asked, admin, "/admin/members")
            after = descriptors(process.pid)
    print(f"seed {seed}: {next(numbers)} requests in {SECONDS:g} s: {dict(site.seen)}")
    step = max(1, len(samples) // 12)
    print("MiB:", *(f"{sample:.1f}" for sample in samples[::step]))
    assert site.wrong == []
    assert page["in_flight"] == 0
    assert not any(member["in_flight"] for pool in page["pools"] for member in pool["members"])
    assert after <= before + 1
    assert "Traceback" not in (folder / "log").read_text()
    return samples


def test_memory_stays_where_it_is(tmp_path):
    samples = asyncio.run(soak(tmp_path, random.randrange(10**6)))
    grown = growth(samples[len(samples) // 3 :])
    print(f"grown by {grown:.2f} MiB from the end of the warm-up to the end")
    assert grown < MOST
