"""Whether new replicas do as well as the old ones: good, bad, or not known. Pure.

What is compared is what happened while they were watched. Answers and errors are counted by proxies where they can be
asked, else by the engines themselves; the mean time to the first token is the engines' own. Fewer answers than wanted
prove nothing: that is *not known*, never good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from gpufleet.deploy.traffic import Place
from gpufleet.pools.model import StrategyWish

NOISE = 0.05
"""Seconds by which a mean time to the first token may be worse whatever the ratio."""

TIMED = 5
"""First tokens that make a mean."""


class Watch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is watched, and what it is judged by; `StrategyWish` says what the numbers mean."""

    new: tuple[Place, ...]
    old: tuple[Place, ...]
    observe: float
    min_requests: int
    deadline: float
    unknown: str
    max_error_rate: float
    max_ttft: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What some replicas did in a time. `answers` is None when nobody could be asked."""

    answers: int | None = None
    errors: int = 0
    first_tokens: int = 0
    waited: float = 0.0
    """Seconds to all of the first tokens together."""

    @property
    def error_rate(self) -> float:
        """In percent; 0 without answers."""
        return 100.0 * self.errors / self.answers if self.answers else 0.0

    @property
    def ttft(self) -> float | None:
        """Mean seconds to the first token; None when there were too few."""
        return self.waited / self.first_tokens if self.first_tokens >= TIMED else None


@dataclass(frozen=True, slots=True)
class Good:
    """As good as the old ones, within the limits."""


@dataclass(frozen=True, slots=True)
class Bad:
    """Worse than is allowed."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotKnown:
    """Nothing can be said, or not yet."""

    reason: str


Judgement: TypeAlias = Good | Bad | NotKnown


def watch_of(wish: StrategyWish, new: tuple[Place, ...], old: tuple[Place, ...]) -> Watch:
    """The watch that a strategy asks for."""
    return Watch(
        new=new,
        old=old,
        observe=wish.observe,
        min_requests=wish.min_requests,
        deadline=wish.deadline,
        unknown=wish.unknown,
        max_error_rate=wish.max_error_rate,
        max_ttft=wish.max_ttft,
    )


def judge(new: Evidence, old: Evidence, limits: Watch) -> Judgement:
    """Compare; the old ones' own errors are allowed to the new ones too."""
    if new.answers is None:
        return NotKnown("neither a proxy nor their metrics pages tell what the new replicas answered")
    if new.answers < limits.min_requests:
        return NotKnown(
            f"the new replicas gave {new.answers} answer(s), and {limits.min_requests} are wanted"
        )
    if new.error_rate > old.error_rate + limits.max_error_rate:
        return Bad(
            f"{new.errors} of {new.answers} answers of the new replicas were errors ({new.error_rate:.1f} %); the old "
            f"ones had {old.error_rate:.1f} % and {limits.max_error_rate:g} % more are allowed"
        )
    mine, theirs = new.ttft, old.ttft
    if mine is not None and theirs is not None and mine > max(theirs * limits.max_ttft, theirs + NOISE):
        return Bad(
            f"the first token of the new replicas takes {mine:.2f} s, and {theirs:.2f} s with the old ones; "
            f"{limits.max_ttft:g} times that is allowed"
        )
    return Good()


def shares(percent: int, new: int, old: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Weights, at most 1000, by which `new` members together get `percent` of the requests, nearest to it.

    Returns the weight of each new member and the old members' weights, in the proportions that they had.
    """
    total = sum(old)
    if not total:
        return 1, old
    wanted = percent * total / ((100 - percent) * new)
    best: tuple[float, int] | None = None
    for factor in range(1, 1 + 1000 // max(old)):
        weight = round(wanted * factor)
        if 1 <= weight <= 1000:
            off = abs(weight / factor - wanted)
            best = min(best or (off, factor), (off, factor))
    factor = best[1] if best else 1
    weight = min(1000, max(1, round(wanted * factor)))
    return weight, tuple(one * factor for one in old)
