"""A whole pool recut, GPU by GPU and host by host: never under its minimum, and no further than the first failure.

Each GPU is a change of its own, with its journal and its way back. What was done before a failure stays done; the
command may be run again, and passes over GPUs that are as wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpufleet.deploy.recut.flow import RecutWish, carry_out_recut, recut_of, wanted_of
from gpufleet.deploy.recut.look import look_at
from gpufleet.deploy.recut.model import Recut
from gpufleet.deploy.replicas import LABEL, Present, replicas_of, service_address, url_of
from gpufleet.deploy.strategy import count_of
from gpufleet.deploy.survey import survey
from gpufleet.deploy.tools import Done, Tools
from gpufleet.errors import ErrorRow, FleetError, Refused, UsageError
from gpufleet.inventory.model import Host
from gpufleet.mig.choose import Asked
from gpufleet.names import HostName, PoolName
from gpufleet.pools import record


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A GPU that has replicas of the pool."""

    host: Host
    asked: Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolling:
    """What would be done.

    Attributes:
        minimum: members that serve at any time.
        serving: members that serve now.
        places: every GPU, in the order in which they are changed; `recuts` what is planned for each as things stand.
    """

    pool: PoolName
    wish: RecutWish
    command: str
    minimum: int
    serving: int
    places: tuple[Place, ...]
    recuts: tuple[Recut, ...]

    @property
    def changes(self) -> bool:
        """Whether any GPU would be changed."""
        return any(one.plan.steps for one in self.recuts)


def prepare_rolling(
    tools: Tools, name: PoolName, wish: RecutWish, *, minimum: int | None, command: str
) -> Rolling:
    """Look at every GPU of the pool and plan each; nothing is changed.

    `minimum`: members that serve at any time; by default those that the pool's `max_unavailable` leaves.

    Raises:
        UsageError: there is no such pool, or it has no slices.
        Refused: the pool would fall under its minimum; and whatever `recut_of` raises for one GPU.
    """
    known = tools.store.record(name)
    if known is None:
        raise UsageError(f"pool {name} is not deployed", hints=("gpufleet pool list",))
    pool = record.pool_of(known)
    if minimum is None:
        minimum = max(0, pool.replicas - count_of(pool.strategy.max_unavailable, pool.replicas))
    places = _places(tools, name, known)
    recuts = tuple(_planned(tools, place, wish, command) for place in places)
    serving = len(_serving(tools, name, {place.host.name: place.host for place in places}))
    left = serving
    for one in recuts:
        left = _room(name, one, left, minimum)
    return Rolling(
        pool=name,
        wish=wish,
        command=command,
        minimum=minimum,
        serving=serving,
        places=places,
        recuts=recuts,
    )


def carry_out_rolling(
    tools: Tools, rolling: Rolling, told: Callable[[Recut], None] = lambda _recut: None
) -> tuple[tuple[Recut, Done], ...]:
    """One GPU after the other, each planned anew from what its host shows then; `told` of each before it begins.

    Raises:
        FleetError: the first GPU that was not changed; the error says which were.
    """
    finished: list[tuple[Recut, Done]] = []
    hosts = {place.host.name: place.host for place in rolling.places}
    for place in rolling.places:
        try:
            recut = _planned(tools, place, rolling.wish, rolling.command)
            serving = _serving(tools, rolling.pool, hosts)
            _room(rolling.pool, recut, len(serving), rolling.minimum)
            if recut.plan.steps:
                told(recut)
            finished.append((recut, carry_out_recut(tools, recut)))
        except FleetError as error:
            _stopped(error, rolling, finished)
            raise
    return tuple(finished)


def _stopped(error: FleetError, rolling: Rolling, finished: Sequence[tuple[Recut, Done]]) -> None:
    """Say how far it came."""
    names = [one.name for one, done in finished if done.outcome == "committed"]
    done = f"{', '.join(names)} changed before it" if names else "no GPU was changed before it"
    error.hints = (
        *error.hints,
        f"{done}; {len(rolling.places) - len(finished) - 1} were not begun: run the command again to go on",
    )
    error.fields = {**error.fields, "pool": rolling.pool, "done": names}


def _places(tools: Tools, name: PoolName, known: record.PoolRecord) -> tuple[Place, ...]:
    """GPUs with slices of the pool's own replicas, hosts in their order and GPUs by UUID within each."""
    found = sorted({(item.host, item.gpus[0]) for item in known.endpoints if item.slice and item.gpus})
    lost = sorted({host for host, _ in found} - set(tools.inventory.hosts))
    if lost:
        raise Refused(f"{', '.join(lost)} has replicas of the pool and is no longer in the inventory")
    if not found:
        raise UsageError(f"no replica of pool {name} is on a slice", hints=(f"gpufleet pool show {name}",))
    return tuple(
        Place(host=tools.inventory.hosts[HostName(host)], asked=Asked(host, uuid)) for host, uuid in found
    )


def _planned(tools: Tools, place: Place, wish: RecutWish, command: str) -> Recut:
    look = look_at(tools, place.host, place.asked)
    return recut_of(tools, look, wanted_of(look, wish.layout, wish.add), wish, command=command)


def _serving(tools: Tools, name: PoolName, hosts: Mapping[HostName, Host]) -> tuple[Present, ...]:
    """The pool's replicas that run and get requests."""
    facts = survey(
        tools.change.transport,
        tuple(hosts.values()),
        clock=tools.change.clock,
        forks=tools.change.forks,
    )
    active = {
        one.url
        for pool in tools.store.routes().pools
        if pool.name == name
        for one in pool.endpoints
        if one.state == "active" and one.weight
    }
    return tuple(
        one
        for one in replicas_of(name, facts.values())
        if one.up
        and one.container.ports
        and url_of(service_address(hosts[one.host]), one.container.ports[0]) in active
    )


def _room(name: PoolName, recut: Recut, serving: int, minimum: int) -> int:
    """Members that serve once this GPU is done. Raises Refused when too few would serve meanwhile."""
    moved = sum(one.launch.pool.name == name for one in recut.moves)
    lost = sum(one.present.container.labels.get(f"{LABEL}.pool") == name and one.up for one in recut.homeless)
    if (moved or lost) and serving - moved - lost < minimum:
        raise Refused(
            f"{serving} member(s) of pool {name} serve, {moved + lost} of them would stop at once, and "
            f"{minimum} have to serve at any time",
            where=recut.name,
            rows=tuple(ErrorRow(recut.name, f"{one.new.replica} leaves {one.old}") for one in recut.moves),
            hints=(
                "allow fewer: --min-available N",
                "or keep more of their slices in the layout, or add members elsewhere first",
            ),
        )
    return serving - lost
