"""Fewest requests in flight, by the proxy's own live count; in turn among equals.

A scraped number is never used here: the member that looked idle a minute ago gets everybody's requests at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.proxy.decide.balance.api import Dice, EndpointView, RequestKey


class LeastBusy:
    """Fewest in flight first."""

    __slots__ = ("_last_turn", "_turn")

    def __init__(self) -> None:
        self._turn = 0
        self._last_turn: dict[str, int] = {}

    def rank(self, views: Sequence[EndpointView], key: RequestKey, dice: Dice) -> Sequence[str]:
        """By requests in flight, then by the longest wait."""
        last_turn = self._last_turn
        order = [
            id_
            for _, _, _, id_ in sorted(
                (view.running, last_turn.get(view.id, 0), place, view.id) for place, view in enumerate(views)
            )
        ]
        if order:
            self._turn += 1
            last_turn[order[0]] = self._turn
        if len(last_turn) > 2 * len(views) + 16:
            present = {view.id for view in views}
            self._last_turn = {id_: turn for id_, turn in last_turn.items() if id_ in present}
        return order
