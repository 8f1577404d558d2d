"""Pulls under way on one host: how far each is, for whoever looks at the disk meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from gpufleet.lab.shell.call import Parked
from gpufleet.lab.simhost import SimHost


class Pulls:
    """What has arrived of images that are not there yet; bytes come evenly, or not at all on a stalled host."""

    def __init__(self, host: SimHost) -> None:
        self._host = host
        self._under_way: dict[str, tuple[float, float, int]] = {}

    def wait(self, reference: str, size: int, seconds: float, pause: Callable[[float], None]) -> None:
        """Let an image arrive."""
        lasting = float("inf") if self._host.stalled else seconds
        self._host.fs.disk_of("/var/lib/docker").arriving = self._arrived
        self._under_way.setdefault(reference, (self._host.clock.monotonic(), lasting, size))
        try:
            pause(lasting)
        except Parked:
            raise  # it goes on arriving
        except BaseException:
            del self._under_way[reference]
            raise
        del self._under_way[reference]

    def _arrived(self) -> int:
        """KiB."""
        now = self._host.clock.monotonic()
        parts = (
            size * min(1.0, (now - began) / seconds if seconds else 1.0)
            for began, seconds, size in self._under_way.values()
        )
        return int(sum(parts)) >> 10
