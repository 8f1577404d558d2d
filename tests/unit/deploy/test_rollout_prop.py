"""The plans of every strategy under every order that the machine allows: whoever gets requests can answer them."""

from __future__ import annotations

import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.change.events import Act, Ended, Ending, Intended, Publishing, Result, Turned
from gpufleet.change.machine import Look, Publish, Run, Undo, conclude, decide, evolve, opened
from gpufleet.change.model import HERE, Plan
from gpufleet.change.table import RunPhase
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.placement.api import Placed, Slot
from gpufleet.deploy.replicas import LABEL, New, Present
from gpufleet.deploy.rollout import Stage, bring_up
from gpufleet.deploy.steps import Launch
from gpufleet.deploy.strategy import count_of, swaps, waves
from gpufleet.deploy.traffic import Shift
from gpufleet.engine.vllm import Vllm
from gpufleet.hosts.model import ContainerFact
from gpufleet.inventory.model import Address, Host
from gpufleet.names import GpuUuid, HostName, PoolName, ReplicaId, RunId
from gpufleet.pools.membership import shifted
from gpufleet.pools.model import EngineWish, Pool, StrategyWish
from gpufleet.pools.routes import EndpointRoute, PoolRoute, RouteTable

DIALECT = Dialect("/usr/bin/docker", "docker", root=False, updates=True, rootless=False)


def placed(host, gpu):
    name = f"GPU-{host}-{gpu}"
    return Placed(host, (Slot(host=host, gpu=GpuUuid(name), device=name, index=gpu, memory_mib=None),))


def present(host, number):
    return Present(
        replica=ReplicaId(f"{host}/{number}"),
        host=host,
        container=ContainerFact(
            id=f"{host}-{number}", name="n", image="i", image_id="", state="running", exit_code=0,
            restart_policy="always", restart_count=0, labels={f"{LABEL}.pool": "chat"}, ports=(8000 + number,),
            devices=(), host_network=False, created_at="", started_at="",
        ),
    )  # fmt: skip


def stage_of(pool, old, start):
    hosts = {one.host for one in (*old, *start)}
    engine = Vllm()

    def route(replica, port):
        return EndpointRoute(id=replica, url=f"http://{replica.partition('/')[0]}:{port}")

    served = tuple(route(one.replica, one.container.ports[0]) for one in old)
    launch = Launch(
        pool=pool, run=RunId("20260101T000000-abcdef"), revision=2, spec="s",
        container=engine.container(pool, key=None, devices=1), health="/health", key=None,
    )  # fmt: skip
    return Stage(
        launch=launch,
        engine=engine,
        declared={name: Host(name=name, address=Address(name)) for name in hosts},
        dialects=dict.fromkeys(hosts, DIALECT),
        served=PoolRoute(name="chat", models=("m",), endpoints=served),
        routes=PoolRoute(
            name="chat", models=("m",), endpoints=tuple(route(new.replica, new.port) for new in start)
        ),
        beside=tuple(old),
    )


@st.composite
def rollouts(draw):
    """A fleet with old replicas, new ones alongside or in their place, and a strategy."""
    old, start, held = [], [], []
    for at in range(draw(st.integers(1, 3))):
        host = HostName(f"h{at}")
        count = draw(st.integers(1, 3))
        old += [present(host, number) for number in range(count)]
        for number in range(count):
            beside = draw(st.booleans())
            at_number = 50 + number if beside else number
            start.append(
                New(
                    replica=ReplicaId(f"{host}/{at_number}"),
                    placed=placed(host, at_number),
                    port=9000 + number,
                )
            )
            held.append(frozenset() if beside else frozenset({f"{host}-{number}"}))
    kind = draw(st.sampled_from(["all-at-once", "rolling", "canary", "blue-green"]))
    wish = StrategyWish(
        kind=kind,
        max_unavailable=draw(st.sampled_from([1, 2, "50%"])),
        canary=draw(st.sampled_from([1, "30%"])),
        traffic=draw(st.sampled_from([None, 20])),
        observe=draw(st.sampled_from([0.0, 10.0])),
    )
    return old, start, held, wish


class World:
    """Which containers are ready, what is published, and what must hold of the two."""

    def __init__(self, stage, old, floor):
        self.table = RouteTable(pools=(stage.served,))
        self.before, self.floor = self.table, floor
        self.ready = {one.url for one in stage.served.endpoints}
        self.urls = {f"stop-{one.host}-{one.container.id[:12]}": stage.route_of(one).url for one in old}
        self.drained = {f"drain-{one.host}-{one.container.id[:12]}": stage.route_of(one).url for one in old}
        self.new = {}

    def act(self, step, act):
        forward = act is Act.DO
        if step.phase == "route":
            command = step.do[0] if forward else step.undo[0]
            shift = msgspec.json.decode(command.argv[1], type=Shift)
            head = PoolRoute(name=shift.pool, models=shift.models, algorithm=shift.algorithm)
            self.table = shifted(self.table, head, shift.before, shift.after)
        elif step.phase == "stop":
            (self.ready.discard if forward else self.ready.add)(self.urls[step.id])
        elif step.phase == "gate" and forward:
            self.ready.add(self.new[step.id])
        elif step.phase == "start" and not forward:
            self.ready.discard(self.new[step.id.replace("start", "gate")])
        elif step.phase == "drain" and forward:
            assert self.drained[step.id] not in self.active(), "drained while it still gets requests"
        elif step.phase == "drain":
            assert self.drained[step.id] in self.ready, "ready is asked before it is started again"
        self.holds()

    def active(self):
        return {one.url for pool in self.table.pools for one in pool.endpoints if one.state == "active"}

    def holds(self):
        ids = [one.id for pool in self.table.pools for one in pool.endpoints]
        assert len(set(ids)) == len(ids), "a member stands twice, and no proxy takes the table"
        assert self.active() <= self.ready, "requests go where nobody can answer"
        assert len(self.active()) >= self.floor


def end_of(state, step, act, result):
    return evolve(state, Ended(step=step, act=act, result=result, reason="as the test wants"))


@settings(deadline=None)
@given(rollouts(), st.integers(0, 2**32), st.integers(0, 60))
def test_whoever_gets_requests_can_answer_them_forward_and_back(case, seed, fails_at):
    old, start, held, wish = case
    dice = random.Random(seed)
    pool = Pool(
        name=PoolName("chat"), model="m", engine=EngineWish(image="vllm/vllm-openai:v0.20.0"), strategy=wish
    )
    stage = stage_of(pool, old, start)
    order = waves(wish, len(start), swaps(start, old, held), frozenset(one.container.id for one in old))
    limit = {
        "all-at-once": len(old),
        "blue-green": len(old),
        "rolling": count_of(wish.max_unavailable, len(start)),
        "canary": max(count_of(wish.max_unavailable, len(start)), count_of(wish.canary, len(start), up=True)),
    }[wish.kind]
    plan = Plan(title="", command="", steps=bring_up(stage, order))
    world = World(stage, old, len(old) - limit)
    world.new = {f"gate-{one.host}-{one.number}": stage.to_be(one).url for one in start}
    state, acts = opened(plan), 0
    flying: list[Run | Undo | Look] = []
    while True:
        decided = decide(state, 6)
        if any(isinstance(one, Publish) for one in decided):
            state = evolve(state, Publishing())
            break
        begun = [
            one
            for one in decided
            if not isinstance(one, Publish) and one.step not in {other.step for other in flying}
        ]
        if begun and (not flying or dice.random() < 0.5):
            effect = dice.choice(begun)
            act = Act.DO if isinstance(effect, Run) else Act.UNDO
            state = evolve(state, Intended(step=effect.step, act=act))
            flying.append(effect)
        elif flying:
            effect = flying.pop(dice.randrange(len(flying)))
            act, acts = Act.DO if isinstance(effect, Run) else Act.UNDO, acts + 1
            step = state.steps[effect.step]
            broken = act is Act.DO and acts == fails_at and step.phase not in {"route", "stop"}
            if not broken:
                world.act(step, act)
            was = state.phase
            state = end_of(state, effect.step, act, Result.FAILED if broken else Result.SUCCEEDED)
            if was is RunPhase.APPLYING and state.phase is RunPhase.UNDOING:
                state = evolve(state, Turned(reason="as the test wants"))
        else:
            break
    if state.phase is RunPhase.PUBLISHING:
        assert {world.urls[step.id] for step in plan.steps if step.phase == "stop"}.isdisjoint(world.ready)
    else:
        assert conclude(state) is Ending.UNDONE
        assert world.table == world.before
        assert world.ready == {one.url for one in world.before.pools[0].endpoints}
    assert HERE not in plan.hosts
