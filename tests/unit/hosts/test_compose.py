from __future__ import annotations

import json

import pytest

from gpufleet.hosts.model import Known, RuntimeFact, Symptom, Unknown
from gpufleet.hosts.probes import container
from tests.unit.hosts import answers
from tests.unit.hosts.answers import facts, healthy, recorded, section, sliced


def known(fact):
    assert isinstance(fact, Known), fact
    return fact.value


def codes(seen):
    return [symptom.code for symptom in seen.symptoms]


def test_healthy_host():
    seen = facts(healthy())
    first, second = known(seen.gpus)
    assert (first.index, first.bus_id, known(first.memory_total_mib)) == (0, "00000000:1B:00.0", 143771)
    assert known(first.utilization_pct) == 87
    assert known(second.utilization_pct) == 0
    assert known(first.mig.capable) is True
    assert known(first.mig.current) is False
    assert known(first.mig.instances) == ()
    assert known(first.processes) == ()
    assert known(seen.driver) == "570.124.06"
    assert isinstance(seen.cuda, Unknown)
    runtime = known(seen.runtime)
    assert (runtime.kind, runtime.version, runtime.needs_sudo) == ("docker", "26.1.5", False)
    assert runtime.gpu_ready == Known(True)
    assert known(seen.toolkit) == "1.17.8"
    assert known(seen.listening) == frozenset({22, 53, 8000, 9100})
    assert known(seen.lease) == ""
    assert known(seen.open_runs) == ()
    assert seen.symptoms == ()


def test_slices_are_joined_to_their_instances():
    (gpu,) = known(facts(sliced()).gpus)
    seen = [
        (one.uuid[-1], one.profile, known(one.gi), known(one.ci), known(one.start), known(one.size))
        for one in known(gpu.mig.instances)
    ]
    assert seen == [
        ("1", "1c.3g.40gb", 1, 0, 0, 4),
        ("2", "1g.10gb+me", 11, 0, 4, 1),
        ("3", "1g.10gb", 13, 0, 6, 1),
    ]
    assert [known(one.memory_mib) for one in known(gpu.mig.instances)] == [40448, 9856, 9856]
    assert [(one.pid, one.gi) for one in known(gpu.processes)] == [(991, 11), (12, None)]
    assert isinstance(gpu.utilization_pct, Unknown)


def test_without_the_report_a_slice_is_placed_only_when_its_name_is_the_only_one():
    (gpu,) = known(facts(sliced() | {"report": section("report", status=124)}).gpus)
    large, *small = known(gpu.mig.instances)
    assert (known(large.gi), known(large.start)) == (1, 0)
    assert all(isinstance(one.gi, Unknown) and isinstance(one.start, Unknown) for one in small)


def test_old_uuids_carry_their_instance():
    sections = healthy() | {
        "list": section("list", recorded("list", "a100-450-old-names")),
        "query": section("query", "", status=2),
    }
    (gpu,) = known(facts(sections).gpus)
    assert [(known(one.gi), known(one.ci)) for one in known(gpu.mig.instances)] == [(2, 0), (9, 0)]
    assert isinstance(gpu.memory_total_mib, Unknown)
    assert isinstance(gpu.mig.current, Unknown)


def test_instances_are_unknown_when_only_the_list_is_missing():
    sections = sliced() | {"list": section("list", "Unknown Error", status=255)}
    (gpu,) = known(facts(sections).gpus)
    assert isinstance(gpu.mig.instances, Unknown)


def test_faulted_gpu_has_no_numbers():
    sections = healthy() | {
        "list": section("list", "GPU 0: NVIDIA A100 (UUID: GPU-aaaaaaaa-0000-1111-2222-333333333311)"),
        "query": section("query", recorded("query", "a100-535-faulted")),
    }
    (gpu,) = known(facts(sections).gpus)
    for value in (
        gpu.memory_total_mib,
        gpu.memory_used_mib,
        gpu.temperature_c,
        gpu.mig.current,
        gpu.mig.capable,
    ):
        assert value == Unknown("the GPU requires a reset")


def test_gpu_without_mig_is_not_capable():
    sections = healthy() | {
        "list": section("list", "GPU 0: NVIDIA L40S (UUID: GPU-dddddddd-0000-1111-2222-333333333300)"),
        "query": section("query", recorded("query", "l40s-595-not-capable")),
        "report": section("report", recorded("report", "l40s-595-words")),
    }
    (gpu,) = known(facts(sections).gpus)
    assert (gpu.mig.capable, gpu.mig.current, gpu.mig.instances) == (Known(False), Known(False), Known(()))
    assert isinstance(gpu.processes, Unknown) is False  # the list of compute processes stands in


def test_lost_gpu_is_a_symptom_beside_the_others():
    sections = healthy() | {"list": section("list", recorded("list", "a30-535-one-lost"), status=15)}
    seen = facts(sections)
    assert len(known(seen.gpus)) == 1
    assert codes(seen) == ["gpu-lost"]


@pytest.mark.parametrize(
    ("case", "status", "code"),
    [
        ("any-580-mismatch", 18, "driver-mismatch"),
        ("any-580-mismatch", 255, "driver-mismatch"),
        ("any-535-driver-down", 9, "driver-down"),
    ],
)
def test_driver_trouble(case, status, code):
    sections = healthy() | {"list": section("list", recorded("list", case), status=status)}
    del sections["query"]
    seen = facts(sections)
    assert isinstance(seen.gpus, Unknown)
    assert codes(seen) == [code]


@pytest.mark.parametrize(
    ("devices", "module", "none"), [("0", "absent", True), ("8", "absent", False), ("0", "loaded", False)]
)
@pytest.mark.parametrize("absent", [True, False])
def test_no_gpu_is_known_only_without_evidence(devices, module, none, absent):
    system = answers.SYSTEM.replace("nvidia_devices=2", f"nvidia_devices={devices}")
    system = system.replace("module=loaded", f"module={module}")
    silent = section("list", "not installed", status=None)
    words = section("list", recorded("list", "any-550-no-devices"), status=6)
    seen = facts(healthy() | {"system": section("system", system), "list": silent if absent else words})
    if none:
        assert seen.gpus == Known(())
        assert codes(seen) == ["gpu-none"]
    else:
        assert isinstance(seen.gpus, Unknown)
        assert codes(seen) == ["driver-missing" if absent else "gpu-lost"]


def runtime_symptoms(**changed):
    return facts(healthy() | changed)


def test_no_runtime():
    seen = runtime_symptoms(runtime=section("runtime", "kind=\npath=\nreal="))
    assert isinstance(seen.runtime, Unknown)
    assert isinstance(seen.containers, Unknown)
    (symptom,) = seen.symptoms
    assert symptom.code == "runtime-missing"
    assert "/snap/bin" in symptom.detail


def test_socket_refused_names_the_user():
    seen = runtime_symptoms(
        version=section("version", "dial unix /var/run/docker.sock: connect: permission denied", status=1),
        **{"version-sudo": section("version-sudo", "sudo: a password is required", status=1)},
    )
    assert seen.symptoms == (Symptom("runtime-refused", "ops"),)


def test_socket_opens_with_sudo():
    seen = runtime_symptoms(
        version=section("version", "permission denied", status=1),
        **{"version-sudo": section("version-sudo", "26.1.5")},
    )
    assert known(seen.runtime).needs_sudo is True
    assert len(known(seen.containers)) == 1


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        (
            "Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?",
            1,
            "runtime-down",
        ),
        ("", 124, "runtime-silent"),
        ("exec format error", 126, "runtime-broken"),
    ],
)
def test_runtime_without_an_answer(text, status, code):
    seen = runtime_symptoms(version=section("version", text, status=status))
    assert isinstance(seen.runtime, Unknown)
    assert codes(seen) == [code]


def info(**changed):
    return section("info", json.dumps(answers.INFO | changed))


PLAIN: dict[str, object] = {"runc": {}}
TOOLKIT_ABSENT = section("toolkit", "not installed", status=None)


@pytest.mark.parametrize(
    ("changed", "ready", "code"),
    [
        ({"info": info(Runtimes=PLAIN)}, Known(True), ""),
        (
            {
                "info": info(Runtimes=PLAIN),
                "hook": section("hook", "path=/usr/bin/hook\ninstalled=300\nengine_started=200"),
            },
            Known(False),
            "runtime-not-restarted",
        ),
        (
            {"info": info(Runtimes=PLAIN), "hook": section("hook", "path=/usr/bin/hook\ninstalled=300")},
            Unknown,
            "",
        ),
        ({"info": info(Runtimes=PLAIN), "hook": section("hook")}, Known(False), "runtime-not-configured"),
        (
            {"info": info(Runtimes=PLAIN), "hook": section("hook"), "toolkit": TOOLKIT_ABSENT},
            Known(False),
            "toolkit-missing",
        ),
        (
            {
                "info": info(Runtimes=PLAIN),
                "hook": section("hook"),
                "cdi": section("cdi", "nvidia.com/gpu=0\nnvidia.com/gpu=all"),
            },
            Known(True),
            "",
        ),
        ({"info": info(CgroupDriver="systemd")}, Known(True), "cgroup-reload"),
        (
            {
                "info": info(
                    SecurityOptions=["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"]
                )
            },
            Known(True),
            "rootless-hook",
        ),
        (
            {
                "info": info(SecurityOptions=["name=rootless"]),
                "hook": section("hook", "path=/usr/bin/hook\ninstalled=1\nno_cgroups=true\nengine_started=2"),
            },
            Known(True),
            "",
        ),
        (
            {"runtime": section("runtime", "kind=docker\npath=/snap/bin/docker\nreal=/usr/bin/snap")},
            Known(True),
            "runtime-snap",
        ),
    ],
)
def test_whether_containers_get_gpus(changed, ready, code):
    seen = runtime_symptoms(**changed)
    found = known(seen.runtime).gpu_ready
    assert isinstance(found, Unknown) if ready is Unknown else found == ready
    assert codes(seen) == ([code] if code else [])


def test_cdi_needs_docker_25():
    devices = section("cdi", "nvidia.com/gpu=0")
    new = known(runtime_symptoms(cdi=devices).runtime)
    old = known(runtime_symptoms(cdi=devices, info=info(ServerVersion="20.10.24+dfsg1")).runtime)
    assert (new.cdi, old.cdi) == (Known(True), Known(False))


def test_podman():
    told = {
        "host": {"security": {"rootless": True}},
        "store": {"graphRoot": "/home/ops/.local/share/containers/storage"},
        "version": {"Version": "5.4.2"},
    }
    seen = runtime_symptoms(
        runtime=section("runtime", "kind=podman\npath=/usr/bin/podman\nreal=/usr/bin/podman"),
        version=section("version", "5.4.2"),
        info=section("info", json.dumps(told, indent=2)),
        containers=section("containers", recorded("containers", "podman-5-array")),
    )
    runtime = known(seen.runtime)
    assert (runtime.kind, runtime.version, runtime.rootless) == ("podman", "5.4.2", Known(True))
    assert runtime.gpu_ready == Known(False)
    assert codes(seen) == ["cdi-missing"]
    assert len(known(seen.containers)) == 2


def test_container_that_went_away_between_two_questions():
    text = recorded("containers", "docker-26-gpu-by-uuid")
    gone = section("containers", text, status=1, errors="Error: No such object: 0123")
    denied = section("containers", text, status=1, errors="Error response from daemon: broken")
    assert len(known(runtime_symptoms(containers=gone).containers)) == 1
    assert isinstance(runtime_symptoms(containers=denied).containers, Unknown)


def test_info_with_server_errors_is_no_answer():
    seen = runtime_symptoms(info=section("info", json.dumps({"ServerErrors": ["it is gone"]})))
    assert seen.runtime == Unknown("`docker info`: it is gone")


def test_root_answers_for_the_runtime_alone():
    refused = healthy() | {"version": section("version", "permission denied", status=1)}
    refused.pop("info")
    refused.pop("containers")
    root = healthy() | {"system": section("system", "id=uid=0(root) gid=0(root)\nhome=/root")}
    from gpufleet.hosts.compose import compose
    from gpufleet.names import HostName

    seen = compose(HostName("gpu-01"), refused, at="now", noisy_login=False, root_sections=root)
    assert known(seen.runtime).needs_sudo is True
    assert len(known(seen.containers)) == 1
    assert (seen.user, seen.home) == (Known("ops"), Known("/home/ops"))


@pytest.mark.parametrize(
    ("case", "code"), [("held-fresh", "lease-held"), ("held-old", "lease-stale"), ("free", "")]
)
def test_lease(case, code):
    seen = facts(healthy() | {"lease": section("lease", recorded("lease", case))})
    assert codes(seen) == ([code] if code else [])
    assert known(seen.lease) == ("kim@desk pool deploy chat 20261130T101010-aaaaaa" if code else "")


def test_an_answer_without_sections_is_unknown_everywhere():
    seen = facts({})
    for name in (
        "hostname",
        "sudo",
        "runtime",
        "gpus",
        "containers",
        "disks",
        "listening",
        "lease",
        "open_runs",
    ):
        assert isinstance(getattr(seen, name), Unknown), name


@pytest.mark.parametrize(
    ("query", "report", "total"),
    [
        # the row has no UUID, its index tells
        (
            "0, [Unknown Error], NVIDIA A30, 00000000:01:00.0, 535.1, 24576, 1, 30, 0, Disabled, Disabled",
            "",
            24576,
        ),
        # no row at all: the XML stands in, found by UUID, by bus id, or because there is one GPU and one element
        (
            "",
            "<gpu><uuid>GPU-1</uuid><fb_memory_usage><total>24576 MiB</total></fb_memory_usage></gpu>",
            24576,
        ),
        ("", "<gpu><fb_memory_usage><total>24576 MiB</total></fb_memory_usage></gpu>", 24576),
        (
            "",
            "<gpu><uuid>GPU-2</uuid><fb_memory_usage><total>24576 MiB</total></fb_memory_usage></gpu>",
            None,
        ),
        ("1, GPU-9, NVIDIA A30, 00000000:01:00.0, 535.1, 24576, 1, 30, 0, Disabled, Disabled", "", None),
    ],
)
def test_whose_values_these_are(query, report, total):
    sections = healthy() | {
        "list": section("list", "GPU 0: NVIDIA A30 (UUID: GPU-1)"),
        "query": section("query", query),
        "report": section("report", f"<nvidia_smi_log>{report}</nvidia_smi_log>"),
    }
    (gpu,) = known(facts(sections).gpus)
    assert gpu.memory_total_mib == Known(total) if total else isinstance(gpu.memory_total_mib, Unknown)


def test_the_bus_id_finds_the_element_of_a_gpu():
    elements = "".join(
        f'<gpu id="00000000:{bus}:00.0"><processes><process_info><pid>{pid}</pid></process_info></processes></gpu>'
        for bus, pid in (("43", 2), ("1b", 1))
    )
    sections = healthy() | {"report": section("report", f"<nvidia_smi_log>{elements}</nvidia_smi_log>")}
    pids = [[one.pid for one in known(gpu.processes)] for gpu in known(facts(sections).gpus)]
    assert pids == [[1], [2]]


def test_slices_whose_instances_are_not_listed():
    sections = sliced() | {"lgi": section("lgi", "No GPU instances found: Not Found", status=6)}
    (gpu,) = known(facts(sections).gpus)
    assert all(isinstance(one.start, Unknown) for one in known(gpu.mig.instances))
    assert [one.profile for one in known(gpu.mig.instances)] == ["1c.3g.40gb", "1g.10gb", "1g.10gb"]


@pytest.mark.parametrize("status", [0, 4])
def test_instances_that_only_root_may_list(status):
    denied = section("lgi", "Failed to display GPU instances: Insufficient Permissions", status=status)
    (gpu,) = known(facts(sliced() | {"lgi": denied}).gpus)
    assert all("Insufficient Permissions" in one.start.reason for one in known(gpu.mig.instances))


def test_compute_processes_stand_in_for_the_report():
    apps = section("apps", recorded("apps", "h200-570-commas"))
    first, second = known(facts(healthy() | {"apps": apps}).gpus)
    assert [(one.pid, one.name) for one in known(first.processes)] == [
        (4711, "/opt/a, b/python3"),
        (4712, "vllm"),
    ]
    assert known(second.processes) == ()
    denied = section("apps", recorded("apps", "container-550-no-permission").replace(
        "GPU-eeeeeeee-0000-1111-2222-333333333300", "GPU-11111111-2222-3333-4444-555555555501"
    ))  # fmt: skip
    first, _ = known(facts(healthy() | {"apps": denied}).gpus)
    assert isinstance(first.processes, Unknown)
    silent = {name: one for name, one in healthy().items() if name != "apps"}
    assert all(isinstance(gpu.processes, Unknown) for gpu in known(facts(silent).gpus))


@pytest.mark.parametrize("text", ["[]", "{", '"words"', "[1]"])
def test_a_runtime_that_describes_itself_oddly(text):
    assert isinstance(runtime_symptoms(info=section("info", text)).runtime, Unknown)


def test_a_runtime_that_says_little_leaves_facts_unknown():
    runtime = known(
        runtime_symptoms(info=section("info", "{}"), version=section("version", "v24.0.7")).runtime
    )
    assert runtime.version == "24.0.7"
    for value in (runtime.rootless, runtime.root, runtime.cdi):
        assert isinstance(value, Unknown)


def test_answers_that_never_came():
    for name in ("runtime", "version", "info", "containers", "toolkit", "sudo", "disks", "listening"):
        sections = {key: one for key, one in healthy().items() if key != name}
        seen = facts(sections)
        fact = {"version": "runtime", "info": "runtime"}.get(name, name)
        assert isinstance(getattr(seen, fact), Unknown), name
    broken = runtime_symptoms(
        toolkit=section("toolkit", "exec format error", status=126),
        hook=section("hook"),
        info=info(Runtimes=PLAIN),
    )
    assert isinstance(broken.toolkit, Unknown)
    assert isinstance(known(broken.runtime).gpu_ready, Unknown)
    assert isinstance(facts(healthy() | {"sudo": section("sudo", status=124)}).sudo, Unknown)


def test_cdi_list_that_fails_is_unknown():
    seen = runtime_symptoms(cdi=section("cdi", "", status=1, errors="level=error msg=failed"))
    assert isinstance(seen.cdi_devices, Unknown)
    assert isinstance(known(seen.runtime).cdi, Unknown)


def podman(version="5.4.2", **more):
    told = {
        "host": {"security": {"rootless": False}},
        "store": {"graphRoot": "/x"},
        "version": {"Version": version},
    }
    return runtime_symptoms(
        runtime=section("runtime", "kind=podman\npath=/usr/bin/podman\nreal=/usr/bin/podman"),
        version=section("version", version),
        info=section("info", json.dumps(told)),
        cdi=section("cdi", "nvidia.com/gpu=GPU-1"),
        **more,
    )


@pytest.mark.parametrize(
    ("section_of", "expected"),
    [
        (section("restart", "enabled"), []),
        (section("restart", "enabled-runtime"), []),
        (section("restart", "disabled", status=1), ["podman-restart-off"]),
        (section("restart", "", status=127, errors="sh: systemctl: not found"), ["podman-restart-off"]),
        (None, []),
    ],
)
def test_podman_needs_a_service_that_starts_containers_after_a_boot(section_of, expected):
    seen = podman(**({} if section_of is None else {"restart": section_of}))
    assert codes(seen) == expected


def test_a_runtime_that_is_too_old_is_told_with_the_version_that_works():
    assert codes(podman("3.0.1")) == ["runtime-too-old"]
    assert codes(podman("4.1.0")) == []
    assert codes(podman("next")) == []


@pytest.mark.parametrize(
    ("kind", "rootless", "cdi", "by_flag", "names"),
    [
        ("podman", False, False, True, True),
        ("docker", False, True, True, False),
        ("docker", True, True, True, True),
        ("docker", False, True, False, True),
        ("docker", True, False, True, False),
        ("nerdctl", False, True, True, True),
        ("nerdctl", False, False, True, False),
    ],
)
def test_when_gpus_are_asked_for_as_cdi_devices(kind, rootless, cdi, by_flag, names):
    fact = RuntimeFact(
        kind=kind,
        path="/usr/bin/x",
        version="1",
        needs_sudo=False,
        rootless=Known(rootless),
        gpu_ready=Known(True),
        cdi=Known(cdi),
        root=Known("/x"),
        by_flag=by_flag,
    )
    assert fact.names_devices is names


def given(**changes):
    """Devices of a container as podman 4.3.1 describes it: CDI names stand in the command alone."""
    item = {
        "Id": "0" * 64,
        "Name": "gf",
        "State": {"Status": "running"},
        "Config": {"Labels": {}, "Image": "i", **changes},
        "HostConfig": {"Devices": [{"PathOnHost": "/dev/nvidia3"}], "DeviceRequests": None},
    }
    found = container.parse(json.dumps([item]))
    assert isinstance(found, Known)
    return found.value[0].devices


def test_podmans_devices_stand_in_the_command_that_made_the_container():
    run = ["podman", "run", "-d"]
    assert given(CreateCommand=[*run, "--device", "nvidia.com/gpu=GPU-1", "i", "serve"]) == ("GPU-1",)
    assert given(CreateCommand=[*run, "--device=nvidia.com/gpu=all", "i"]) == ("all",)
    assert given(CreateCommand=[*run, "i", "--device", "nvidia.com/gpu=GPU-1"]) == ("3",)
    assert given(CreateCommand=[*run, "--label", "nvidia.com/gpu=GPU-1", "i"]) == ("3",)
    assert given() == ("3",)


def test_our_own_label_tells_devices_where_nothing_else_does():
    item = {
        "Id": "0" * 64,
        "Name": "gf",
        "State": {"Status": "running"},
        "Config": {"Labels": {"gpufleet.devices": "GPU-1,GPU-2"}},
        "HostConfig": {},
    }
    found = container.parse(json.dumps(item))
    assert isinstance(found, Known)
    assert found.value[0].devices == ("GPU-1", "GPU-2")


@pytest.mark.parametrize(
    ("status", "ids"),
    [
        ([["driver-type", "io.containerd.snapshotter.v1"]], Known("manifest")),
        ([["Backing Filesystem", "extfs"], ["Native Overlay Diff", "true"]], Known("config")),
        (None, Unknown("`docker info` does not say")),
        ("odd", Unknown("`docker info` does not say")),
        ([["driver-type"], 3, ["driver-type", 7]], Known("config")),
    ],
)
def test_what_the_id_of_an_image_is_a_digest_of(status, ids):
    assert known(runtime_symptoms(info=info(DriverStatus=status)).runtime).image_ids == ids
