"""What a plan rests on, as a hash: a plan whose facts moved is stale."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from gpufleet.deploy.placement.slots import HOLDING
from gpufleet.hosts.model import HostFacts, Known, Unknown
from gpufleet.names import HostName


def fingerprint(facts: Mapping[HostName, HostFacts]) -> str:
    """Hash of what a plan rests on: boot, containers, GPUs and slices; not of what moves by itself."""
    parts: list[object] = []
    for name, host in sorted(facts.items()):
        boot = host.boot_id.value if isinstance(host.boot_id, Known) else "unknown"
        parts.append((name, boot, _containers_of(host), _gpus_of(host)))
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]


def _containers_of(host: HostFacts) -> object:
    if isinstance(host.containers, Unknown):
        return "unknown"
    return sorted((one.id, one.state in HOLDING, sorted(one.labels.items())) for one in host.containers.value)


def _gpus_of(host: HostFacts) -> object:
    if isinstance(host.gpus, Unknown):
        return "unknown"
    return sorted(
        (
            gpu.uuid,
            sorted(one.uuid for one in gpu.mig.instances.value)
            if isinstance(gpu.mig.instances, Known)
            else "unknown",
        )
        for gpu in host.gpus.value
    )
