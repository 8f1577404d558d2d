"""May this member be asked? A state machine for each, and one rule for the pool.

    UP       --probe fails `down_after` times in a row-------------> DOWN
    UP       --`eject_after` connections fail in a row-------------> EJECTED   until now + eject_for
    EJECTED  --time is up, a probe succeeds, or it answered--------> UP        (a failing probe counts towards DOWN)
    DOWN     --probe succeeds `up_after` times in a row------------> UP

A member starts UP: not looked at yet is unknown, and unknown is not down. An answer of any status proves that the
engine is there, so 503 (its queue is full) and 4xx never count against it. EJECTED is our own guess from traffic,
and a guess may be wrong for everybody at once (our network): never more than half of a pool is left out by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol, TypeVar


class Verdict(Enum):
    """What is held to be true of a member."""

    UP = "up"
    DOWN = "down"
    EJECTED = "ejected"


class Observation(Enum):
    """What was seen."""

    PROBE_PASSED = "probe passed"
    PROBE_FAILED = "probe failed"
    CONNECT_FAILED = "connect failed"
    ANSWERED = "answered"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """Seconds and counts; `every` and `timeout` are for who probes."""

    every: float = 5.0
    timeout: float = 2.0
    down_after: int = 3
    up_after: int = 2
    eject_after: int = 3
    eject_for: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of one member. `probed` is False until the first probe ended; times are monotonic seconds."""

    verdict: Verdict = Verdict.UP
    streak: int = 0
    refused: int = 0
    until: float = 0.0
    probed: bool = False


def evolve(state: Health, seen: Observation, now: float, rules: HealthRules) -> Health:
    """The next state."""
    if seen is Observation.ANSWERED:
        if state.verdict is Verdict.EJECTED:
            return replace(state, verdict=Verdict.UP, refused=0)
        return replace(state, refused=0)
    if seen is Observation.CONNECT_FAILED:
        refused = state.refused + 1
        if state.verdict is Verdict.UP and refused >= rules.eject_after:
            return replace(state, verdict=Verdict.EJECTED, refused=refused, until=now + rules.eject_for)
        return replace(state, refused=refused)
    return _probed(state, passed=seen is Observation.PROBE_PASSED, rules=rules)


def _probed(state: Health, *, passed: bool, rules: HealthRules) -> Health:
    """`streak` counts probes that contradict the verdict."""
    down = state.verdict is Verdict.DOWN
    if passed is not down:  # agrees with the verdict; a passed probe also ends an ejection
        verdict = Verdict.DOWN if down else Verdict.UP
        return Health(verdict=verdict, refused=0 if passed else state.refused, probed=True)
    streak = state.streak + 1
    if streak < (rules.up_after if down else rules.down_after):
        return replace(state, streak=streak, probed=True)
    return Health(verdict=Verdict.UP if down else Verdict.DOWN, probed=True)


def expire(state: Health, now: float) -> Health:
    """An ejection ends by itself: one request may try again."""
    if state.verdict is Verdict.EJECTED and now >= state.until:
        return replace(state, verdict=Verdict.UP, refused=0)
    return state


class Candidate(Protocol):
    """Somebody who might be asked."""

    @property
    def verdict(self) -> Verdict:
        """What health says."""
        ...

    @property
    def draining(self) -> bool:
        """It finishes what it has and gets nothing new."""
        ...


C = TypeVar("C", bound=Candidate)


def eligible(candidates: Sequence[C]) -> tuple[C, ...]:
    """Who may be asked, in the order given; ejected members return when more than half would be missing."""
    takes = [candidate for candidate in candidates if not candidate.draining]
    alive = [candidate for candidate in takes if candidate.verdict is not Verdict.DOWN]
    healthy = [candidate for candidate in alive if candidate.verdict is Verdict.UP]
    if (len(alive) - len(healthy)) * 2 > len(takes):
        return tuple(alive)
    return tuple(healthy)
