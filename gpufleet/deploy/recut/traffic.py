"""Members that are to stop, out of the routes of every pool that has them; and their heirs, back in at the same address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from gpufleet.change.model import HERE, Step
from gpufleet.deploy import steps as parts
from gpufleet.deploy import traffic
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.recut.model import Move
from gpufleet.deploy.replicas import LABEL, New, Present, bind_address, service_address, url_of
from gpufleet.deploy.rollout import addresses
from gpufleet.deploy.traffic import Place, Shift
from gpufleet.engine.model import Engine
from gpufleet.engine.vllm import PORT
from gpufleet.inventory.model import Host
from gpufleet.names import RunId, StepId
from gpufleet.pools.model import GateWish
from gpufleet.pools.routes import EndpointRoute, PoolRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One host and the routes as they are published now.

    Attributes:
        gates: what each pool asks of a member before it is sent requests.
        limit: seconds that a member may finish what it has in flight.
        tail: tells the steps of several GPUs apart.
    """

    host: Host
    dialect: Dialect
    engine: Engine
    pools: tuple[PoolRoute, ...]
    gates: Mapping[str, GateWish]
    run: RunId
    limit: float = traffic.DRAIN_DEADLINE
    tail: str = ""

    def cordons(self, leaving: Sequence[Present]) -> list[Step]:
        """Send them nothing new, in any pool."""
        return traffic.cordons_elsewhere(
            self.pools, self.addresses(leaving), tail=self.tail, after=frozenset()
        )

    def drain(self, one: Present, after: frozenset[StepId]) -> Step:
        """Wait until it has nothing in flight; the undo waits until it is ready again."""
        found = f"id={one.container.id}"
        place = self._place(one.replica, self._pool_of(one), (found, found), one.container.ports[0])
        gate = self.gates.get(self._pool_of(one), GateWish())
        return Step(
            id=StepId(f"drain-{one.host}-{one.container.id[:12]}"),
            host=HERE,
            title=f"let {one.replica} finish what it has in flight",
            do=(),
            undo=(),
            verify=traffic.drained(place, self.limit),
            absent=traffic.ready_again(place, within=gate.within, stall=gate.stall),
            after=after,
            phase="drain",
        )

    def serve(self, move: Move, after: frozenset[StepId]) -> Step:
        """Nothing on the way forward; on the way back the heir finishes what it has before it is removed."""
        new, step = move.new, parts.start_id(move.new)
        filters = (f"label={LABEL}.run={self.run}", f"label={LABEL}.step={step}")
        return Step(
            id=StepId(f"serve-{new.host}-{new.number}{new.tail}"),
            host=HERE,
            title=f"let {new.replica} have requests",
            do=(),
            undo=(),
            verify=traffic.always(),
            absent=traffic.drained(self._place(new.replica, move.launch.pool.name, filters, new.port)),
            after=after,
            phase="serve",
        )

    def publish(self, moved: Sequence[Move], after: frozenset[StepId]) -> list[Step]:
        """Every pool sends requests to the heirs of its own replicas. Who has no heir leaves the routes with the commit.

        A pool to which a replica of another one was added loses it: its container is another one now.
        """
        own = {url: one.launch.pool.name for one in moved for url in self.addresses([one.present])}
        made: list[Step] = []
        for pool in self.pools:
            stays = tuple(one for one in pool.endpoints if own.get(one.url) == pool.name)
            if not stays:
                continue
            shift = Shift(
                pool=pool.name,
                models=pool.models,
                algorithm=pool.algorithm,
                before=tuple(_draining(one) for one in stays),
                after=stays,
            )
            title = f"send requests to {', '.join(one.id for one in stays)}"
            made.append(traffic.shift_step(f"publish{self.tail}-in-{pool.name}", title, shift, after=after))
        return made

    def to_be(self, new: New) -> str:
        """The address of a new replica, as proxies know it."""
        return url_of(service_address(self.host), new.port)

    def addresses(self, replicas: Sequence[Present]) -> frozenset[str]:
        """How proxies know them."""
        return addresses(replicas, {self.host.name: self.host})

    def _pool_of(self, one: Present) -> str:
        """The pool that started it, or one that sends it requests."""
        urls = self.addresses([one])
        own = one.container.labels.get(f"{LABEL}.pool", "")
        served = [pool.name for pool in self.pools if any(each.url in urls for each in pool.endpoints)]
        return own or next(iter(served), "")

    def _place(self, replica: str, pool: str, filters: tuple[str, str], port: int) -> Place:
        return Place(
            pool=pool,
            replica=replica,
            host=self.host.name,
            runtime=self.dialect.path,
            root=self.dialect.root,
            filters=filters,
            base=url_of(bind_address(self.host) or "127.0.0.1", port),
            inner=url_of("127.0.0.1", PORT),
            health=self.engine.health_path,
            metrics=self.engine.metrics_path,
            busy=self.engine.busy_metrics,
            url=url_of(service_address(self.host), port),
        )


def _draining(route: EndpointRoute) -> EndpointRoute:
    return replace(route, state="draining")
