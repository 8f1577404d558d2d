"""Sessions that stay with their member, in front of any policy, until it costs too much.

A pin that is never broken hurts more than none: sessions crowd on one member while others idle. So it breaks when the
member may not be asked, or when what waits there is further than `GAP` above the least of the pool, and the session is
then pinned to whomever the policy chose. Pins are kept least recently used first out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpufleet.proxy.decide.balance.api import EndpointView
from gpufleet.proxy.decide.balance.order import FirstThenRest

GAP: Final = 12_000.0
"""Burden: 48,000 prompt tokens that wait, or 75 requests in flight, where a policy counts no tokens."""
MOST: Final = 100_000
"""Sessions of one pool and process."""


class Pins:
    """One pool's."""

    __slots__ = ("_homes", "_most")

    def __init__(self, most: int = MOST) -> None:
        self._homes: OrderedDict[str, str] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        return len(self._homes)

    def rank(
        self,
        session: str,
        eligible: Sequence[EndpointView],
        by_id: Mapping[str, EndpointView],
        ranked: Callable[[], Sequence[str]],
    ) -> Sequence[str]:
        """Its member first, while that holds; else what the policy says, and it is pinned there."""
        home = by_id.get(self._homes.get(session, ""))
        if home is not None and self._holds(home, eligible):
            self._homes.move_to_end(session)
            return FirstThenRest(home.id, len(eligible), lambda: _all(ranked(), eligible))
        order = ranked()
        if order:
            self._homes[session] = order[0]
            self._homes.move_to_end(session)
            if len(self._homes) > self._most:
                self._homes.popitem(last=False)
        return order

    @staticmethod
    def _holds(home: EndpointView, eligible: Sequence[EndpointView]) -> bool:
        least = min((view.load.burden for view in eligible), default=0.0)
        return home.load.burden - least <= GAP and any(view is home for view in eligible)


def _all(ranked: Sequence[str], eligible: Sequence[EndpointView]) -> list[str]:
    """The policy's order, and behind it whoever takes nothing by its rule."""
    return list(dict.fromkeys([*ranked, *(view.id for view in eligible)]))
