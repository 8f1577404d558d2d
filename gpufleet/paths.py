"""Paths as people write them: a leading `~` is a home directory, and one that nobody knows stays as it stands.

`Path.expanduser` raises RuntimeError for `~nobody` and without a home; a path that does not exist is then reported
by whoever opens it, like every other wrong path.
"""

from __future__ import annotations

import os
from pathlib import Path


def expanded(path: str | Path) -> Path:
    """The path with its home directory filled in; never raises."""
    try:
        return Path(os.path.expanduser(path))  # noqa: PTH111  # the one that does not raise for unknown names
    except ValueError:  # a user name that no system can hold: NUL, half a surrogate pair
        return Path(path)
