"""Shares by weights, spread evenly in time: smooth weighted round-robin.

Each pick adds every member's weight to its credit, takes the highest credit and charges the winner the sum of all
weights. Weights 5, 1, 1 give a a b a c a a, never aaaaabc. Only members that may be asked take part; weight 0 takes
nothing, and when no weight is left nobody takes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.proxy.decide.balance.api import Dice, EndpointView, RequestKey


class WeightedStatic:
    """Shares as an operator set them."""

    __slots__ = ("_credit",)

    def __init__(self) -> None:
        self._credit: dict[str, int] = {}

    def rank(self, views: Sequence[EndpointView], key: RequestKey, dice: Dice) -> Sequence[str]:
        """Highest credit first; among equals in the order given."""
        before = self._credit
        credit: dict[str, int] = {}
        total = 0
        for view in views:
            weight = view.weight
            if weight > 0:
                total += weight
                credit[view.id] = before.get(view.id, 0) + weight
        order = sorted(credit, key=lambda id_: -credit[id_])
        if order:
            credit[order[0]] -= total
        self._credit = credit  # who may not be asked now starts from nothing when it returns
        return order
