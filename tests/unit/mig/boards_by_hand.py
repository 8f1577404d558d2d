"""All legal states of a board, found without the code under test: by sets of slots."""

from __future__ import annotations

from functools import cache

from gpufleet.mig.boards import BOARDS
from gpufleet.mig.model import Geometry, Placed

CHECKED = ("A30-24GB", "A100-40GB", "H100-80GB", "H200-141GB", "RTX-PRO-6000-96GB")


@cache
def states(board: str) -> tuple[frozenset[Placed], ...]:
    """Every set of slices that the board can hold."""
    geometry = BOARDS[board]
    options = [Placed(start, one.size, one.name) for one in geometry.profiles for start in one.starts]
    found: list[frozenset[Placed]] = []

    def grow(at: int, held: frozenset[Placed], slots: frozenset[int]) -> None:
        found.append(held)
        for number in range(at, len(options)):
            option = options[number]
            if slots.isdisjoint(option.span) and allowed(geometry, held | {option}):
                grow(number + 1, held | {option}, slots | set(option.span))

    grow(0, frozenset(), frozenset())
    return tuple(found)


def allowed(geometry: Geometry, held: frozenset[Placed]) -> bool:
    """The counts that a board limits: each profile's total, and one slice with the media engines."""
    names = [one.profile for one in held]
    media = [name for name in names if name.endswith(("+me", "+me.all"))]
    return len(media) <= 1 and all(names.count(one.name) <= one.total for one in geometry.profiles)
