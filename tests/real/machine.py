"""What this machine must offer so that several real hosts can live on it, and how its programs are run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

APT_PACKAGES = (
    "mmdebstrap",
    "debian-archive-keyring",
    "iproute2",
    "iptables",
    "openssh-client",
    "e2fsprogs",
    "util-linux",
    "mount",
)
"""Debian names of everything the machine itself needs; engines, servers and shells live in the base tree."""

PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "tc": "iproute2",
    "iptables": "iptables",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "mkfs.ext4": "e2fsprogs",
    "losetup": "mount",
    "nsenter": "util-linux",
    "unshare": "util-linux",
}

HOW_TO_GET_IT = "as root: apt-get install -y --no-install-recommends " + " ".join(APT_PACKAGES)


class Failed(Exception):
    """A program of the harness ended with an error; the message holds what it printed."""


def run(
    *argv: str | os.PathLike[str],
    check: bool = True,
    stdin: str | bytes = "",
    timeout: float = 120,
    environment: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; its text is in the result, and in the error when it fails."""
    content = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        argv, input=content, capture_output=True, timeout=timeout, check=False, env=environment
    )
    text = subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )
    if check and text.returncode != 0:
        raise Failed(
            f"{' '.join(map(str, argv))[:400]} -> {text.returncode}\n{text.stdout[-2000:]}{text.stderr[-2000:]}"
        )
    return text


def until(condition: Callable[[], bool], *, within: float, what: str, every: float = 0.02) -> float:
    """Poll until the condition holds; returns the seconds it took."""
    begun = monotonic()
    while not condition():
        if monotonic() - begun > within:
            raise TimeoutError(f"not within {within:g} s: {what}")
        sleep(every)
    return monotonic() - begun


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """A process that cannot be mistaken for another one that got its number later."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessMark | None:
        """The mark of a process that lives now."""
        started = start_time(pid)
        return None if started is None else cls(pid, started)

    @property
    def alive(self) -> bool:
        """Whether that very process still runs; a zombie does not."""
        return start_time(self.pid) == self.started

    def signal(self, number: int) -> None:
        """Send a signal if that very process still runs."""
        if self.alive:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


def start_time(pid: int) -> str | None:
    """Start of a process in clock ticks since boot; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def missing_parts() -> list[str]:
    """Why real hosts cannot run here, one line each; empty when they can."""
    if os.geteuid() != 0:
        return ["not root: namespaces, bridges and mounts need it"]
    missing = [
        f"program {name} (Debian package {package})"
        for name, package in PROGRAMS.items()
        if shutil.which(name) is None
    ]
    if not any(line.split()[-1] == "overlay" for line in Path("/proc/filesystems").read_text().splitlines()):
        run("modprobe", "overlay", check=False) if shutil.which("modprobe") else None
        if "overlay" not in Path("/proc/filesystems").read_text():
            missing.append("kernel feature overlayfs")
    missing += [
        f"kernel feature: {path} is absent"
        for path in ("/dev/loop-control", "/proc/self/ns/net")
        if not Path(path).exists()
    ]
    if not missing:
        missing += _missing_rights()
    return missing


def _missing_rights() -> list[str]:
    """Root without the rights of root, as in an unprivileged container."""
    trial: list[tuple[str, Sequence[str]]] = [
        (
            "new namespaces with mounts",
            (
                "unshare",
                "--mount",
                "--pid",
                "--net",
                "--uts",
                "--ipc",
                "--cgroup",
                "--fork",
                "mount",
                "-t",
                "tmpfs",
                "none",
                "/mnt",
            ),
        ),
        (
            "veth pairs",
            ("unshare", "--net", "ip", "link", "add", "name", "gfa", "type", "veth", "peer", "name", "gfb"),
        ),
        ("bridges", ("unshare", "--net", "ip", "link", "add", "name", "gfa", "type", "bridge")),
    ]
    return [
        f"kernel or right: {name} ({answer.stderr.strip()})"
        for name, argv in trial
        if (answer := run(*argv, check=False)).returncode != 0
    ]
