"""One policy, one trace, virtual time.

The engine model: prompts are read one after the other in the order they came, at a fixed rate, without what the prefix
cache holds; the cache forgets the block that was used longest ago; every answer then takes a fixed time for each token,
however many are written at once. So queues and caches are real here and the contention between reading and writing is
not: trust the order of policies, not the seconds.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence

from gpufleet.lab.replay.model import Engines, Outcome, Trace
from gpufleet.proxy.decide.balance.api import Dice, Learner, Policy, RequestKey
from gpufleet.proxy.decide.load import Load, Share


class Engine:
    """One member: a queue and a cache, and the view of it that a policy gets."""

    __slots__ = ("_cache", "_capacity", "_free_at", "_rate", "id", "load", "served", "weight")

    def __init__(self, number: int, rate: float, cache_blocks: int, load: Load) -> None:
        self.id = f"engine-{number:02}/0"
        self.weight = 1
        self.load = load
        self.served = 0
        self._rate = rate
        self._capacity = cache_blocks
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._free_at = 0.0

    @property
    def running(self) -> int:
        """Requests in flight."""
        return self.load.running

    def read(self, now: float, prompt: int, blocks: Sequence[int], block_tokens: int) -> tuple[float, int]:
        """Seconds until the first token, and tokens of the prompt that were cached."""
        cache = self._cache
        had = 0
        for key in blocks:
            if key not in cache:
                break
            had += 1
        for place in range(min(len(blocks), self._capacity) - 1, -1, -1):
            cache[blocks[place]] = None
            cache.move_to_end(blocks[place])
        while len(cache) > self._capacity:
            cache.popitem(last=False)
        cached = min(had * block_tokens, prompt)
        self.served += 1
        self._free_at = max(now, self._free_at) + (prompt - cached) / self._rate
        return self._free_at - now, cached


def replay(
    *,
    name: str,
    policy: Policy,
    trace: Trace,
    engines: Engines,
    dice: Dice,
    timer: Callable[[], float],
    load: Callable[[], Load] = Load,
) -> Outcome:
    """Everything that the trace holds. `timer` reads CPU seconds, for the cost of a decision."""
    speeds = engines.speeds or (1.0,) * engines.count
    blocks = max(1, engines.cache_tokens // trace.block_tokens)
    views = tuple(
        Engine(number, engines.prefill * speed, blocks, load()) for number, speed in enumerate(speeds)
    )
    for view in views:
        view.load.cache_tokens = engines.cache_tokens
    by_id = {view.id: view for view in views}
    learner = policy if isinstance(policy, Learner) else None
    events: list[tuple[float, int, Share, bool, Callable[[], None] | None]] = []
    numbers = itertools.count()
    waits: list[float] = []
    hits = prompts = 0
    spent = 0.0
    for arrival in trace.arrivals:
        now = arrival.at
        while events and events[0][0] <= now:
            _, _, share, last, told = heapq.heappop(events)
            if told is not None:
                told()
            (share.end if last else share.first_byte)()
        key = RequestKey(blocks=arrival.blocks, tokens=arrival.prompt)
        began = timer()
        chosen = by_id[policy.rank(views, key, dice)[0]]
        spent += timer() - began
        ahead = chosen.load.pending
        own = learner.sent(chosen.id, key, engines.cache_tokens) if learner is not None else 0
        share = chosen.load.take(own)
        wait, cached = chosen.read(now, arrival.prompt, arrival.blocks, trace.block_tokens)
        told = _telling(learner, chosen.id, ahead + own, wait) if learner is not None else None
        heapq.heappush(events, (now + wait, next(numbers), share, False, told))
        heapq.heappush(
            events, (now + wait + arrival.output * engines.decode, next(numbers), share, True, None)
        )
        waits.append(wait)
        hits += cached
        prompts += arrival.prompt
    return _outcome(name, waits, hits / max(1, prompts), [view.served for view in views], spent)


def _telling(learner: Learner, member: str, tokens: int, wait: float) -> Callable[[], None]:
    return lambda: learner.answered(member, tokens, wait)


def _outcome(name: str, waits: list[float], hit_rate: float, served: list[int], spent: float) -> Outcome:
    waits.sort()
    count = len(waits)

    def share(part: float) -> float:
        return waits[min(count - 1, int(part * count))] if count else 0.0

    return Outcome(
        policy=name,
        requests=count,
        ttft_mean=sum(waits) / count if count else 0.0,
        ttft_p50=share(0.5),
        ttft_p90=share(0.9),
        ttft_p99=share(0.99),
        hit_rate=hit_rate,
        balance=max(served) * len(served) / count if count else 1.0,
        decision=spent / count if count else 0.0,
        waits=tuple(waits),
    )
