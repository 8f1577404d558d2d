"""Whole answers of hosts, put together from recorded ones, for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path

from gpufleet.hosts.compose import compose
from gpufleet.hosts.model import HostFacts
from gpufleet.hosts.probes.script import Section
from gpufleet.names import HostName

TABLES = Path(__file__).parents[2] / "tables" / "probes"

SYSTEM = """\
id=uid=1000(ops) gid=1000(ops) groups=1000(ops),27(sudo)
home=/home/ops
uname=gpu-01 6.1.0-31-amd64 x86_64
boot_id=7b0c2a55-3f4e-4b5c-9f1a-0d6a5c9f2e11
nvidia_devices=2
module=loaded"""

INFO = {
    "ServerVersion": "26.1.5",
    "DockerRootDir": "/var/lib/docker",
    "Runtimes": {"io.containerd.runc.v2": {"path": "runc"}, "nvidia": {"path": "nvidia-container-runtime"}},
    "SecurityOptions": ["name=seccomp,profile=builtin"],
    "CgroupDriver": "cgroupfs",
    "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"],
}


def recorded(probe: str, case: str) -> str:
    return (TABLES / probe / case / "output.txt").read_text("utf-8")


def section(name: str, text: str = "", *, status: int | None = 0, errors: str = "") -> Section:
    return Section(name=name, text=text, errors=errors, status=status)


def healthy() -> dict[str, Section]:
    """A host with two H200, docker with the nvidia runtime and one container."""
    made = [
        section("system", SYSTEM),
        section("sudo"),
        section("runtime", "kind=docker\npath=/usr/bin/docker\nreal=/usr/bin/docker"),
        section("version", "26.1.5"),
        section("info", json.dumps(INFO)),
        section("containers", recorded("containers", "docker-26-gpu-by-uuid")),
        section("toolkit", "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: 0"),
        section("cdi", ""),
        section("hook", "path=/usr/bin/nvidia-container-runtime-hook\ninstalled=100\nengine_started=200"),
        section("list", recorded("list", "h200-570-two-gpus")),
        section("query", recorded("query", "h200-570-plain")),
        section("report", "", status=2),
        section("apps", recorded("apps", "any-570-none")),
        section("disks", recorded("disks", "debian-plain")),
        section("listening", recorded("listening", "ss-plain")),
        section("lease"),
        section("runs"),
    ]
    return {one.name: one for one in made}


def sliced() -> dict[str, Section]:
    """The same host with one H100 cut into three slices."""
    changed = [
        section("list", "\n".join(recorded("list", "h100-580-slices").splitlines()[:4])),
        section("query", recorded("query", "h100-580-with-header")),
        section("report", recorded("report", "h100-580-slices")),
        section("lgi", recorded("lgi", "h100-580-unsorted")),
        section("lci", recorded("lci", "h100-580-starred")),
    ]
    return healthy() | {one.name: one for one in changed}


def facts(sections: dict[str, Section], *, noisy: bool = False) -> HostFacts:
    return compose(HostName("gpu-01"), sections, at="2026-11-30T12:00:00.000+00:00", noisy_login=noisy)
