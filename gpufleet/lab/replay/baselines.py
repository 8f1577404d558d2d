"""Policies to compare with: what other routers do, as their documents describe it, and rules that look good and are not.

None of them is offered to a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpufleet.proxy.decide.balance.api import Dice, EndpointView, Learner, Policy, RequestKey
from gpufleet.proxy.decide.balance.cache_aware import CacheAware
from gpufleet.proxy.decide.balance.policies import POLICIES
from gpufleet.proxy.decide.prefix_index import PrefixIndex


class _Indexed(Learner):
    """Knows what each member probably has."""

    __slots__ = ("_turn", "index")

    def __init__(self, index: PrefixIndex) -> None:
        self.index = index
        self._turn = 0

    @property
    def entries(self) -> int:
        """See `Learner`."""
        return self.index.entries

    def had(self, views: Sequence[EndpointView], key: RequestKey) -> dict[str, int]:
        """Tokens of the prompt that each member has."""
        steps = self.index.depths(key.blocks)
        block = self.index.block_tokens
        return {
            view.id: max(
                (depth * block for depth, mask in steps if mask & self.index.bit(view.id)), default=0
            )
            for view in views
        }

    def turned(self, views: Sequence[EndpointView]) -> list[EndpointView]:
        """The members from another one on at each call, so that equals take turns."""
        self._turn += 1
        start = self._turn % len(views)
        return [*views[start:], *views[:start]]

    def sent(self, member: str, key: RequestKey, cache_tokens: int | None) -> int:
        """See `Learner`."""
        had = self.index.enter(member, key.blocks, cache_tokens)
        return max(0, key.tokens - had * self.index.block_tokens)

    def answered(self, member: str, tokens: int, seconds: float) -> None:
        """Nothing is learnt."""

    def forget(self, member: str) -> None:
        """See `Learner`."""
        self.index.forget(member)


class LeastPending(_Indexed):
    """The fewest prompt tokens that wait; no affinity."""

    __slots__ = ()

    def rank(self, views: Sequence[EndpointView], key: RequestKey, dice: Dice) -> Sequence[str]:
        """See `Policy`."""
        ordered = sorted(self.turned(views), key=lambda view: (view.load.pending, view.running))
        return [view.id for view in ordered]


class LongestPrefix(_Indexed):
    """Whoever has most of the prompt, however busy."""

    __slots__ = ()

    def rank(self, views: Sequence[EndpointView], key: RequestKey, dice: Dice) -> Sequence[str]:
        """See `Policy`."""
        had = self.had(views, key)
        return [
            view.id for view in sorted(self.turned(views), key=lambda view: (-had[view.id], view.running))
        ]


class Greedy(_Indexed):
    """The earliest first token: what waits counts in full."""

    __slots__ = ()

    def rank(self, views: Sequence[EndpointView], key: RequestKey, dice: Dice) -> Sequence[str]:
        """See `Policy`."""
        had = self.had(views, key)
        ordered = sorted(
            self.turned(views), key=lambda view: (view.load.pending - had[view.id], view.running)
        )
        return [view.id for view in ordered]


class MatchRatio(_Indexed):
    """The rule of the SGLang family: the best match from 0.3 of the prompt on, else the least loaded; the least loaded
    too when loads are 64 requests and a factor of 1.5 apart.
    """

    __slots__ = ()

    def rank(self, views: Sequence[EndpointView], key: RequestKey, dice: Dice) -> Sequence[str]:
        """See `Policy`."""
        loads = [view.running for view in views]
        turned = self.turned(views)
        if max(loads) - min(loads) <= 64 or max(loads) <= 1.5 * min(loads):
            had = self.had(views, key)
            if max(had.values()) > 0.3 * key.tokens:
                return [view.id for view in sorted(turned, key=lambda view: (-had[view.id], view.running))]
        return [view.id for view in sorted(turned, key=lambda view: view.running)]


class Scored(_Indexed):
    """Scores from 0 to 1 added up, the way of gateways for Kubernetes: prefix 3, queue 2, requests in flight 2."""

    __slots__ = ()

    def rank(self, views: Sequence[EndpointView], key: RequestKey, dice: Dice) -> Sequence[str]:
        """See `Policy`."""
        had = self.had(views, key)
        pending = [view.load.pending for view in views]
        running = [view.running for view in views]
        low, span = min(pending), max(pending) - min(pending) or 1
        few, width = min(running), max(running) - min(running) or 1

        def score(view: EndpointView) -> float:
            return (
                3 * had[view.id] / max(1, key.tokens)
                - 2 * (view.load.pending - low) / span
                - 2 * (view.running - few) / width
            )

        return [view.id for view in sorted(self.turned(views), key=score, reverse=True)]


class TwoChoices:
    """Two members by chance, the less busy of them."""

    __slots__ = ()

    def rank(self, views: Sequence[EndpointView], key: RequestKey, dice: Dice) -> Sequence[str]:
        """See `Policy`."""
        order = list(views)
        for place in range(min(2, len(order) - 1)):
            other = place + dice.randrange(len(order) - place)
            order[place], order[other] = order[other], order[place]
        if len(order) > 1 and order[1].running < order[0].running:
            order[0], order[1] = order[1], order[0]
        return [view.id for view in order]


OTHERS: Mapping[str, Callable[[PrefixIndex], Policy]] = {
    "two-choices": lambda _index: TwoChoices(),
    "least-pending": LeastPending,
    "greedy": Greedy,
    "match-ratio": MatchRatio,
    "scored": Scored,
    "longest-prefix": LongestPrefix,
}
"""By name, to compare with."""


def make(name: str, block_tokens: int) -> Policy:
    """A fresh policy: one that ships, or one to compare with. Raises `KeyError`."""
    if name in OTHERS:
        return OTHERS[name](PrefixIndex(block_tokens))
    if name == "cache-aware":
        return CacheAware(PrefixIndex(block_tokens))
    return POLICIES[name]()


def names() -> tuple[str, ...]:
    """All that `make` knows."""
    return (*dict.fromkeys((*POLICIES, "cache-aware")), *OTHERS)
