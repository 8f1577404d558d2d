"""A real OpenSSH server on loopback, with its own keys, configuration and agent, all in one temporary folder.

It runs as whoever runs the tests: a server that is not root can log in that one user, which is all that is needed.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpufleet.errors import HostUnreachable
from gpufleet.names import HostName
from gpufleet.remote.command import Command
from gpufleet.remote.target import Target

GPU = HostName("gpu-01")
ECHO = Command(script="echo here", mutates=False)
PASSPHRASE = "correct horse battery"
SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
TOOLS = all(shutil.which(name) for name in ("ssh", "ssh-keygen", "ssh-agent", "ssh-add"))
MISSING = "OpenSSH's sshd and client tools are not installed (package openssh-server)"


def keygen(path: Path, *, kind: str = "ed25519", passphrase: str = "", pem: bool = False) -> Path:
    """A new key pair."""
    bits = ["-b", "2048"] if kind == "rsa" else []
    form = ["-m", "PEM"] if pem else []
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, *bits, *form, "-N", passphrase, "-C", "", "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return path


def fingerprint(path: Path) -> str:
    """As ssh-keygen itself computes it."""
    done = subprocess.run(["ssh-keygen", "-l", "-f", str(path)], check=True, capture_output=True, text=True)
    return done.stdout.split()[1]


@dataclass
class OpenSsh:
    """One server.

    Attributes:
        folder: everything it owns.
        port: where it listens.
        user_key: a private key it accepts.
    """

    folder: Path
    port: int
    user_key: Path
    address: str = "127.0.0.1"
    host_keys: dict[str, Path] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def log(self) -> str:
        return (self.folder / "sshd.log").read_text(errors="replace")

    def target(self, name: str = "gpu-01", **more: object) -> Target:
        """How the inventory would name this server; no configuration of the person who runs the tests."""
        values: dict[str, object] = {
            "name": HostName(name),
            "host": self.address,
            "port": self.port,
            "user": getpass.getuser(),
            "identity_file": str(self.user_key),
            "known_hosts": str(self.known_hosts),
            "config_file": str(self.config_file()),
            "connect_timeout": 20.0,
        }
        return Target(**(values | more))  # type: ignore[arg-type] # the names are Target's own

    def config_file(self) -> Path:
        path = self.folder / "ssh_config"
        if not path.exists():
            path.write_text("IdentityAgent none\n")
        return path

    def know(self, *kinds: str) -> None:
        """Write known_hosts anew, with these kinds of host key, or all."""
        lines = []
        for kind, path in self.host_keys.items():
            if not kinds or kind in kinds:
                lines.append(f"[{self.address}]:{self.port} {' '.join(public(path).split()[:2])}\n")
        self.known_hosts.write_text("".join(lines))

    def authorize(self, key: Path) -> None:
        with (self.folder / "authorized_keys").open("a") as file:
            file.write(public(key))

    def start(self, *lines: str) -> None:
        """Start with these lines in front of the configuration: the first value of a keyword counts."""
        config = self.folder / "sshd_config"
        keys = "".join(f"HostKey {path}\n" for path in self.host_keys.values())
        config.write_text(
            "".join(f"{line}\n" for line in lines)
            + keys
            + f"ListenAddress {address_and_port(self.address, self.port)}\n"
            f"AuthorizedKeysFile {self.folder}/authorized_keys\nPidFile none\nStrictModes no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nLogLevel VERBOSE\n"
            "PermitRootLogin yes\nSubsystem sftp internal-sftp\nX11Forwarding no\n"
        )
        with (self.folder / "sshd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(SSHD), "-D", "-e", "-f", str(config)], stderr=log, stdout=log, start_new_session=True
            )
        for _ in range(600):
            if self._process.poll() is not None:
                raise AssertionError(f"sshd did not start: {self.log()}")
            with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), 1):
                return
            time.sleep(0.05)
        raise AssertionError(f"sshd does not listen: {self.log()}")

    def stop(self) -> None:
        """End the server and every session of it."""
        if self._process is None:
            return
        sessions = descendants(self._process.pid)
        for pid in (self._process.pid, *sessions):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def sessions(self) -> list[int]:
        """The server's processes for connections."""
        assert self._process is not None
        return children(self._process.pid)


def public(path: Path) -> str:
    return path.with_name(path.name + ".pub").read_text()


def address_and_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                if int((entry / "stat").read_text().rpartition(") ")[2].split()[1]) == pid:
                    found.append(int(entry.name))
    return found


def descendants(pid: int) -> list[int]:
    return [item for child in children(pid) for item in (child, *descendants(child))]


def free_port(address: str = "127.0.0.1") -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def new_server(folder: Path, *, address: str = "127.0.0.1", kinds: tuple[str, ...] = ("ed25519",)) -> OpenSsh:
    """A server that is ready to be started, its key known, one user key authorized."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where a root sshd confines its unprivileged part
    server = OpenSsh(folder, free_port(address), keygen(folder / "id_user"), address)
    server.host_keys = {kind: keygen(folder / f"host_{kind}", kind=kind) for kind in kinds}
    server.authorize(server.user_key)
    server.know()
    return server


@contextlib.contextmanager
def agent(*keys: Path, askpass: Path | None = None) -> Iterator[str]:
    """An ssh-agent with these keys; gives the path of its socket."""
    folder = keys[0].parent / f"agent-{keys[0].name}"
    folder.mkdir()
    path = str(folder / "s")
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(600):
            if Path(path).exists():
                break
            time.sleep(0.02)
        environment = os.environ | {"SSH_AUTH_SOCK": path}
        if askpass is not None:
            environment |= {"SSH_ASKPASS": str(askpass), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": ":0"}
        for key in keys:
            subprocess.run(
                ["ssh-add", "-q", str(key)],
                env=environment,
                check=True,
                capture_output=True,
                stdin=subprocess.DEVNULL,
            )
        yield path
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def running(
    folder: Path, *lines: str, address: str = "127.0.0.1", kinds: tuple[str, ...] = ("ed25519",)
) -> Iterator[OpenSsh]:
    """A server that runs inside the block."""
    if SSHD is None or not TOOLS:
        pytest.skip(MISSING)
    server = new_server(folder, address=address, kinds=kinds)
    try:
        server.start(*lines)
        yield server
    finally:
        server.stop()


def refusal(reach, kind: type[HostUnreachable], target: Target, **kwargs) -> HostUnreachable:
    with pytest.raises(kind) as caught:
        reach(target, **kwargs)
    assert type(caught.value) is kind
    assert caught.value.where == target.name
    return caught.value


def words(error: HostUnreachable) -> str:
    return "\n".join([str(error), *error.hints])


def encrypted(folder: Path, sshd: OpenSsh, kind: str) -> Path:
    key = keygen(
        folder / f"id_{kind}",
        kind="rsa" if kind == "pem" else "ed25519",
        passphrase=PASSPHRASE,
        pem=kind == "pem",
    )
    assert ("Proc-Type: 4,ENCRYPTED" in key.read_text()) == (kind == "pem")
    sshd.authorize(key)
    return key


class CountingClock:
    """Real time, but waiting between attempts is counted instead, and may do something."""

    def __init__(self, during=lambda: None) -> None:
        self.sleeps: list[float] = []
        self._during = during

    def monotonic(self) -> float:
        import time

        return time.monotonic()

    def now(self):
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self._during()
