"""Traffic made here: conversations, agents, questions about documents, bursts. The same seed gives the same requests.

Rates are such that eight members that read 16,000 tokens a second are busy, and not lost. A next turn comes when the
answer would have been written and read, whether the replay was slow or not.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping

from gpufleet.lab.replay.model import Arrival, Trace

BLOCK = 256
"""Tokens of one block, as the proxy cuts prompts."""
_SECONDS_A_TOKEN = 0.025


class _Text:
    """A prompt that grows; its full blocks have numbers that nobody else has."""

    __slots__ = ("_fresh", "blocks", "tokens")

    def __init__(self, fresh: Iterator[int], blocks: list[int], tokens: int) -> None:
        self._fresh = fresh
        self.blocks = list(blocks)
        self.tokens = tokens

    def grow(self, tokens: int) -> None:
        self.tokens += tokens
        self.blocks.extend(next(self._fresh) for _ in range(self.tokens // BLOCK - len(self.blocks)))

    def ask(self, at: float, output: int) -> Arrival:
        return Arrival(at=at, prompt=self.tokens, output=output, blocks=tuple(self.blocks))


def _shared(fresh: Iterator[int], tokens: int) -> _Text:
    text = _Text(fresh, [], 0)
    text.grow(tokens)
    return text


def chat(dice: random.Random, requests: int) -> Iterator[Arrival]:
    """Conversations of some turns behind one of three system prompts; people read and think between turns."""
    fresh = itertools.count(1)
    systems = [_shared(fresh, tokens) for tokens in (600, 1100, 2300)]
    at = 0.0
    made = 0
    while made < requests:
        at += dice.expovariate(1.6)
        system = dice.choice(systems)
        text = _Text(fresh, system.blocks, system.tokens)
        now = at
        for _ in range(1 + min(30, int(dice.expovariate(1 / 6)))):
            text.grow(20 + int(dice.expovariate(1 / 500)))
            output = 50 + int(dice.expovariate(1 / 250))
            yield text.ask(now, output)
            made += 1
            text.grow(output)
            now += output * _SECONDS_A_TOKEN + 2 + dice.expovariate(1 / 20)


def agents(dice: random.Random, requests: int) -> Iterator[Arrival]:
    """Tasks of many quick steps: 6,000 tokens of tools and rules that all share, then what tools answered."""
    fresh = itertools.count(1)
    rules = _shared(fresh, 6000)
    at = 0.0
    made = 0
    while made < requests:
        at += dice.expovariate(0.5)
        text = _Text(fresh, rules.blocks, rules.tokens)
        text.grow(300 + int(dice.expovariate(1 / 1500)))
        now = at
        for _ in range(4 + min(40, int(dice.expovariate(1 / 14)))):
            output = 30 + int(dice.expovariate(1 / 120))
            yield text.ask(now, output)
            made += 1
            text.grow(output + 50 + int(dice.expovariate(1 / 900)))
            now += output * _SECONDS_A_TOKEN + 0.5 + dice.expovariate(1 / 2)


def documents(dice: random.Random, requests: int) -> Iterator[Arrival]:
    """Short questions about documents of 2,000 to 12,000 tokens, some asked about much more than others."""
    fresh = itertools.count(1)
    system = _shared(fresh, 512)
    shelf = []
    for _ in range(300):
        text = _Text(fresh, system.blocks, system.tokens)
        text.grow(dice.randrange(2000, 12_000))
        shelf.append(text)
    weights = [1 / (rank + 1) ** 0.9 for rank in range(len(shelf))]
    at = 0.0
    for _ in range(requests):
        at += dice.expovariate(20)
        document = dice.choices(shelf, weights)[0]
        text = _Text(fresh, document.blocks, document.tokens)
        text.grow(20 + int(dice.expovariate(1 / 150)))
        yield text.ask(at, 50 + int(dice.expovariate(1 / 200)))


def bursts(dice: random.Random, requests: int) -> Iterator[Arrival]:
    """Prompts of very different lengths that share nothing: a trickle, and every half a minute some hundred at once."""
    fresh = itertools.count(1)
    made = 0
    for burst in itertools.count():
        begin = burst * 30.0
        times = [begin + dice.random() * 30 for _ in range(60)] + [
            begin + 10 + dice.random() for _ in range(dice.randrange(60, 240))
        ]
        for at in sorted(times):
            text = _shared(fresh, 50 + int(dice.expovariate(1 / 3000)))
            yield text.ask(at, 20 + int(dice.expovariate(1 / 200)))
        made += len(times)
        if made >= requests:
            return


def mixed(dice: random.Random, requests: int) -> Iterator[Arrival]:
    """A third of each of the first three at once."""
    kinds = (chat, agents, documents)
    for number, kind in enumerate(kinds):
        for one in kind(dice, requests // len(kinds) + 1):
            blocks = tuple(len(kinds) * key + number for key in one.blocks)  # what one shares is no other's
            yield Arrival(at=one.at, prompt=one.prompt, output=one.output, blocks=blocks)


WORKLOADS: Mapping[str, Callable[[random.Random, int], Iterator[Arrival]]] = {
    "chat": chat,
    "agents": agents,
    "documents": documents,
    "bursts": bursts,
    "mixed": mixed,
}
"""By the name that people write."""


def make(name: str, requests: int, seed: int) -> Trace:
    """So many requests of a kind, or a few less where the last conversation would go on. Raises `KeyError`."""
    made = sorted(WORKLOADS[name](random.Random(seed), requests), key=lambda one: one.at)
    return Trace(name=name, block_tokens=BLOCK, arrivals=tuple(made[:requests]))
