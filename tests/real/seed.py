"""What makes one host different from the others: keys, addresses, GPUs and stand-in programs, as a tree of files that
is copied onto its disk each time it starts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.real.base import HOST_FILES, USERS
from tests.real.machine import run

REGISTRY_CONFIG = """\
version: 0.1
log: {level: warn}
storage: {filesystem: {rootdirectory: /var/lib/registry}, delete: {enabled: true}}
http: {addr: ':5000'}
"""

LIMITED = "runc-within-limits"
CAP_SYS_RESOURCE = 24


def may_raise_limits() -> bool:
    """Whether root here may raise resource limits, which containers with `--ulimit` need."""
    status = Path("/proc/self/status").read_text()
    bounding = next(line.split()[1] for line in status.splitlines() if line.startswith("CapBnd:"))
    return bool(int(bounding, 16) >> CAP_SYS_RESOURCE & 1)


def make(
    seed: Path,
    *,
    base: Path,
    name: str,
    address: str,
    registry: str,
    public_key: str,
    gpus: Sequence[tuple[str, str]],
) -> None:
    """Fill `seed` for a host on the tree `base`; `gpus` are pairs of UUID and the lab's key of the board."""
    for folder in ("etc/ssh", "etc/docker", "usr/local/sbin", "usr/bin"):
        (seed / folder).mkdir(parents=True)
    key = seed / "etc/ssh/ssh_host_ed25519_key"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", key)
    daemon: dict[str, object] = {
        "insecure-registries": [registry],
        "storage-driver": "overlay2",
        "shutdown-timeout": 5,
    }
    if not may_raise_limits():
        daemon |= {
            "runtimes": {"within-limits": {"path": f"/usr/local/sbin/{LIMITED}"}},
            "default-runtime": "within-limits",
        }
    contents = {
        "etc/hostname": f"{name}\n",
        "etc/hosts": f"127.0.0.1 localhost\n{address} {name}\n",
        "etc/registry.yml": REGISTRY_CONFIG,
        "etc/docker/daemon.json": json.dumps(daemon),
        "etc/gpu-devices": "".join(f"{uuid}\n" for uuid, _ in gpus),
        "etc/gpus.json": json.dumps([{"uuid": uuid, "board": board} for uuid, board in gpus]),
    }
    for path, content in contents.items():
        (seed / path).write_text(content)
    for program in ("systemctl", LIMITED):
        shutil.copy(HOST_FILES / program, seed / "usr/local/sbin" / program)
    for program in ("nvidia-smi", "nvidia-ctk", "nvidia-container-runtime-hook"):
        shutil.copy(HOST_FILES / program, seed / "usr/bin" / program)
    (seed / "usr/local/sbin/lab-gpus").symlink_to("/usr/bin/nvidia-smi")
    _give_double(seed / "usr/local/lib/double")
    _authorize(seed, base, public_key)


def _give_double(place: Path) -> None:
    """The part of this package that plays nvidia-smi: pure Python that needs the standard library alone."""
    package = HOST_FILES.parents[2] / "gpufleet"
    skip = shutil.ignore_patterns("__pycache__", "*.typed")
    shutil.copytree(package / "lab", place / "gpufleet/lab", ignore=skip)
    for module in ("__init__.py", "clock.py"):
        shutil.copy(package / module, place / "gpufleet" / module)


def _authorize(seed: Path, base: Path, public_key: str) -> None:
    """Let the suite's key into every account."""
    lines = (base / "etc/passwd").read_text().splitlines()
    accounts = {line.split(":")[0]: line.split(":") for line in lines}
    for user in USERS:
        keys = seed / "home" / user.name / ".ssh"
        keys.mkdir(parents=True)
        keys.chmod(0o700)
        (keys / "authorized_keys").write_text(public_key)
        for path in (keys.parent, keys, keys / "authorized_keys"):
            os.chown(path, int(accounts[user.name][2]), int(accounts[user.name][3]))
