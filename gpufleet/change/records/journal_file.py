"""The run file on this machine: `runs/<run>/journal.jsonl` in the state directory, append-only and synced.

A process that works on a run holds a lock on its folder (`flock`), so that two resumes cannot collide; the lock
dies with the process. A crash can tear the last line: it is dropped when the file is read, and cut off when it is
opened again. Garbage anywhere else is an error, never skipped.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gpufleet.change.records.document import JournalError
from gpufleet.change.records.journal import (
    SCHEMA,
    Body,
    Opened,
    Publishing,
    Record,
    Settled,
    decode,
    encode,
)
from gpufleet.clock import Clock
from gpufleet.errors import PreflightFailed, Refused, UsageError
from gpufleet.names import RunId

NAME = "journal.jsonl"
_RUN = re.compile(r"[0-9]{8}T[0-9]{6}-[0-9a-f]{6}")


class RunBusy(Refused):
    """Another process on this machine works on the run."""

    code = "run-busy"


class JournalFile:
    """One open journal. Close it, or use it as a context manager; the lock ends with it."""

    def __init__(self, path: Path, records: tuple[Record, ...], clock: Clock, lock: int) -> None:
        self.path = path
        self.records = list(records)
        self._clock = clock
        self._lock = lock
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def append(self, body: Body) -> Record:
        """Write one record and sync it; when this returns, the record outlives a crash.

        Raises:
            JournalError: the disk did not take it; what was written of it is cut off again.
        """
        seq = self.records[-1].seq + 1 if self.records else 1
        record = Record(SCHEMA, seq, self._clock.now().isoformat(), body)
        line = encode(record)
        size = os.fstat(self._file).st_size
        try:
            _write_whole(self._file, line)
            os.fsync(self._file)
        except OSError as error:
            _cut(self._file, size)
            raise JournalError(
                f"the journal cannot be written: {error.strerror}",
                where=str(self.path),
                hints=("make room or repair the disk, then `gpufleet change list` shows what is open",),
            ) from error
        self.records.append(record)
        return record

    def close(self) -> None:
        """Let go of the file and the lock; calling it twice is fine."""
        for name in ("_file", "_lock"):
            if (number := getattr(self, name)) >= 0:
                os.close(number)
                setattr(self, name, -1)

    def discard(self) -> None:
        """Remove the run: it ended before anything was changed."""
        self.path.unlink(missing_ok=True)
        self.path.parent.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        del ended
        self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of `change list`. `ending` is empty for a run that never settled; `problem` when it is unreadable."""

    run: RunId
    records: tuple[Record, ...]
    ending: str = ""
    busy: bool = False
    problem: str = ""

    @property
    def ways_out(self) -> tuple[str, ...]:
        """The commands that end a run whose process is gone; what has begun to publish is finished, not undone."""
        resume, undo = f"gpufleet change resume {self.run}", f"gpufleet change undo {self.run}"
        if any(isinstance(record.body, Publishing) for record in self.records):
            return (resume,)
        return (resume, undo)


def new_run_id(clock: Clock) -> RunId:
    """`YYYYMMDDTHHMMSS-xxxxxx`, sorts by time."""
    return RunId(f"{clock.now():%Y%m%dT%H%M%S}-{secrets.token_hex(3)}")


def create(state_dir: Path, run: RunId, clock: Clock, first: Body) -> JournalFile:
    """A new run file with its first record, on disk together with its folders.

    Raises:
        PreflightFailed: the state directory cannot be written; nothing was changed.
    """
    folder = _folder(state_dir, run)
    try:
        _make_private(folder)
        lock = _locked(folder, run)
        journal = JournalFile(folder / NAME, (), clock, lock)
        for parent in (folder, folder.parent, folder.parent.parent):
            _sync_folder(parent)
    except OSError as error:
        raise PreflightFailed(
            f"the journal cannot be created: {error.strerror}",
            where=str(folder),
            hints=("name another place with `--state-dir PATH` or GPUFLEET_STATE",),
        ) from error
    try:
        journal.append(first)
    except JournalError as error:
        journal.discard()
        journal.close()
        hints = ("make room; nothing was changed",)
        raise PreflightFailed(error.summary, where=error.where, hints=hints) from error
    except BaseException:
        journal.close()  # the record may be on disk: the run stays, for a resume or an undo
        raise
    return journal


def reopen(state_dir: Path, run: RunId, clock: Clock) -> JournalFile:
    """The file of an earlier run, a torn last line cut off.

    Raises:
        UsageError: there is no such run here.
        RunBusy: another process works on it.
        JournalError: it holds what no journal holds.
    """
    folder = _folder(state_dir, run)
    path = folder / NAME
    if not path.is_file():
        raise UsageError(
            f"there is no run {run} in {state_dir}",
            hints=(
                "`gpufleet change list` shows the runs of this machine; `--from HOST` reads a host's copy",
            ),
        )
    lock = _locked(folder, run)
    try:
        content = path.read_bytes()
        records, whole = parse(content, str(path))
        if whole < len(content):
            os.truncate(path, whole)
        return JournalFile(path, records, clock, lock)
    except BaseException:
        os.close(lock)
        raise


def adopt(state_dir: Path, run: RunId, clock: Clock, records: tuple[Record, ...]) -> JournalFile:
    """A run file made of records that were read from hosts: written whole, then opened."""
    folder = _folder(state_dir, run)
    _make_private(folder)
    lock = _locked(folder, run)
    partial = folder / f"{NAME}.new"
    number = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_whole(number, b"".join(encode(record) for record in records))
        os.fsync(number)
    finally:
        os.close(number)
    partial.rename(folder / NAME)
    _sync_folder(folder)
    return JournalFile(folder / NAME, records, clock, lock)


def read(state_dir: Path, run: RunId) -> tuple[Record, ...]:
    """The records of a run, without taking it up. Raises UsageError or JournalError."""
    path = _folder(state_dir, run) / NAME
    try:
        return parse(path.read_bytes(), str(path))[0]
    except FileNotFoundError as error:
        raise UsageError(f"there is no run {run} in {state_dir}", hints=("gpufleet change list",)) from error


def parse(content: bytes, where: str) -> tuple[tuple[Record, ...], int]:
    """Records and the length of the whole lines; a last line without its newline, or torn, is left out."""
    records: list[Record] = []
    whole = 0
    lines = content.split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = decode(line)
        except JournalError as error:
            raise JournalError(error.summary, where=f"{where}:{number}", hints=error.hints) from error
        records.append(record)
        whole += len(line) + 1
    return tuple(records), whole


def summaries(state_dir: Path) -> tuple[RunSummary, ...]:
    """Every run of this machine, the latest first. Raises OSError: what cannot be read is not empty."""
    try:
        items = list((state_dir / "runs").iterdir())
    except FileNotFoundError:
        return ()
    made = (item.name for item in items if _RUN.fullmatch(item.name) and (item / NAME).is_file())
    names = sorted(made, reverse=True)
    return tuple(summary(state_dir, RunId(name)) for name in names)


def prune(state_dir: Path, keep: int) -> tuple[RunId, ...]:
    """Remove the oldest runs that are over, until `keep` of them are left; the ones removed.

    A run that is open, stuck, unreadable or worked on is never removed, and does not count.
    """
    over = [one.run for one in summaries(state_dir) if one.ending in {"committed", "undone"} and not one.busy]
    for run in over[keep:]:
        folder = _folder(state_dir, run)
        (folder / NAME).unlink(missing_ok=True)
        for rest in folder.iterdir():
            rest.unlink()
        folder.rmdir()
    return tuple(over[keep:])


DAMAGED = (
    "its journal is damaged: what it did is not known here; the hosts it touched keep copies, see `--from HOST` of"
    " `gpufleet change undo`"
)


def exists(state_dir: Path, run: RunId) -> bool:
    """Whether this machine has a journal of the run."""
    return (_folder(state_dir, run) / NAME).is_file()


def died_here(state_dir: Path, run: str) -> bool:
    """Whether a run of this machine, as a host names it, is open although no process works on it any more."""
    if not _RUN.fullmatch(run) or not exists(state_dir, RunId(run)):
        return False
    found = summary(state_dir, RunId(run))
    return bool(found.records) and not found.ending and not found.busy


def summary(state_dir: Path, run: RunId) -> RunSummary:
    """One run of this machine. Raises UsageError when there is none; a journal that cannot be read is a problem."""
    try:
        records = read(state_dir, run)
    except JournalError as error:
        return RunSummary(run=run, records=(), problem=str(error))
    if not records or not isinstance(records[0].body, Opened):
        if (_folder(state_dir, run) / NAME).stat().st_size:
            return RunSummary(run=run, records=(), problem=DAMAGED)
        return RunSummary(run=run, records=(), problem="no record was written; nothing was changed")
    last = records[-1].body
    ending = last.ending.value if isinstance(last, Settled) else ""
    return RunSummary(run=run, records=records, ending=ending, busy=_is_locked(_folder(state_dir, run)))


def seat(state_dir: Path) -> str:
    """The identity of this state directory: a lease taken from here may be taken up again from here."""
    path = state_dir / "seat"
    try:
        return _written_once(path, lambda: secrets.token_hex(8))
    except OSError as error:
        raise PreflightFailed(
            f"the state directory cannot be written: {error.strerror}",
            where=str(path),
            hints=("make room, or name another place with `--state-dir PATH` or GPUFLEET_STATE",),
        ) from error


def _written_once(path: Path, make: Callable[[], str]) -> str:
    """The content of a file that is written once, by whoever comes first."""
    _make_private(path.parent)
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return path.read_text(encoding="ascii").strip() or "unnamed"
    try:
        content = make()
        _write_whole(number, content.encode("ascii"))
        os.fsync(number)
    except BaseException:
        path.unlink(missing_ok=True)  # half of it would be believed
        raise
    finally:
        os.close(number)
    return content


def _folder(state_dir: Path, run: RunId) -> Path:
    if not _RUN.fullmatch(run):
        raise UsageError(f"`{run}` is no run id", hints=("`gpufleet change list` shows them",))
    return state_dir / "runs" / run


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _locked(folder: Path, run: RunId) -> int:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(number)
        raise RunBusy(
            f"another process works on run {run}",
            hints=("wait for it to end, or press Ctrl-C there to undo",),
        ) from None
    return number


def _is_locked(folder: Path) -> bool:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(number)


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _write_whole(number: int, content: bytes) -> None:
    while content:
        content = content[os.write(number, content) :]


def _cut(number: int, size: int) -> None:
    """Take a half-written line off again; if even that fails, reading copes with it."""
    try:
        os.ftruncate(number, size)
    except OSError:
        return
