from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpufleet.hosts.doctor import diagnose
from gpufleet.hosts.model import DiskFact, GpuFact, GpuProcess, HostFacts, Known, Symptom, Unknown
from gpufleet.hosts.symptoms import SYMPTOMS, Severity
from gpufleet.inventory.model import Address, Become, Host
from gpufleet.names import HostName
from gpufleet.redact import Secret
from tests.unit.hosts.answers import facts, healthy, section, sliced


def host(**wishes):
    return Host(name=HostName("gpu-01"), address=Address("10.0.0.1"), **wishes)


def found(seen: HostFacts, wish: Host | None = None) -> dict[str, Severity]:
    findings = diagnose(seen, wish)
    assert all(one.message and one.fix and "{" not in one.message.replace("${env", "") for one in findings)
    return {one.code: one.severity for one in findings}


def gpu(seen: HostFacts, **changes) -> HostFacts:
    assert isinstance(seen.gpus, Known)
    first: GpuFact = seen.gpus.value[0]
    return replace(seen, gpus=Known((replace(first, **changes),)))


def test_a_healthy_host_has_no_findings():
    assert found(facts(healthy()), host()) == {}


@pytest.mark.parametrize("code", sorted(SYMPTOMS))
def test_every_symptom_has_words_and_a_fix(code):
    seen = replace(facts(healthy()), symptoms=(Symptom(code, "THE-DETAIL"),))
    assert found(seen) == {code: SYMPTOMS[code].severity}


@pytest.mark.parametrize("code", ["toolkit-missing", "runtime-snap", "cgroup-reload"])
def test_what_only_gpus_need_is_no_finding_without_a_gpu(code):
    seen = replace(
        facts(healthy()), gpus=Known(()), symptoms=(Symptom(code, ""), Symptom("gpu-none", "none"))
    )
    assert found(seen) == {"gpu-none": Severity.ERROR}


@pytest.mark.parametrize("name", ["runtime", "gpus", "containers", "listening", "disks"])
def test_a_missing_answer_is_never_silence(name):
    missing: dict[str, Any] = {name: Unknown("why")}
    seen = replace(facts(healthy()), **missing)
    assert len(found(seen)) == 1


def test_containers_that_follow_from_the_runtime_are_told_once():
    seen = replace(facts(healthy()), runtime=Unknown("why"), containers=Unknown("why"))
    assert set(found(seen)) == {"runtime-unknown"}


def test_unknown_gpu_access_is_a_warning():
    sections = healthy() | {
        "info": section("info", '{"ServerVersion":"26.1.5","Runtimes":{"runc":{}},"SecurityOptions":[]}'),
        "hook": section("hook", "path=/usr/bin/nvidia-container-runtime-hook"),
    }
    assert found(facts(sections)) == {"gpu-access-unknown": Severity.WARNING}


@pytest.mark.parametrize(
    ("wish", "severity"),
    [
        (host(become=Become.ALWAYS), Severity.ERROR),
        (host(become=Become.AUTO), Severity.WARNING),
        (host(become=Become.NEVER), None),
        (host(sudo_password=Secret("s")), None),
        (None, None),
    ],
)
def test_sudo_with_a_password(wish, severity):
    seen = replace(facts(healthy()), sudo=Known(False))
    assert found(seen, wish) == ({"sudo-password": severity} if severity else {})
    assert found(replace(seen, user=Known("root")), wish) == {}


def test_gpu_that_requires_a_reset():
    seen = gpu(facts(healthy()), memory_total_mib=Unknown("the GPU requires a reset"))
    assert found(seen) == {"gpu-reset": Severity.ERROR}


def test_gpu_without_memory_numbers():
    seen = gpu(facts(healthy()), memory_total_mib=Unknown("insufficient permissions"))
    assert found(seen) == {"gpu-memory-unknown": Severity.ERROR}


def test_utilization_under_mig_is_unknown_and_nothing_wrong():
    seen = facts(sliced())
    assert isinstance(seen.gpus, Known)
    assert isinstance(seen.gpus.value[0].utilization_pct, Unknown)
    quiet = gpu(seen, processes=Known(()))
    assert found(quiet) == {}


def test_pending_mode_and_a_gpu_without_slices():
    seen = gpu(facts(sliced()), processes=Known(()))
    assert isinstance(seen.gpus, Known)
    mig = seen.gpus.value[0].mig
    assert found(gpu(seen, mig=replace(mig, pending=Known(False)))) == {"mig-pending": Severity.WARNING}
    assert found(gpu(seen, mig=replace(mig, instances=Known(())))) == {"mig-empty": Severity.WARNING}


def test_a_process_that_no_container_accounts_for():
    stranger = GpuProcess(pid=7, name="python3", memory_mib=Known(900))
    seen = facts(healthy())
    assert isinstance(seen.gpus, Known)
    first, second = seen.gpus.value
    owned = replace(seen, gpus=Known((replace(first, processes=Known((stranger,))), second)))
    assert found(owned) == {}
    alone = replace(seen, gpus=Known((first, replace(second, processes=Known((stranger,))))))
    assert found(alone) == {"gpu-foreign-process": Severity.WARNING}
    assert "7 python3" in diagnose(alone)[0].message


@pytest.mark.parametrize(
    ("path", "free", "expected"),
    [
        ("/var/lib/docker", 100, {"disk-low": Severity.ERROR}),
        ("/var/lib/docker", 20_000, {"disk-low": Severity.WARNING}),
        ("/var/lib/docker", 40_000, {}),
        ("/home/ops", 3, {"disk-home-full": Severity.ERROR}),
        ("/", 3, {}),
    ],
)
def test_free_space(path, free, expected):
    seen = replace(facts(healthy()), disks=Known((DiskFact(path=path, free_mib=free, total_mib=50_000),)))
    assert found(seen) == expected


def test_noise_and_open_runs():
    seen = replace(facts(healthy(), noisy=True), open_runs=Known(("20261130T101010-aaaaaa",)))
    assert found(seen) == {"noisy-login": Severity.WARNING, "open-run": Severity.WARNING}
    at_work = replace(seen, symptoms=(Symptom("lease-held", "kim deploy 20261130T101010-aaaaaa"),))
    assert found(at_work) == {"noisy-login": Severity.WARNING, "lease-held": Severity.WARNING}


def test_errors_come_first():
    seen = replace(
        facts(healthy(), noisy=True), symptoms=(Symptom("lease-held", "x"), Symptom("toolkit-missing"))
    )
    severities = [one.severity for one in diagnose(seen)]
    assert severities == sorted(severities, key=lambda severity: severity is Severity.WARNING)
