"""The steps of a deploy in the order of its strategy: waves of replicas, and the routes between them.

Every step of a wave waits for the wave before it to be published. What a wave takes away is given back in the mirrored
order when the run turns back: the old replicas are started again and asked to be ready before they are in the routes
again, and the new ones are out of the routes and drained before they are removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from gpufleet.change.model import HERE, Step
from gpufleet.deploy import steps as parts
from gpufleet.deploy import traffic
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.judgement import shares, watch_of
from gpufleet.deploy.replicas import LABEL, New, Present, bind_address, service_address, url_of
from gpufleet.deploy.staging.carry import Carry
from gpufleet.deploy.steps import Launch
from gpufleet.deploy.strategy import Wave
from gpufleet.deploy.traffic import Place, Shift
from gpufleet.engine.model import Engine
from gpufleet.inventory.model import Host
from gpufleet.names import HostName, StepId
from gpufleet.pools.routes import EndpointRoute, PoolRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where the waves play.

    Attributes:
        served: the pool's route as it is published now; None when there is none.
        routes: how the new replicas will stand in it.
        carry: the image from host to host, where no registry gives it.
        beside: replicas that are there now, on hosts that were chosen: what new ones are compared with.
        elsewhere: how other pools are published, which may send requests to the same replicas.
    """

    launch: Launch
    engine: Engine
    declared: Mapping[HostName, Host]
    dialects: Mapping[HostName, Dialect]
    served: PoolRoute | None
    routes: PoolRoute
    carry: Carry | None = None
    beside: tuple[Present, ...] = ()
    elsewhere: tuple[PoolRoute, ...] = ()

    def route_of(self, present: Present) -> EndpointRoute | None:
        """How an old replica is published; None when it is not."""
        return route_of(self.served, present)

    def place(self, replica: str, host: HostName, filters: tuple[str, str], port: int, url: str) -> Place:
        """How a replica on one of the hosts is asked."""
        dialect = self.dialects[host]
        return Place(
            pool=self.launch.pool.name,
            replica=replica,
            host=host,
            runtime=dialect.path,
            root=dialect.root,
            filters=filters,
            base=url_of(bind_address(self.declared[host]) or "127.0.0.1", port),
            inner=url_of("127.0.0.1", self.launch.container.port),
            health=self.engine.health_path,
            metrics=self.engine.metrics_path,
            busy=self.engine.busy_metrics,
            url=url,
        )

    def place_of(self, present: Present) -> Place:
        """How an old replica is asked; it must have a port."""
        found, port = f"id={present.container.id}", present.container.ports[0]
        url = url_of(service_address(self.declared[present.host]), port)
        return self.place(present.replica, present.host, (found, found), port, url)

    def place_to_be(self, new: New) -> Place:
        """How a new replica is asked."""
        run, step = self.launch.run, parts.start_id(new)
        filters = (f"label={LABEL}.run={run}", f"label={LABEL}.step={step}")
        return self.place(new.replica, new.host, filters, new.port, self.to_be(new).url)

    def to_be(self, new: New) -> EndpointRoute:
        """How a new replica will be published."""
        return next(one for one in self.routes.endpoints if one.id == new.replica)


def route_of(served: PoolRoute | None, present: Present) -> EndpointRoute | None:
    """How a replica is published; None when it is not."""
    ports = present.container.ports
    for one in served.endpoints if served is not None else ():
        if one.id == present.replica and ports and one.url.endswith(f":{ports[0]}"):
            return one
    return None


def addresses(replicas: Sequence[Present], declared: Mapping[HostName, Host]) -> frozenset[str]:
    """How proxies know them, whatever pool they are asked for."""
    return frozenset(
        url_of(service_address(declared[one.host]), one.container.ports[0])
        for one in replicas
        if one.container.ports and one.host in declared
    )


def bring_up(stage: Stage, waves: Sequence[Wave]) -> tuple[Step, ...]:
    """Pull everywhere, then wave after wave."""
    image = stage.launch.container.image
    hosts = sorted({new.host for wave in waves for new in wave.start})
    taken = stage.carry.steps(hosts, stage.launch.run) if stage.carry is not None else ()
    there = {step.id for step in taken}
    stall = stage.launch.pool.gate.pull_stall
    pulls = [parts.pull_step(host, stage.dialects[host], image, stall) for host in hosts]
    made: list[Step] = [*(step for step in pulls if step.id not in there), *taken]
    prior = frozenset(step.id for step in pulls)
    for number, wave in enumerate(waves, start=1):
        steps = _wave(stage, wave, number, len(waves), prior)
        made += steps
        prior = frozenset({steps[-1].id}) if wave.published else frozenset(step.id for step in steps)
    return tuple(made)


def _wave(stage: Stage, wave: Wave, number: int, count: int, prior: frozenset[StepId]) -> list[Step]:
    """One wave; the step that publishes it, when there is one, is the last."""
    tail = f"-{number}" if count > 1 else ""
    cordons = _cordon(stage, wave, tail, prior)
    emptied = frozenset(step.id for step in cordons) or prior
    drains = [_drain(stage, one, emptied) for one in wave.stopped if one.up and one.container.ports]
    stops = _stops(stage, wave.stopped, drains, emptied)
    starts, gates = _starts(stage, wave.start, stops, prior)
    ready = frozenset(step.id for step in gates)
    settles = [
        parts.settle_step(
            stage.launch.run,
            stage.dialects[host],
            [step for step in starts if step.host == host],
            ready,
            tail=tail,
        )
        for host in sorted({new.host for new in wave.start})
        if stage.dialects[host].updates
    ]
    made = [*cordons, *drains, *stops, *starts, *gates, *settles]
    if wave.published:
        made += _publish(stage, wave, tail, ready | {step.id for step in (*settles, *cordons)})
    return made


def _shift(stage: Stage, before: Sequence[EndpointRoute], after: Sequence[EndpointRoute]) -> Shift:
    head = stage.served or stage.routes
    return Shift(
        pool=head.name,
        models=head.models,
        algorithm=head.algorithm,
        before=tuple(before),
        after=tuple(after),
    )


def _draining(route: EndpointRoute) -> EndpointRoute:
    return replace(route, state="draining")


def _cordon(stage: Stage, wave: Wave, tail: str, prior: frozenset[StepId]) -> list[Step]:
    """Send nothing new to the replicas that are about to stop, in whatever pool they serve."""
    routes = [route for one in wave.stopped if (route := stage.route_of(one)) is not None]
    made: list[Step] = []
    if routes:
        names = ", ".join(route.id for route in routes)
        shift = _shift(stage, routes, [_draining(route) for route in routes])
        made.append(traffic.shift_step(f"cordon{tail}", f"send nothing new to {names}", shift, after=prior))
    urls = addresses(wave.stopped, stage.declared)
    return [*made, *traffic.cordons_elsewhere(stage.elsewhere, urls, tail=tail, after=prior)]


def _drain(stage: Stage, present: Present, after: frozenset[StepId]) -> Step:
    """Wait until an old replica has nothing in flight; the undo waits until it is ready again."""
    place, gate = stage.place_of(present), stage.launch.pool.gate
    return Step(
        id=StepId(f"drain-{present.host}-{present.container.id[:12]}"),
        host=HERE,
        title=f"let {present.replica} finish what it has in flight",
        do=(),
        undo=(),
        verify=traffic.drained(place),
        absent=traffic.ready_again(place, within=gate.within, stall=gate.stall),
        after=after,
        phase="drain",
    )


def _stops(
    stage: Stage, stopped: Sequence[Present], drains: Sequence[Step], emptied: frozenset[StepId]
) -> list[Step]:
    waits = {step.id: frozenset({step.id}) for step in drains}
    return [
        parts.stop_step(
            one,
            stage.dialects[one.host],
            stage.launch.container.stop_timeout,
            waits.get(StepId(f"drain-{one.host}-{one.container.id[:12]}"), emptied),
        )
        for one in stopped
    ]


def _starts(
    stage: Stage, start: Sequence[New], stops: Sequence[Step], prior: frozenset[StepId]
) -> tuple[list[Step], list[Step]]:
    """Start and ask; replicas that share a GPU one after another, because each measures the memory that is free."""
    starts: list[Step] = []
    gates: list[Step] = []
    last: dict[tuple[HostName, str], StepId] = {}
    for new in start:
        host, dialect = stage.declared[new.host], stage.dialects[new.host]
        room = frozenset(step.id for step in stops if step.host == new.host)
        devices = [(new.host, slot.device) for slot in new.placed.slots]
        turn = frozenset(last[device] for device in devices if device in last)
        starts.append(parts.start_step(stage.launch, new, host, dialect, prior | room | turn))
        gates.append(parts.gate_step(stage.launch, new, host, dialect))
        last.update(dict.fromkeys(devices, gates[-1].id))
    return starts, gates


def _publish(stage: Stage, wave: Wave, tail: str, after: frozenset[StepId]) -> list[Step]:
    """Put the new replicas into the routes, and the old ones out; undone, the new ones are drained as well."""
    serves = [
        Step(
            id=StepId(f"serve-{new.host}-{new.number}"),
            host=HERE,
            title=f"let {new.replica} have requests",
            do=(),
            undo=(),
            verify=traffic.always(),
            absent=traffic.drained(stage.place_to_be(new)),
            after=after,
            phase="serve",
        )
        for new in wave.start
    ]
    stopped = [_draining(route) for one in wave.stopped if (route := stage.route_of(one)) is not None]
    leaving = [route for one in wave.leaving if (route := stage.route_of(one)) is not None]
    new = [stage.to_be(one) for one in wave.start]
    shift = _shift(stage, [*stopped, *leaving], [*new, *map(_draining, leaving)])
    share = _shared(stage, wave, shift)
    names = ", ".join(one.replica for one in wave.start)
    made = [
        *serves,
        traffic.shift_step(
            f"publish{tail}",
            f"send requests to {names}",
            share or shift,
            undone=shift.algorithm,
            after=after | {one.id for one in serves},
        ),
    ]
    if wave.watched:
        made.append(_watch(stage, wave, tail, frozenset({made[-1].id})))
    if share is not None:
        made.append(
            _even(
                share,
                replace(shift, before=share.after, after=(*shift.after, *_others(stage, wave))),
                made[-1],
                tail,
            )
        )
    return made


def _others(stage: Stage, wave: Wave) -> tuple[EndpointRoute, ...]:
    """Members that go on serving beside the new ones of this wave."""
    away = {route.url for one in (*wave.stopped, *wave.leaving) if (route := stage.route_of(one)) is not None}
    served = stage.served.endpoints if stage.served is not None else ()
    return tuple(one for one in served if one.url not in away and one.state == "active")


def _shared(stage: Stage, wave: Wave, shift: Shift) -> Shift | None:
    """The same shift with the share of requests that canaries are to have; None when it is everybody's."""
    percent, others = stage.launch.pool.strategy.traffic, _others(stage, wave)
    if not wave.watched or percent is None or not any(one.weight for one in others):
        return None
    weight, weights = shares(percent, len(wave.start), tuple(one.weight for one in others))
    new = [replace(one, weight=weight) for one in shift.after]
    old = [replace(one, weight=number) for one, number in zip(others, weights, strict=True)]
    return replace(shift, algorithm="weighted-static", before=(*shift.before, *others), after=(*new, *old))


def _even(share: Shift, even: Shift, before: Step, tail: str) -> Step:
    """From now on every member gets what it gets by the pool's own algorithm."""
    title, after = "share requests as before", frozenset({before.id})
    return traffic.shift_step(f"even{tail}", title, even, undone=share.algorithm, after=after)


def _watch(stage: Stage, wave: Wave, tail: str, after: frozenset[StepId]) -> Step:
    """Watch the new replicas beside the old; changes nothing."""
    wish = stage.launch.pool.strategy
    new = tuple(stage.place_to_be(one) for one in wave.start)
    old = tuple(stage.place_of(one) for one in stage.beside if stage.route_of(one) in _others(stage, wave))
    words = msgspec.json.encode(watch_of(wish, new, old)).decode()
    return Step(
        id=StepId(f"watch{tail}"),
        host=HERE,
        title=f"watch {', '.join(one.replica for one in wave.start)} for {wish.observe:.0f} s",
        do=(),
        undo=(),
        verify=traffic.good_enough(words),
        after=after,
        phase="watch",
    )
