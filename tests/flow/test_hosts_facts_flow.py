"""Facts and findings over simulated hosts: the real script in its real frame, hosts with and without trouble."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.errors import HostUnreachable
from gpufleet.hosts.doctor import diagnose
from gpufleet.hosts.gather import gather
from gpufleet.hosts.model import HostFacts, Known, Unknown
from gpufleet.inventory.model import Address, Become, Host
from gpufleet.lab.faults import Fault, FaultScript, Kind
from gpufleet.lab.fleet import HostWish, build_fleet
from gpufleet.lab.memory import MemoryTransport
from gpufleet.names import HostName
from gpufleet.redact import Secret
from tests.kit.lab_kit import LabClock

NAME = HostName("gpu-01")


def look(
    wish: HostWish | None = None,
    *faults: Fault,
    host: Host | None = None,
    user: str = "ops",
    password: str = "",
    prepare=lambda _lab: None,
) -> HostFacts:
    fleet = build_fleet([wish or HostWish(name=NAME, gpus="2xH100-80GB")], LabClock())
    prepare(fleet[NAME])
    transport = MemoryTransport(
        fleet,
        FaultScript(faults),
        users={NAME: user},
        sudo_passwords={NAME: Secret(password)} if password else {},
    )
    asked = host or Host(name=NAME, address=Address("127.0.0.1"))
    seen = gather(transport, [asked], clock=fleet.clock)[NAME]
    assert isinstance(seen, HostFacts), seen
    return seen


def codes(seen: HostFacts, host: Host | None = None) -> list[str]:
    return sorted(finding.code for finding in diagnose(seen, host))


@pytest.mark.parametrize("gpus", ["8xH100-80GB", "2xH200-141GB", "1xA100-40GB"])
@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_a_host_that_is_well(gpus, runtime):
    seen = look(HostWish(name=NAME, gpus=gpus, runtime=runtime))
    assert codes(seen) == []
    assert isinstance(seen.gpus, Known)
    assert len(seen.gpus.value) == int(gpus.split("x")[0])
    assert all(isinstance(gpu.memory_total_mib, Known) for gpu in seen.gpus.value)
    assert isinstance(seen.runtime, Known)
    assert seen.runtime.value.kind == runtime
    assert seen.runtime.value.gpu_ready == Known(True)
    assert seen.containers == Known(())


@pytest.mark.parametrize("driver", ["470.57.02", "535.183.01", "550.54.14", "580.95.05", "590.48.01"])
def test_slices_of_every_driver(driver):
    layout = ("3g.20gb:4", "1g.5gb:0", "1g.5gb:2")
    wish = HostWish(name=NAME, gpus="2xA100-40GB", driver=driver, layouts={0: layout})
    seen = look(wish)
    assert isinstance(seen.gpus, Known)
    first, second = seen.gpus.value
    assert second.mig.instances == Known(())
    assert isinstance(first.mig.instances, Known)
    found = {
        f"{one.profile}:{one.start.value}"
        for one in first.mig.instances.value
        if isinstance(one.start, Known)
    }
    assert found == set(layout)
    assert len({one.uuid for one in first.mig.instances.value}) == 3


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        ("no-driver", "driver-down"),
        ("mismatch", "driver-mismatch"),
        ("no-devices", "gpu-lost"),
        ("hang", "driver-silent"),
    ],
)
def test_driver_trouble(trouble, code):
    seen = look(None, Fault(kind=Kind.GPU_LOST, host=NAME, nth=1, detail=trouble))
    assert isinstance(seen.gpus, Unknown)
    assert codes(seen) == [code]


def test_no_gpu():
    seen = look(HostWish(name=NAME, gpus="", toolkit=False))
    assert seen.gpus == Known(())
    assert codes(seen) == ["gpu-none"]


def test_no_runtime():
    seen = look(HostWish(name=NAME, gpus="1xH100-80GB", without=frozenset({"docker"})))
    assert codes(seen) == ["runtime-missing"]


@pytest.mark.parametrize(
    ("kind", "code"), [(Kind.DAEMON_STOPPED, "runtime-down"), (Kind.DAEMON_HUNG, "runtime-silent")]
)
def test_engine_trouble(kind, code):
    seen = look(None, Fault(kind=kind, host=NAME, nth=1))
    assert isinstance(seen.containers, Unknown)
    assert codes(seen) == [code]


def test_no_toolkit():
    assert codes(look(HostWish(name=NAME, gpus="1xH100-80GB", toolkit=False))) == ["toolkit-missing"]


def test_a_user_outside_of_the_docker_group():
    seen = look(user="nodock")
    assert isinstance(seen.runtime, Known)
    assert seen.runtime.value.needs_sudo is True
    never = Host(name=NAME, address=Address("127.0.0.1"), become=Become.NEVER)
    assert codes(look(user="nodock", host=never), never) == ["runtime-refused"]
    assert codes(look(user="nosudo")) == ["runtime-refused"]


def test_sudo_with_a_password():
    def demand(lab):
        lab.host.users["pwops"] = replace(lab.host.users["pwops"], groups=("pwops",))
        passwords.append(lab.host.users["pwops"].password)

    passwords: list[str] = []
    assert codes(look(user="pwops", prepare=demand)) == ["runtime-refused"]
    host = Host(name=NAME, address=Address("127.0.0.1"), sudo_password=Secret(passwords[0]))
    seen = look(user="pwops", prepare=demand, password=passwords[0], host=host)
    assert isinstance(seen.runtime, Known)
    assert seen.runtime.value.needs_sudo is True
    assert seen.home == Known("/home/pwops")
    wrong = look(user="pwops", prepare=demand, password="not it", host=host)
    assert codes(wrong) == ["runtime-refused", "sudo-refused"]


def test_always_through_sudo():
    """Nothing but sudo is tried, so what it says is the finding, and what it opens is used by later commands."""
    always = Host(name=NAME, address=Address("127.0.0.1"), become=Become.ALWAYS)
    seen = look(user="nodock", host=always)
    assert codes(seen, always) == []
    assert isinstance(seen.runtime, Known)
    assert seen.runtime.value.needs_sudo is True
    root = look(user="root", host=always)
    assert isinstance(root.runtime, Known)
    assert root.runtime.value.needs_sudo is False
    refused = look(user="nosudo", host=always)
    assert codes(refused, always) == ["sudo-refused"]
    asking = replace(always, sudo_password=Secret("correct horse"))
    opened = look(user="pwops", host=asking, password="correct horse")
    assert codes(opened, asking) == []
    wrong = diagnose(look(user="pwops", host=asking, password="not it"), asking)
    assert wrong[0].message == "sudo does not accept the password"


def test_a_noisy_login():
    seen = look(user="noisy")
    assert codes(seen) == ["noisy-login"]
    assert isinstance(seen.gpus, Known)


def test_a_full_disk():
    seen = look(None, Fault(kind=Kind.DISK_FULL, host=NAME, nth=1))
    assert "disk-low" in codes(seen)


def test_one_dead_host_hides_no_other():
    names = ("gpu-01", "gpu-02", "gpu-03")
    fleet = build_fleet([HostWish(name=name, gpus="1xH100-80GB") for name in names], LabClock())
    faults = FaultScript(
        (Fault(kind=Kind.REFUSE, host="gpu-01", nth=1), Fault(kind=Kind.LOSE_AFTER, host="gpu-02", nth=1))
    )
    hosts = [Host(name=HostName(name), address=Address("127.0.0.1")) for name in names]
    seen = gather(MemoryTransport(fleet, faults), hosts, clock=fleet.clock)
    assert [type(outcome) for outcome in seen.values()] == [HostUnreachable, HostUnreachable, HostFacts]
