"""What an operator may ask of a proxy, whether it is one process or several; and the answers of one process."""

from __future__ import annotations

from typing import Any, Protocol

from gpufleet.proxy.decide.health import Verdict
from gpufleet.proxy.decide.metrics import Family
from gpufleet.proxy.run.member import Seat
from gpufleet.proxy.run.metrics_page import families
from gpufleet.proxy.run.state import ProxyState

Row = dict[str, Any]


class NoAnswer(Exception):
    """A process of the proxy did not say what it has: what is asked is unknown. The text names it."""


class Desk(Protocol):
    """Who answers. Every question may raise `NoAnswer`."""

    async def families(self) -> list[Family]:
        """Everything for `/metrics`."""
        ...

    async def members(self) -> Row:
        """Pools, members, their state and what is in flight."""
        ...

    async def drain(self, pool: str, replica: str, *, wanted: bool) -> Row | None:
        """The member's row afterwards; None when there is no such member."""
        ...


class OwnDesk:
    """Of this process alone."""

    def __init__(self, state: ProxyState) -> None:
        self._state = state

    async def families(self) -> list[Family]:
        """See `Desk`."""
        return families(self._state)

    async def members(self) -> Row:
        """See `Desk`."""
        return members(self._state)

    async def drain(self, pool: str, replica: str, *, wanted: bool) -> Row | None:
        """See `Desk`."""
        return drain(self._state, pool, replica, wanted=wanted)


def drain(state: ProxyState, pool: str, replica: str, *, wanted: bool, own: bool = False) -> Row | None:
    """Let a member finish what it has, or let it take requests again; `own` as for `members`."""
    live = state.fleet.table.pools.get(pool)
    seat = live.by_id.get(replica) if live is not None else None
    if seat is None:
        return None
    drained = state.fleet.drained
    (drained.add if wanted else drained.discard)((pool, replica))
    state.fleet.refresh()
    return _row(seat, seat.member.running if own else seat.in_flight)


def members(state: ProxyState, *, own: bool = False) -> Row:
    """What `/admin/members` shows; `in_flight` of a member counts every pool's requests, `own`: of this process."""
    table = state.fleet.table
    return {
        "generation": table.generation,
        "stopping": state.stopping,
        "in_flight": state.in_flight,
        "pools": [
            {
                "pool": pool.name,
                "algorithm": pool.algorithm,
                "models": list(pool.models),
                "members": [
                    _row(seat, seat.member.running if own else seat.in_flight) for seat in pool.seats
                ],
            }
            for pool in table.pools.values()
        ],
    }


def _row(seat: Seat, in_flight: int) -> Row:
    return {
        "replica": seat.id,
        "endpoint": seat.member.url,
        "state": "draining" if seat.draining else "active",
        "health": seat.verdict.value if seat.member.health.probed else "unknown",
        "weight": seat.weight,
        "in_flight": in_flight,
    }


_WORST = (
    *(verdict.value for verdict in (Verdict.DOWN, Verdict.EJECTED, Verdict.TRIAL)),
    "unknown",
    Verdict.UP.value,
)


def together(pages: list[Row]) -> Row:
    """What several workers say, as one proxy: counts are summed, and the worst that one of them holds is shown.

    A pool or member that some workers do not have yet, because they read the routes a moment later, is there.
    """
    pools: dict[str, Row] = {}
    rows: dict[tuple[str, str, str], Row] = {}
    for page in pages:
        for pool in page["pools"]:
            known = pools.setdefault(pool["pool"], {**pool, "members": []})
            for row in pool["members"]:
                identity = (pool["pool"], row["replica"], row["endpoint"])
                before = rows.get(identity)
                if before is None:
                    rows[identity] = fresh = dict(row)
                    known["members"].append(fresh)
                    continue
                before["in_flight"] += row["in_flight"]
                before["health"] = min(before["health"], row["health"], key=_WORST.index)
                if row["state"] == "draining":
                    before["state"] = "draining"
    return {
        "generation": min((page["generation"] for page in pages), default=0),
        "stopping": any(page["stopping"] for page in pages),
        "in_flight": sum(page["in_flight"] for page in pages),
        "pools": list(pools.values()),
    }
