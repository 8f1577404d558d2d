"""Who stands in the way of a planned layout: asked of the host, told with the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from gpufleet.cli import wiring
from gpufleet.cli.mig_look import Look, known
from gpufleet.cli.settings import current
from gpufleet.hosts.gather import gather_holders
from gpufleet.mig.holders import Holders, decide
from gpufleet.mig.outlook import Outlook, touched
from gpufleet.mig.plan import LayoutChange


def ask(found: Look, change: LayoutChange, ahead: Outlook) -> Holders:
    """What carrying out the change would do about holders; nothing is asked for a plan that changes nothing."""
    if not change.changes:
        return Holders()
    inventory = wiring.load_inventory(current())
    with closing(wiring.transport(inventory, current())) as transport:
        seen = gather_holders(transport, inventory.hosts[found.host])
    return decide(touched(known(found), change, ahead, found.containers), seen, found.containers)


def fields(holders: Holders) -> Mapping[str, object]:
    """For JSON."""
    return {
        "services": list(holders.stop),
        "blockers": [{"kind": one.kind, "reason": one.text, "hint": one.hint} for one in holders.blockers],
        "unknown": list(holders.unknown),
    }


def lines(holders: Holders) -> Sequence[str]:
    """For people, as the rest of a plan."""
    found = [f"  stops   {', '.join(holders.stop)}, and starts them again"] if holders.stop else []
    if holders.pause:
        found.append(f"  stops   {', '.join(one.name for one in holders.pause)}, and starts them again")
    for one in holders.blockers:
        found += [f"  in the way: {one.text}", f"    {one.hint}"]
    found += [f"  not known: {one}" for one in holders.unknown]
    return [*found, *(f"  {one}" for one in holders.notes)]
