"""A lab in a process of its own: started, found again, ended. What it is stands in `lab.json` of its folder.

`lab.json` is written before anything else: a folder without it holds no lab, so nothing in it is overwritten or removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess  # noqa: TID251  this module starts the lab's own process
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from gpufleet.clock import Clock
from gpufleet.errors import CannotServe, Refused
from gpufleet.lab.lab_files import LabFolder

START_SECONDS = 60.0
STOP_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabProcess:
    """A lab that was started. `born` is the process's start time, so that another with its number is not taken for it.

    Process 0, born never, is a lab whose start has not ended, or was cut short.
    """

    pid: int
    born: str
    hosts: int
    gpus: str

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return self.born != "" and _born(self.pid) == self.born


def find(folder: LabFolder) -> LabProcess | None:
    """The lab of a folder, running or not; None when none was started there."""
    try:
        known = json.loads((folder.path / "lab.json").read_text())
        return LabProcess(pid=int(known["pid"]), born=known["born"], hosts=known["hosts"], gpus=known["gpus"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def up(folder: LabFolder, *, hosts: int, gpus: str) -> LabProcess:
    """Start a lab and wait until its hosts answer; raises `Refused` when one runs, `CannotServe` when it fails."""
    with _claimed(folder):
        _keep(folder, LabProcess(pid=0, born="", hosts=hosts, gpus=gpus))
        process = _ready(folder, hosts, gpus)
        lab = LabProcess(pid=process.pid, born=_born(process.pid), hosts=hosts, gpus=gpus)
        try:
            _keep(folder, lab)
        except BaseException:
            _kill(process)  # a lab that nobody can find again would run for ever
            raise
        process.returncode = 0  # it outlives us: nobody here waits for it
        return lab


@contextlib.contextmanager
def _claimed(folder: LabFolder) -> Iterator[None]:
    """The folder is there, is ours to write to, and no other command starts a lab in it meanwhile."""
    try:
        folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise Refused(
            f"the lab's files cannot go there: {error.strerror}",
            where=str(folder.path),
            hints=("choose another folder with --dir",),
        ) from None
    try:
        _check_claim(folder, descriptor)
        yield
    finally:
        os.close(descriptor)


def _check_claim(folder: LabFolder, descriptor: int) -> None:
    where = str(folder.path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refused("another command starts a lab there", where=where, hints=("wait for it",)) from None
    there = find(folder)
    if there is not None and there.alive:
        hint = "use it, or end it with `gpufleet lab down`"
        raise Refused(f"a lab of {there.hosts} hosts runs already", where=where, hints=(hint,))
    foreign = [path.name for path in _files(folder) if path.exists()]
    if foreign and not _record(folder).exists():
        raise Refused(
            f"the folder holds files that no lab wrote: {', '.join(foreign)}",
            where=where,
            hints=("a lab would overwrite them; choose another folder with --dir",),
        )


def _files(folder: LabFolder) -> tuple[Path, ...]:
    """What a lab writes, but for the record of itself."""
    return (folder.inventory, folder.key, folder.known_hosts, folder.ssh_config, folder.path / "lab.log")


def _record(folder: LabFolder) -> Path:
    return folder.path / "lab.json"


def _keep(folder: LabFolder, lab: LabProcess) -> None:
    temporary = folder.path / "lab.json.new"
    try:
        temporary.write_text(f"{json.dumps(asdict(lab))}\n")
        temporary.replace(_record(folder))
    except OSError as error:
        raise Refused(f"the lab's files cannot go there: {error.strerror}", where=str(folder.path)) from None


def _ready(folder: LabFolder, hosts: int, gpus: str) -> subprocess.Popen[bytes]:
    """The lab's process, whose hosts answer; whatever keeps us from seeing that ends it."""
    reading, writing = os.pipe()
    words = ["-m", "gpufleet.lab.serve", str(folder.path), "--hosts", str(hosts), "--gpus", gpus]
    with (folder.path / "lab.log").open("wb") as log:
        try:
            process = subprocess.Popen(
                [sys.executable, *words, "--ready-fd", str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(writing,),
                start_new_session=True,
            )
        finally:
            os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], START_SECONDS)
        answer = os.read(reading, 4096).decode("utf-8", "replace").strip() if ready else ""
    except BaseException:  # Ctrl-C: the lab has a session of its own and would not hear it
        _kill(process)
        raise
    finally:
        os.close(reading)
    if answer != "ready":
        _kill(process)
        raise CannotServe(
            f"the lab did not start: {answer.removeprefix('failed ') or 'it gave no answer'}",
            where=str(folder.path),
            hints=(f"its log is {folder.path / 'lab.log'}",),
        )
    return process


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def down(folder: LabFolder, clock: Clock) -> LabProcess | None:
    """End the lab of a folder and remove the files it wrote; None when none ran. Without a record nothing is touched."""
    if not _record(folder).exists():
        return None
    lab = find(folder)
    running = lab if lab is not None and lab.alive else None
    if running is not None:
        _end(running, clock)
    for path in (*_files(folder), _record(folder)):
        path.unlink(missing_ok=True)
        path.with_name(f"{path.name}.new").unlink(missing_ok=True)  # it was killed while it wrote
    with contextlib.suppress(OSError):
        folder.path.rmdir()
    return running


def _end(lab: LabProcess, clock: Clock) -> None:
    for number, patience in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(lab.pid, number)
        end = clock.monotonic() + patience
        while lab.alive:
            _reap(lab.pid)
            if clock.monotonic() > end:
                break
            clock.sleep(0.05)
        else:
            return


def _reap(pid: int) -> None:
    """Where it is our own child it would stay a zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _born(pid: int) -> str:
    """Start time of a process in clock ticks since boot, empty when there is none or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
