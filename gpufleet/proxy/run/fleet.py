"""The route table as living things: members with their counters, pools with their policies.

A reload builds new pools around the members that stay. A request in flight holds the seat it was given; nothing that
is published meanwhile touches it. Counters, health and connections live on the member, so a member of two pools is
counted once and a reload forgets nothing.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence

from gpufleet.pools.routes import EndpointRoute, PoolRoute, RouteTable
from gpufleet.proxy.config import ProxyConfig
from gpufleet.proxy.decide.balance.api import Dice, Learner, Policy, RequestKey
from gpufleet.proxy.decide.balance.pins import Pins
from gpufleet.proxy.decide.balance.policies import POLICIES
from gpufleet.proxy.decide.health import Health, Observation, Verdict, eligible, evolve, expire, share
from gpufleet.proxy.decide.load import Share
from gpufleet.proxy.run.key_reference import resolve
from gpufleet.proxy.run.member import Member, Seat, split_url
from gpufleet.proxy.wire.prompt import read as read_prompt

_ANSWERED, _UP = Observation.ANSWERED, Verdict.UP  # see `request`
_LOG = logging.getLogger("gpufleet.proxy")
_UNPROVEN = 4
"""Requests at once for a member that came back and has not answered yet."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,199}")
_PATH = re.compile(r"/[\x21-\x7e]*")


class TableRefused(Exception):
    """A route table that cannot be served; the text names pool and member, and is one printable line."""

    def __init__(self, reason: str) -> None:
        super().__init__("".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in reason))


class LivePool:
    """One pool of one generation."""

    __slots__ = (
        "algorithm",
        "by_id",
        "eligible",
        "learner",
        "models",
        "name",
        "pins",
        "policy",
        "route_draining",
        "seats",
    )

    def __init__(self, route: PoolRoute, seats: tuple[Seat, ...], policy: Policy, pins: Pins) -> None:
        self.name = route.name
        self.algorithm = route.algorithm
        self.models = route.models
        self.seats = seats
        self.by_id = {seat.id: seat for seat in seats}
        self.policy = policy
        self.pins = pins
        self.learner = policy if isinstance(policy, Learner) else None
        self.route_draining = frozenset(seat.id for seat in seats if seat.draining)
        self.eligible: tuple[Seat, ...] = ()

    def key(self, model: str, session: str, body: bytes | bytearray, size: int) -> RequestKey:
        """What the policy wants to know of a request; `body` is JSON in its first `size` bytes, or something else."""
        if self.learner is None:
            return RequestKey(model=model, session=session)
        prompt = read_prompt(body, size)
        return RequestKey(model=model, session=session, blocks=prompt.blocks, tokens=prompt.tokens)

    def rank(self, key: RequestKey, dice: Dice) -> Sequence[str]:
        """The members in the order of attempts; a session's own first."""
        eligible = self.eligible
        if not key.session:
            return self.policy.rank(eligible, key, dice)
        if self.algorithm == "weighted-static":
            eligible = tuple(seat for seat in eligible if seat.weight)
        return self.pins.rank(
            key.session, eligible, self.by_id, lambda: self.policy.rank(self.eligible, key, dice)
        )

    def take(self, seat: Seat, key: RequestKey) -> Share:
        """The member's share of a request that is sent to it now."""
        load, learner = seat.load, self.learner
        return load.take(learner.sent(seat.id, key, load.cache_tokens) if learner is not None else 0)

    def first_byte(self, seat: Seat, share: Share, seconds: float | None) -> None:
        """The answer's first byte is here; `seconds` since the request was sent, where that tells how fast it read."""
        if self.learner is not None and seconds is not None:
            self.learner.answered(seat.id, share.queue, seconds)
        share.first_byte()

    def forget(self, member: Member) -> None:
        """It is down: when it comes back its cache is empty."""
        seat = self.by_id.get(member.id)
        if self.learner is not None and seat is not None and seat.member is member:
            self.learner.forget(member.id)


class LiveTable:
    """One generation."""

    __slots__ = ("by_model", "generation", "pools", "written_at")

    def __init__(self, route: RouteTable, pools: dict[str, LivePool]) -> None:
        self.generation = route.generation
        self.written_at = route.written_at
        self.pools = pools
        by_model: dict[str, list[LivePool]] = {}
        for pool in pools.values():
            for model in pool.models:
                by_model.setdefault(model, []).append(pool)
        self.by_model = {model: tuple(found) for model, found in by_model.items()}

    def pool_for(self, model: str) -> LivePool | None:
        """The first pool that serves the model and has somebody to ask, else the first that serves it."""
        pools = self.by_model.get(model, ())
        for pool in pools:
            if pool.eligible:
                return pool
        return pools[0] if pools else None


class Fleet:
    """The current generation and the members that outlive it."""

    __slots__ = ("_config", "_leaving", "_loop", "drained", "members", "table")

    def __init__(self, config: ProxyConfig, loop: asyncio.AbstractEventLoop) -> None:
        self._config = config
        self._loop = loop
        self.members: dict[tuple[str, str], Member] = {}
        self._leaving: dict[tuple[str, str], Member] = {}
        """Members of no pool with requests in flight: one that comes back (a change undone) is as busy as it was."""
        self.table = LiveTable(RouteTable(), {})
        self.drained: set[tuple[str, str]] = set()
        """(pool, replica) that the admin address drains; a reload keeps them, a restart does not."""

    def replace(self, table: RouteTable) -> None:
        """Serve this generation from now on. Raises `TableRefused` and changes nothing when it is wrong."""
        check(table)
        keys = {
            (endpoint.id, endpoint.url): _key(endpoint, pool.name)
            for pool in table.pools
            for endpoint in pool.endpoints
        }
        before = self.members
        members: dict[tuple[str, str], Member] = {}
        pools: dict[str, LivePool] = {}
        for route in table.pools:
            seats = []
            for endpoint in route.endpoints:
                identity = (endpoint.id, endpoint.url)
                member = members.get(identity) or before.get(identity) or self._back(identity)
                if member is None:
                    member = Member(endpoint, self._loop, self._config.timeouts.connect)
                members[identity] = member
                member.key = keys[identity]
                member.probe_path = endpoint.health
                member.metrics_path = endpoint.metrics
                draining = endpoint.state == "draining"
                seats.append(Seat(route.name, member, endpoint.weight, draining=draining))
            pools[route.name] = LivePool(route, tuple(seats), self._policy(route), self._pins(route))
        self.members = members
        self.table = LiveTable(table, pools)
        for identity, member in before.items():
            if identity not in members:
                member.connections.close()
                self._leaving[identity] = member
        self.refresh()

    def _back(self, identity: tuple[str, str]) -> Member | None:
        member = self._leaving.pop(identity, None)
        if member is not None:
            member.connections.closed = False
            member.health = Health()  # nobody looked at it meanwhile
        return member

    def _policy(self, route: PoolRoute) -> Policy:
        old = self.table.pools.get(route.name)
        if old is not None and old.algorithm == route.algorithm:
            return old.policy
        return POLICIES[route.algorithm]()

    def _pins(self, route: PoolRoute) -> Pins:
        old = self.table.pools.get(route.name)
        return Pins() if old is None else old.pins

    def refresh(self) -> None:
        """Work out anew who may be asked."""
        for pool in self.table.pools.values():
            for seat in pool.seats:
                seat.draining = seat.id in pool.route_draining or (pool.name, seat.id) in self.drained
            pool.eligible = eligible(pool.seats)

    def counts(self) -> list[tuple[str, str, int]]:
        """Id, address and requests in flight of every member that has some here, those that left the table too."""
        members = (*self.members.items(), *self._leaving.items())
        return [(*identity, member.running) for identity, member in members if member.running]

    def counts_in_all(self) -> list[tuple[str, str, int]]:
        """The same with what other processes have in flight."""
        members = (*self.members.items(), *self._leaving.items())
        sums = ((identity, member.running + member.elsewhere) for identity, member in members)
        return [(*identity, number) for identity, number in sums if number]

    def count_elsewhere(self, counts: Sequence[tuple[str, str, int]]) -> None:
        """What the other processes have in flight, in place of what they told before."""
        told = {(id_, url): number for id_, url, number in counts}
        for identity, member in self.members.items():
            member.work.elsewhere = told.get(identity, 0)
            member.work.reckon()

    def observe(self, member: Member, seen: Observation) -> None:
        """Something was learnt about a member."""
        before = member.health
        if seen is _ANSWERED:
            member.answers += 1
            if before.failures == 0 and before.verdict is _UP:
                return
        after = evolve(before, seen, self._loop.time(), self._config.health, member.answers)
        member.health = after
        if after.verdict is not before.verdict:
            _LOG.warning("member %s at %s is %s: %s", member.id, member.url, after.verdict.value, seen.value)
            if after.verdict is Verdict.DOWN:
                for pool in self.table.pools.values():
                    pool.forget(member)
            if after.verdict is _UP:
                member.answers_at_back, member.warmth, member.resting = member.answers, 0.0, True
            self.refresh()

    def tick(self, now: float) -> None:
        """End ejections whose time is up and close connections that nobody used."""
        changed = False
        self._leaving = {identity: member for identity, member in self._leaving.items() if member.running}
        for member in self.members.values():
            after = expire(member.health, now, self._config.health)
            rests = self._rests(member, now)
            changed = changed or after.verdict is not member.health.verdict or rests is not member.resting
            member.health, member.resting = after, rests
            if now - member.load_at > self._config.scrape.stale:
                member.others(0)
            member.connections.close_idle(now - self._config.timeouts.upstream_idle)
        if changed:
            self.refresh()

    def _rests(self, member: Member, now: float) -> bool:
        """One that came back is in the pool for as many ticks as its share says, and meets four before it answered."""
        if member.health.back_since is None:
            return False
        if member.answers == member.answers_at_back and member.running >= _UNPROVEN:
            return True
        member.warmth += share(member.health, now, self._config.health)
        if member.warmth < 1.0:
            return True
        member.warmth -= 1.0
        return False

    def close(self) -> None:
        """The proxy ends."""
        for member in self.members.values():
            member.connections.close()


def check(table: RouteTable) -> None:
    """Raises `TableRefused` for what no proxy can serve."""
    names = [pool.name for pool in table.pools]
    if len(set(names)) < len(names):
        raise TableRefused("a pool stands twice in the route table")
    for pool in table.pools:
        if "/" in pool.name or _NAME.fullmatch(pool.name) is None:
            raise TableRefused(f"pool `{pool.name}`: the name cannot stand in a path")
        if pool.algorithm not in POLICIES:
            raise TableRefused(
                f"pool `{pool.name}`: algorithm `{pool.algorithm}` is not one of {', '.join(POLICIES)}"
            )
        ids = [endpoint.id for endpoint in pool.endpoints]
        if len(set(ids)) < len(ids):
            raise TableRefused(f"pool `{pool.name}`: a member stands twice")
        for endpoint in pool.endpoints:
            _check_endpoint(pool.name, endpoint)


def _check_endpoint(pool: str, endpoint: EndpointRoute) -> None:
    place = f"pool `{pool}`, member `{endpoint.id}`"
    if _NAME.fullmatch(endpoint.id) is None:
        raise TableRefused(f"{place}: the name cannot stand in a header")
    if endpoint.weight < 0:
        raise TableRefused(f"{place}: weight {endpoint.weight} is below 0")
    if endpoint.state not in {"active", "draining"}:
        raise TableRefused(f"{place}: state `{endpoint.state}` is neither active nor draining")
    for name, path in (("health", endpoint.health), ("metrics", endpoint.metrics)):
        if _PATH.fullmatch(path) is None:
            raise TableRefused(f"{place}: {name} path `{path}` is no path")
    try:
        split_url(endpoint.url)
    except ValueError as error:
        raise TableRefused(f"{place}: {error}") from None


def _key(endpoint: EndpointRoute, pool: str) -> bytes:
    """The header line that the engine wants; empty without a key."""
    if endpoint.key is None:
        return b""
    try:
        key = resolve(endpoint.key)
    except ValueError as error:
        raise TableRefused(f"pool `{pool}`, member `{endpoint.id}`: {error}") from None
    return b"Authorization: Bearer " + key.reveal() + b"\r\n"
