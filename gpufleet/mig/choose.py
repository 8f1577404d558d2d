"""GPUs as people name them: `HOST`, `HOST:INDEX`, `HOST:UUID`, `HOST:all`. What is sent to a host is always a UUID."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.errors import FactUnknown, UsageError
from gpufleet.hosts.model import GpuFact, HostFacts
from gpufleet.mig.messages import advice

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


def choose(asked: Asked, host: str, facts: HostFacts, gpus: Sequence[GpuFact]) -> tuple[GpuFact, ...]:
    """The GPUs of one host that were asked for, in the order of their index; `facts` say whether others are lost.

    Raises:
        UsageError: the host has no such GPU.
        FactUnknown: it may have one that does not answer any more.
    """
    if asked.which.lower() == ALL:
        return tuple(gpus)
    found = tuple(one for one in gpus if asked.which in (str(one.index), one.uuid))
    if found:
        return found
    if lost := next((one.detail for one in facts.symptoms if one.code == "gpu-lost"), ""):
        raise unread(f"GPU {asked.which} does not answer: {lost}", host, host)
    have = ", ".join(f"{host}:{one.index}" for one in gpus) or "none"
    raise UsageError(f"there is no GPU {asked.which}", where=host, hints=(f"its GPUs: {have}",))


def unread(reason: str, where: str, host: str) -> FactUnknown:
    """No plan: what a GPU is or holds could not be read; what to do about that stands first."""
    look = f"look with `gpufleet hosts check {host}`"
    return FactUnknown(reason, where=where, hints=tuple(hint for hint in (advice(reason), look) if hint))
