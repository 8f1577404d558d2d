"""Where a pool that does not fit would find room: hosts of the inventory that were not selected."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gpufleet.deploy.placement import nearest
from gpufleet.deploy.plan import DeployPlan, Wish, demand_of, make
from gpufleet.deploy.tools import Tools
from gpufleet.errors import Unplaceable
from gpufleet.hosts.gather import gather
from gpufleet.hosts.model import HostFacts
from gpufleet.inventory.model import Host
from gpufleet.names import HostName
from gpufleet.pools.model import Pool

LOOKED_AT = 32
"""Hosts that are asked at most: nobody waits for all of a large fleet to be told that something does not fit."""


def make_or_look(
    tools: Tools, wish: Wish, hosts: Sequence[Host], facts: Mapping[HostName, HostFacts]
) -> DeployPlan:
    """The plan; when nothing fits, the error also tells of hosts beside the selection that have room.

    Raises:
        Unplaceable: see `plan.make`.
    """
    try:
        return make(wish, hosts, facts)
    except Unplaceable as error:
        look_elsewhere(tools, error, wish.pool, facts)
        raise


def look_elsewhere(tools: Tools, error: Unplaceable, pool: Pool, known: Collection[HostName]) -> None:
    """Add hosts with room to what an error tells; those that do not answer are passed over, nothing is changed.

    Args:
        tools: the inventory and the way to its hosts.
        error: gets hints and rows of `nearest`.
        pool: what does not fit.
        known: hosts that were looked at already.
    """
    told = error.fields.get("nearest")
    others = [host for name, host in tools.inventory.hosts.items() if name not in known][:LOOKED_AT]
    if not others or not isinstance(told, list):
        return
    answers = gather(
        tools.change.transport, others, clock=tools.change.clock, forks=tools.change.forks
    ).values()
    facts = [answer for answer in answers if isinstance(answer, HostFacts)]
    found = nearest.elsewhere(demand_of(pool, 1, {}), facts)
    error.hints = (*error.hints[:-1], *(one.text for one in found), *error.hints[-1:])
    error.fields = {**error.fields, "nearest": [*told, *(one.row() for one in found)]}
