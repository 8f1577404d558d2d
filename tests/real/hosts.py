"""One real host: a network namespace with its own address, a root file system of its own, sshd and Docker.

The recipe is short: enter the host's control groups and network namespace, unshare everything else, and let
`host_files/init.sh` become the first process there. Killing that process powers the host off: the kernel ends
everything in its process namespace and unmounts everything in its mount namespace.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

from tests.real import cgroups, seed
from tests.real.base import HOST_FILES
from tests.real.machine import Failed, ProcessMark, children, run, until

ROOT_DISK_GIB = 8
DOCKER_DISK_GIB = 40
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BOARDS = ("H100-80GB",) * 4


@dataclass(frozen=True, slots=True)
class Site:
    """Names and addresses of one fleet, so that two of them can stand on one machine."""

    name: str = "gpufleet-real"
    short: str = "gfreal"
    network: str = "10.77.0"
    directory: Path = Path("/var/lib/gpufleet-real")

    @property
    def bridge(self) -> str:
        """The switch that all hosts of the site are plugged into."""
        return f"{self.short}0"

    @property
    def gateway(self) -> str:
        """The machine's own address on that switch."""
        return f"{self.network}.1"

    @property
    def registry(self) -> str:
        """`host:port` of the image registry."""
        return f"{self.network}.9:5000"


@dataclass(frozen=True, slots=True)
class RealHost:
    """A host of a site. `number` 0 is the one that runs the registry."""

    site: Site
    number: int

    @property
    def name(self) -> str:
        return f"h{self.number}" if self.number else "registry"

    @property
    def address(self) -> str:
        return f"{self.site.network}.{10 + self.number if self.number else 9}"

    @property
    def services(self) -> str:
        return "ssh docker" if self.number else "registry"

    @property
    def directory(self) -> Path:
        return self.site.directory / "hosts" / self.name

    @property
    def namespace(self) -> str:
        return f"{self.site.short}-{self.name}"

    @property
    def link(self) -> str:
        """The machine's end of the host's network cable."""
        return f"{self.site.short}-{self.number}"

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of its GPUs, the same at every run."""
        return tuple(
            f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{self.name}.gpu{index}.example')}"
            for index in range(len(BOARDS))
        )

    # --- on and off ------------------------------------------------------------------------------------------

    def power_on(self, base: Path, docker_disk: Path | None) -> None:
        """Start it with new or, after a power-off, its own old disks; returns before its services answer."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._make_disks(docker_disk)
        self._make_seed(base)
        self._plug_in()
        enter = "".join(
            f"echo $$ > {folder}/cgroup.procs; " for folder in cgroups.create(self.site.name, self.name)
        )
        argv = (
            "nsenter", f"--net=/run/netns/{self.namespace}",
            "unshare", "--mount", "--uts", "--ipc", "--pid", "--cgroup", "--fork", "--kill-child",
            str(HOST_FILES / "init.sh"), self.name, str(base), str(self.directory), self.services,
        )  # fmt: skip
        with (self.directory / "init.log").open("ab") as log:
            outer = subprocess.Popen(
                ("bash", "-c", f'{enter}exec "$@"', "bash", *argv),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/",
            )  # fmt: skip
        until(
            lambda: bool(children(outer.pid)) or outer.poll() is not None,
            within=20,
            what=f"{self.name} starts",
        )
        first = ProcessMark.of(children(outer.pid)[0]) if outer.poll() is None else None
        shell = ProcessMark.of(outer.pid)
        if first is None or shell is None:
            raise Failed(f"{self.name} did not start: {self.log()}")
        marks = {"first": [first.pid, first.started], "shell": [shell.pid, shell.started]}
        (self.directory / "process.json").write_text(json.dumps(marks))
        with _REAPING:
            _WAITED_FOR.append(outer)

    def power_off(self) -> None:
        """Pull the plug: no process of the host gets to say anything. Returns when its disks are free again."""
        for which in ("first", "shell"):
            mark = self.process(which)
            if mark is not None:
                mark.signal(signal.SIGKILL)
        until(self._is_gone, within=20, what=f"{self.name} is off and its disks are released")
        (self.directory / "process.json").unlink(missing_ok=True)

    def _is_gone(self) -> bool:
        reap()
        gone = all(mark is None or not mark.alive for mark in (self.process("first"), self.process("shell")))
        return gone and not loop_devices(self.directory)

    def remove(self) -> None:
        """Power off and leave nothing: no namespace, no cable, no control group, no disk."""
        self.power_off()
        run("ip", "netns", "del", self.namespace, check=False)
        run("ip", "link", "del", self.link, check=False)
        cgroups.remove(self.site.name, self.name)
        shutil.rmtree(self.directory, ignore_errors=True)

    def process(self, which: str = "first") -> ProcessMark | None:
        """Its recorded processes: `first` is number 1 inside, `shell` the one that started it."""
        try:
            pid, started = json.loads((self.directory / "process.json").read_text())[which]
        except (OSError, ValueError):
            return None
        return ProcessMark(pid, started)

    @property
    def is_on(self) -> bool:
        mark = self.process()
        return mark is not None and mark.alive

    # --- inside, as root and without SSH ---------------------------------------------------------------------

    def inside(
        self, *argv: str, check: bool = True, stdin: str = "", timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the host as root, through its namespaces: works without sshd and with the link cut."""
        mark = self.process()
        if mark is None or not mark.alive:
            raise Failed(f"{self.name} is off")
        enter = (
            "nsenter",
            "-t",
            str(mark.pid),
            "-a",
            "--root",
            "env",
            "-C",
            "/",
            "-i",
            f"PATH={PATH}",
            "HOME=/root",
        )
        return run(*enter, *argv, check=check, stdin=stdin, timeout=timeout)

    def shell(self, script: str, *, check: bool = True, timeout: float = 60) -> str:
        """Run a script on the host as root; returns what it printed."""
        return self.inside("bash", "-c", script, check=check, timeout=timeout).stdout

    def write(self, path: str, content: str) -> None:
        """Put a file on the host."""
        self.inside("tee", path, stdin=content)

    def log(self) -> str:
        """What the first process printed, for messages."""
        with contextlib.suppress(OSError):
            return (self.directory / "init.log").read_text()[-1500:]
        return ""

    # --- readiness -------------------------------------------------------------------------------------------

    def wait_ready(self, within: float = 60) -> dict[str, float]:
        """Wait for all its services; returns the seconds each took."""
        begun = monotonic()
        mark = self.process()
        assert mark is not None
        took = {}
        inside = Path(f"/proc/{mark.pid}/root")
        # Before the pivot that path is still the machine's own root, where another Docker may live.
        until(
            lambda: (inside / "run/host/ready").exists() or self._died(),
            within=within,
            what=f"{self.name} boots: {self.log()}",
        )
        for service in self.services.split():
            asked = {
                "ssh": self.ssh_answers,
                "docker": self.docker_answers,
                "registry": self._registry_answers,
            }[service]
            until(
                partial(self._answers_or_died, asked),
                within=within,
                what=f"{service} on {self.name}: {self.log()}",
            )
            took[service] = monotonic() - begun
        return took

    def _answers_or_died(self, asked: Callable[[], bool]) -> bool:
        return asked() or self._died()

    def _died(self) -> bool:
        if not self.is_on:
            raise Failed(f"{self.name} died: {self.log()}")
        return False

    def ssh_answers(self) -> bool:
        """Whether sshd greets."""
        try:
            with socket.create_connection((self.address, 22), 1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def docker_answers(self) -> bool:
        """Whether the Docker engine answers on its socket."""
        mark = self.process()
        if mark is None:
            return False
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(2)
            try:
                connection.connect(f"/proc/{mark.pid}/root/run/docker.sock")
                connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                return b"200" in connection.recv(64)
            except OSError:
                return False

    def _registry_answers(self) -> bool:
        try:
            with socket.create_connection((self.address, 5000), 1):
                return True
        except OSError:
            return False

    # --- making of -------------------------------------------------------------------------------------------

    def _make_disks(self, docker_disk: Path | None) -> None:
        _blank_disk(self.directory / "root.img", ROOT_DISK_GIB)
        wanted = self.directory / "docker.img"
        if not self.number or wanted.exists():
            return
        if docker_disk is None:
            _blank_disk(wanted, DOCKER_DISK_GIB)
        else:
            run("cp", "--sparse=always", docker_disk, wanted)

    def _make_seed(self, base: Path) -> None:
        folder = self.directory / "seed"
        if not folder.exists():
            seed.make(
                folder,
                base=base,
                name=self.name,
                address=self.address,
                registry=self.site.registry,
                public_key=(self.site.directory / "keys/id_ed25519.pub").read_text(),
                gpus=list(zip(self.gpus, BOARDS, strict=True)),
            )

    def _plug_in(self) -> None:
        """Network namespace, cable and address. The hardware address is fixed: a restarted host is reached at once
        instead of after the 40 s in which its neighbours still believe in the old one."""
        if Path(f"/run/netns/{self.namespace}").exists():
            run("ip", "netns", "del", self.namespace, check=False)
        run("ip", "link", "del", self.link, check=False)
        hardware = f"02:67:66:00:00:{10 + self.number:02x}"
        run("ip", "netns", "add", self.namespace)
        run(
            "ip",
            "link",
            "add",
            self.link,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "address",
            hardware,
            "netns",
            self.namespace,
        )
        run("ip", "link", "set", self.link, "master", self.site.bridge, "up")
        batch = f"addr add {self.address}/24 dev eth0\nlink set eth0 up\nlink set lo up\nroute add default via {self.site.gateway}\n"
        run("ip", "-n", self.namespace, "-batch", "-", stdin=batch)


_REAPING = threading.Lock()
_WAITED_FOR: list[subprocess.Popen[bytes]] = []
"""Our own children, so that an ended one is reaped and neither stays a zombie nor warns."""


def reap() -> None:
    """Collect ended children."""
    with _REAPING:
        _WAITED_FOR[:] = [outer for outer in _WAITED_FOR if outer.poll() is None]


def loop_devices(directory: Path) -> list[str]:
    """Loop devices whose disk image lies below a directory. The kernel lets go of one as its last mount ends."""
    listed = run("losetup", "--noheadings", "--output", "NAME,BACK-FILE", check=False).stdout
    return [line for line in listed.splitlines() if f"{directory}/" in line]


def _blank_disk(path: Path, gib: int) -> None:
    """A sparse ext4 disk image: large to those who ask, small on the machine's disk."""
    if path.exists():
        return
    with path.open("wb") as file:
        file.truncate(gib << 30)
    run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard", path)
