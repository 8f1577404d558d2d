"""CDI specifications of a host against its GPUs: what a runtime that hands out GPUs by CDI could not be asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.hosts.model import Fact, GpuFact, HostFacts, Known, Unknown

FIX = (
    "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    " (a toolkit before 1.15 needs --device-name-strategy=uuid too)"
)
"""Writes the specification anew with UUIDs, by which replicas are started; since 1.15 numbers are named beside them, so
that containers of others that go by a number still start."""


def names(facts: HostFacts) -> Fact[frozenset[str]]:
    """What NVIDIA's specifications name: UUIDs, numbers, `all`."""
    match facts.cdi_devices:
        case Known(devices):
            return Known(
                frozenset(name.partition("=")[2] for name in devices if name.startswith("nvidia.com/"))
            )
        case Unknown(reason):
            return Unknown(reason)


def stale(facts: HostFacts) -> tuple[tuple[str, str], ...]:
    """GPUs and slices that no specification names, as (what it is, UUID), where CDI hands them out.

    Empty where the runtime takes GPUs in another way, where no NVIDIA device is named at all, and where something
    is not known.
    """
    if not (isinstance(facts.runtime, Known) and facts.runtime.value.names_devices):
        return ()
    named = names(facts)
    if isinstance(named, Unknown) or not named.value or isinstance(facts.gpus, Unknown):
        return ()
    return tuple(one for gpu in facts.gpus.value for one in _usable(gpu) if one[1] not in named.value)


def _usable(gpu: GpuFact) -> Iterator[tuple[str, str]]:
    """A GPU as a whole, or its slices: one in MIG mode is not handed out itself."""
    if gpu.mig.current == Known(True):
        if isinstance(gpu.mig.instances, Known):
            for one in gpu.mig.instances.value:
                yield f"slice {one.profile} of GPU {gpu.index}", one.uuid
    elif gpu.mig.current == Known(False):
        yield f"GPU {gpu.index}", str(gpu.uuid)
