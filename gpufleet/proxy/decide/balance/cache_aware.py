"""The least work: what waits at a member, weighed, and what of this prompt it would have to read, in tokens.

    cost = (0.25 * prompt tokens that wait there + 160 * requests in flight + own tokens that are not cached) * slowness

Everything is in tokens, so no GPU has to be calibrated. What waits counts a quarter: a cache is worth a queue, up to
four times its size. When even the least busy member has a queue, nobody will be idle soon whoever gets the request, and
what counts is the work that is saved: own tokens are then worth 1 + its burden / 6,000 each. Equal costs: fewest in
flight, then the longest wait for a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from gpufleet.proxy.decide.balance.api import Dice, EndpointView, Learner, RequestKey
from gpufleet.proxy.decide.balance.order import FirstThenRest
from gpufleet.proxy.decide.balance.speeds import Speeds
from gpufleet.proxy.decide.load import Load
from gpufleet.proxy.decide.prefix_index import PrefixIndex
from gpufleet.proxy.wire.prompt import BLOCK_TOKENS

_CROWDED = 6000.0
"""Burden of the least busy member at which what is cached counts twice. See the module."""
_BURDEN: Callable[[Load], float] = attrgetter("burden")
_RUNNING: Callable[[Load], int] = attrgetter("running")


class CacheAware(Learner):
    """See the module."""

    __slots__ = (
        "_all",
        "_bits",
        "_ids",
        "_last_turn",
        "_loads",
        "_places",
        "_slowness",
        "_speeds",
        "_turn",
        "_turns",
        "_views",
        "index",
    )

    def __init__(self, index: PrefixIndex | None = None) -> None:
        self.index = PrefixIndex(BLOCK_TOKENS) if index is None else index
        self._speeds = Speeds()
        self._turn = 0
        self._last_turn: dict[str, int] = {}
        self._turns: list[int] = []
        """The same, in the order of the members."""
        self._views: Sequence[EndpointView] = ()
        self._ids: list[str] = []
        self._loads: list[Load] = []
        self._bits: list[int] = []
        self._places: dict[int, int] = {}
        self._all = 0
        self._slowness: list[float] = []
        """Empty: all are alike."""

    @property
    def entries(self) -> int:
        """See `Learner`."""
        return self.index.entries

    def rank(self, views: Sequence[EndpointView], key: RequestKey, dice: Dice) -> Sequence[str]:
        """Lowest cost first."""
        if views is not self._views or type(views) is not tuple:  # a tuple does not change behind our back
            self._look(views)
        if not self._ids:
            return ()
        costs, _ = self._costs(key)
        best = min(costs)
        place = costs.index(best) if costs.count(best) == 1 else self._of_equals(costs, best)
        ids = self._ids  # this list, whoever may be asked by the time that the second is wanted
        first = ids[place]
        self._turn += 1
        self._last_turn[first] = self._turns[place] = self._turn
        return FirstThenRest(first, len(costs), lambda: self._sorted(ids, costs))

    def explain(self, views: Sequence[EndpointView], key: RequestKey) -> dict[str, float]:
        """What each member would cost now, in tokens."""
        self._look(views)
        costs, rest = self._costs(key)
        return {id_: cost + rest for id_, cost in zip(self._ids, costs, strict=True)}

    def _costs(self, key: RequestKey) -> tuple[list[float], float]:
        """What each would cost, without what every one of them has to read; and that. Slowness is in already."""
        index, tokens, everybody, places = self.index, key.tokens, self._all, self._places
        costs = list(map(_BURDEN, self._loads))
        worth = 1.0 + min(costs) / _CROWDED
        saved = 0
        held_by_all = 0
        steps = index.depths(key.blocks)
        if steps:
            saved = held_by_all = min(tokens, index.common(key.blocks, steps[-1][0]) * index.block_tokens)
            for depth, mask in steps:
                had = min(tokens, depth * index.block_tokens)
                if had <= saved:
                    continue
                held = mask & everybody
                if held == everybody:
                    held_by_all = had
                else:
                    gain = worth * (had - saved)
                    while held:
                        bit = held & -held
                        costs[places[bit]] -= gain
                        held ^= bit
                saved = had
        rest = worth * (tokens - held_by_all)
        if self._slowness:
            slowed = zip(costs, self._slowness, strict=True)
            return [(cost + rest) * slow for cost, slow in slowed], 0.0
        return costs, rest

    def _look(self, views: Sequence[EndpointView]) -> None:
        """Other members may be asked than before."""
        self._views = views
        self._ids = [view.id for view in views]
        self._loads = [view.load for view in views]
        self.index.keep(self._ids)
        self._bits = [self.index.bit(id_) for id_ in self._ids]
        self._places = {bit: place for place, bit in enumerate(self._bits)}
        self._all = sum(self._bits)
        if len(self._last_turn) > 2 * len(views) + 16:
            present = frozenset(self._ids)
            self._last_turn = {id_: turn for id_, turn in self._last_turn.items() if id_ in present}
            self._speeds.keep(present)
        self._turns = [self._last_turn.get(id_, 0) for id_ in self._ids]
        self._weigh()

    def _weigh(self) -> None:
        found = self._speeds.slowness
        self._slowness = [found.get(id_, 1.0) for id_ in self._ids] if found else []

    def _of_equals(self, costs: list[float], best: float) -> int:
        """Often all, when nothing is in flight; so without a call of ours for each."""
        running = map(_RUNNING, self._loads)
        equals = zip(map(best.__ne__, costs), running, self._turns, range(len(costs)), strict=True)
        return min(equals)[3]

    def _sorted(self, ids: list[str], costs: list[float]) -> list[str]:
        last = self._last_turn
        order = sorted(range(len(costs)), key=lambda at: (costs[at], last.get(ids[at], 0)))
        return [ids[place] for place in order]

    def sent(self, member: str, key: RequestKey, cache_tokens: int | None) -> int:
        """See `Learner`."""
        had = self.index.enter(member, key.blocks, cache_tokens)
        return max(0, key.tokens - had * self.index.block_tokens)

    def answered(self, member: str, tokens: int, seconds: float) -> None:
        """See `Learner`."""
        if self._speeds.answered(member, tokens, seconds):
            self._weigh()

    def forget(self, member: str) -> None:
        """See `Learner`."""
        self.index.forget(member)
        self._speeds.forget(member)
        self._last_turn.pop(member, None)
        self._views = ()  # its place in the index is another one when it comes back
