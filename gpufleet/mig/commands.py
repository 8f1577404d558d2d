"""`nvidia-smi mig` argument lists. None can be built without the UUID of one GPU, and each makes or ends one object.

Without `-i` these commands act on every GPU of the host, and an index may change over a reboot; so a `Target` is
made from a UUID alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpufleet.mig.model import Placed
from gpufleet.names import GpuUuid

_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Target:
    """One GPU, by its UUID.

    Raises:
        ValueError: anything else, an index or a list among it.
    """

    uuid: GpuUuid

    def __post_init__(self) -> None:
        if not isinstance(self.uuid, str) or not _UUID.fullmatch(self.uuid):
            raise ValueError("a GPU is named by its UUID, never by index or by a list")


def mode(target: Target, *, on: bool) -> tuple[str, ...]:
    """Turn MIG on or off; on Ampere it stays pending until the GPU is reset."""
    return ("nvidia-smi", "-i", target.uuid, "-mig", "1" if on else "0")


def destroy_compute_instance(target: Target, gi: int, ci: int) -> tuple[str, ...]:
    """End one compute instance."""
    return (*_mig(target), "-gi", str(gi), "-ci", str(ci), "-dci")


def destroy_gpu_instance(target: Target, gi: int) -> tuple[str, ...]:
    """End one GPU instance; its compute instances must be gone."""
    return (*_mig(target), "-gi", str(gi), "-dgi")


def create(target: Target, slice_: Placed) -> tuple[str, ...]:
    """Make one GPU instance at its place, with a compute instance that takes all of it."""
    return (*_mig(target), "-cgi", f"{slice_.profile}:{slice_.start}", "-C")


def _mig(target: Target) -> tuple[str, ...]:
    return ("nvidia-smi", "mig", "-i", target.uuid)
