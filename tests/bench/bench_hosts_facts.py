"""`gpufleet hosts facts` beside `ansible all -m shell` with pipelining: the same commands on many SSH endpoints of one machine.

Run by hand:

    python tests/bench/bench_hosts_facts.py [--hosts 50] [--rounds 5] [--ansible DIR]

Both are whole processes, started in turn, each connecting anew to every endpoint with strict host keys. CPU is user
and system time of the client and the children it waited for (`wait4`), and of the connections that ansible leaves
behind; servers excluded. The servers share the machine, so wall time is bounded by them and the CPU figure is the one
that carries over to a real fleet. Ansible is measured twice: as it comes (shared connections, the ssh client's own key
exchange), and at its cheapest for one command (one plain connection, curve25519). `--ansible DIR` reuses a virtual
environment that has ansible-core; without it one is made and removed. Each client runs once before it is measured, so
that both find their byte code compiled, as whoever installed them does.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
FORKS = 16
"""Hosts that gpufleet works on at once here: threads of one process, so more than a few a core only get in each
other's way when servers and client share two cores (medians of 5 here: 8 gives 1.62 s, 16 1.59, 32 1.65, 50 1.71).
ansible's are processes; it gets 50."""
LISTENERS = 10
"""Addresses that one sshd listens on; its own limit is 16."""


@dataclass(frozen=True)
class Measured:
    """One run: seconds of wall time and of client CPU."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Fleet:
    """Endpoints on loopback addresses, one port, one user, one key."""

    root: Path
    addresses: tuple[str, ...]
    port: int

    def prepare(self) -> None:
        for name in ("host", "user"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self.root / name)]
            subprocess.run(command, check=True)
        shutil.copy(self.root / "user.pub", self.root / "authorized_keys")
        key = " ".join((self.root / "host.pub").read_text().split()[:2])
        lines = [f"[{address}]:{self.port} {key}\n" for address in self.addresses]
        (self.root / "known_hosts").write_text("".join(lines))
        (self.root / "ssh_config").write_text("IdentityAgent none\n")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        servers = []
        try:
            for first in range(0, len(self.addresses), LISTENERS):
                servers.append(self._server(first))
            for address in self.addresses:
                self._await(address)
            yield
        finally:
            for server in servers:
                server.terminate()
                server.wait()

    def _server(self, first: int) -> subprocess.Popen[bytes]:
        listen = "".join(
            f"ListenAddress {address}:{self.port}\n" for address in self.addresses[first : first + LISTENERS]
        )
        config = self.root / f"sshd_{first}"
        config.write_text(
            f"{listen}HostKey {self.root}/host\nAuthorizedKeysFile {self.root}/authorized_keys\nPidFile none\n"
            "StrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\n"
            "PermitRootLogin yes\nMaxStartups 200:100:200\nLogLevel FATAL\n"
            "SetEnv SHLVL=1\n"  # bash then leaves out ~/.bashrc: what stands there is no part of the comparison
        )
        sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
        if sshd is None:
            raise SystemExit("sshd is not installed (package openssh-server)")
        return subprocess.Popen([sshd, "-D", "-e", "-f", str(config)])

    def _await(self, address: str) -> None:
        for _ in range(400):
            with contextlib.suppress(OSError), socket.create_connection((address, self.port), 1):
                return
            time.sleep(0.05)
        raise SystemExit(f"sshd does not listen on {address}")

    def gpufleet_inventory(self) -> Path:
        hosts = {
            f"h{number:03}": {
                "address": address,
                "port": self.port,
                "user": getpass.getuser(),
                "identity_file": str(self.root / "user"),
                "known_hosts": str(self.root / "known_hosts"),
                "ssh_config": str(self.root / "ssh_config"),
            }
            for number, address in enumerate(self.addresses)
        }
        path = self.root / "inventory.yaml"
        path.write_text(json.dumps({"version": 1, "hosts": hosts}))
        return path

    def ansible_inventory(self) -> Path:
        path = self.root / "hosts.ini"
        path.write_text(
            "".join(
                f"h{number:03} ansible_host={address} ansible_port={self.port} ansible_user={getpass.getuser()}"
                f" ansible_ssh_private_key_file={self.root}/user ansible_python_interpreter={sys.executable}\n"
                for number, address in enumerate(self.addresses)
            )
        )
        return path


def measure(command: list[str], environment: Mapping[str, str], output: Path) -> Measured:
    """Run a client to its end; a failed run ends the benchmark."""
    begun = time.perf_counter()
    with output.open("wb") as file:
        client = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, env=dict(environment))
        _, status, used = os.wait4(client.pid, 0)
    client.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - begun
    if client.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {client.returncode}:\n{output.read_text()[-2000:]}")
    return Measured(wall, used.ru_utime + used.ru_stime)


def gpufleet(fleet: Fleet) -> Measured:
    output = fleet.root / "gpufleet.json"
    command = [sys.executable, "-m", "gpufleet", "-i", str(fleet.gpufleet_inventory()), "-o", "json"]
    command += ["--forks", str(FORKS), "hosts", "facts"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPATH": str(CHECKOUT), "PYTHONPYCACHEPREFIX": str(fleet.root / "bytecode")}
    measured = measure(command, environment, output)
    hosts = json.loads(output.read_text())["hosts"]
    if [host["status"] for host in hosts] != ["ok"] * len(fleet.addresses) or not all(
        host["kernel"] for host in hosts
    ):
        raise SystemExit("gpufleet did not read every host")
    return measured


def ansible(fleet: Fleet, folder: Path, *, cheapest: bool) -> Measured:
    output = fleet.root / "ansible.txt"
    shared = fleet.root / "cp"
    arguments = f"-F {fleet.root}/ssh_config -o UserKnownHostsFile={fleet.root}/known_hosts"
    if cheapest:
        arguments += " -o ControlMaster=no -o KexAlgorithms=curve25519-sha256"
    else:
        arguments += " -C -o ControlMaster=auto -o ControlPersist=60s"  # ansible's own default
    environment = os.environ | {
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_FORKS": "50",
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_SSH_ARGS": arguments,
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(shared),
        "ANSIBLE_LOCAL_TEMP": str(fleet.root / "ansible-tmp"),
        "ANSIBLE_HOME": str(fleet.root / "ansible-home"),
        "LC_ALL": "C.UTF-8",
    }
    words = f"sh {fleet.root}/facts.sh"
    inventory = str(fleet.ansible_inventory())
    command = [str(folder / "bin" / "ansible"), "all", "-i", inventory, "-m", "shell", "-a", words]
    measured = measure(command, environment, output)
    left = end_connections(shared)
    if output.read_text().count("@@gf end runs 0") < len(fleet.addresses):
        raise SystemExit("ansible did not read every host")
    return Measured(measured.wall, measured.cpu + left)


def end_connections(shared: Path) -> float:
    """End the connections whose sockets are in a folder of ours; seconds of CPU that they had used."""
    used = 0.0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if str(shared).encode() in (entry / "cmdline").read_bytes():
                words = (entry / "stat").read_text().rpartition(") ")[2].split()
                used += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
                os.kill(int(entry.name), signal.SIGTERM)
    return used


def write_script(path: Path) -> None:
    sys.path.insert(0, str(CHECKOUT))
    from gpufleet.hosts.probes import script
    from gpufleet.inventory.model import Become, Runtime

    path.write_text(script.command(runtime=Runtime.AUTO, runtime_path=None, become=Become.AUTO).wire())


def ansible_environment(given: Path | None, root: Path) -> Path:
    if given is not None and (given / "bin" / "ansible").exists():
        return given
    folder = given or root / "ansible"
    venv.create(folder, with_pip=True)
    subprocess.run([str(folder / "bin" / "pip"), "install", "-q", "ansible-core"], check=True)
    return folder


def report(runs: Mapping[str, list[Measured]]) -> None:
    middle = {
        name: Measured(
            statistics.median(run.wall for run in measured), statistics.median(run.cpu for run in measured)
        )
        for name, measured in runs.items()
    }
    own = middle["gpufleet"]
    print(f"{'client':24} {'wall s':>8} {'CPU s':>8} {'wall x':>8} {'CPU x':>8}   walls")
    for name, one in middle.items():
        walls = " ".join(f"{run.wall:.1f}" for run in runs[name])
        ratios = f"{one.wall / own.wall:8.1f} {one.cpu / own.cpu:8.1f}"
        print(f"{name:24} {one.wall:8.2f} {one.cpu:8.2f} {ratios}   {walls}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--hosts", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ansible", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-facts-") as name:
        root = Path(name)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        addresses = tuple(f"127.77.{number // 250}.{number % 250 + 1}" for number in range(asked.hosts))
        fleet = Fleet(root, addresses, port)
        fleet.prepare()
        write_script(root / "facts.sh")
        folder = ansible_environment(asked.ansible, root)
        runs: dict[str, list[Measured]] = {"gpufleet": [], "ansible": [], "ansible, cheapest": []}
        with fleet.running():
            gpufleet(fleet)
            ansible(fleet, folder, cheapest=False)
            for _ in range(asked.rounds):  # in turn, so that what else runs here meets all alike
                runs["gpufleet"].append(gpufleet(fleet))
                runs["ansible"].append(ansible(fleet, folder, cheapest=False))
                runs["ansible, cheapest"].append(ansible(fleet, folder, cheapest=True))
        report(runs)


if __name__ == "__main__":
    main()
