"""An order of attempts that is worked out as far as it is asked for: hardly anybody asks for the second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload


class FirstThenRest(Sequence[str]):
    """The first is known; the others are sorted when one of them is wanted."""

    __slots__ = ("_count", "_first", "_order", "_rest")

    def __init__(self, first: str, count: int, rest: Callable[[], list[str]]) -> None:
        self._first = first
        self._count = count
        self._rest = rest
        self._order: list[str] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        """The first costs nothing."""
        if index == 0:
            return self._first
        if self._order is None:
            rest = self._rest()
            rest.remove(self._first)
            self._order = [self._first, *rest]
        return self._order[index]
