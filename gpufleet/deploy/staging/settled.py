"""Whether somebody is still writing to a directory: names that programs give to what is not whole yet."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from gpufleet.errors import ExitCode, PreflightFailed

UNFINISHED = (
    "*.incomplete",
    "*.part",
    "*.partial",
    "*.tmp",
    "*.temp",
    "*.download",
    "*.crdownload",
    "*.aria2",
)
"""What huggingface_hub, curl, rsync, browsers and aria2 call a file until they have all of it."""


class SourceMoving(PreflightFailed):
    """A directory of weights is still written to, so that a copy of it would be a mixture."""

    code = "weights-moving"
    exit = ExitCode.PREFLIGHT


def unfinished(paths: Iterable[str]) -> tuple[str, ...]:
    """Paths whose name says that they are not whole."""
    return tuple(
        path
        for path in paths
        if any(fnmatch.fnmatchcase(path.rpartition("/")[2], pattern) for pattern in UNFINISHED)
    )


def refuse_unfinished(paths: Iterable[str], where: str) -> None:
    """Raises SourceMoving when one is not whole."""
    found = unfinished(paths)
    if found:
        raise SourceMoving(
            f"a download is under way there, or was broken off: {found[0]}"
            + (f" and {len(found) - 1} more" if len(found) > 1 else ""),
            where=where,
            hints=("wait for it or finish it; what is left of an old one can be removed",),
        )
