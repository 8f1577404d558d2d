"""Clients stream through a real proxy while replicas behind it are replaced: none fails and none is cut."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field

import pytest

from gpufleet.clock import SystemClock
from gpufleet.deploy import traffic_acts
from gpufleet.deploy.tools import Tools
from gpufleet.errors import RolledBack
from gpufleet.lab.fleet import build_fleet, wishes_of
from gpufleet.lab.vllm.engine import EngineServer
from gpufleet.lab.vllm.served_engines import ServedEngines
from gpufleet.lab.vllm.spec import EngineSpec
from gpufleet.pools.model import EngineWish, GateWish, StrategyWish
from gpufleet.pools.store import PoolStore
from tests.kit.deploy_site import Site
from tests.kit.lab_kit import own_network
from tests.kit.proxies import Proxy, eventually, proxy

pytestmark = pytest.mark.wire
IMAGE = "vllm/vllm-openai:v0.10.2"
"""A version without --shutdown-timeout: what is in flight when it is stopped is cut, so only a drain saves it."""
ENGINE, OTHER = EngineWish(image=IMAGE), EngineWish(image=IMAGE, args=("--max-model-len", "4096"))


class RealSite(Site):
    """A site whose engines listen, on a clock that goes by itself, with a proxy in front."""

    proxies: tuple[str, ...] = ()

    def tools(self, *faults, transport=None):
        tools = super().tools(*faults, transport=transport)
        return Tools.of(self.inventory, tools.change, self.told.append, proxies=self.proxies)


@dataclass
class Clients:
    """Threads that stream one answer after another, and what became of each answer."""

    front: Proxy
    whole: int = 0
    bad: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def stream(self, tokens):
        while not self.over.is_set():
            ask = {
                "model": "qwen",
                "stream": True,
                "ignore_eos": True,
                "max_tokens": tokens,
                "messages": [{"role": "user", "content": "x"}],
            }
            try:
                status, _, body = self.front.post(ask)
            except OSError as error:
                self.bad.append(repr(error))
                continue
            if status == 200 and body.endswith(b"data: [DONE]\n\n"):
                self.whole += 1
            else:
                self.bad.append(f"{status} {body[-200:]!r}")

    @contextlib.contextmanager
    def at_work(self):
        threads = [threading.Thread(target=self.stream, args=(tokens,)) for tokens in (5, 400, 400, 400)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.over.set()
            for thread in threads:
                thread.join()


@contextlib.contextmanager
def served(tmp_path, monkeypatch, gpus):
    """Two hosts that serve, a proxy that reads their routes, and clients at work."""
    monkeypatch.setattr(traffic_acts, "READ_BY_ALL", 0.3)
    clock, network = SystemClock(), own_network(2)
    with contextlib.closing(EngineServer()) as server:
        engines = ServedEngines(server, EngineSpec(load_seconds=0.1, token_seconds=0.005))
        fleet = build_fleet(wishes_of(2, gpus, network=network), clock, engines=lambda _host: engines)
        fleet.registry.seconds = 0.0
        site = RealSite(tmp_path, fleet=fleet)
        gate = GateWish(every=0.1, stall=30.0, within=60.0)
        site.deploy(site.pool(replicas=2, gate=gate, engine=ENGINE))
        table = PoolStore(tmp_path / "state", clock).routes()
        with proxy(tmp_path / "state", table) as front:
            site.proxies = (f"127.0.0.1:{front.started.admin.port}",)
            clients = Clients(front)
            with clients.at_work():
                eventually(lambda: clients.whole > 3, "answers before anything changes")
                yield site, gate, clients


@pytest.mark.parametrize(
    ("kind", "gpus"),
    [("rolling", "1xH100-80GB"), ("canary", "2xH100-80GB"), ("blue-green", "2xH100-80GB")],
)
def test_no_request_fails_and_no_stream_is_cut(tmp_path, monkeypatch, kind, gpus):
    with served(tmp_path, monkeypatch, gpus) as (site, gate, clients):
        # Streams of two sets share this machine's processors: what is slow here says nothing.
        wish = StrategyWish(
            kind=kind, observe=1.0 if kind == "canary" else 0.0, min_requests=2, max_ttft=1000.0
        )
        assert (
            site.deploy(site.pool(replicas=2, gate=gate, engine=OTHER, strategy=wish)).outcome == "committed"
        )
        after = clients.whole
        eventually(lambda: clients.whole > after + 3, "answers of the new replicas")
    assert clients.bad == []


def test_a_canary_that_is_taken_back_cuts_nobody(tmp_path, monkeypatch):
    with served(tmp_path, monkeypatch, "1xH100-80GB") as (site, gate, clients):
        wish = StrategyWish(kind="canary", observe=0.5, min_requests=1_000_000, deadline=1.0)
        with pytest.raises(RolledBack, match="nothing is known"):
            site.deploy(site.pool(replicas=2, gate=gate, engine=OTHER, strategy=wish))
        after = clients.whole
        eventually(lambda: clients.whole > after + 3, "answers of the old replicas")
    assert clients.bad == []
