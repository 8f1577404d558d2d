"""Chance: every member alike. Needs nothing to be shared, so many proxies may use it side by side."""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.proxy.decide.balance.api import Dice, EndpointView, RequestKey

_DRAWN = 3
"""Places that are drawn: the first attempt and two more. Who stands behind them is never asked."""


class RandomChoice:
    """Uniform."""

    __slots__ = ()

    def rank(self, views: Sequence[EndpointView], key: RequestKey, dice: Dice) -> Sequence[str]:
        """The first places are drawn without replacement."""
        order = [view.id for view in views]
        for place in range(min(_DRAWN, len(order) - 1)):
            other = place + dice.randrange(len(order) - place)
            order[place], order[other] = order[other], order[place]
        return order
