"""A lab in a process of its own: started, found again, ended. What it is stands in `lab.json` of its folder."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess  # noqa: TID251  this module starts the lab's own process
import sys
from dataclasses import dataclass
from pathlib import Path

from gpufleet.clock import Clock
from gpufleet.errors import CannotServe, Refused
from gpufleet.lab.lab_files import LabFolder

START_SECONDS = 60.0
STOP_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabProcess:
    """A lab that was started. `born` is the process's start time, so that another with its number is not taken for it."""

    pid: int
    born: str
    hosts: int
    gpus: str

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return _born(self.pid) == self.born


def find(folder: LabFolder) -> LabProcess | None:
    """The lab of a folder, running or not; None when none was started there."""
    try:
        known = json.loads((folder.path / "lab.json").read_text())
        return LabProcess(pid=int(known["pid"]), born=known["born"], hosts=known["hosts"], gpus=known["gpus"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def up(folder: LabFolder, *, hosts: int, gpus: str) -> LabProcess:
    """Start a lab and wait until its hosts answer; raises `Refused` when one runs, `CannotServe` when it fails."""
    there = find(folder)
    if there is not None and there.alive:
        raise Refused(
            f"a lab of {there.hosts} hosts runs already",
            where=str(folder.path),
            hints=("use it, or end it with `gpufleet lab down`",),
        )
    folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    process, answer = _start(folder, hosts, gpus)
    if answer != "ready":
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        raise CannotServe(
            f"the lab did not start: {answer.removeprefix('failed ') or 'it gave no answer'}",
            where=str(folder.path),
            hints=(f"its log is {folder.path / 'lab.log'}",),
        )
    process.returncode = 0  # it outlives us: nobody here waits for it
    lab = LabProcess(pid=process.pid, born=_born(process.pid), hosts=hosts, gpus=gpus)
    record = {"pid": lab.pid, "born": lab.born, "hosts": hosts, "gpus": gpus}
    temporary = folder.path / "lab.json.new"
    temporary.write_text(f"{json.dumps(record)}\n")
    temporary.replace(folder.path / "lab.json")
    return lab


def _start(folder: LabFolder, hosts: int, gpus: str) -> tuple[subprocess.Popen[bytes], str]:
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
    finally:
        os.close(reading)
    return process, answer


def down(folder: LabFolder, clock: Clock) -> LabProcess | None:
    """End the lab of a folder and remove the files it wrote; None when none ran."""
    lab = find(folder)
    running = lab if lab is not None and lab.alive else None
    if running is not None:
        _end(running, clock)
    for path in (folder.inventory, folder.key, folder.known_hosts, folder.ssh_config):
        path.unlink(missing_ok=True)
    for name in ("lab.json", "lab.log"):
        (folder.path / name).unlink(missing_ok=True)
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
