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
RELEASES = tuple(os.environ.get("GPUFLEET_REAL_RELEASES", "trixie,trixie,bookworm").split(","))
"""Debian's release on the hosts of each trio, so Docker 26.1 and 20.10, OpenSSH 10.0 and 9.2; the last for all further."""

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


def release_of(number: int) -> str:
    """The release on a host; the registry is on the first one."""
    return RELEASES[min(max(0, number - 1) // 3, len(RELEASES) - 1)]


def recipe_hash(release: str) -> str:
    """A name for this recipe: packages, accounts, configuration and the files put into the tree."""
    digest = hashlib.sha256()
    digest.update(json.dumps([release, _packages(release), SSHD_CONFIG, NO_PENALTIES]).encode())
    digest.update(repr(USERS).encode())
    digest.update(inspect.getsource(_furnish).encode())
    return digest.hexdigest()[:12]


def _packages(release: str) -> list[str]:
    return sorted((*PACKAGES, *PACKAGES_OF_RELEASE.get(release, ())))


def tree(release: str) -> Path:
    """Where the base tree stands, built or not."""
    return CACHE / f"base-{release}-{recipe_hash(release)}"


@contextmanager
def cache_lock() -> Iterator[None]:
    """One builder at a time; the kernel lets go when the builder dies."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(release: str) -> Path:
    """The base tree, built when it is not there yet (20 to 60 s). A broken build leaves nothing behind."""
    wanted = tree(release)
    with cache_lock():
        if wanted.exists():
            return wanted
        for old in CACHE.glob(f"base-{release}-*"):
            shutil.rmtree(old, ignore_errors=True)
        partial = wanted.with_name(f"{wanted.name}.partial")
        run(
            "mmdebstrap", "--variant=minbase", f"--include={','.join(_packages(release))}",
            "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-exclude=/usr/share/locale/*",
            release, partial, _mirror(), timeout=600,
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
