"""In turn: whoever waited longest.

The cursor is kept by member, not by index: each member carries the number of its last turn, and the lowest number is
next. So a member that leaves makes nobody miss a turn or take two, and one that comes back is simply next.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.proxy.decide.balance.api import Dice, EndpointView, RequestKey


class RoundRobin:
    """Even shares in a fixed order."""

    __slots__ = ("_last_turn", "_order", "_turn", "_views")

    def __init__(self) -> None:
        self._turn = 0
        self._last_turn: dict[str, int] = {}
        self._views: Sequence[EndpointView] | None = None
        self._order: list[str] = []
        """Ids of `_views`, the longest wait first: asked for the same members again, nothing has to be sorted."""

    def rank(self, views: Sequence[EndpointView], key: RequestKey, dice: Dice) -> Sequence[str]:
        """Longest wait first; those who never had a turn come in the order given."""
        order = self._order if views is self._views else self._sorted(views)
        if order:
            first = order[0]
            self._turn += 1
            self._last_turn[first] = self._turn
            self._order = [*order[1:], first]
        return order

    def _sorted(self, views: Sequence[EndpointView]) -> list[str]:
        last_turn = self._last_turn
        order = [view.id for view in views]
        order.sort(key=lambda id_: last_turn.get(id_, 0))
        if len(last_turn) > 2 * len(views) + 16:
            self._last_turn = {id_: turn for id_, turn in last_turn.items() if id_ in order}
        self._views = views if isinstance(views, tuple) else None  # what can change is looked at each time
        self._order = order
        return order
