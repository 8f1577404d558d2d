"""What a plan rests on, host by host, as plain values; and what moved between two looks.

Boot, containers, GPUs and slices with their placements are ground a plan stands on; load, temperatures and memory in
use move by themselves and are not. What could not be read is null and never equal to something that was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from gpufleet.deploy.placement.slots import HOLDING
from gpufleet.deploy.replicas import LABEL
from gpufleet.errors import ErrorRow
from gpufleet.hosts.model import ContainerFact, Fact, GpuFact, HostFacts, Known, MigInstance


class _Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all parts have in common."""


class ContainerFooting(_Shape, frozen=True, kw_only=True):
    """One container. `up`: it runs or may come back by itself; `labels`: a digest of all of them."""

    id: str
    name: str
    up: bool
    spec: str
    labels: str


class SliceFooting(_Shape, frozen=True, kw_only=True):
    """One slice: which, and where on its GPU."""

    uuid: str
    profile: str
    start: int | None
    size: int | None


class GpuFooting(_Shape, frozen=True, kw_only=True):
    """One GPU. `mig`: whether MIG is on."""

    index: int
    uuid: str
    mig: bool | None
    slices: tuple[SliceFooting, ...] | None


class HostFooting(_Shape, frozen=True, kw_only=True):
    """One host."""

    boot_id: str | None
    containers: tuple[ContainerFooting, ...] | None
    gpus: tuple[GpuFooting, ...] | None


def footing(facts: HostFacts) -> HostFooting:
    """What these facts give a plan to stand on."""
    containers, gpus = facts.containers, facts.gpus
    return HostFooting(
        boot_id=_value(facts.boot_id),
        containers=tuple(sorted(map(_container, containers.value), key=lambda one: one.id))
        if isinstance(containers, Known)
        else None,
        gpus=tuple(sorted(map(_gpu, gpus.value), key=lambda one: one.uuid))
        if isinstance(gpus, Known)
        else None,
    )


def moved(before: Mapping[str, HostFooting], now: Mapping[str, HostFooting]) -> tuple[ErrorRow, ...]:
    """Everything that is not as it was, one row each, in the order of hosts; empty when nothing moved."""
    rows: list[ErrorRow] = []
    for host in sorted({*before, *now}):
        if host not in now:
            rows.append(ErrorRow(host, "it was looked at then and is not among the hosts now"))
        elif host not in before:
            rows.append(ErrorRow(host, "it is among the hosts now and was not then"))
        else:
            rows += [ErrorRow(host, line) for line in _differences(before[host], now[host])]
    return tuple(rows)


def _differences(before: HostFooting, now: HostFooting) -> Iterator[str]:
    if before.boot_id != now.boot_id:
        yield (
            "its boot id could not be read now"
            if now.boot_id is None
            else "its boot id could not be read then"
            if before.boot_id is None
            else f"it was booted since: boot id {now.boot_id[:8]}, and {before.boot_id[:8]} then"
        )
    if before.containers is None or now.containers is None:
        if before.containers is not now.containers:
            yield _sight("its containers", now=now.containers is not None)
    else:
        yield from _containers(
            {one.id: one for one in before.containers}, {one.id: one for one in now.containers}
        )
    if before.gpus is None or now.gpus is None:
        if before.gpus is not now.gpus:
            yield _sight("its GPUs", now=now.gpus is not None)
    else:
        yield from _gpus({one.uuid: one for one in before.gpus}, {one.uuid: one for one in now.gpus})


def _sight(what: str, *, now: bool) -> str:
    return f"{what} could not be read {'then' if now else 'now'}"


def _containers(before: Mapping[str, ContainerFooting], now: Mapping[str, ContainerFooting]) -> Iterator[str]:
    for identity, one in before.items():
        found = now.get(identity)
        if found is None:
            yield f"container {one.name} ({identity[:12]}) is gone"
        elif one.up != found.up:
            yield f"container {one.name} ({identity[:12]}) {'runs now' if found.up else 'has stopped'}"
        elif one.spec != found.spec:
            yield f"container {one.name} ({identity[:12]}) has spec {found.spec or 'none'}, and had {one.spec or 'none'}"
        elif (one.labels, one.name) != (found.labels, found.name):
            yield f"container {one.name} ({identity[:12]}) has other labels or another name"
    for identity, one in now.items():
        if identity not in before:
            yield f"container {one.name} ({identity[:12]}) is new"


def _gpus(before: Mapping[str, GpuFooting], now: Mapping[str, GpuFooting]) -> Iterator[str]:
    for uuid, one in before.items():
        found = now.get(uuid)
        if found is None:
            yield f"GPU {one.index} ({uuid}) is gone"
        elif one.mig != found.mig:
            yield f"MIG of GPU {one.index} is {_mode(found.mig)}, and was {_mode(one.mig)}"
        elif one.slices != found.slices:
            yield f"the slices of GPU {one.index} are {_cut(found.slices)}, and were {_cut(one.slices)}"
    for uuid, one in now.items():
        if uuid not in before:
            yield f"GPU {one.index} ({uuid}) is new"


def _mode(mig: bool | None) -> str:  # noqa: FBT001  # a fact, not a switch
    return "unknown" if mig is None else "on" if mig else "off"


def _cut(slices: tuple[SliceFooting, ...] | None) -> str:
    if slices is None:
        return "unknown"
    return ", ".join(f"{one.profile}@{one.start} {one.uuid}" for one in slices) or "none"


def _container(fact: ContainerFact) -> ContainerFooting:
    labels = msgspec.json.encode(sorted(fact.labels.items()))
    return ContainerFooting(
        id=fact.id,
        name=fact.name,
        up=fact.state in HOLDING,
        spec=fact.labels.get(f"{LABEL}.spec", ""),
        labels=hashlib.sha256(labels).hexdigest()[:16],
    )


def _gpu(fact: GpuFact) -> GpuFooting:
    instances = fact.mig.instances
    return GpuFooting(
        index=fact.index,
        uuid=fact.uuid,
        mig=_value(fact.mig.current),
        slices=tuple(sorted(map(_slice, instances.value), key=lambda one: one.uuid))
        if isinstance(instances, Known)
        else None,
    )


def _slice(instance: MigInstance) -> SliceFooting:
    return SliceFooting(
        uuid=instance.uuid,
        profile=instance.profile,
        start=_value(instance.start),
        size=_value(instance.size),
    )


T = TypeVar("T")


def _value(fact: Fact[T]) -> T | None:
    return fact.value if isinstance(fact, Known) else None
