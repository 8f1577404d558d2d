"""The state directory's share of pools: the route table, one record a pool, one engine key a pool.

Every file is written whole: to a temporary name beside it, fsync, rename, fsync of the directory. A publication
holds a lock, so that two operators on one machine get two generations and lose nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from gpufleet import whole_file
from gpufleet.clock import Clock
from gpufleet.errors import DocumentError, PreflightFailed, StalePlan
from gpufleet.names import PoolName
from gpufleet.pools import record as records
from gpufleet.pools import routes
from gpufleet.pools.record import PoolRecord
from gpufleet.pools.revisions import KEPT
from gpufleet.pools.routes import RouteTable
from gpufleet.redact import Secret


class PoolStore:
    """Everything that gpufleet remembers of pools, under one directory."""

    def __init__(self, state_dir: Path, clock: Clock) -> None:
        self._directory = state_dir
        self._clock = clock

    @property
    def directory(self) -> Path:
        """The state directory."""
        return self._directory

    @property
    def routes_path(self) -> Path:
        """The file a proxy reads."""
        return self._directory / "routes.json"

    def routes(self) -> RouteTable:
        """The table as it was published last; an empty one of generation 0 before the first time.

        Raises:
            DocumentError: the file cannot be understood.
        """
        content = _read(self.routes_path)
        if content is None:
            return RouteTable()
        try:
            return routes.decode(content)
        except (msgspec.MsgspecError, ValueError) as error:
            raise DocumentError(
                f"the route table is damaged: {error}",
                where=str(self.routes_path),
                hints=("`gpufleet pool deploy` of each pool writes a new one once this file is moved away",),
            ) from error

    def publish(self, alter: Callable[[RouteTable], RouteTable]) -> RouteTable:
        """The next generation, made from the one that is there; nothing is written when nothing changes."""
        with self._lock("routes.lock"):
            before = self.routes()
            after = alter(before)
            if after.pools == before.pools and before.generation:
                return before
            published = RouteTable(
                generation=before.generation + 1,
                written_at=self._clock.now().isoformat(timespec="seconds"),
                pools=after.pools,
            )
            _write(self.routes_path, routes.encode(published), 0o600)
            return published

    def record(self, name: PoolName) -> PoolRecord | None:
        """What was deployed last under this name; None when nothing was.

        Raises:
            DocumentError: the file cannot be understood.
        """
        path = self.record_path(name)
        content = _read(path)
        if content is None:
            return None
        try:
            return records.decode(content)
        except (msgspec.MsgspecError, ValueError) as error:
            raise DocumentError(
                f"the record of pool {name} is damaged: {error}",
                where=str(path),
                hints=(
                    f"move the file away, then `gpufleet pool deploy {name}`: replicas that are as asked are kept",
                    f"earlier records are in {self._revision_path(name, 0).parent}",
                ),
            ) from error

    def record_path(self, name: PoolName) -> Path:
        """Where the record of a pool is."""
        return self._directory / "pools" / f"{name}.json"

    def names(self) -> tuple[PoolName, ...]:
        """Every pool that has a record, sorted."""
        folder = self._directory / "pools"
        return tuple(PoolName(path.stem) for path in sorted(folder.glob("*.json"))) if folder.is_dir() else ()

    def save(self, name: PoolName, record: PoolRecord) -> None:
        """Remember a commit."""
        _write(self.record_path(name), records.encode(record), 0o600)

    def remember(self, name: PoolName, record: PoolRecord) -> None:
        """Keep a commit among the pool's revisions, and what served before it; the oldest go.

        A revision that is kept stays as it was committed, whatever is said of the pool afterwards.
        """
        before = self.record(name)
        for one in (before, record):
            if one is not None and not self._revision_path(name, one.revision).exists():
                _write(self._revision_path(name, one.revision), records.encode(one), 0o600)
        kept = sorted(self._revision_numbers(name))
        for number in kept[:-KEPT]:
            self._revision_path(name, number).unlink(missing_ok=True)

    def revisions(self, name: PoolName) -> tuple[PoolRecord, ...]:
        """Commits that are remembered, oldest first; a pool that was deployed before they were kept has one.

        Raises:
            DocumentError: a file cannot be understood.
        """
        found = [self._revision(name, number) for number in sorted(self._revision_numbers(name))]
        serving = self.record(name)
        if serving is not None and all(one.revision != serving.revision for one in found):
            found.append(serving)
        return tuple(sorted(found, key=lambda one: one.revision))

    def _revision(self, name: PoolName, number: int) -> PoolRecord:
        path = self._revision_path(name, number)
        try:
            return records.decode(_read(path) or b"")
        except (msgspec.MsgspecError, ValueError) as error:
            raise DocumentError(
                f"revision {number} of pool {name} is damaged: {error}",
                where=str(path),
                hints=("move the file away: the other revisions stay",),
            ) from error

    def _revision_path(self, name: PoolName, number: int) -> Path:
        return self._directory / "pools" / "revisions" / name / f"{number}.json"

    def _revision_numbers(self, name: PoolName) -> list[int]:
        folder = self._revision_path(name, 0).parent
        names = [path.stem for path in folder.glob("*.json")] if folder.is_dir() else []
        return [int(word) for word in names if word.isdigit()]

    def forget(self, name: PoolName, *, key: bool = True) -> None:
        """Drop the record, its revisions, and the engine key unless containers that run on ask for it."""
        for number in self._revision_numbers(name):
            self._revision_path(name, number).unlink(missing_ok=True)
        for path in (self.record_path(name), *((self.key_path(name),) if key else ())):
            path.unlink(missing_ok=True)

    def key_path(self, name: PoolName) -> Path:
        """Where the engine key of a pool is."""
        return self._directory.absolute() / "keys" / name

    def key(self, name: PoolName) -> Secret[str] | None:
        """The key that the pool's engines ask for; None when there is none yet."""
        path = self.key_path(name)
        content = _read(path)
        if content is None:
            return None
        return Secret(content.decode("utf-8", "replace").strip(), reference=f"${{file:{path}}}")

    def new_key(self, name: PoolName) -> Secret[str]:
        """A key to plan with; nothing is written until it is kept."""
        return Secret(f"gfk-{secrets.token_urlsafe(32)}", reference=f"${{file:{self.key_path(name)}}}")

    def keep_key(self, name: PoolName, key: Secret[str]) -> None:
        """Write the key of a plan that is about to be carried out.

        Raises:
            StalePlan: somebody else made one since the plan.
        """
        with self._lock("keys.lock"):
            known = self.key(name)
            if known is None:
                _write(self.key_path(name), f"{key.reveal()}\n".encode("ascii"), 0o600)
            elif known != key:
                raise StalePlan(
                    f"another command made the key of pool {name} since the plan was made; nothing was changed",
                    hints=("run the command again: it plans anew",),
                )

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else on this machine changes what is said of pools meanwhile."""
        with self._lock("pools.lock"):
            yield

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(self._directory, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _unusable(path: Path, error: OSError) -> PreflightFailed:
    return PreflightFailed(
        f"the state directory cannot be used: {(error.strerror or str(error)).lower()}",
        where=str(path),
        hints=("choose another with `--state-dir PATH` or GPUFLEET_STATE",),
    )


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, error) from error


def _write(path: Path, content: bytes, mode: int) -> None:
    try:
        whole_file.write(path, content, mode)
    except OSError as error:
        raise _unusable(path, error) from error
