"""Requests of a trace, the engines that are asked, and what came out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request of a trace.

    Attributes:
        at: seconds since the trace began.
        prompt: tokens in, `output` tokens out.
        blocks: keys of the prompt's full blocks, each depending on all before it.
    """

    at: float
    prompt: int
    output: int
    blocks: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in the order of their times. `block_tokens`: what one of their blocks holds."""

    name: str
    block_tokens: int
    arrivals: tuple[Arrival, ...]

    def scaled(self, speed_up: float) -> Trace:
        """The same requests so many times as fast."""
        arrivals = tuple(
            Arrival(at=one.at / speed_up, prompt=one.prompt, output=one.output, blocks=one.blocks)
            for one in self.arrivals
        )
        return Trace(name=self.name, block_tokens=self.block_tokens, arrivals=arrivals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """The members of the simulated pool.

    Attributes:
        count: how many.
        prefill: prompt tokens a second that one reads; `speeds` are factors to it, one a member, all 1 when empty.
        decode: seconds for each token of an answer.
        cache_tokens: tokens that the prefix cache of one holds.
    """

    count: int = 8
    prefill: float = 16_000.0
    decode: float = 0.025
    cache_tokens: int = 512_000
    speeds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One policy on one trace. Times in seconds; `hit_rate` is cached tokens over all prompt tokens."""

    policy: str
    requests: int
    ttft_mean: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    hit_rate: float
    balance: float
    """The busiest member's requests over the mean of all."""
    decision: float
    """Seconds of CPU that one decision took, on the machine of the replay."""
    waits: tuple[float, ...] = field(default=(), repr=False)
    """Every time to first token, sorted."""
