"""What the symptoms that probes see mean to an operator, and the fix of each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpufleet.hosts import cdi


class Severity(Enum):
    """An error means that a deploy here will fail; a warning, that it may surprise."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Entry:
    """What a symptom means; `{detail}` stands for what the probe saw.

    Attributes:
        needs_gpu: whether it matters on hosts with GPUs alone.
    """

    severity: Severity
    message: str
    fix: str
    needs_gpu: bool = False


_ERROR, _WARNING = Severity.ERROR, Severity.WARNING

SYMPTOMS: dict[str, Entry] = {
    "runtime-missing": Entry(
        _ERROR,
        "no container runtime was found; looked in {detail}",
        "install docker, or name its program with `runtime_path` in the inventory",
    ),
    "runtime-refused": Entry(
        _ERROR,
        "the container runtime refuses {detail}: permission denied on its socket",
        "add {detail} to the docker group and log in anew, or allow `sudo -n` and set `become: auto`",
    ),
    "runtime-down": Entry(
        _ERROR, "{detail} is installed and not running", "start it: sudo systemctl start {detail}"
    ),
    "runtime-silent": Entry(
        _ERROR,
        "the container runtime does not answer: {detail}",
        "look at its log: sudo journalctl -u docker -n 50; a hanging engine is restarted",
    ),
    "runtime-broken": Entry(
        _ERROR, "the container runtime does not work: {detail}", "run its `version` command on the host"
    ),
    "runtime-snap": Entry(
        _WARNING,
        "docker is the snap package ({detail}): it sees neither all directories nor the toolkit's hook",
        "replace it by the distribution's or Docker's own package: sudo snap remove docker",
        needs_gpu=True,
    ),
    "sudo-refused": Entry(
        _ERROR,
        "{detail}",
        "give or correct `sudo_password`, a reference such as ${env:SUDO_PASSWORD};"
        " `sudo -l` on the host tells what the user may do",
    ),
    "toolkit-missing": Entry(
        _ERROR,
        "the NVIDIA container toolkit is not installed: containers get no GPU",
        "install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker"
        " && sudo systemctl restart docker",
        needs_gpu=True,
    ),
    "runtime-not-configured": Entry(
        _ERROR,
        "the NVIDIA container toolkit {detail} is installed and docker does not know it",
        "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
        needs_gpu=True,
    ),
    "runtime-not-restarted": Entry(
        _ERROR,
        "docker was started before {detail} was installed and does not know it",
        "sudo systemctl restart docker (containers without a restart policy stay down)",
        needs_gpu=True,
    ),
    "cdi-missing": Entry(
        _ERROR,
        "no CDI device of NVIDIA is known: podman cannot hand out GPUs",
        cdi.FIX,
        needs_gpu=True,
    ),
    "runtime-too-old": Entry(
        _ERROR,
        "the container runtime is {detail} works here",
        "install a newer one from the distribution's backports or its project",
    ),
    "podman-restart-off": Entry(
        _WARNING,
        "podman has no daemon, and nothing starts its containers after a reboot: podman-restart.service is {detail}",
        "sudo systemctl enable podman-restart.service; rootless: systemctl --user enable podman-restart.service"
        " && sudo loginctl enable-linger USER",
    ),
    "rootless-hook": Entry(
        _ERROR,
        "docker runs rootless and without CDI: the toolkit's hook may not set device rules there",
        "use CDI: docker 25 or later with its feature `cdi`, and nvidia-ctk cdi generate;"
        " or set no-cgroups = true in /etc/nvidia-container-runtime/config.toml",
        needs_gpu=True,
    ),
    "cgroup-reload": Entry(
        _WARNING,
        "systemd keeps docker's cgroups and GPUs come by the hook: `systemctl daemon-reload` takes them away"
        " from running containers",
        "use CDI: docker 25 or later and nvidia-ctk cdi generate",
        needs_gpu=True,
    ),
    "driver-mismatch": Entry(
        _ERROR,
        "the NVIDIA driver was upgraded under its loaded kernel module: {detail}",
        "reboot the host, or stop all GPU programs and reload the nvidia modules",
    ),
    "driver-down": Entry(
        _ERROR,
        "the NVIDIA driver is not loaded: {detail}",
        "sudo modprobe nvidia, and look at dmesg; after a kernel upgrade the driver is built anew",
    ),
    "driver-library": Entry(
        _ERROR, "the NVIDIA management library is missing: {detail}", "install the driver's libraries anew"
    ),
    "driver-missing": Entry(
        _ERROR,
        "there is {detail} and no nvidia-smi",
        "install the NVIDIA driver with its utilities",
    ),
    "driver-silent": Entry(
        _ERROR,
        "nvidia-smi gives no list of GPUs: {detail}",
        "run nvidia-smi on the host; a GPU that hangs it needs a reboot",
    ),
    "gpu-none": Entry(
        _ERROR, "no GPU: {detail}", "leave this host out of GPU pools, or install the NVIDIA driver"
    ),
    "gpu-lost": Entry(
        _ERROR,
        "a GPU does not answer: {detail}",
        "look at dmesg for Xid lines; it usually needs a reboot, or new hardware",
    ),
    "lease-held": Entry(
        _WARNING, "a change is at work here: {detail}", "wait for it, or see `gpufleet change list`"
    ),
    "lease-stale": Entry(
        _WARNING,
        "a lease is held without a heartbeat: {detail}",
        "see `gpufleet change list`; take it over with `gpufleet change unlock HOST --reason TEXT`",
    ),
}
