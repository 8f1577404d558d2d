"""A directory on this machine as a source of weights: what is in it, with the SHA-256 of each file.

The bytes travel over the connection that is there anyway, to the hosts that read the source, and from those to the
others. Each file is read once before anything is done to a host, so that a host can tell a whole copy from a broken
one; a file `SHA256SUMS` beside the weights, or the manifest of a store, saves that reading.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from gpufleet.deploy.staging import hub, s3
from gpufleet.deploy.staging.hub import SourceMissing, SourceUnreachable
from gpufleet.deploy.staging.model import MANIFEST, SUMS, Fetch, Listing, Source, WeightFile
from gpufleet.deploy.staging.settled import SourceMoving, refuse_unfinished
from gpufleet.deploy.staging.sums_file import Sums

READERS = 4
"""Files that are read at once."""


def listing(source: Source, now: datetime, state_dir: Path | None = None) -> Listing:
    """Every file below the directory, links followed, hidden ones left out.

    `state_dir` remembers the checksums, so that the next plan need not read everything again.

    Raises:
        SourceMissing: there is no such directory. SourceUnreachable: it cannot be read.
        SourceMoving: somebody is still writing there.
    """
    top = Path(source.place).expanduser()
    if not top.is_dir():
        raise SourceMissing(
            "there is no such directory on this machine",
            where=source.shown,
            hints=("`file://` names a directory here; one on the hosts is `host:///PATH`",),
        )
    try:
        found = [(one, path) for one, path in _files(top) if one.path not in {*SUMS, MANIFEST}]
        refuse_unfinished((one.path for one, _ in found), source.shown)
        chosen = {one.path for one in hub.chosen([one for one, _ in found], source)}
        wanted = [(one, path) for one, path in found if one.path in chosen]
        sums = Sums(state_dir)
        beside = _known(top)
        known = {one.path: beside.get(one.path) or sums.of(path.absolute()) for one, path in wanted}
        with ThreadPoolExecutor(READERS) as pool:
            checked = tuple(
                pool.map(lambda pair: _checked(pair[0], pair[1], known[pair[0].path], source.shown), wanted)
            )
        read = {
            path.absolute(): one.check
            for one, (_, path) in zip(checked, wanted, strict=True)
            if not known[one.path]
        }
        sums.keep(read, int(now.timestamp() * 1e9))
    except OSError as error:
        raise SourceUnreachable(
            f"{error.filename or source.place} cannot be read here: {(error.strerror or 'error').lower()}",
            where=source.shown,
            hints=("give the user who runs gpufleet the right to read it",),
        ) from error
    ordered = tuple(sorted(checked, key=lambda one: one.path))
    return Listing(source=source, revision=s3.revision_of(ordered, {}), files=ordered)


def fetches(found: Listing) -> tuple[Fetch, ...]:
    """How hosts get each file: they ask this machine for it while their command runs."""
    top = Path(found.source.place).expanduser().absolute()
    return tuple(Fetch(file=one, url="", here=str(top / one.path)) for one in found.files)


def _files(top: Path) -> Iterator[tuple[WeightFile, Path]]:
    """Files with their path relative to the top; a directory that cannot be read is an error, not an empty one."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(top, onerror=refuse, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder) / name
            relative = path.relative_to(top).as_posix()
            if (name.startswith(".") and name != MANIFEST) or not path.is_file():
                continue
            if not hub.is_plain(relative) and name != MANIFEST:
                raise SourceUnreachable(f"{relative!r} has a name that cannot be staged", where=str(top))
            yield WeightFile(path=relative, size=path.stat().st_size), path


def _known(top: Path) -> dict[str, str]:
    """Checksums that stand beside the files. A host compares them, so a wrong one is found there."""
    for name in (*SUMS, MANIFEST):
        if (top / name).is_file():
            return s3.sums_of((top / name).read_text("utf-8", "replace"))
    return {}


def _checked(one: WeightFile, path: Path, known: str, where: str) -> WeightFile:
    if known:
        return replace(one, check=known)
    before = path.stat()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (
        after.st_size,
        after.st_mtime_ns,
    ) or one.size != after.st_size:
        raise SourceMoving(
            f"{one.path} changed while it was read", where=where, hints=("wait until it is written",)
        )
    return replace(one, check=f"sha256:{digest}")
