"""What is wrong with a host, in the operator's words and with the operator's fix; facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpufleet.hosts import cdi
from gpufleet.hosts.boot_drift import BootDrift, Standing, drift
from gpufleet.hosts.model import ContainerFact, DiskFact, Fact, GpuFact, HostFacts, Known, Symptom, Unknown
from gpufleet.hosts.symptoms import SYMPTOMS, Severity
from gpufleet.inventory.model import Become, Host

_ERROR, _WARNING = Severity.ERROR, Severity.WARNING

IMAGE_MIB = 30 * 1024
"""Free space below which an engine's image (some 10 GiB packed, 25 unpacked) may not fit any more."""

FULL_MIB = 1024
"""Free space below which nothing can be deployed."""

JOURNAL_MIB = 16
"""Free space that the copy of a run's journal needs in the home directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        code: stable slug; runbooks match on it.
        message: what is so, one line.
        fix: what to do about it, one line.
    """

    code: str
    severity: Severity
    message: str
    fix: str


def diagnose(facts: HostFacts, host: Host | None = None) -> tuple[Finding, ...]:
    """Findings of one host, errors first; `host` is what the inventory wishes of it."""
    found = [
        *_symptoms(facts),
        *_silences(facts),
        *_sudo(facts, host),
        *_gpus(facts),
        *_cdi(facts),
        *_disks(facts),
        *_traces(facts),
    ]
    unique = dict.fromkeys(found)
    return tuple(sorted(unique, key=lambda finding: finding.severity is not _ERROR))


def _symptoms(facts: HostFacts) -> Iterator[Finding]:
    no_gpu = facts.gpus == Known(())
    for symptom in facts.symptoms:
        entry = SYMPTOMS.get(symptom.code)
        if entry is None or (entry.needs_gpu and no_gpu):
            continue
        yield Finding(
            code=symptom.code,
            severity=entry.severity,
            message=_filled(entry.message, symptom),
            fix=_filled(entry.fix, symptom),
        )


def _filled(text: str, symptom: Symptom) -> str:
    return text.replace("{detail}", symptom.detail)


_EXPLAIN = frozenset({"gpu-lost", "sudo-refused"})
"""Symptoms that explain a silence although they are named after something else."""


def _silences(facts: HostFacts) -> Iterator[Finding]:
    """Answers that are missing and that no symptom explains."""
    codes = {symptom.code for symptom in facts.symptoms}
    named: tuple[tuple[str, Fact[object], str, str], ...] = (
        ("runtime-", facts.runtime, "runtime-unknown", "the container runtime"),
        ("driver-", facts.gpus, "gpus-unknown", "the GPUs"),
        ("", facts.containers, "containers-unknown", "the containers"),
        ("", facts.listening, "ports-unknown", "the listening ports"),
        ("", facts.disks, "disks-unknown", "the free space"),
    )
    for prefix, fact, code, what in named:
        explained = prefix and any(known.startswith(prefix) or known in _EXPLAIN for known in codes)
        follows = fact is facts.containers and isinstance(facts.runtime, Unknown)
        if isinstance(fact, Unknown) and not explained and not follows:
            yield Finding(
                code=code,
                severity=_WARNING if fact is facts.disks else _ERROR,
                message=f"{what} could not be read: {fact.reason}",
                fix="run `gpufleet hosts facts` again; what stays unknown is never used by a plan",
            )
    runtime = facts.runtime
    if (
        isinstance(runtime, Known)
        and isinstance(runtime.value.gpu_ready, Unknown)
        and facts.gpus != Known(())
    ):
        yield Finding(
            code="gpu-access-unknown",
            severity=_WARNING,
            message=f"whether containers get GPUs is not known: {runtime.value.gpu_ready.reason}",
            fix="sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
        )


def _sudo(facts: HostFacts, host: Host | None) -> Iterator[Finding]:
    if host is None or host.become is Become.NEVER or host.sudo_password is not None:
        return
    if facts.sudo != Known(False) or facts.user == Known("root"):
        return
    if any(symptom.code == "sudo-refused" for symptom in facts.symptoms):
        return  # said already, with the reason
    user = facts.user.value if isinstance(facts.user, Known) else "the user"
    yield Finding(
        code="sudo-password",
        severity=_ERROR if host.become is Become.ALWAYS else _WARNING,
        message=f"sudo wants a password from {user}, or does not know this user: nothing that needs root works",
        fix="give `sudo_password` as a reference such as ${env:SUDO_PASSWORD}, or set `become: never`",
    )


def _gpus(facts: HostFacts) -> Iterator[Finding]:
    if isinstance(facts.gpus, Unknown):
        return
    for gpu in facts.gpus.value:
        yield from _gpu(gpu, drift(gpu, facts.boot_layout))
        yield from _strangers(gpu, facts.containers)


def _gpu(gpu: GpuFact, boot: BootDrift) -> Iterator[Finding]:
    values: tuple[Fact[object], ...] = (
        gpu.memory_total_mib,
        gpu.memory_used_mib,
        gpu.temperature_c,
        gpu.utilization_pct,
        gpu.mig.current,
    )
    reasons = [value.reason for value in values if isinstance(value, Unknown)]
    if any("reset" in reason or "lost" in reason for reason in reasons):
        yield Finding(
            code="gpu-reset",
            severity=_ERROR,
            message=f"GPU {gpu.index} ({gpu.uuid}) requires a reset",
            fix=f"stop what uses it, then: sudo nvidia-smi --gpu-reset -i {gpu.uuid}; else reboot",
        )
    elif isinstance(gpu.memory_total_mib, Unknown):
        yield Finding(
            code="gpu-memory-unknown",
            severity=_ERROR,
            message=f"the memory of GPU {gpu.index} ({gpu.uuid}) could not be read: {gpu.memory_total_mib.reason}",
            fix="run nvidia-smi on the host itself, not inside a container",
        )
    current, pending = gpu.mig.current, gpu.mig.pending
    if isinstance(current, Known) and isinstance(pending, Known) and current.value != pending.value:
        wanted = "on" if pending.value else "off"
        yield Finding(
            code="mig-pending",
            severity=_WARNING,
            message=f"MIG of GPU {gpu.index} ({gpu.uuid}) is to be switched {wanted} at the next reset",
            fix=f"stop what uses it, then: sudo nvidia-smi --gpu-reset -i {gpu.uuid};"
            f" or take it back: sudo nvidia-smi -i {gpu.uuid} -mig {int(current.value)}",
        )
    if boot.drifted:
        yield _boot_drift(gpu, boot)
    elif current == Known(True) and gpu.mig.instances == Known(()):
        yield Finding(
            code="mig-empty",
            severity=_WARNING,
            message=f"MIG of GPU {gpu.index} ({gpu.uuid}) is on and it has no slice: nothing can run on it",
            fix="cut it with `gpufleet mig reconfigure`, or switch MIG off",
        )


def _boot_drift(gpu: GpuFact, boot: BootDrift) -> Finding:
    lost = boot.standing is Standing.LOST
    return Finding(
        code="mig-layout-lost" if lost else "mig-layout-differs",
        severity=_WARNING,
        message=f"GPU {gpu.index} ({gpu.uuid}): {boot.text()}",
        fix="sudo systemctl restart gpufleet-mig.service, and look at: journalctl -u gpufleet-mig"
        if lost
        else "keep what is there with `gpufleet mig persist`, or cut the GPU as it was",
    )


def _cdi(facts: HostFacts) -> Iterator[Finding]:
    """A specification does not follow a change of MIG, or was written with numbers alone."""
    missing = cdi.stale(facts)
    if missing:
        what, uuid = missing[0]
        more = f", nor {len(missing) - 1} more" if len(missing) > 1 else ""
        yield Finding(
            code="cdi-stale",
            severity=_WARNING,
            message=f"the CDI specification does not name {what} ({uuid}){more}: no replica is put there",
            fix=cdi.FIX,
        )


def _strangers(gpu: GpuFact, containers: Fact[tuple[ContainerFact, ...]]) -> Iterator[Finding]:
    """Processes on a GPU that no running container was given."""
    if isinstance(gpu.processes, Unknown) or not gpu.processes.value or isinstance(containers, Unknown):
        return
    names = {str(gpu.uuid), str(gpu.index), "all"}
    if isinstance(gpu.mig.instances, Known):
        names |= {one.uuid for one in gpu.mig.instances.value}
    given = (device for one in containers.value if one.state == "running" for device in one.devices)
    if any(device in names or device.startswith(f"{gpu.index}:") for device in given):
        return
    listed = ", ".join(f"{process.pid} {process.name}".strip() for process in gpu.processes.value[:3])
    yield Finding(
        code="gpu-foreign-process",
        severity=_WARNING,
        message=f"GPU {gpu.index} ({gpu.uuid}) is used by processes outside of containers: {listed}",
        fix="end them, or leave this GPU out: they hold memory that an engine counts on",
    )


def _disks(facts: HostFacts) -> Iterator[Finding]:
    if isinstance(facts.disks, Unknown):
        return
    root = facts.runtime.value.root if isinstance(facts.runtime, Known) else None
    for disk in facts.disks.value:
        if isinstance(root, Known) and disk.path == root.value:
            yield from _image_disk(disk)
        elif facts.home == Known(disk.path) and disk.free_mib < JOURNAL_MIB:
            yield Finding(
                code="disk-home-full",
                severity=_ERROR,
                message=f"{disk.path} has {disk.free_mib} MiB free: the journal of a change cannot be kept there",
                fix="make room in the home directory of the SSH user",
            )


def _image_disk(disk: DiskFact) -> Iterator[Finding]:
    if disk.free_mib >= IMAGE_MIB:
        return
    yield Finding(
        code="disk-low",
        severity=_ERROR if disk.free_mib < FULL_MIB else _WARNING,
        message=f"{disk.path} has {_size(disk.free_mib)} free of {_size(disk.total_mib)}: an engine's image may not fit",
        fix="make room: docker image prune -a, docker builder prune; or move the runtime's data directory",
    )


def _size(mib: int) -> str:
    return f"{mib} MiB" if mib < 1024 else f"{mib / 1024:.0f} GiB"


def _traces(facts: HostFacts) -> Iterator[Finding]:
    if facts.noisy_login:
        yield Finding(
            code="noisy-login",
            severity=_WARNING,
            message="the host prints text on a login without a terminal: scp and sftp will fail there",
            fix="let the shell's start files print only when a terminal is there: [ -t 1 ] || return",
        )
    if isinstance(facts.open_runs, Known):
        for run in facts.open_runs.value:
            if any(symptom.code == "lease-held" and run in symptom.detail for symptom in facts.symptoms):
                continue  # it is at work, not interrupted
            yield Finding(
                code="open-run",
                severity=_WARNING,
                message=f"run {run} was interrupted here and is not settled",
                fix=f"gpufleet change resume {run}, or gpufleet change undo {run}",
            )
