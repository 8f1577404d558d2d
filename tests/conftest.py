"""Hypothesis profiles and the clock that tests turn by hand."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, settings

for name, examples in (("dev", 50), ("ci", 500), ("deep", 10_000)):
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


# What the person who runs the tests has set for their own fleet is none of the tests' business.
for name in [name for name in os.environ if name.startswith("GPUFLEET_")]:
    if not name.startswith(("GPUFLEET_REAL_", "GPUFLEET_REQUIRE_")):
        del os.environ[name]

# A suite that is started in the background or by nohup inherits ignored signals and would hand them on to every
# process that it starts, so that a Ctrl-C which a test sends would not be heard.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, lambda *_: None)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


class FakeClock:
    """A clock that moves only when it is told to, or when somebody sleeps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += max(0.0, seconds)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
