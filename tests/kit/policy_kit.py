"""What every balancing policy must keep, whatever it is called."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from gpufleet.proxy.decide.balance.api import Policy, RequestKey
from gpufleet.proxy.decide.load import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A member as a policy sees it."""

    id: str
    running: int = 0
    weight: int = 1
    load: Load = field(default_factory=Load, compare=False)


KEY = RequestKey(model="m")


def views(count: int, *, running: int = 0, weight: int = 1) -> list[View]:
    """Idle members of weight 1."""
    return [View(id=f"gpu-{number}/0", running=running, weight=weight) for number in range(count)]


def shares(policy: Policy, members: list[View], rounds: int, seed: int = 1) -> Counter[str]:
    """Who is asked first, over many requests."""
    dice = random.Random(seed)
    return Counter(policy.rank(members, KEY, dice)[0] for _ in range(rounds))
