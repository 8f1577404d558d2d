"""Simulated hosts for tests, on a clock that stands still until somebody sleeps."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from gpufleet.lab.programs import install
from gpufleet.lab.serve import free_network
from gpufleet.lab.simhost import SimHost

START = datetime(2026, 7, 29, 12, 0, 0, tzinfo=UTC)


class LabClock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.elapsed = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.elapsed)

    def monotonic(self) -> float:
        return self.elapsed

    def sleep(self, seconds: float) -> None:
        self.elapsed += max(0.0, seconds)


def bare_host(name: str = "gpu-01") -> SimHost:
    """A host with the utilities of a small Linux and nothing else."""
    host = SimHost(name, LabClock())
    install(host)
    return host


def own_network(count: int) -> str:
    """A loopback network that other tests at work on this machine are not likely to take at the same moment."""
    return free_network(count, first=1 + os.getpid() % 249)
