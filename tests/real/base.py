"""The root file system that all real hosts share read-only: stock Debian with OpenSSH, Docker, sudo and three shells.

It is kept outside the checkout under a name that is a hash of its recipe, so that a changed recipe is built anew
and an unchanged one is found again.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.real.machine import run

CACHE = Path(os.environ.get("GPUFLEET_REAL_CACHE", "/var/cache/gpufleet-real"))
HOST_FILES = Path(__file__).parent / "host_files"
RELEASE = os.environ.get("GPUFLEET_REAL_RELEASE", "trixie")

PACKAGES = (
    "openssh-server", "sudo", "iproute2", "iptables", "docker.io", "ca-certificates", "curl", "procps", "fish", "tcsh",
    "tini", "python3", "busybox-static", "docker-registry",
)  # fmt: skip
PACKAGES_OF_RELEASE = {"trixie": ("docker-cli",)}

PASSWORD = "correct-horse-9"


@dataclass(frozen=True, slots=True)
class User:
    """An account on every host; each is one way in which operators' accounts differ."""

    name: str
    shell: str = "/bin/bash"
    sudo: str = ""
    groups: str = ""
    bashrc: str = ""


FREE_SUDO = "ALL=(ALL) NOPASSWD:ALL"
USERS = (
    User("ops", sudo=FREE_SUDO, groups="docker"),
    User("nodock", sudo=FREE_SUDO),
    User("pwops", sudo="ALL=(ALL) ALL"),
    User("nosudo"),
    User("fishy", shell="/usr/bin/fish", sudo=FREE_SUDO, groups="docker"),
    User("cshy", shell="/usr/bin/tcsh", sudo=FREE_SUDO, groups="docker"),
    User(
        "noisy",
        sudo=FREE_SUDO,
        groups="docker",
        bashrc="echo '### welcome to the cluster ###'\necho 'quota: 93% used' >&2\n",
    ),
    User("nologin", shell="/usr/sbin/nologin"),
)

SSHD_CONFIG = """\
PermitRootLogin no
PasswordAuthentication no
KbdInteractiveAuthentication no
UseDNS no
PrintMotd no
HostKey /etc/ssh/ssh_host_ed25519_key
"""
NO_PENALTIES = "PerSourcePenalties no\n"
"""From OpenSSH 9.8 a few refused logins ban their source address, here the whole machine, for the tests after them."""


def recipe_hash() -> str:
    """A name for this recipe: packages, accounts, configuration and the files put into the tree."""
    digest = hashlib.sha256()
    digest.update(json.dumps([RELEASE, _packages(), SSHD_CONFIG, NO_PENALTIES]).encode())
    digest.update(repr(USERS).encode())
    digest.update(inspect.getsource(_furnish).encode())
    return digest.hexdigest()[:12]


def _packages() -> list[str]:
    return sorted((*PACKAGES, *PACKAGES_OF_RELEASE.get(RELEASE, ())))


def tree() -> Path:
    """Where the base tree stands, built or not."""
    return CACHE / f"base-{RELEASE}-{recipe_hash()}"


@contextmanager
def cache_lock() -> Iterator[None]:
    """One builder at a time; the kernel lets go when the builder dies."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build() -> Path:
    """The base tree, built when it is not there yet (20 to 60 s). A broken build leaves nothing behind."""
    wanted = tree()
    with cache_lock():
        if wanted.exists():
            return wanted
        for old in CACHE.glob(f"base-{RELEASE}-*"):
            shutil.rmtree(old, ignore_errors=True)
        partial = CACHE / f"base-{RELEASE}-{recipe_hash()}.partial"
        run(
            "mmdebstrap", "--variant=minbase", f"--include={','.join(_packages())}",
            "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-exclude=/usr/share/locale/*",
            RELEASE, partial, _mirror(), timeout=600,
        )  # fmt: skip
        _furnish(partial)
        partial.rename(wanted)
        return wanted


def _mirror() -> str:
    """The Debian mirror that this machine's own apt uses."""
    listed = run(
        "apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN)", "Created-By: Packages", check=False
    ).stdout
    for line in listed.splitlines():
        address, _, origin = line.partition(" ")
        if origin.strip() == "Debian" and "security" not in address:
            return address.rstrip("/")
    return "http://deb.debian.org/debian"


def _furnish(root: Path) -> None:
    """Accounts and sshd configuration. Keys, addresses and services are given to each host when it starts."""
    for user in USERS:
        groups = ["-G", user.groups] if user.groups else []
        run("chroot", root, "useradd", "-m", "-s", user.shell, *groups, user.name)
        if user.sudo:
            path = root / "etc/sudoers.d" / user.name
            path.write_text(f"{user.name} {user.sudo}\n")
            path.chmod(0o440)
        if user.bashrc:
            (root / "home" / user.name / ".bashrc").write_text(user.bashrc)
    run("chroot", root, "chpasswd", stdin="".join(f"{user.name}:{PASSWORD}\n" for user in USERS))
    for key in root.glob("etc/ssh/ssh_host_*"):
        key.unlink()
    penalties = NO_PENALTIES if "PerSourcePenalties" in _sshd_words(root) else ""
    (root / "etc/ssh/sshd_config.d/hosts.conf").write_text(SSHD_CONFIG + penalties)
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    (root / "etc/resolv.conf").write_text("")


def _sshd_words(root: Path) -> str:
    """Every option name that this sshd knows, as its binary holds them."""
    programs = [root / "usr/sbin/sshd", root / "usr/lib/openssh/sshd-session"]
    text = b"".join(path.read_bytes() for path in programs if path.exists()).lower()
    return "PerSourcePenalties" if b"persourcepenalties" in text else ""
