"""From the slices that are there to the layout that is wanted: the smallest change, or why there is none.

Every legal placement of the wanted profiles is looked at; among them the one wins that ends the fewest slices
somebody uses, then destroys the fewest, then has the lowest starts. There are at most a few thousand placements on
any board, so the search is exhaustive and its answer is the best one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from gpufleet.mig.geometry import is_legal, layouts
from gpufleet.mig.layout import Wanted
from gpufleet.mig.model import Geometry, Placed, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChange:
    """What becomes of each slice of one GPU. `keep` slices are not touched; starts are always explicit."""

    keep: tuple[Placed, ...]
    destroy: tuple[Placed, ...]
    create: tuple[Placed, ...]

    @property
    def changes(self) -> bool:
        """Whether anything would be done."""
        return bool(self.destroy or self.create)

    @property
    def moved(self) -> tuple[tuple[Placed, Placed], ...]:
        """Slices that end at one place and are made again at another, to make room: from where to where."""
        goals = list(self.create)
        found: list[tuple[Placed, Placed]] = []
        for one in self.destroy:
            goal = next((each for each in goals if each.profile == one.profile), None)
            if goal is not None:
                goals.remove(goal)
                found.append((one, goal))
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoLayout:
    """The wish cannot be had on this GPU.

    Attributes:
        reason: one line.
        nearest: what fits instead: the wish without as little as possible.
    """

    reason: str
    nearest: tuple[Wanted, ...] = ()


def plan(
    geometry: Geometry,
    seen: Sequence[Placed],
    wanted: Sequence[Wanted],
    *,
    busy: frozenset[Placed] = frozenset(),
) -> LayoutChange | NoLayout:
    """The smallest change from `seen` to `wanted`; `busy` slices are those that somebody uses."""
    there = frozenset(seen)
    used = there & busy
    best: frozenset[Placed] | None = None
    least = (len(used) + 1, len(there) + 1)
    for starts, chosen in _placings(geometry, tuple(one.profile for one in wanted)):
        kept = chosen & there
        cost = (len(used - kept) if used else 0, len(there) - len(kept))
        # They come in the order of their starts, so among equals the first is the lowest.
        if cost < least and _obeys(starts, wanted):
            least, best = cost, chosen
    if best is None:
        return _no_layout(geometry, wanted)
    return LayoutChange(
        keep=tuple(sorted(there & best)),
        destroy=tuple(sorted(there - best)),
        create=tuple(sorted(best - there)),
    )


@lru_cache(maxsize=256)
def _placings(
    geometry: Geometry, profiles: tuple[Profile, ...]
) -> tuple[tuple[tuple[Placed, ...], frozenset[Placed]], ...]:
    """Every way to place the profiles, lowest starts first; a rolling change asks it of one GPU after the other."""
    found = sorted(
        layouts(geometry, profiles), key=lambda layout: (tuple(one.start for one in layout), layout)
    )
    return tuple((layout, frozenset(layout)) for layout in found)


def added(seen: Sequence[Placed], geometry: Geometry, more: Sequence[Wanted]) -> tuple[Wanted, ...]:
    """The wish for all that is there and `more`: what stays may move when that is the only way."""
    profiles = {one.name: one for one in geometry.profiles}
    return (*(Wanted(profiles[one.profile]) for one in seen if one.profile in profiles), *more)


def _obeys(layout: Sequence[Placed], wanted: Sequence[Wanted]) -> bool:
    """Whether each wish for a place is met."""
    places = Counter((one.profile.name, one.start) for one in wanted if one.start is not None)
    if not places:
        return True
    have = {(one.profile, one.start) for one in layout}
    return all(count == 1 and place in have for place, count in places.items())


def _no_layout(geometry: Geometry, wanted: Sequence[Wanted]) -> NoLayout:
    return NoLayout(reason=_why(geometry, wanted), nearest=_nearest(geometry, wanted))


def _why(geometry: Geometry, wanted: Sequence[Wanted]) -> str:
    counts = Counter(one.profile.name for one in wanted)
    for name, count in counts.items():
        profile = geometry.profile(name)
        if profile is not None and count > profile.total:
            return f"{geometry.board} holds at most {profile.total} of {name}, {count} are wanted"
    media = [one.profile.name for one in wanted if one.profile.takes_media]
    if len(media) > 1:
        return f"{geometry.board} has media engines for one slice, {' and '.join(media)} want them"
    slots = sum(one.profile.size for one in wanted)
    if slots > geometry.slots:
        return f"{slots} memory slots are wanted and {geometry.board} has {geometry.slots}"
    pinned = [one for one in wanted if one.start is not None]
    if pinned and not is_legal(
        geometry,
        [Placed(one.start, one.profile.size, one.profile.name) for one in pinned if one.start is not None],
    ):
        return f"{', '.join(str(one) for one in pinned)} overlap"
    return (
        f"{slots} of {geometry.slots} memory slots would do, but these profiles have no starts side by side"
    )


def _nearest(geometry: Geometry, wanted: Sequence[Wanted]) -> tuple[Wanted, ...]:
    """A part of the wish that fits: the large slices first, each that finds room beside those before it."""
    order = sorted(wanted, key=lambda one: (-one.profile.size, one.profile.name))
    kept: list[Wanted] = []
    for one in order:
        attempt = [*kept, one]
        if any(_obeys(layout, attempt) for layout in layouts(geometry, [each.profile for each in attempt])):
            kept.append(one)
    return tuple(kept)
