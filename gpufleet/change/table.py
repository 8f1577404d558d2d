"""The life of a step and of a run as data: phases, the transition table and the sets that decisions rest on."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias

from gpufleet.change.events import Act


class Phase(StrEnum):
    """Where a step is."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    UNTOUCHED = "untouched"
    UNKNOWN = "unknown"
    INTERRUPTED = "interrupted"
    DOUBTFUL = "doubtful"
    UNSEEN = "unseen"
    PARTIAL = "partial"
    UNDOING = "undoing"
    UNDONE = "undone"
    UNDO_UNKNOWN = "undo_unknown"
    UNDO_UNSEEN = "undo_unseen"
    UNDO_PARTIAL = "undo_partial"
    UNDO_FAILED = "undo_failed"


class RunPhase(StrEnum):
    """Where the run is."""

    APPLYING = "applying"
    PUBLISHING = "publishing"
    UNDOING = "undoing"
    COMMITTED = "committed"
    UNDONE = "undone"
    STUCK = "stuck"


Sign: TypeAlias = tuple[Act, str]
"""What a step event says: the act, and `intended`, a result, or `found ` and what was found."""

UNDOABLE = (
    Phase.DONE,
    Phase.FAILED,
    Phase.UNKNOWN,
    Phase.INTERRUPTED,
    Phase.DOUBTFUL,
    Phase.UNSEEN,
    Phase.PARTIAL,
    Phase.UNDO_PARTIAL,
)

TRANSITIONS: Mapping[tuple[Phase, Sign], Phase] = MappingProxyType(
    {
        (Phase.PENDING, (Act.DO, "intended")): Phase.RUNNING,
        (Phase.PARTIAL, (Act.DO, "intended")): Phase.RUNNING,
        (Phase.RUNNING, (Act.DO, "succeeded")): Phase.DONE,
        (Phase.RUNNING, (Act.DO, "failed")): Phase.FAILED,
        (Phase.RUNNING, (Act.DO, "not_sent")): Phase.UNTOUCHED,
        (Phase.RUNNING, (Act.DO, "lost")): Phase.UNKNOWN,
        (Phase.UNKNOWN, (Act.DO, "found done")): Phase.DONE,
        (Phase.UNKNOWN, (Act.DO, "found not_done")): Phase.PARTIAL,
        (Phase.UNKNOWN, (Act.DO, "found unknown")): Phase.UNSEEN,
        (Phase.INTERRUPTED, (Act.DO, "found done")): Phase.DONE,
        (Phase.INTERRUPTED, (Act.DO, "found not_done")): Phase.PARTIAL,
        (Phase.INTERRUPTED, (Act.DO, "found unknown")): Phase.DOUBTFUL,
        **{(phase, (Act.UNDO, "intended")): Phase.UNDOING for phase in UNDOABLE},
        (Phase.UNDOING, (Act.UNDO, "succeeded")): Phase.UNDONE,
        (Phase.UNDOING, (Act.UNDO, "failed")): Phase.UNDO_FAILED,
        (Phase.UNDOING, (Act.UNDO, "not_sent")): Phase.UNDO_UNSEEN,
        (Phase.UNDOING, (Act.UNDO, "lost")): Phase.UNDO_UNKNOWN,
        (Phase.UNDO_UNKNOWN, (Act.UNDO, "found done")): Phase.UNDONE,
        (Phase.UNDO_UNKNOWN, (Act.UNDO, "found not_done")): Phase.UNDO_PARTIAL,
        (Phase.UNDO_UNKNOWN, (Act.UNDO, "found unknown")): Phase.UNDO_UNSEEN,
    }
)
"""The life of a step. What is not in the table is illegal."""

REOPENED: Mapping[Phase, Phase] = MappingProxyType(
    {
        Phase.RUNNING: Phase.INTERRUPTED,
        Phase.UNKNOWN: Phase.INTERRUPTED,
        Phase.DOUBTFUL: Phase.INTERRUPTED,
        Phase.UNDOING: Phase.UNDO_PARTIAL,
        Phase.UNDO_UNKNOWN: Phase.UNDO_PARTIAL,
        Phase.UNDO_UNSEEN: Phase.UNDO_PARTIAL,
        Phase.UNDO_FAILED: Phase.UNDO_PARTIAL,
    }
)
"""What a step becomes when another process takes the run up; the others stay as they are."""

IN_FLIGHT = frozenset({Phase.RUNNING, Phase.UNDOING})
IN_DOUBT = frozenset({Phase.UNKNOWN, Phase.INTERRUPTED, Phase.DOUBTFUL})
TURNS_BACK = frozenset({Phase.FAILED, Phase.UNTOUCHED, Phase.UNSEEN})
NOTHING_LEFT = frozenset({Phase.PENDING, Phase.UNTOUCHED, Phase.UNDONE})
GIVEN_UP = frozenset({Phase.UNDO_FAILED, Phase.UNDO_UNSEEN})
