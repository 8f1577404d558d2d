"""Who stands in the way of a change: what is stopped, what is asked for, what is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.hosts.model import (
    ContainerFact,
    GpuFact,
    GpuProcess,
    HolderFacts,
    Known,
    MigFact,
    ModuleFact,
    OpenDevices,
    ServiceFact,
    Unknown,
)
from gpufleet.mig.holders import DISPLAYS, KEPT, MONITORS, Consent, Reach, Touched, decide
from gpufleet.names import GpuUuid

UUID = GpuUuid("GPU-0d0831da-0c98-2717-6446-8acd91d39b65")
NO = Known(False)
GPU = GpuFact(
    index=0,
    uuid=UUID,
    name="NVIDIA A100-SXM4-80GB",
    bus_id="00000000:C1:00.0",
    memory_total_mib=Known(81920),
    memory_used_mib=Known(0),
    temperature_c=Known(30),
    utilization_pct=Known(0),
    driver=Known("550.54.14"),
    mig=MigFact(capable=Known(True), current=NO, pending=NO, instances=Known(()), gpu_instances=Known(())),
    processes=Known(()),
)
IDLE = HolderFacts(
    services=Known(()),
    modules=Known((ModuleFact("nvidia", 4, ("nvidia_uvm",)),)),
    modeset=Unknown("only root may read how nvidia_drm was loaded"),
    users=Known(()),
    groups={},
    listed=Known({UUID: ()}),
    minors={0: "00000000:c1:00.0", 1: "00000000:c2:00.0"},
    capabilities={
        30: "gpu0/gi3/access",
        31: "gpu0/gi3/ci0/access",
        39: "gpu0/gi4/access",
        165: "gpu1/gi3/access",
    },
)


def running(*names: str, state: str = "active") -> Known[tuple[ServiceFact, ...]]:
    return Known(tuple(ServiceFact(name, state) for name in names))


def using(
    pid: int, *nodes: str, group: str = "/user.slice/session-1.scope", name: str = "python3"
) -> OpenDevices:
    return OpenDevices(pid=pid, name=name, nodes=frozenset(nodes), group=group)


def with_users(seen: HolderFacts, *users: OpenDevices) -> HolderFacts:
    return replace(seen, users=Known(users), groups={**seen.groups, **{one.pid: one for one in users}})


def container(
    name: str, *devices: str, image: str = "vllm/vllm-openai:v0.20.0", state: str = "running"
) -> ContainerFact:
    return ContainerFact(
        id=(name.encode().hex() * 32)[:64],
        name=name,
        image=image,
        image_id="",
        state=state,
        exit_code=0,
        restart_policy="no",
        restart_count=0,
        labels={},
        ports=(),
        devices=devices,
        host_network=False,
        created_at="",
        started_at="",
    )


def group_of(one: ContainerFact) -> str:
    return f"/system.slice/docker-{one.id}.scope"


RESET = Touched(gpu=GPU, reach=Reach.RESET)
MODE = Touched(gpu=GPU, reach=Reach.MODE)
INSTANCES = Touched(gpu=GPU, reach=Reach.INSTANCES, gis=frozenset({3}))


def test_nobody_holds_it():
    found = decide(RESET, IDLE, ())
    assert (found.stop, found.unload, found.pause, found.blockers, found.unknown) == ((), (), (), (), ())


def test_case_02_persistenced_is_stopped_for_a_reset_and_for_nothing_else():
    seen = replace(IDLE, services=running("nvidia-persistenced", "nvidia-fabricmanager"))
    seen = with_users(seen, using(9, "/dev/nvidia0", group="/system.slice/nvidia-persistenced.service"))
    assert decide(RESET, seen, ()).stop == ("nvidia-persistenced",)
    assert decide(RESET, seen, ()).blockers == ()
    for touched in (MODE, INSTANCES):
        assert decide(touched, seen, ()).stop == ()
        assert any("only a reset" in note for note in decide(touched, seen, ()).notes)
    assert any("fabricmanager" in note for note in decide(RESET, seen, ()).notes)


def test_case_22_only_what_runs_is_stopped():
    seen = replace(
        IDLE,
        services=Known(
            (
                ServiceFact("nvidia-dcgm", "active"),
                ServiceFact("nvsm", "failed"),
                ServiceFact("dcgm-exporter", "activating"),
            )
        ),
    )
    assert decide(RESET, seen, ()).stop == ("dcgm-exporter", "nvidia-dcgm")


def test_case_11_a_monitor_with_leaked_handles():
    seen = replace(IDLE, services=running("nvidia-dcgm"))
    seen = with_users(
        seen,
        using(
            7,
            "/dev/nvidia-caps/nvidia-cap31",
            group="/system.slice/nvidia-dcgm.service",
            name="nv-hostengine",
        ),
    )
    found = decide(INSTANCES, seen, ())
    assert (found.stop, found.blockers) == (("nvidia-dcgm",), ())


def test_case_01_a_module_holds_what_no_process_shows():
    seen = replace(IDLE, modules=Known((ModuleFact("nvidia_drm", 0, ()),)), modeset=Known(True))
    (blocker,) = decide(RESET, seen, ()).blockers
    assert (blocker.kind, "nvidia_drm" in blocker.text, "modprobe -r" in blocker.hint) == (
        "module",
        True,
        True,
    )
    allowed = decide(RESET, seen, (), frozenset({Consent.MODULE}))
    assert (allowed.unload, allowed.blockers) == (("nvidia_drm",), ())
    assert decide(INSTANCES, seen, ()).blockers == ()
    harmless = replace(seen, modeset=Known(False))
    assert decide(RESET, harmless, ()).blockers == ()
    untold = decide(RESET, replace(seen, modeset=Unknown("only root")), ())
    assert (untold.blockers, untold.unload) == ((), ())
    assert any("nvidia_drm" in line for line in untold.unknown)


def test_a_display_is_asked_for():
    seen = replace(IDLE, services=running("gdm"), modules=Known((ModuleFact("nvidia_drm", 6, ()),)))
    assert {one.kind for one in decide(RESET, seen, ()).blockers} == {"service", "module"}
    found = decide(RESET, seen, (), frozenset({Consent.DISPLAY}))
    assert found.stop == ("gdm",)
    assert [one.kind for one in found.blockers] == ["module"]
    both = decide(RESET, seen, (), frozenset({Consent.DISPLAY, Consent.MODULE}))
    assert (both.stop, both.unload, both.blockers) == (("gdm",), ("nvidia_drm",), ())
    assert decide(INSTANCES, seen, ()).blockers == ()
    drawn = with_users(seen, using(3, "/dev/nvidia0", name="Xorg"))
    assert decide(RESET, drawn, ()).blockers == decide(RESET, seen, ()).blockers
    assert [one.kind for one in decide(MODE, drawn, ()).blockers] == ["process"]
    alone = with_users(IDLE, using(3, "/dev/nvidia0", name="Xorg"))
    assert [one.kind for one in decide(RESET, alone, ()).blockers] == ["process"]


def test_processes_of_strangers_are_told_and_never_ended():
    seen = with_users(IDLE, using(4711, "/dev/nvidia0", "/dev/nvidiactl"))
    (blocker,) = decide(RESET, seen, ()).blockers
    assert (blocker.kind, "4711 (python3)" in blocker.text, "sudo kill 4711" in blocker.hint) == (
        "process",
        True,
        True,
    )
    assert decide(INSTANCES, seen, ()).blockers == ()
    other = with_users(IDLE, using(4711, "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap165"))
    assert decide(RESET, other, ()).blockers == ()
    unit = with_users(IDLE, using(12, "/dev/nvidia0", group="/system.slice/jupyter.service"))
    assert "systemctl stop jupyter" in decide(MODE, unit, ()).blockers[0].hint


def test_only_instances_that_go_count():
    going, staying = (
        using(1, "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap31"),
        using(2, "/dev/nvidia-caps/nvidia-cap39"),
    )
    seen = with_users(IDLE, going, staying)
    listed = {
        UUID: tuple(
            GpuProcess(pid=pid, name="", memory_mib=Known(1), gi=gi, ci=0) for pid, gi in ((1, 3), (2, 4))
        )
    }
    (blocker,) = decide(INSTANCES, replace(seen, listed=Known(listed)), ()).blockers
    assert "pid 1 " in blocker.text
    assert "GPU instance 3" in blocker.text
    assert len(decide(MODE, replace(seen, listed=Known(listed)), ()).blockers) == 2


def test_containers_of_the_change_explain_their_processes():
    ours, other = container("chat", "MIG-1"), container("other", "MIG-1")
    seen = with_users(IDLE, using(1, "/dev/nvidia-caps/nvidia-cap31", group=group_of(ours)))
    touched = replace(INSTANCES, containers=(ours,))
    assert decide(touched, seen, (ours, other)).blockers == ()
    seen = with_users(seen, using(1, "/dev/nvidia-caps/nvidia-cap31", group=group_of(other)))
    (blocker,) = decide(touched, seen, (ours, other)).blockers
    assert (blocker.kind, "container other" in blocker.text) == ("container", True)


def test_exporters_in_containers_are_paused():
    exporter = container("metrics", "all", image="nvcr.io/nvidia/k8s/dcgm-exporter:4.2.0")
    still = container("old", "all", image="nvcr.io/nvidia/k8s/dcgm-exporter:4.2.0", state="exited")
    elsewhere = container("gpu-exporter", "GPU-other")
    seen = with_users(IDLE, using(1, "/dev/nvidia0", group=group_of(exporter)))
    found = decide(MODE, seen, (exporter, still, elsewhere))
    assert (found.pause, found.blockers) == ((exporter,), ())


@pytest.mark.parametrize(
    "seen",
    [
        replace(IDLE, services=Unknown("no look")),
        replace(IDLE, users=Unknown("no look")),
        replace(IDLE, listed=Unknown("no look")),
        replace(IDLE, modules=Unknown("no look")),
    ],
)
def test_what_could_not_be_looked_at_is_said(seen):
    assert decide(RESET, seen, ()).unknown == ("no look",)


def test_a_process_whose_owner_is_hidden_is_not_called_a_strangers():
    listed = Known({UUID: (GpuProcess(pid=5, name="", memory_mib=Known(1), gi=3, ci=0),)})
    found = decide(INSTANCES, replace(IDLE, listed=listed), ())
    assert found.blockers == ()
    assert "pid 5" in found.unknown[0]


def test_a_gpu_whose_device_file_is_not_known():
    found = decide(RESET, replace(IDLE, minors={}), ())
    assert any("/dev/nvidiaN" in line for line in found.unknown)


NAMES = st.sampled_from(
    [*MONITORS, *DISPLAYS, *KEPT, "nvidia-persistenced", "nvsm", "nvidia-mig-manager", "docker"]
)
STATES = st.sampled_from(["active", "activating", "reloading", "deactivating", "inactive", "failed"])


@given(
    services=st.dictionaries(NAMES, STATES),
    reach=st.sampled_from(list(Reach)),
    consent=st.frozensets(st.sampled_from(list(Consent))),
    uses=st.integers(0, 2),
    modeset=st.sampled_from([Known(True), Known(False), Unknown("?")]),
)
def test_only_active_services_and_never_the_kept_ones(services, reach, consent, uses, modeset):
    seen = replace(
        IDLE,
        services=Known(tuple(ServiceFact(name, state) for name, state in services.items())),
        modules=Known((ModuleFact("nvidia_drm", uses, ()),)),
        modeset=modeset,
    )
    found = decide(replace(INSTANCES, reach=reach), seen, (), consent)
    assert len(set(found.stop)) == len(found.stop)
    for name in found.stop:
        assert services[name] in {"active", "activating", "reloading"}
        assert name not in {*KEPT, "docker", "nvidia-mig-manager"}
        assert name not in DISPLAYS or Consent.DISPLAY in consent
    if reach is not Reach.RESET:
        assert not found.unload
        assert not found.blockers
    assert not found.unload or Consent.MODULE in consent
