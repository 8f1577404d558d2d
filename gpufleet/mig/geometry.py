"""Which placements a GPU allows, and the search for a layout that fits.

Theory. A GPU's memory is a row of 4, 8 or 12 slots. A profile covers `size` neighbouring slots from one of its
`starts`; two slices never share a slot, and at most `total` of a profile exist. Compute slices need no account of
their own: the starts leave no way to run out of them first. One set of media engines is there for one slice. This
model gives every free count that nvidia-smi printed in the captured outputs of A30, A100, H100, H200 and RTX PRO
6000. GPU instance ids follow no rule that holds for two boards and are always read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from gpufleet.mig.model import Geometry, Placed, Profile


def free_count(geometry: Geometry, slices: Sequence[Placed], profile: Profile) -> int:
    """How many more of `profile` fit beside `slices`: the `Free` column of `-lgip`."""
    taken = occupied(slices)
    held = Counter(one.profile for one in slices)
    if profile.takes_media and _media_taken(geometry, held):
        return 0
    count, end = 0, -1
    for start in sorted(profile.starts):
        if start > end and not taken & _mask(start, profile.size):
            count, end = count + 1, start + profile.size - 1
    return max(0, min(count, profile.total - held[profile.name]))


def occupied(slices: Iterable[Placed]) -> int:
    """The slots that are taken, as a bit mask."""
    taken = 0
    for one in slices:
        taken |= _mask(one.start, one.size)
    return taken


def is_legal(geometry: Geometry, slices: Sequence[Placed]) -> bool:
    """Whether these slices can exist side by side on this GPU."""
    taken = 0
    for one in slices:
        profile = geometry.profile(one.profile)
        if profile is None or one.size != profile.size or one.start not in profile.starts:
            return False
        mask = _mask(one.start, one.size)
        if taken & mask:
            return False
        taken |= mask
    held = Counter(one.profile for one in slices)
    over = any(held[profile.name] > profile.total for profile in geometry.profiles)
    return not over and _media_count(geometry, held) <= 1


def layouts(geometry: Geometry, wanted: Sequence[Profile]) -> Iterator[tuple[Placed, ...]]:
    """Every way to place these profiles on an empty GPU, each once, in the order of their starts.

    The largest go first, and slices of one profile in rising order, so that equal ones are not permuted.
    """
    held = Counter(profile.name for profile in wanted)
    if _media_count(geometry, held) > 1 or any(held[one.name] > one.total for one in wanted):
        return
    order = sorted(wanted, key=lambda one: (-one.size, one.name))
    yield from _place(order, 0, 0, ())


def _place(
    order: Sequence[Profile], at: int, taken: int, placed: tuple[Placed, ...]
) -> Iterator[tuple[Placed, ...]]:
    if at == len(order):
        yield tuple(sorted(placed))
        return
    profile = order[at]
    last = placed[-1].start if placed and placed[-1].profile == profile.name else -1
    for start in sorted(profile.starts):
        mask = _mask(start, profile.size)
        if start > last and not taken & mask:
            here = Placed(start, profile.size, profile.name)
            yield from _place(order, at + 1, taken | mask, (*placed, here))


def _mask(start: int, size: int) -> int:
    return ((1 << size) - 1) << start


def _media_count(geometry: Geometry, held: Counter[str]) -> int:
    return sum(held[profile.name] for profile in geometry.profiles if profile.takes_media)


def _media_taken(geometry: Geometry, held: Counter[str]) -> bool:
    return _media_count(geometry, held) > 0
