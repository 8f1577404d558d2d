"""The seam of balancing: what a policy may see, and what it answers.

The framework has already dropped whoever may not be asked (down, draining, without the model), so no policy can
choose a dead member. A policy orders the rest; the order is the order of attempts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Dice(Protocol):
    """Chance as an argument; `random.Random` fits."""

    def randrange(self, stop: int, /) -> int:
        """A number from 0 up to, not including, `stop`."""
        ...


class EndpointView(Protocol):
    """One member as a policy sees it. A protocol, because copying every member for every request would cost more
    than the decision.
    """

    @property
    def id(self) -> str:
        """Stable over reloads of the route table."""
        ...

    @property
    def running(self) -> int:
        """Requests in flight now, by this proxy's own count."""
        ...

    @property
    def weight(self) -> int:
        """The share that an operator gave; 0 takes nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestKey:
    """What a policy may know of a request."""

    model: str = ""
    prefix: bytes | None = None
    tokens: int = 0


class Policy(Protocol):
    """Orders the members for one request."""

    def rank(self, views: Sequence[EndpointView], key: RequestKey, dice: Dice) -> Sequence[str]:
        """Ids of `views` in the order of attempts; no other ids, none twice. Empty: nobody takes it."""
        ...
