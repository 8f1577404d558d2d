"""Command-line tests start with the default options, whatever ran in this process before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpufleet.cli import settings


@pytest.fixture(autouse=True)
def default_options() -> Iterator[None]:
    """Commands that are run in this process leave their options behind."""
    settings.install(settings.Settings())
    yield
    settings.install(settings.Settings())
