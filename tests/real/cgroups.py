"""Control groups of the real hosts: one a host, so that whatever a host started can be found and ended.

Version 1 has one tree a controller and a process must enter each; version 2 has one tree. Debian's older kernels
and many build machines still run version 1, so both are here.
"""

from __future__ import annotations

import contextlib
import os
import signal
from functools import partial
from pathlib import Path

from tests.real.machine import until


def trees() -> list[Path]:
    """Roots of all control group trees of this machine."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    if any(kind == "cgroup2" and path == "/sys/fs/cgroup" for _, path, kind, *_ in mounts):
        return [Path("/sys/fs/cgroup")]
    return [Path(path) for _, path, kind, *_ in mounts if kind == "cgroup"]


def create(site: str, host: str) -> list[Path]:
    """Make the groups of a host; returns the directories that its first process must enter."""
    made = []
    for tree in trees():
        for folder in (tree / site, tree / site / host):
            folder.mkdir(exist_ok=True)
            _prepare(folder)
        made.append(tree / site / host)
    return made


def _prepare(folder: Path) -> None:
    """Version 1: cpuset must be filled before a task may enter. Version 2: controllers are handed down."""
    if (folder / "cgroup.controllers").exists():
        controllers = (folder.parent / "cgroup.controllers").read_text().split()
        for name in controllers:
            _write(folder.parent / "cgroup.subtree_control", f"+{name}")
        return
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (folder / name).exists() and not (folder / name).read_text().strip():
            (folder / name).write_text((folder.parent / name).read_text())
    if (folder / "cpuset.cpus").exists():
        _write(folder / "cgroup.clone_children", "1")
    if (folder / "memory.use_hierarchy").exists():
        _write(folder / "memory.use_hierarchy", "1")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError:
        return  # already set, or this kernel does not hand this one down; nothing of the hosts depends on it


def members(site: str) -> set[int]:
    """Every process in any group of the site: ours by construction."""
    found: set[int] = set()
    for tree in trees():
        # Not rglob: it raises when a container's group goes while it looks, os.walk passes on.
        for folder, _, _ in os.walk(tree / site):
            with contextlib.suppress(OSError):
                found |= {int(word) for word in (Path(folder) / "cgroup.procs").read_text().split()}
    return found


def end_members(site: str) -> None:
    """Kill whatever is left in the groups of the site."""
    own = os.getpid()

    def empty() -> bool:
        left = members(site) - {own}
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return not left

    until(empty, within=20, what=f"control groups {site} are empty")


def remove(site: str, host: str | None = None) -> None:
    """Remove the groups of one host, or of the whole site."""
    for tree in trees():
        top = tree / site / host if host else tree / site
        until(partial(_removed, top), within=20, what=f"{top} is removed")


def _removed(top: Path) -> bool:
    for folder, _, _ in os.walk(top, topdown=False):
        try:
            Path(folder).rmdir()
        except OSError:
            continue
    return not top.exists()
