"""May this member be asked? A state machine for each, and one rule for the pool.

    UP       --probe fails `down_after` times in a row------------------------> DOWN
    UP       --`eject_after` failures in a row, `late_after` of them too late--> EJECTED  until now + eject_for
    UP       --half of at least `least` requests within `window` failed--------> EJECTED
    UP       --works on requests and makes no token for `frozen_after`---------> EJECTED
    EJECTED  --time is up------------------------------------------------------> TRIAL
    EJECTED  --a probe succeeds, and only connections had failed---------------> UP
    TRIAL    --the trial request is answered, or a connection succeeds---------> UP, slowly
    TRIAL    --the trial fails-------------------------------------------------> EJECTED  twice as long, to `eject_most`
    DOWN     --probe succeeds `up_after` times in a row------------------------> UP, slowly

A member starts UP: not looked at yet is unknown, and unknown is not down. An answer of any status proves that the
engine is there, so 503 (its queue is full), 429 and 4xx never count against it. An API server that answers `/health`
may stand before a dead engine (vLLM issue 39863), so what traffic has shown a probe does not forgive; and an engine
under a burst may miss probes while tokens flow (ray issue 54070), so a probe that is only late does not count then.

EJECTED and TRIAL are our own guess from traffic, and a guess may be wrong for everybody at once (our network): never
more than half of a pool is left out by it. Whoever comes back gets little at first: its share grows from a tenth to
the whole over `warm_up` seconds.
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
    TRIAL = "trial"


class Observation(Enum):
    """What was seen."""

    PROBE_PASSED = "probe passed"
    PROBE_FAILED = "probe failed"
    CONNECT_FAILED = "connect failed"
    ANSWERED = "answered"
    BROKEN = "broken"
    LATE = "late"
    FROZEN = "frozen"
    TRIAL_PASSED = "trial passed"
    TRIAL_FAILED = "trial failed"


_FAILURES = frozenset({Observation.CONNECT_FAILED, Observation.BROKEN, Observation.LATE})


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """Seconds and counts; `every` and `timeout` are for who probes, `trial` for the request that tries a member."""

    every: float = 5.0
    timeout: float = 2.0
    down_after: int = 3
    up_after: int = 2
    eject_after: int = 5
    late_after: int = 3
    least: int = 10
    window: float = 30.0
    frozen_after: float = 60.0
    eject_for: float = 30.0
    eject_most: float = 300.0
    trial: float = 30.0
    warm_up: float = 30.0
    first_share: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of one member; times are monotonic seconds.

    Attributes:
        streak: probes in a row that contradict the verdict.
        failures: requests in a row that failed; `late` of them for being too slow.
        reachable: False when all that failed was connecting: then a probe that passes settles it.
        ejections: how often in a row it was ejected.
        window_from: since when `failed` of the requests are counted; `answered_before` answers were before it.
        back_since: when it came back, for the slow start; None when it never was away.
        probed: False until the first probe ended.
    """

    verdict: Verdict = Verdict.UP
    streak: int = 0
    failures: int = 0
    late: int = 0
    reachable: bool = False
    until: float = 0.0
    ejections: int = 0
    window_from: float = 0.0
    failed: int = 0
    answered_before: int = 0
    back_since: float | None = None
    probed: bool = False


def evolve(state: Health, seen: Observation, now: float, rules: HealthRules, answered: int = 0) -> Health:
    """The next state. `answered` is how many answers the member has given since it is known."""
    if seen is Observation.ANSWERED:
        if state.verdict is Verdict.TRIAL or (state.verdict is Verdict.EJECTED and not state.reachable):
            return _back(state, now)
        return replace(state, failures=0, late=0)
    if seen in _FAILURES:
        return _failed(state, seen, now, rules, answered)
    if seen is Observation.FROZEN:
        return _ejected(replace(state, reachable=True), now, rules) if state.verdict is Verdict.UP else state
    if seen is Observation.TRIAL_PASSED:
        return _back(state, now) if state.verdict is Verdict.TRIAL else state
    if seen is Observation.TRIAL_FAILED:
        return _ejected(state, now, rules) if state.verdict is Verdict.TRIAL else state
    return _probed(state, passed=seen is Observation.PROBE_PASSED, now=now, rules=rules)


def _failed(state: Health, seen: Observation, now: float, rules: HealthRules, answered: int) -> Health:
    if now - state.window_from > rules.window:
        state = replace(state, window_from=now, failed=0, answered_before=answered)
    late = state.late + (seen is Observation.LATE)
    state = replace(
        state,
        failures=state.failures + 1,
        failed=state.failed + 1,
        late=late,
        reachable=(state.reachable and state.failures > 0) or seen is not Observation.CONNECT_FAILED,
    )
    if state.verdict is Verdict.TRIAL:
        return _ejected(state, now, rules)
    if state.verdict is not Verdict.UP:
        return state
    asked = state.failed + answered - state.answered_before
    much = asked >= rules.least and state.failed * 2 >= asked
    if state.failures >= rules.eject_after or late >= rules.late_after or much:
        return _ejected(state, now, rules)
    return state


def _ejected(state: Health, now: float, rules: HealthRules) -> Health:
    length = min(rules.eject_for * 2**state.ejections, rules.eject_most)
    return replace(
        state, verdict=Verdict.EJECTED, until=now + length, ejections=min(state.ejections + 1, 16), streak=0
    )


def _back(state: Health, now: float) -> Health:
    """`ejections` stays: one that fails again at once is left out for longer."""
    return Health(
        verdict=Verdict.UP, back_since=now, probed=state.probed, ejections=state.ejections, window_from=now
    )


def _probed(state: Health, *, passed: bool, now: float, rules: HealthRules) -> Health:
    state = replace(state, probed=True)
    down = state.verdict is Verdict.DOWN
    if passed and state.verdict in {Verdict.EJECTED, Verdict.TRIAL}:
        return replace(state, streak=0) if state.reachable else _back(state, now)
    if passed is not down:  # agrees with the verdict
        return replace(state, streak=0)
    streak = state.streak + 1
    if streak < (rules.up_after if down else rules.down_after):
        return replace(state, streak=streak)
    return _back(state, now) if down else replace(state, verdict=Verdict.DOWN, streak=0)


def expire(state: Health, now: float, rules: HealthRules) -> Health:
    """What time alone changes: an ejection ends in a trial, a slow start ends, and a long good time is forgiven."""
    if state.verdict is Verdict.EJECTED and now >= state.until:
        return replace(state, verdict=Verdict.TRIAL)
    good = state.verdict is Verdict.UP and state.back_since is not None
    if good and now - (state.back_since or now) > rules.warm_up + rules.eject_most:
        return replace(state, back_since=None, ejections=0)
    return state


def share(state: Health, now: float, rules: HealthRules) -> float:
    """What part of its ordinary share a member gets: less than 1 while it warms up."""
    if state.back_since is None or now - state.back_since >= rules.warm_up:
        return 1.0
    return rules.first_share + (1.0 - rules.first_share) * max(0.0, now - state.back_since) / rules.warm_up


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

    @property
    def resting(self) -> bool:
        """It warms up, and this is not its turn."""
        ...


C = TypeVar("C", bound=Candidate)


def eligible(candidates: Sequence[C]) -> tuple[C, ...]:
    """Who may be asked, in the order given; ejected members return when more than half would be missing, or all.

    One that rests is asked when nobody else could be.
    """
    takes = [candidate for candidate in candidates if not candidate.draining]
    alive = [candidate for candidate in takes if candidate.verdict is not Verdict.DOWN]
    healthy = [candidate for candidate in alive if candidate.verdict is Verdict.UP]
    if not healthy or (len(alive) - len(healthy)) * 2 > len(takes):
        return tuple(alive)
    awake = [candidate for candidate in healthy if not candidate.resting]
    return tuple(awake or healthy)
