"""Free slots first: what fits on them disturbs nobody, and only the rest makes others stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gpufleet.deploy.placement.api import Demand, Placement, Placer, Slot, TooFew


def gently(
    place: Placer, demand: Demand, free: Sequence[Slot], released: Sequence[Slot]
) -> Placement | TooFew:
    """A placement that takes as many free slots as there are, the rest from `released`, which holds the free ones too."""
    found = place(demand, free)
    if not isinstance(found, TooFew):
        return found
    first = place(replace(demand, replicas=found.fits), free) if found.fits else ()
    if not isinstance(first, TooFew):
        used = {(slot.host, slot.device) for placed in first for slot in placed.slots}
        present = Counter(demand.present) + Counter(placed.host for placed in first)
        rest = place(
            replace(demand, replicas=demand.replicas - len(first), present=present),
            [slot for slot in released if (slot.host, slot.device) not in used],
        )
        if not isinstance(rest, TooFew):
            return (*first, *rest)
    return place(demand, released)
