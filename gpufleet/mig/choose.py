"""GPUs as people name them: `HOST`, `HOST:INDEX`, `HOST:UUID`, `HOST:all`. What is sent to a host is always a UUID."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.errors import UsageError
from gpufleet.hosts.model import GpuFact

ALL = "all"


@dataclass(frozen=True, slots=True)
class Asked:
    """A host, or a selector of hosts, and which of its GPUs."""

    host: str
    which: str = ALL


def parse(text: str) -> Asked:
    """One word of the command line.

    Raises:
        UsageError: it names no host, or no GPU after the colon.
    """
    host, colon, which = text.partition(":")
    if not host or (colon and not which):
        raise UsageError(f"{text!r} names no GPU", hints=("write HOST:INDEX, HOST:UUID or HOST:all",))
    return Asked(host, which or ALL)


def choose(asked: Asked, host: str, gpus: Sequence[GpuFact]) -> tuple[GpuFact, ...]:
    """The GPUs of one host that were asked for, in the order of their index.

    Raises:
        UsageError: the host has no such GPU.
    """
    if asked.which.lower() == ALL:
        return tuple(gpus)
    found = tuple(one for one in gpus if asked.which in (str(one.index), one.uuid))
    if found:
        return found
    have = ", ".join(f"{host}:{one.index}" for one in gpus) or "none"
    raise UsageError(f"there is no GPU {asked.which}", where=host, hints=(f"its GPUs: {have}",))
