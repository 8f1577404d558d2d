"""What happens to a run: the facts that the machine folds, the journal keeps and observers are told."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from gpufleet.change.model import Step
from gpufleet.names import StepId


class Act(StrEnum):
    """The two ways a step touches its host."""

    DO = "do"
    UNDO = "undo"


class Result(StrEnum):
    """How an act ended, as far as we were told."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    """No answer: it may or may not have taken effect."""
    NOT_SENT = "not_sent"
    """The host was not reached and no command left this machine."""


class Found(StrEnum):
    """What a look at the host showed about an act."""

    DONE = "done"
    NOT_DONE = "not_done"
    UNKNOWN = "unknown"


class Goal(StrEnum):
    """What a person wants from an interrupted run."""

    RESUME = "resume"
    UNDO = "undo"


class Ending(StrEnum):
    """How a run came to rest."""

    COMMITTED = "committed"
    UNDONE = "undone"
    STUCK = "stuck"
    IN_DOUBT = "in_doubt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Intended:
    """The act is about to begin; written and synced before the first command is sent."""

    step: StepId
    act: Act


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The act came to its end, or its answer was lost."""

    step: StepId
    act: Act
    result: Result
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Somebody looked at the host, because an act's outcome was not known."""

    step: StepId
    act: Act
    found: Found
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turned:
    """The run goes back: a step failed, a person asked for it, or publishing was refused.

    Written before the first undo, so that a host's copy of the journal says it even where the failure, which
    happened on another host, is missing.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopened:
    """Another process took the run up; what was in flight is now interrupted."""

    goal: Goal


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing:
    """Every step is done and the commit begins: from here the run is never undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The run came to rest. After `stuck` it may be reopened."""

    ending: Ending


Event: TypeAlias = Intended | Ended | Observed | Turned | Reopened | Publishing | Settled


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A step is waiting and something moves; told to observers, never journaled."""

    step: StepId
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A run is about to be driven; told to observers, never journaled. `done`: steps that earlier processes did."""

    steps: tuple[Step, ...]
    done: frozenset[StepId]


Told: TypeAlias = Event | Progress | Begun
"""What an observer hears."""

Observer: TypeAlias = Callable[[Step | None, Told], None]
"""Told after the journal has the event, from several threads. What it raises is dropped."""


def harmless(observer: Observer) -> Observer:
    """The same observer, unable to stop a run: a terminal that closed must not end the rollback it started."""

    def tell(step: Step | None, event: Told) -> None:
        with suppress(Exception):
            observer(step, event)

    return tell


def silent(step: Step | None, event: Told) -> None:
    """An observer that says nothing."""
    del step, event
