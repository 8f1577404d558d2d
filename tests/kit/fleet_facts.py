"""Facts of invented hosts, for plans and placements without a host."""

from __future__ import annotations

from typing import Any

from gpufleet.hosts.model import (
    ContainerFact,
    GpuFact,
    GpuInstanceFact,
    GpuProcess,
    HostFacts,
    Known,
    MigFact,
    MigInstance,
    RuntimeFact,
    Unknown,
)
from gpufleet.names import GpuUuid, HostName


def gpu(host, index, *, used=4, total=81559, processes=(), instances=None, **changes):
    """One free H100; `instances` puts it in MIG mode."""
    fields: dict[str, Any] = {
        "index": index,
        "uuid": GpuUuid(f"GPU-{host}-{index}"),
        "name": "NVIDIA H100 80GB HBM3",
        "bus_id": f"00000000:{index:02X}:00.0",
        "memory_total_mib": Known(total),
        "memory_used_mib": Known(used),
        "temperature_c": Known(30),
        "utilization_pct": Known(0),
        "driver": Known("570.124.06"),
        "mig": MigFact(
            capable=Known(True),
            current=Known(instances is not None),
            pending=Known(instances is not None),
            instances=Known(tuple(instances or ())),
            gpu_instances=Known(
                tuple(
                    GpuInstanceFact(
                        gi=one.gi.value, profile=one.profile, start=one.start.value, size=one.size.value
                    )
                    for one in instances or ()
                )
            ),
        ),
        "processes": processes if isinstance(processes, Unknown) else Known(tuple(processes)),
    }
    return GpuFact(**(fields | changes))


def mig_slice(host, index, number, profile="3g.40gb", memory=40448):
    """One slice with its compute instance."""
    return MigInstance(
        uuid=f"MIG-{host}-{index}-{number}",
        profile=profile,
        gi=Known(number + 1),
        ci=Known(0),
        start=Known(number * 4),
        size=Known(4),
        memory_mib=Known(memory),
    )


def process(pid, gi=None):
    """Somebody's process."""
    return GpuProcess(pid=pid, name="python3", memory_mib=Known(1000), gi=gi, ci=None)


def container(name, *, state="running", devices=(), ports=(), labels=None, restart="always", number=None):
    """One container; its id is made from its name."""
    return ContainerFact(
        id=f"{name:0<64}" if number is None else number,
        name=name,
        image="vllm/vllm-openai:v0.11.0",
        image_id="sha256:1",
        state=state,
        exit_code=0,
        restart_policy=restart,
        restart_count=0,
        labels=labels or {},
        ports=tuple(ports),
        devices=tuple(devices),
        host_network=False,
        created_at="2026-01-01T00:00:00Z",
        started_at="2026-01-01T00:00:00Z",
    )


def _gpus(name, gpus):
    return tuple(gpu(name, index) for index in range(gpus)) if isinstance(gpus, int) else tuple(gpus)


def host(name, *, gpus=2, containers=(), listening=(22,), **changes):
    """Facts of one host with some free GPUs."""
    fields: dict[str, Any] = {
        "host": HostName(name),
        "at": "2026-01-01T00:00:00Z",
        "hostname": Known(name),
        "kernel": Known("6.1.0"),
        "architecture": Known("x86_64"),
        "boot_id": Known("b0"),
        "user": Known("ops"),
        "home": Known("/home/ops"),
        "sudo": Known(True),
        "noisy_login": False,
        "driver": Known("570.124.06"),
        "cuda": Known("12.8"),
        "toolkit": Known("1.17.0"),
        "cdi_devices": Known(()),
        "runtime": Known(
            RuntimeFact(
                kind="docker",
                path="/usr/bin/docker",
                version="26.1.5",
                needs_sudo=False,
                rootless=Known(False),
                gpu_ready=Known(True),
                cdi=Known(False),
                root=Known("/var/lib/docker"),
            )
        ),
        "gpus": gpus if isinstance(gpus, Unknown) else Known(_gpus(name, gpus)),
        "containers": containers if isinstance(containers, Unknown) else Known(tuple(containers)),
        "disks": Known(()),
        "listening": Known(frozenset(listening)),
        "lease": Known(""),
    }
    return HostFacts(**(fields | changes))


__all__ = ["Known", "Unknown", "container", "gpu", "host", "mig_slice", "process"]
