"""What a person or a test needs to reach a lab: inventory, known_hosts, a key and an ssh_config, in one folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpufleet.lab.fleet import Fleet

PORT = 2222
"""Where every simulated host's SSH server listens, on its own loopback address."""


@dataclass(frozen=True, slots=True)
class LabFolder:
    """The files of one lab."""

    path: Path

    @property
    def inventory(self) -> Path:
        """For `gpufleet -i`."""
        return self.path / "inventory.yaml"

    @property
    def key(self) -> Path:
        """The private key that every user of every host accepts."""
        return self.path / "id_ecdsa"

    @property
    def known_hosts(self) -> Path:
        """The hosts' keys."""
        return self.path / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """For `ssh -F`."""
        return self.path / "ssh_config"


def write_files(
    folder: LabFolder, fleet: Fleet, host_keys: Sequence[tuple[str, str, str]], port: int = PORT
) -> None:
    """Everything but the private key. `host_keys` holds (address, algorithm, base64)."""
    _write(folder.known_hosts, (f"[{address}]:{port} {kind} {key}" for address, kind, key in host_keys))
    _write(folder.ssh_config, _ssh_config(folder, fleet, port))
    _write(folder.inventory, _inventory(folder, fleet, port))


def _write(path: Path, lines: Iterable[str]) -> None:
    """A whole file by rename: another process may be waiting for it."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text("".join(f"{line}\n" for line in lines))
    temporary.chmod(0o600)
    temporary.replace(path)


def _ssh_config(folder: LabFolder, fleet: Fleet, port: int) -> Iterable[str]:
    for lab in fleet:
        yield f"Host {lab.name}"
        yield f"  HostName {lab.host.address}"
        yield f"  Port {port}"
        yield f"  User {lab.host.login}"
    yield "Host *"
    yield f'  IdentityFile "{folder.key}"'
    yield "  IdentitiesOnly yes"
    yield f'  UserKnownHostsFile "{folder.known_hosts}"'
    yield "  StrictHostKeyChecking yes"


def _inventory(folder: LabFolder, fleet: Fleet, port: int) -> Iterable[str]:
    yield "# Written by gpufleet's lab. These hosts are simulated and live as long as the lab does."
    yield "version: 1"
    yield "defaults:"
    yield "  user: ops"
    yield f"  identity_file: {json.dumps(str(folder.key))}"
    yield f"  known_hosts: {json.dumps(str(folder.known_hosts))}"
    yield f"  ssh_config: {json.dumps(str(folder.ssh_config))}"
    yield "  ports: {first: 8000, last: 8099}"
    yield "hosts:"
    for lab in fleet:
        board = lab.wish.gpus.partition("x")[2].partition("-")[0].lower() or "cpu"
        yield f"  {lab.name}:"
        yield f"    address: {lab.host.address}:{port}"
        yield f"    user: {lab.host.login}"
        yield f"    groups: [{board}]"
