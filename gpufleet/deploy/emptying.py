"""Members of a pool that are to stop: out of the routes first, then waited for, as steps that can be undone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from gpufleet.change.model import HERE, Step
from gpufleet.deploy import traffic
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.replicas import Present, bind_address, service_address, url_of
from gpufleet.deploy.rollout import addresses, route_of
from gpufleet.deploy.traffic import Place, Shift
from gpufleet.engine.model import Engine
from gpufleet.engine.vllm import PORT
from gpufleet.inventory.model import Host
from gpufleet.names import HostName, StepId
from gpufleet.pools.model import GateWish
from gpufleet.pools.routes import EndpointRoute, PoolRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class Emptying:
    """Where it happens.

    Attributes:
        served: the pool's route as it is published now; None when there is none.
        elsewhere: the routes of other pools, which may have the same replicas.
    """

    served: PoolRoute | None
    hosts: Mapping[HostName, Host]
    dialects: Mapping[HostName, Dialect]
    engine: Engine
    gate: GateWish
    elsewhere: tuple[PoolRoute, ...] = ()

    def steps(self, gone: Sequence[Present]) -> tuple[list[Step], dict[str, frozenset[StepId]]]:
        """The steps, and for each container, by its full id, what its stop has to wait for.

        A replica that is not published gets nothing new, and what it has in flight is still waited for.
        """
        routes = {
            one.container.id: route for one in gone if (route := route_of(self.served, one)) is not None
        }
        cordons = self._cordon(tuple(routes.values()))
        urls = addresses(gone, self.hosts)
        cordons += traffic.cordons_elsewhere(self.elsewhere, urls, after=frozenset())
        first = frozenset(step.id for step in cordons)
        drains: list[Step] = []
        waits: dict[str, frozenset[StepId]] = {}
        for one in gone:
            waits[one.container.id] = first
            if one.up and one.container.ports and one.host in self.hosts and one.host in self.dialects:
                drains.append(self._drain(one, self._place(one), first))
                waits[one.container.id] = frozenset({drains[-1].id})
        return [*cordons, *drains], waits

    def _cordon(self, routes: tuple[EndpointRoute, ...]) -> list[Step]:
        if self.served is None or not routes:
            return []
        shift = Shift(
            pool=self.served.name,
            models=self.served.models,
            algorithm=self.served.algorithm,
            before=routes,
            after=tuple(replace(route, state="draining") for route in routes),
        )
        names = ", ".join(route.id for route in routes)
        return [traffic.shift_step("cordon", f"send nothing new to {names}", shift, after=frozenset())]

    def _drain(self, one: Present, place: Place, after: frozenset[StepId]) -> Step:
        return Step(
            id=StepId(f"drain-{one.host}-{one.container.id[:12]}"),
            host=HERE,
            title=f"let {one.replica} finish what it has in flight",
            do=(),
            undo=(),
            verify=traffic.drained(place),
            absent=traffic.ready_again(place, within=self.gate.within, stall=self.gate.stall),
            after=after,
            phase="drain",
        )

    def _place(self, one: Present) -> Place:
        dialect, found = self.dialects[one.host], f"id={one.container.id}"
        return Place(
            pool=self.served.name if self.served is not None else "",
            replica=one.replica,
            host=one.host,
            runtime=dialect.path,
            root=dialect.root,
            filters=(found, found),
            base=url_of(bind_address(self.hosts[one.host]) or "127.0.0.1", one.container.ports[0]),
            inner=url_of("127.0.0.1", PORT),
            health=self.engine.health_path,
            metrics=self.engine.metrics_path,
            busy=self.engine.busy_metrics,
            url=url_of(service_address(self.hosts[one.host]), one.container.ports[0]),
        )
