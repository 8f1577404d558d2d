"""Who holds GPUs, asked of simulated hosts and of this machine in every shell that is here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpufleet.hosts.model import HolderFacts, Known, Unknown
from gpufleet.hosts.probes import holders
from gpufleet.hosts.probes.script import Section
from gpufleet.lab.fleet import HostWish, LabHost, build_fleet
from gpufleet.lab.gpus.kernel_files import add_service, capability
from gpufleet.lab.memory import MemoryTransport
from gpufleet.names import GpuUuid, HostName
from gpufleet.remote.framing import frame, unframe
from gpufleet.remote.result import Exit, Lost
from tests.kit.lab_kit import LabClock

SHELLS = [
    words
    for words in (("dash",), ("bash", "--posix"), ("busybox", "sh"))
    if shutil.which(words[0]) is not None
]


def lab(**more) -> tuple[LabHost, MemoryTransport]:
    wish = HostWish(
        **{"name": "gpu-01", "gpus": "2xH100-80GB", "layouts": {0: ("1g.10gb:0", "3g.40gb:4")}, **more}
    )
    fleet = build_fleet([wish], LabClock())
    return fleet["gpu-01"], MemoryTransport(fleet)


def ask(transport: MemoryTransport, *, become: bool = True) -> HolderFacts:
    return holders.read(transport.open(HostName("gpu-01")).run(holders.command(become=become)))


def test_a_quiet_host():
    _, transport = lab()
    seen = ask(transport)
    assert seen.services == Known(())
    assert seen.users == Known(())
    assert isinstance(seen.modules, Known)
    assert [one.name for one in seen.modules.value] == ["nvidia", "nvidia_uvm"]
    assert isinstance(seen.listed, Known)
    assert all(not processes for processes in seen.listed.value.values())
    assert seen.minors == {0: "00000000:16:00.0", 1: "00000000:17:00.0"}


def test_services_and_what_they_have_open():
    host, transport = lab()
    add_service(host.host, host.gpus, "nvidia-dcgm")
    add_service(host.host, host.gpus, "nvidia-persistenced", active=False)
    host.host.services["dcgm"] = host.host.services["nvidia-dcgm"]
    host.host.services["nvidia-dcgm"].alias = "nvidia-dcgm"
    seen = ask(transport)
    assert isinstance(seen.services, Known)
    assert {one.name: one.runs for one in seen.services.value} == {
        "nvidia-dcgm": True,
        "nvidia-persistenced": False,
    }
    assert isinstance(seen.users, Known)
    (user,) = seen.users.value
    assert (user.name, user.service) == ("nvidia-dcgm", "nvidia-dcgm")
    assert user.nodes == {"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"}


def test_a_container_on_a_slice_and_its_capabilities():
    host, transport = lab(images=("vllm/vllm-openai:v0.11.0",))
    (_, large), (_, small) = host.gpus.gpus[0].devices()
    run = host.sh(
        f"docker run -d --name one --gpus '\"device={large.uuid}\"' vllm/vllm-openai:v0.11.0 --model facebook/opt-125m",
        user="root",
    )
    assert run.code == 0, run.stderr
    identity = run.stdout.decode().strip()
    seen = ask(transport)
    assert isinstance(seen.users, Known)
    (user,) = seen.users.value
    assert user.within(identity)
    assert not user.within("f" * 64)
    assert f"/dev/nvidia-caps/nvidia-cap{capability(0, large.gi)}" in user.nodes
    assert seen.capabilities == {
        capability(0, large.gi): f"gpu0/gi{large.gi}/access",
        capability(0, large.gi, 0): f"gpu0/gi{large.gi}/ci0/access",
    }
    assert isinstance(seen.listed, Known)
    (process,) = seen.listed.value[GpuUuid(host.gpus.gpus[0].uuid)]
    assert (process.pid, process.gi) == (user.pid, large.gi)
    assert small.gi != large.gi


def test_without_root_open_files_are_not_known():
    host, transport = lab()
    add_service(host.host, host.gpus, "nvidia-dcgm")
    seen = ask(transport, become=False)
    assert isinstance(seen.users, Unknown)
    assert "root" in seen.users.reason
    assert isinstance(seen.modeset, Unknown)
    assert isinstance(seen.services, Known)


def test_a_module_with_modeset():
    host, transport = lab()
    host.host.parts["modules"].add_drm(uses=3)
    seen = ask(transport)
    assert isinstance(seen.modules, Known)
    assert [(one.name, one.uses) for one in seen.modules.value if one.name == "nvidia_drm"] == [
        ("nvidia_drm", 3)
    ]
    assert seen.modeset == Known(True)


def test_without_systemd_services_are_not_known():
    _, transport = lab(without=frozenset({"systemctl"}))
    seen = ask(transport)
    assert isinstance(seen.services, Unknown)
    assert "not installed" in seen.services.reason


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Lost(reason="the connection was lost", sent=True), "connection"),
        (Exit(code=1, sudo_refused="password-needed"), "password"),
        (Exit(code=137, stdout="@@gf begin services\n"), "stops early"),
    ],
)
def test_no_answer_is_unknown_and_never_none(outcome, reason):
    seen = holders.read(outcome)
    for fact in (seen.services, seen.modules, seen.users, seen.listed, seen.modeset):
        assert isinstance(fact, Unknown)
        assert reason in fact.reason or fact == seen.modeset


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_real_shells_run_the_script(shell):
    text = frame(holders.command(become=False), "m")
    done = subprocess.run([*shell, "-s"], input=text, capture_output=True, timeout=60, check=False)
    answer = unframe(done.stdout, done.stderr, "m").exit
    assert answer is not None
    seen = holders.read(answer)
    assert isinstance(seen.modules, Known) == os.access("/proc/modules", os.R_OK)
    assert seen.users == Known(()) or "root alone" in str(seen.users)
    assert "stops early" not in str(seen.listed)


def test_units_in_any_order_of_keys():
    text = "LoadState=loaded\nActiveState=failed\nId=gdm.service\n\nActiveState=inactive\nId=nvsm.service\nLoadState=not-found"
    seen = holders.holders(
        {"services": Section(name="services", text=text, status=0), "caps": Section(name="caps", status=0)}
    )
    assert isinstance(seen.services, Known)
    assert [(one.name, one.state, one.runs) for one in seen.services.value] == [("gdm", "failed", False)]
    broken = holders.holders(
        {
            "services": Section(name="services", text="Id=gdm.service", status=0),
            "caps": Section(name="caps", status=0),
        }
    )
    assert isinstance(broken.services, Unknown)


ROOM = """
set -e
mount -t tmpfs none /dev
mknod -m 666 /dev/null c 1 3
mkdir /dev/nvidia-caps
: >/dev/nvidia0
: >/dev/nvidia-caps/nvidia-cap31
"$@" -c 'exec 7</dev/nvidia0 8</dev/nvidia-caps/nvidia-cap31 9</dev/nvidia0; sleep 60' &
until ls -l /proc/[0-9]*/fd | grep -q nvidia-cap31; do sleep 0.05; done
"$@" -s
"""


def own_room() -> bool:
    """Whether this user may have a room with processes and a /dev of its own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    trial = [
        "unshare",
        "-m",
        "-p",
        "-f",
        "--mount-proc",
        "--kill-child",
        "mount",
        "-t",
        "tmpfs",
        "none",
        "/dev",
    ]
    return subprocess.run(trial, capture_output=True, check=False, timeout=30).returncode == 0


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_open_files_of_real_processes(shell):
    if not own_room():
        pytest.skip("needs root and namespaces for a /dev of its own")
    done = subprocess.run(
        ["unshare", "-m", "-p", "-f", "--mount-proc", "--kill-child", "sh", "-c", ROOM, "sh", *shell],
        input=frame(holders.command(become=False), "m"),
        capture_output=True,
        timeout=60,
        check=False,
    )
    answer = unframe(done.stdout, done.stderr, "m").exit
    assert answer is not None, done
    seen = holders.read(answer)
    assert isinstance(seen.users, Known), answer
    assert seen.users.value  # the shell, and its child where it makes one for `sleep`
    for user in seen.users.value:
        assert user.nodes == {"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap31"}
        assert user.name
        assert user.group.startswith("/") or not Path("/proc/self/cgroup").exists()
