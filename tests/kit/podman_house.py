"""A real podman in namespaces of its own: nothing of it is left on the machine when the first process there ends.

Root is needed. Its storage, its network and its `/run` are its own, so a podman that the machine uses is not touched.
Two things of build machines are worked around in `containers.conf` alone: hard limits that may not be raised, and
control groups of both versions at once, which crun refuses.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LIMITS = """\
[containers]
cgroups = "disabled"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
"""
ENGINE = """\
#!/bin/sh
echo "serving $*"
trap 'exit 0' TERM
mkdir -p /www
echo OK >/www/health
httpd -f -p 8000 -h /www &
wait
"""
INSIDE = """\
umount /sys/fs/cgroup/unified 2>/dev/null
mkdir -p /etc/cdi /var/lib/cni /etc/cni/net.d
for place in /run /var/lib/cni /etc/cdi /dev/shm; do mount -t tmpfs none "$place" || exit 1; done
mkdir -p /run/lock
ip link set lo up
cp "$1" /etc/cdi/nvidia.yaml
echo ready
exec sleep 3600
"""
SPECIFICATION = """\
cdiVersion: "0.5.0"
kind: nvidia.com/gpu
devices:
- name: GPU-0
  containerEdits: {deviceNodes: [{path: /dev/null}]}
- name: GPU-1
  containerEdits: {deviceNodes: [{path: /dev/zero}]}
"""


def missing() -> str:
    """Why podman cannot run here; empty when it can."""
    absent = [
        name
        for name in ("podman", "crun", "conmon", "busybox", "unshare", "ip")
        if shutil.which(name) is None
    ]
    if os.geteuid() != 0:
        return "root is needed for namespaces: run it with sudo"
    if absent:
        return f"not installed: {', '.join(absent)} (on Debian: apt-get install podman crun busybox-static)"
    test = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "true"],
        capture_output=True,
        check=False,
        timeout=30,
    )
    return "" if test.returncode == 0 else f"namespaces: {test.stderr.decode(errors='replace').strip()}"


@contextmanager
def standing(base: Path) -> Iterator[tuple[str, ...]]:
    """The words that enter it, before a command."""
    (base / "containers.conf").write_text(LIMITS)
    (base / "nvidia.yaml").write_text(SPECIFICATION)
    program = base / "bin" / "podman"
    program.parent.mkdir()
    places = f"--root {base}/root --runroot {base}/run --cgroup-manager cgroupfs --storage-driver vfs"
    program.write_text(
        f"#!/bin/sh\nCONTAINERS_CONF={base}/containers.conf\nPATH=$PATH:/usr/sbin:/sbin\nexport CONTAINERS_CONF PATH\n"
        f'exec /usr/bin/podman {places} --runtime crun --events-backend none "$@"\n'
    )
    program.chmod(0o755)
    namespaces = (
        "--mount",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--propagation",
        "private",
    )
    first = subprocess.Popen(
        ["unshare", *namespaces, "sh", "-c", INSIDE, "sh", str(base / "nvidia.yaml")],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "ready\n"
        (inside,) = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
        yield ("nsenter", "-t", inside, "-m", "-n", "-p", "--")
    finally:
        first.kill()
        first.wait(timeout=30)
        if first.stdout is not None:
            first.stdout.close()


def image(base: Path) -> Path:
    """A tar of a root directory with a shell, a web server, and `vllm`, which is a script."""
    tree = base / "tree"
    for place in ("bin", "usr/bin", "tmp", "www"):
        (tree / place).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, tree / "bin" / "busybox")
    for name in ("sh", "echo", "mkdir", "httpd", "sleep", "cat"):
        (tree / "bin" / name).symlink_to("busybox")
    engine = tree / "usr/bin/vllm"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    made = base / "image.tar"
    subprocess.run(["tar", "-C", tree, "-cf", made, "."], check=True, timeout=60)
    return made
