"""Shares of one GPU: how much its replicas have, and how much is left.

vLLM reserves `--gpu-memory-utilization` of the whole card, whoever else is on it, and refuses to start when less is
free. So what replicas reserve together must stay below the card, with head-room for what no engine counts: a CUDA
context each, and what allocators lose. A share is a part of what one engine alone would get: half a GPU is
`--gpu-memory-utilization` 0.45 where all of it is 0.90. The shares of a GPU then add up to 1 at most, and what is
reserved to 0.90.

The share stands in a label of the container (`gpufleet.share`, in percent). A container without one has all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpufleet.deploy.placement.api import WHOLE
from gpufleet.hosts.model import ContainerFact, GpuFact, Known, Unknown

SHARE_LABEL = "gpufleet.share"

CONTEXT_MIB = 1536
"""What an engine may take beside its reservation: its CUDA context and up to 1.37 GiB that were seen over budget."""


def share_of(container: ContainerFact) -> int | None:
    """Percent of its GPU that a container has; None when it has all of it, or does not say."""
    text = container.labels.get(SHARE_LABEL, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 3):
        return None
    return int(text) if 0 < int(text) < WHOLE else None


def room_left(holders: Iterable[ContainerFact]) -> int:
    """Percent of a GPU that these containers leave."""
    return WHOLE - sum(share_of(one) or WHOLE for one in holders)


def unshared_mib(gpu: GpuFact, holders: Sequence[ContainerFact]) -> str:
    """What is in use beyond the shares of these containers, in words; empty when nothing is.

    A container without a share may use all of it, so nothing can be said beside one.
    """
    shares = [share_of(one) for one in holders]
    if any(share is None for share in shares):
        return ""
    match (gpu.memory_used_mib, gpu.memory_total_mib):
        case (Unknown(reason), _) | (_, Unknown(reason)):
            return f"its memory use could not be read: {reason}"
        case (Known(used), Known(total)):
            due = sum(share or 0 for share in shares) * total // WHOLE + CONTEXT_MIB * len(shares)
            if used > due:
                return f"{used} MiB are in use, more than the {due} MiB of the replicas that share it"
    return ""
