"""Cases played side by side on different hosts: most of a case is waiting for deadlines, and there are two trios."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Generic, Protocol, Self, TypeVar

import pytest

from tests.real.scene import Trio


class Named(Protocol):
    """Whatever has a name that is its own."""

    @property
    def name(self) -> str: ...


Part = TypeVar("Part", bound=Named)


class Stage(Generic[Part]):
    """Plays parts in order, one a trio at a time; whoever asks for a part waits for its end.

    Args:
        parts: by name, in the order in which they will be asked for.
        play: plays one on a trio; what it raises is raised to the one who asks.
        alone: whether nothing else may be played meanwhile.
        trios: three hosts each; one part a trio at a time.
    """

    def __init__(
        self,
        parts: dict[str, Part],
        play: Callable[[Part, Trio], None],
        *,
        alone: Callable[[Part], bool] = lambda _: False,
        trios: Sequence[Trio],
    ) -> None:
        self._waiting = deque(parts.items())
        self._play = play
        self._alone = alone
        self._ends: dict[str, Future[None]] = {name: Future() for name in parts}
        self._room = threading.Condition()
        self._playing = 0
        self._closed = False
        self._threads = [threading.Thread(target=self._work, args=(trio,), daemon=True) for trio in trios]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._room:
            self._waiting.clear()
        for thread in self._threads:
            thread.join()

    def wait_for(self, name: str) -> None:
        """Wait until a part was played; raises what it raised."""
        self._ends[name].result()

    def wait_until_played(self, name: str) -> None:
        """Wait until a part was played, if it is played at all, however it ended."""
        if name in self._ends:
            self._ends[name].exception()

    def _work(self, trio: Trio) -> None:
        while (found := self._next()) is not None:
            name, part = found
            with self._admitted(alone=self._alone(part)):
                try:
                    self._play(part, trio)
                except BaseException as error:  # noqa: BLE001  # handed to the test that asks for this part
                    self._ends[name].set_exception(error)
                else:
                    self._ends[name].set_result(None)

    def _next(self) -> tuple[str, Part] | None:
        with self._room:
            return self._waiting.popleft() if self._waiting else None

    @contextmanager
    def _admitted(self, *, alone: bool) -> Iterator[None]:
        with self._room:
            self._room.wait_for(lambda: not self._closed)
            self._closed = alone
            if alone:
                self._room.wait_for(lambda: not self._playing)
            self._playing += 1
        try:
            yield
        finally:
            with self._room:
                self._playing -= 1
                if alone:
                    self._closed = False
                self._room.notify_all()


def selected(request: pytest.FixtureRequest, name: str, kind: type[Part]) -> dict[str, Part]:
    """The parts of this module that will be asked for, by name and in that order."""
    items = [item for item in request.session.items if item.path == request.path]
    functions = [item for item in items if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    found = [item.callspec.params.get(name) for item in functions]
    return {part.name: part for part in found if isinstance(part, kind)}
