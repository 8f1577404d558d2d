"""How a GPU was cut and who was on it, kept by every run that changes it, and what of that can be brought back.

A run keeps it in its journal (`before` of the plan's context). A person keeps the answer of `mig show -o json`, which
is read here, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from gpufleet.change.records import journal_file
from gpufleet.change.records.journal import Opened
from gpufleet.deploy.recut.model import GpuLook, Revived
from gpufleet.deploy.replicas import LABEL, Present
from gpufleet.errors import UsageError
from gpufleet.mig.model import Placed
from gpufleet.mig.plan import LayoutChange
from gpufleet.mig.seen import RUNNING
from gpufleet.names import ReplicaId, RunId


class SliceShot(msgspec.Struct, frozen=True, kw_only=True):
    """A slice and the names of the containers that ran on it; `policies` are theirs, in the same order, if known."""

    profile: str
    start: int
    size: int
    uuids: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()


class GpuShot(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU; `current`: whether MIG was on."""

    host: str
    uuid: str
    current: bool
    slices: tuple[SliceShot, ...] = ()


class _Shown(msgspec.Struct, frozen=True):
    """The answer of `mig show`."""

    gpus: tuple[GpuShot, ...]


def of(look: GpuLook) -> GpuShot:
    """The GPU as it was looked at."""
    policies = {one.name: one.restart_policy for one in look.containers}
    return GpuShot(
        host=look.host.name,
        uuid=look.seen.gpu.uuid,
        current=look.seen.on,
        slices=tuple(
            SliceShot(
                profile=one.placed.profile,
                start=one.placed.start,
                size=one.placed.size,
                uuids=one.uuids,
                containers=one.containers,
                policies=tuple(policies[name] for name in one.containers),
            )
            for one in look.seen.slices
        ),
    )


def encode(shot: GpuShot) -> str:
    """As a plan's context keeps it."""
    return msgspec.json.encode(shot).decode()


def kept_by(state_dir: Path, run: RunId) -> GpuShot:
    """What a run of this machine found before it changed anything.

    Raises:
        UsageError: there is no such run, or it changed no layout.
    """
    summary = journal_file.summary(state_dir, run)
    first = summary.records[0].body if summary.records else None
    text = first.plan.context.get("before", "") if isinstance(first, Opened) else ""
    if not text:
        raise UsageError(
            f"run {run} changed no layout of a GPU", hints=("`gpufleet change list` names them",)
        )
    return msgspec.json.decode(text, type=GpuShot)


def in_file(text: bytes, uuid: str, path: str) -> GpuShot:
    """One GPU of a kept answer of `mig show -o json`.

    Raises:
        UsageError: it is none, or this GPU is not in it.
    """
    try:
        shown = msgspec.json.decode(text, type=_Shown)
    except msgspec.MsgspecError as error:
        raise UsageError(f"this is no answer of `gpufleet mig show -o json`: {error}", where=path) from error
    found = next((one for one in shown.gpus if one.uuid == uuid), None)
    if found is None:
        raise UsageError(f"GPU {uuid} is not in it", where=path, hints=("name the GPU it was made of",))
    return found


def layout_of(shot: GpuShot) -> str:
    """The layout as it is written at the command line."""
    if not shot.current:
        return "off"
    return ",".join(f"{one.profile}:{one.start}" for one in shot.slices) or "none"


def revived_of(shot: GpuShot) -> tuple[Revived, ...]:
    """Every container that ran on a slice with one compute instance."""
    return tuple(
        Revived(
            container=name,
            slice=Placed(one.start, one.size, one.profile),
            uuid=one.uuids[0],
            policy=one.policies[number] if number < len(one.policies) else "",
        )
        for one in shot.slices
        if len(one.uuids) == 1
        for number, name in enumerate(one.containers)
    )


def revivals(
    look: GpuLook, change: LayoutChange, wanted: Sequence[Revived]
) -> tuple[tuple[Revived, Present], ...]:
    """Those that stand still now and whose slice will be there. Replicas are for `pool deploy`, which publishes them."""
    slices = {*change.keep, *change.create}
    names: Mapping[str, Present] = {
        one.name: Present(replica=ReplicaId(one.name), host=look.host.name, container=one)
        for one in look.containers
        if one.state not in RUNNING and not one.labels.get(f"{LABEL}.pool")
    }
    return tuple(
        (one, names[one.container]) for one in wanted if one.container in names and one.slice in slices
    )
