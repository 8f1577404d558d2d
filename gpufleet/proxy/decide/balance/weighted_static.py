"""Shares by weights, spread evenly in time: smooth weighted round-robin.

Each pick adds every member's weight to its credit, takes the highest credit and charges the winner the sum of all
weights. Weights 5, 1, 1 give a a b a c a a, never aaaaabc. Only members that may be asked take part; weight 0 takes
nothing, and when no weight is left nobody takes it.

A weight that an operator changes starts a new cycle, so that the new shares are exact from the first pick on. A member
that comes or goes does not: one that comes and goes all the time would otherwise give the heaviest every pick.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.proxy.decide.balance.api import Dice, EndpointView, RequestKey


class WeightedStatic:
    """Shares as an operator set them."""

    __slots__ = ("_credit", "_weights")

    def __init__(self) -> None:
        self._credit: dict[str, int] = {}
        self._weights: dict[str, int] = {}

    def rank(self, views: Sequence[EndpointView], key: RequestKey, dice: Dice) -> Sequence[str]:
        """Highest credit first; among equals in the order given."""
        weights = {view.id: view.weight for view in views}
        if weights != self._weights:
            self._changed(weights)
        credit: dict[str, int] = {}
        total = 0
        for id_, weight in weights.items():
            if weight > 0:
                total += weight
                credit[id_] = self._credit.get(id_, 0) + weight
        order = sorted(credit, key=lambda id_: -credit[id_])
        if order:
            credit[order[0]] -= total
        self._credit = credit  # who may not be asked now starts from nothing when it returns
        return order

    def _changed(self, weights: dict[str, int]) -> None:
        before, self._weights = self._weights, weights
        if any(before.get(id_, weight) != weight for id_, weight in weights.items()):
            self._credit = {}
