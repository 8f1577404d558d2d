"""Strategies over simulated hosts: who serves at every moment, and that going back is the mirror."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from gpufleet.change.events import Ended, Progress
from gpufleet.deploy.flow import carry_out, prepare
from gpufleet.errors import RolledBack, Unplaceable, UsageError
from gpufleet.lab.faults import Fault, Kind
from gpufleet.names import PoolName
from gpufleet.pools import membership
from gpufleet.pools.model import EngineWish, SliceWish, StrategyWish
from gpufleet.pools.store import PoolStore
from tests.kit.deploy_site import IMAGE, Site

OTHER = EngineWish(image=IMAGE, args=("--max-model-len", "4096"))
ROLLING = StrategyWish(kind="rolling")
UNSTART = 'rm -f "$HOME/.gpufleet/env/$run-$step"\nids'
"""A part of the script that removes what a start left, and of no other."""


class Watched(Site):
    """A site that notes, after every act, which members are published as active, and asks each whether it is ready."""

    traffic = True
    """Whether clients ask while new replicas are watched."""
    strike = ""
    """A container of this replica is killed while new replicas are watched."""

    def tools(self, *faults, transport=None):
        tools = super().tools(*faults, transport=transport)
        self.serving: list[dict[tuple[str, str], bool]] = []

        def tell(step, event):
            self.events.append(event)
            if isinstance(event, Ended):
                self.serving.append(self.active())
            if isinstance(event, Progress) and step.phase == "watch":
                self.ask_everybody()

        return replace(tools, change=replace(tools.change, observer=tell))

    def active(self):
        """Active members by replica and address: whether each answers /health."""
        return {
            (one.id, one.url): self.fleet[one.id.partition("/")[0]]
            .sh(f"curl -s -f -m 5 -o /dev/null {one.url}/health")
            .code
            == 0
            for pool in PoolStore(self.path / "state", self.clock).routes().pools
            for one in pool.endpoints
            if one.state == "active"
        }

    def ask_everybody(self):
        """Ten clients at each active member."""
        secret = PoolStore(self.path / "state", self.clock).key(PoolName("chat"))
        assert secret is not None
        key = secret.reveal()
        self.weights = {
            (one.id, one.weight)
            for pool in PoolStore(self.path / "state", self.clock).routes().pools
            for one in pool.endpoints
        }
        for name, url in self.active() if self.traffic else ():
            body = '{"model":"qwen","messages":[{"role":"user","content":"hello there"}],"max_tokens":2}'
            head = "-H 'Content-Type: application/json'"
            ask = (
                f"curl -s -m 90 -H 'Authorization: Bearer {key}' {head} -d '{body}' {url}/v1/chat/completions"
            )
            assert self.fleet[name.partition("/")[0]].sh("\n".join([ask] * 10)).code == 0
        if self.strike:
            lab = self.fleet[self.strike.partition("/")[0]]
            for one in list(lab.containers.containers.values()):
                if one.running and one.wish.labels.get("gpufleet.replica") == self.strike:
                    lab.sh(f"docker kill {one.id}")

    def fewest(self):
        """How few members were active and ready at the worst moment."""
        return min(sum(members.values()) for members in self.serving)

    def order(self):
        """The steps in the order in which they ended, without their hosts' numbers."""
        return [event.step for event in self.events if isinstance(event, Ended)]


def state(site):
    return site.containers(), site.routes(), site.environment_files(), site.leases()


@pytest.mark.parametrize(("limit", "fewest"), [(1, 3), (2, 2), ("50%", 2), ("100%", 0)])
def test_rolling_in_place_holds_its_limit(tmp_path, limit, fewest):
    site = Watched(tmp_path, count=2, gpus="2xH100-80GB")
    site.deploy(site.pool(replicas=4))
    pool = site.pool(replicas=4, engine=OTHER, strategy=replace(ROLLING, max_unavailable=limit))
    assert site.deploy(pool).outcome == "committed"
    assert site.fewest() == fewest
    assert {name: len(found) for name, found in site.pools_containers().items()} == {"gpu-01": 2, "gpu-02": 2}
    assert sorted(len(found) for found in site.containers().values()) == [4, 4]
    assert len(site.routes()["chat"]) == 4
    assert not site.changes(pool)
    assert site.leases() == []


def test_rolling_alongside_stops_nobody_and_leaves_nobody(tmp_path):
    site = Watched(tmp_path, count=2, gpus="4xH100-80GB")
    site.deploy(site.pool(replicas=4))
    pool = site.pool(replicas=4, engine=OTHER, strategy=ROLLING)
    assert site.deploy(pool).outcome == "committed"
    assert site.fewest() == 4
    assert not any(step.startswith("stop") for step in site.order())
    assert sum(map(len, site.pools_containers().values())) == 4
    assert not site.changes(pool)


@pytest.mark.parametrize("wave", [0, 1, 2, 3])
@pytest.mark.parametrize(("gpus", "fewest"), [("2xH100-80GB", 3), ("4xH100-80GB", 4)])
def test_a_replica_that_never_gets_ready_takes_every_wave_back(tmp_path, wave, gpus, fewest):
    site = Watched(tmp_path, count=2, gpus=gpus)
    site.deploy(site.pool(replicas=4))
    before = state(site)
    tools = site.tools()
    pool = site.pool(replicas=4, engine=OTHER, strategy=ROLLING)
    prepared = prepare(tools, pool, command="pool deploy chat")
    new = prepared.plan.waves[wave].start[0]
    step = f"start-{new.host}-{new.number}"
    faults = [
        Fault(kind=Kind.ENGINE, host=new.host, pattern=f" {step} ", detail="crash"),
        Fault(kind=Kind.ENGINE, host=new.host, pattern=UNSTART, detail="ok"),
    ]
    site.events.clear()
    with pytest.raises(RolledBack):
        carry_out(site.tools(*faults), prepared)
    assert site.fewest() == fewest
    assert state(site) == before


def test_what_would_stop_more_than_the_limit_is_refused(tmp_path):
    site = Site(tmp_path, count=1, gpus="4xH100-80GB")
    site.deploy(site.pool(replicas=4))
    before = state(site)
    wide = site.pool(replicas=1, slice=SliceWish(gpus=4), strategy=ROLLING)
    with pytest.raises(Unplaceable, match="takes the place of 4 replicas"):
        site.deploy(wide)
    assert state(site) == before


def test_another_name_for_clients_is_not_rolled(tmp_path):
    site = Site(tmp_path, gpus="1xH100-80GB")
    site.deploy()
    with pytest.raises(UsageError, match="would answer to other only"):
        site.deploy(site.pool(served_name="other", strategy=ROLLING))


CANARY = StrategyWish(kind="canary", observe=30.0, min_requests=20, deadline=60.0)
ROOM = {2: "2xH100-80GB", 3: "3xH100-80GB"}


@pytest.mark.parametrize(("gpus", "fewest"), [(2, 3), (3, 4)])
@pytest.mark.parametrize("share", [None, 10])
def test_a_good_canary_is_followed_by_the_others(tmp_path, gpus, fewest, share):
    site = Watched(tmp_path, count=2, gpus=ROOM[gpus])
    site.deploy(site.pool(replicas=4))
    pool = site.pool(replicas=4, engine=OTHER, strategy=replace(CANARY, traffic=share))
    assert site.deploy(pool).outcome == "committed"
    assert site.fewest() >= fewest
    assert site.order().index("watch-1") < min(
        at for at, step in enumerate(site.order()) if step.startswith("publish-2")
    )
    assert len({weight for _, weight in site.weights}) == (1 if share is None else 2)
    (served,) = PoolStore(tmp_path / "state", site.clock).routes().pools
    assert (served.algorithm, {one.weight for one in served.endpoints}) == ("round-robin", {1})
    assert sum(map(len, site.pools_containers().values())) == 4
    assert not site.changes(pool)


@pytest.mark.parametrize("gpus", [2, 3])
@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("slow", "the first token of the new replicas"),
        ("dead", "stopped while"),
        ("quiet", "nothing is known"),
    ],
)
def test_a_bad_canary_is_taken_back(tmp_path, gpus, trouble, words):
    site = Watched(tmp_path, count=2, gpus=ROOM[gpus])
    site.deploy(site.pool(replicas=4))
    before = state(site)
    prepared = prepare(
        site.tools(), site.pool(replicas=4, engine=OTHER, strategy=CANARY), command="pool deploy chat"
    )
    (new,) = prepared.plan.waves[0].start
    faults = [Fault(kind=Kind.ENGINE, host=new.host, pattern=UNSTART, detail="ok")]
    if trouble == "slow":
        pattern, slow = f" start-{new.host}-{new.number} ", "ok prefill_seconds=0.05"
        faults.append(Fault(kind=Kind.ENGINE, host=new.host, pattern=pattern, detail=slow))
    site.traffic, site.strike = trouble != "quiet", new.replica if trouble == "dead" else ""
    with pytest.raises(RolledBack, match=words):
        carry_out(site.tools(*faults), prepared)
    assert site.fewest() >= (3 if gpus == 2 else 4)
    assert state(site) == before


def test_what_is_not_known_may_proceed_when_somebody_says_so(tmp_path):
    site = Watched(tmp_path, count=1)
    site.traffic = False
    site.deploy(site.pool(replicas=2))
    wish = replace(CANARY, unknown="proceed")
    assert site.deploy(site.pool(replicas=2, engine=OTHER, strategy=wish)).outcome == "committed"


@pytest.mark.parametrize("observe", [0.0, 20.0])
def test_blue_green_switches_all_at_once_and_stops_nobody(tmp_path, observe):
    site = Watched(tmp_path, count=2, gpus="4xH100-80GB")
    site.deploy(site.pool(replicas=4))
    old = set(site.active())
    pool = site.pool(replicas=4, engine=OTHER, strategy=StrategyWish(kind="blue-green", observe=observe))
    assert site.deploy(pool).outcome == "committed"
    new = set(site.active())
    assert old.isdisjoint(new)
    assert {frozenset(members) for members in site.serving} == {frozenset(old), frozenset(new)}
    assert site.fewest() == 4
    assert not site.changes(pool)


def test_blue_green_switches_back(tmp_path):
    site = Watched(tmp_path, count=2, gpus="4xH100-80GB")
    site.deploy(site.pool(replicas=4))
    before, site.traffic = state(site), False
    wish = StrategyWish(kind="blue-green", observe=20.0, deadline=20.0)
    with pytest.raises(RolledBack, match="nothing is known"):
        site.deploy(site.pool(replicas=4, engine=OTHER, strategy=wish))
    assert site.fewest() == 4
    assert state(site) == before


class Leaving(Watched):
    """Somebody takes the new members out of the route table while they are watched."""

    watched: frozenset[str] = frozenset()

    def ask_everybody(self):
        super().ask_everybody()
        store = PoolStore(self.path / "state", self.clock)
        (pool,) = store.routes().pools
        stay = tuple(one for one in pool.endpoints if one.id not in self.watched)
        store.publish(
            lambda table: membership.with_pool(table, msgspec.structs.replace(pool, endpoints=stay))
        )


def test_a_canary_that_left_the_routes_is_not_called_good(tmp_path):
    site = Leaving(tmp_path, count=2, gpus="4xH100-80GB")
    site.deploy(site.pool(replicas=2))
    prepared = prepare(
        site.tools(), site.pool(replicas=2, engine=OTHER, strategy=CANARY), command="pool plan"
    )
    site.watched = frozenset({prepared.plan.waves[0].start[0].replica})
    with pytest.raises(RolledBack, match="left the routes of pool chat while it was watched"):
        carry_out(site.tools(), prepared)
    assert {one.state for pool in site.tools().store.routes().pools for one in pool.endpoints} == {"active"}
    assert len(site.routes()["chat"]) == 2
