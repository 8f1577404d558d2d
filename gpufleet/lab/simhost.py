"""One simulated machine: users, files, processes, ports, time. Pure: it asks a clock and is driven by a shell.

Nothing here knows of SSH, HTTP or threads. Whoever puts a host behind a transport sets `rest`, so that time can
pass while another session uses the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from hashlib import sha256
from typing import Any, Protocol, TypeAlias

from gpufleet.lab.simfs import File, SimFs, normal

SESSION = "/user.slice/user-1000.slice/session-1.scope"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LabClock(Protocol):
    """The part of `gpufleet.clock.Clock` that a host needs."""

    def now(self) -> datetime:
        """Wall clock, aware."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class Killed(BaseException):
    """A signal ended the shell that was waiting."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


Answer: TypeAlias = tuple[int, Mapping[str, str], Iterable[bytes]]
"""Status, headers, and the body piece by piece."""


class EngineHost(Protocol):
    """What runs inside the containers of a host: a model of an engine in memory, or a real server.

    `bind` lists the addresses and ports (`127.77.0.1:8000`) that reach the engine from outside its container.
    """

    def launch(
        self, container_id: str, argv: tuple[str, ...], env: Mapping[str, str], bind: tuple[str, ...]
    ) -> None:
        """Begin a process; it may still end at once (see `alive`)."""
        ...

    def end(self, container_id: str) -> None:
        """End it, if it lives; its log stays readable."""
        ...

    def logs(self, container_id: str) -> str:
        """What it has printed since its last launch."""
        ...

    def alive(self, container_id: str) -> int | None:
        """None while it lives, else its exit code (137 with `OOMKilled` when memory ended it)."""
        ...

    def http(
        self,
        container_id: str,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        sleep: Callable[[float], None],
    ) -> Answer:
        """One request; raises `ConnectionRefusedError` while it does not listen. `sleep` is the caller's own."""
        ...


class SudoRule(Enum):
    """What sudo lets a user do."""

    NOPASSWD = "nopasswd"
    PASSWORD = "password"
    REQUIRETTY = "requiretty"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A login of a host. `noise` is what its start-up files print before any command."""

    name: str
    uid: int
    groups: tuple[str, ...]
    home: str
    sudo: SudoRule = SudoRule.NONE
    password: str = ""
    noise: str = ""
    shell: str = "/bin/bash"


@dataclass(slots=True)
class Process:
    """An entry of the process table."""

    pid: int
    user: str
    command: str
    started: float
    signal: int = 0
    group: str = SESSION
    """Its control group."""
    until: float | None = None
    """When a job in the background would end by itself."""


def standard_users() -> dict[str, User]:
    """root, and the operators that tests choose from."""
    rows = (
        ("root", 0, ("root",), SudoRule.NOPASSWD, ""),
        ("ops", 1000, ("ops", "docker"), SudoRule.NOPASSWD, ""),
        ("nodock", 1001, ("nodock",), SudoRule.NOPASSWD, ""),
        ("pwops", 1002, ("pwops", "docker"), SudoRule.PASSWORD, ""),
        ("nosudo", 1003, ("nosudo",), SudoRule.NONE, ""),
        ("noisy", 1004, ("noisy", "docker"), SudoRule.NOPASSWD, "*** Maintenance window on Sunday ***\n"),
        ("tty", 1005, ("tty",), SudoRule.REQUIRETTY, ""),
    )
    return {
        name: User(
            name=name,
            uid=uid,
            groups=groups,
            home="/root" if name == "root" else f"/home/{name}",
            sudo=sudo,
            password="correct horse" if sudo is SudoRule.PASSWORD else "",
            noise=noise,
        )
        for name, uid, groups, sudo, noise in rows
    }


@dataclass(slots=True)
class Listener:
    """A TCP port in use; `container` is empty when a process of the host itself holds it."""

    address: str
    port: int
    container: str = ""


@dataclass(slots=True)
class Service:
    """A systemd unit."""

    active: bool = True
    alias: str = ""
    """The unit that this name stands for."""


def exec_start(host: SimHost, name: str) -> list[str]:
    """What the unit file of a service starts; nothing when there is none."""
    path = f"/etc/systemd/system/{name}.service"
    text = host.fs.read(path).decode() if host.fs.exists(path) else ""
    return next(
        (line.partition("=")[2].split() for line in text.splitlines() if line.startswith("ExecStart=")), []
    )


class SimHost:
    """One machine."""

    def __init__(self, name: str, clock: LabClock, *, address: str = "127.0.0.1", login: str = "ops") -> None:
        self.name = name
        self.address = address
        self.clock = clock
        self.login = login
        self.users = standard_users()
        self.booted = clock.monotonic()
        self.boots = 0
        self.kernel = "6.1.0-18-amd64"
        self.cores = 64
        self.memory_mib = 1_031_000
        self.processes: dict[int, Process] = {}
        self._next_pid = 1200
        self.programs: dict[str, Callable[[Any], int]] = {}
        """Program by absolute path; `Any` is a `shell.call.Call`, which imports this module."""
        self.known_programs: frozenset[str] = frozenset()
        """Names that are programs on other hosts of the lab: their absence is a fact, not a gap of the dialect."""
        self.services: dict[str, Service] = {"docker": Service(), "ssh": Service()}
        self.listeners: list[Listener] = [Listener("0.0.0.0", 22)]
        self.rest: Callable[[float, tuple[int, ...]], None] = self._rest
        self.stalled = False
        """Whether what it fetches from other machines stands still."""
        self.on_boot: list[Callable[[], None]] = []
        self.on_service: dict[str, list[Callable[[bool, bool], None]]] = {}
        self.parts: dict[str, Any] = {}
        """What programs keep on this host: its container runtime, its GPUs."""
        self.fs = SimFs(lambda: self.clock.now().timestamp(), self._groups_of)
        self._furnish()

    def _groups_of(self, user: str) -> frozenset[str]:
        known = self.users.get(user)
        return frozenset(known.groups) if known else frozenset()

    def _furnish(self) -> None:
        fs = self.fs
        for path in (
            "/bin",
            "/usr/bin",
            "/usr/sbin",
            "/etc",
            "/var/lib/docker",
            "/run/user",
            "/home",
            "/proc",
            "/dev",
            "/opt",
            "/srv",
            "/run/systemd/system",
        ):
            fs.make_directories(path)
        for path in ("/tmp", "/dev/shm", "/var/tmp"):
            fs.make_directories(path)
            fs.find(path).mode = 0o1777
        for user in self.users.values():
            fs.make_directories(user.home)
            home = fs.find(user.home)
            home.owner, home.group, home.mode = user.name, user.groups[0], 0o750
            if user.uid:
                fs.mkdir(f"/run/user/{user.uid}", mode=0o700)
                fs.find(f"/run/user/{user.uid}").owner = user.name
        fs.write("/etc/hostname", f"{self.name}\n".encode())
        fs.write(
            "/etc/os-release",
            b'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian GNU/Linux"\nID=debian\nVERSION_ID="12"\n',
        )
        self.file_from("/proc/sys/kernel/random/boot_id", lambda: f"{self.boot_id}\n")
        self.file_from("/proc/uptime", lambda: f"{self.clock.monotonic() - self.booted:.2f} 0.00\n")
        self.file_from(
            "/proc/meminfo",
            lambda: (
                f"MemTotal:       {self.memory_mib * 1024} kB\nMemAvailable:   {self.memory_mib * 900} kB\n"
            ),
        )
        self._show(Process(1, "root", "systemd", self.booted, group="/init.scope"))
        self.file_from("/proc/loadavg", lambda: "0.10 0.12 0.09 1/700 4242\n")

    def file_from(self, path: str, source: Callable[[], str], mode: int = 0o444) -> None:
        """A file of the kernel, whose text is made up at each read."""
        self.fs.write(path, b"", mode=mode)
        node = self.fs.find(path)
        if isinstance(node, File):
            node.source = lambda: source().encode()

    @property
    def boot_id(self) -> str:
        """Changes at each boot."""
        digest = sha256(f"{self.name}/{self.boots}".encode()).hexdigest()
        return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-a{digest[17:20]}-{digest[20:32]}"

    def environment(self, user: str) -> dict[str, str]:
        """What a login finds."""
        who = self.users[user]
        return {
            "HOME": who.home,
            "USER": user,
            "LOGNAME": user,
            "SHELL": who.shell,
            "PATH": PATH,
            "PWD": who.home,
            "LANG": "C.UTF-8",
        }

    def fs_path(self, path: str, cwd: str) -> str:
        """An absolute normal path; `/proc/self` and the like do not exist here."""
        return normal(path, cwd)

    # -- processes -----------------------------------------------------------------------------------------------

    def spawn(self, user: str, command: str, group: str = SESSION) -> int:
        """A new process; its pid."""
        self._next_pid += 1
        pid = self._next_pid
        process = self.processes[pid] = Process(pid, user, command, self.clock.monotonic(), group=group)
        self._show(process)
        return pid

    def _show(self, process: Process) -> None:
        """Its folder under /proc, with the line that tells group and start time."""
        pid, ticks = process.pid, int((process.started - self.booted) * 100)
        # Fields 3 to 22 of proc(5): state, parent, group, session, eleven that are 0 here, ..., start time.
        line = f"{pid} ({process.command[:15]}) S 1 {pid} {pid} {' '.join(['0'] * 15)} {ticks} 0 0\n"
        files = {
            "stat": line.encode(),
            "comm": f"{process.command[:15]}\n".encode(),
            "cgroup": f"0::{process.group}\n".encode(),
        }
        self.fs.put_process(f"/proc/{pid}", files, process.user)

    def hold_open(self, pid: int, paths: Iterable[str]) -> None:
        """Let a process have these files open, besides those it has."""
        folder = f"/proc/{pid}/fd"
        taken = len(self.fs.names(folder))
        for number, path in enumerate(paths, taken):
            self.fs.link(path, f"{folder}/{number}")

    def finish(self, pid: int) -> None:
        """The process ended by itself."""
        if self.processes.pop(pid, None) is not None:
            self.fs.drop(f"/proc/{pid}")

    def signal(self, pid: int, number: int) -> bool:
        """Send a signal; False when there is no such process. Signal 0 only asks."""
        process = self.processes.get(pid)
        if process is not None and process.until is not None and self.clock.monotonic() >= process.until:
            self.finish(pid)
            process = None
        if process is None:
            return False
        if number:
            process.signal = number
        return True

    def signalled(self, pid: int) -> int:
        """The signal that a process has received, 0 without one."""
        process = self.processes.get(pid)
        return process.signal if process is not None else 0

    def serial(self) -> int:
        """A number that was not given before."""
        self._next_pid += 1
        return self._next_pid

    def change_service(self, name: str, *, active: bool, restarted: bool = False) -> None:
        """Start, stop or restart a unit; who runs behind it is told."""
        self.services[name].active = active
        for act in self.on_service.get(name, ()):
            act(active, restarted)

    def _rest(self, seconds: float, pids: tuple[int, ...]) -> None:
        if seconds == float("inf"):
            raise RuntimeError(f"{self.name}: a program waits for ever and nobody set a deadline")
        self.clock.sleep(seconds)
        self.check_signals(pids)

    def check_signals(self, pids: tuple[int, ...]) -> None:
        """Raise `Killed` when a signal reached one of these processes meanwhile."""
        for pid in pids:
            if number := self.signalled(pid):
                raise Killed(number)

    # -- network ---------------------------------------------------------------------------------------------------

    def listener(self, port: int, address: str = "127.0.0.1") -> Listener | None:
        """Who answers at a port of this host."""
        for listener in self.listeners:
            if listener.port == port and (
                listener.address in {"0.0.0.0", "::", address} or address == "0.0.0.0"
            ):
                return listener
        return None

    # -- power -----------------------------------------------------------------------------------------------------

    def reboot(self) -> None:
        """Power off and on: processes end, files stay, units start, containers follow their restart policy."""
        self.boots += 1
        self.booted = self.clock.monotonic()
        for process in self.processes.values():
            process.signal = 9
        self.listeners = [one for one in self.listeners if one.container or one.port == 22]
        for act in self.on_boot:
            act()
