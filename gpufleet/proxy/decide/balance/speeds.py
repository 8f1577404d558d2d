"""How fast each member reads prompts compared with the others of its pool, learnt from what it was seen to do.

Tokens over seconds, each member's own sums, old ones fading. A pool of equal GPUs differs by chance only, so a small
difference counts as none, and few answers count little.
"""

from __future__ import annotations

from typing import Final

_FADE: Final = 0.98
"""What is left of the sums at each answer: the last fifty count."""
_LEAST_TOKENS: Final = 1024
"""Shorter prompts measure the way to the engine, not the engine."""
_DOUBT: Final = 20.0
"""Answers that speak for "like the others"."""
_ALIKE: Final = 1.3
"""Up to this ratio nobody is told apart."""
_MOST: Final = 8.0


class Speeds:
    """One pool's."""

    __slots__ = ("_sums", "slowness")

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float, float]] = {}
        self.slowness: dict[str, float] = {}
        """Above 1: slower than the pool. Who is not named is like the others."""

    def answered(self, member: str, tokens: int, seconds: float) -> bool:
        """One measurement; True when somebody's slowness is another one now."""
        if tokens < _LEAST_TOKENS or seconds <= 0.0:
            return False
        read, spent, count = self._sums.get(member, (0.0, 0.0, 0.0))
        self._sums[member] = (read * _FADE + tokens, spent * _FADE + seconds, count * _FADE + 1.0)
        before, self.slowness = self.slowness, self._compared()
        return before != self.slowness

    def keep(self, members: frozenset[str]) -> None:
        """Forget the others."""
        self._sums = {member: sums for member, sums in self._sums.items() if member in members}
        self.slowness = self._compared()

    def forget(self, member: str) -> None:
        """It was gone and may come back as another one."""
        self._sums.pop(member, None)
        self.slowness = self._compared()

    def _compared(self) -> dict[str, float]:
        paces = {member: spent / read for member, (read, spent, _) in self._sums.items()}
        if len(paces) < 2:
            return {}
        ordered = sorted(paces.values())
        usual = ordered[(len(ordered) - 1) // 2]  # of two halves the faster one is the measure
        found = {}
        for member, pace in paces.items():
            count = self._sums[member][2]
            ratio = (pace / usual) ** (count / (count + _DOUBT))
            if not 1 / _ALIKE < ratio < _ALIKE:
                found[member] = round(max(1 / _MOST, min(_MOST, ratio)), 2)
        return found
