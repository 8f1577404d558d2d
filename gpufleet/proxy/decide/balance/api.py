"""The seam of balancing: what a policy may see, and what it answers.

The framework has already dropped whoever may not be asked (down, draining, without the model), so no policy can
choose a dead member. A policy orders the rest; the order is the order of attempts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import msgspec

from gpufleet.proxy.decide.load import Load


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

    @property
    def load(self) -> Load:
        """All that it has to do, the same object for as long as the view lives."""
        ...


class RequestKey(msgspec.Struct, frozen=True, gc=False):
    """What a policy may know of a request. A Struct, since one is made for each: a dataclass costs ten times as much.

    Attributes:
        blocks: keys of the prompt's blocks, each depending on all before it; empty unless a policy asks for them.
        tokens: what the whole prompt takes, estimated.
        session: what its sender calls the conversation; empty: nothing.
    """

    model: str = ""
    blocks: Sequence[int] = ()
    tokens: int = 0
    session: str = ""


class Policy(Protocol):
    """Orders the members for one request."""

    def rank(self, views: Sequence[EndpointView], key: RequestKey, dice: Dice) -> Sequence[str]:
        """Ids of `views` in the order of attempts; no other ids, none twice. Empty: nobody takes it."""
        ...


class Learner(ABC):
    """A policy that wants to know the prompt, and what became of each attempt."""

    __slots__ = ()

    @property
    @abstractmethod
    def entries(self) -> int:
        """What it remembers of prompts, in entries: memory that grows with traffic, up to a bound."""

    @abstractmethod
    def rank(self, views: Sequence[EndpointView], key: RequestKey, dice: Dice) -> Sequence[str]:
        """See `Policy`."""

    @abstractmethod
    def sent(self, member: str, key: RequestKey, cache_tokens: int | None) -> int:
        """An attempt begins: how many tokens of the prompt the member has to read, as far as is known."""

    @abstractmethod
    def answered(self, member: str, tokens: int, seconds: float) -> None:
        """A first byte came after so long; so many tokens were to be read until then, those ahead of it included."""

    @abstractmethod
    def forget(self, member: str) -> None:
        """The member was gone: nothing that was learnt of its cache holds."""
