"""Why a GPU is left as it is: each refusal names what stands in the way and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.deploy.recut.model import GpuLook, Homeless
from gpufleet.errors import ErrorRow, PreflightFailed, Refused, Unplaceable
from gpufleet.hosts.model import Known
from gpufleet.mig.holders import Holders
from gpufleet.mig.outlook import Outlook
from gpufleet.mig.plan import LayoutChange, NoLayout
from gpufleet.mig.seen import SeenGpu, SeenSlice


def no_layout(why: NoLayout, where: str) -> Unplaceable:
    near = ",".join(str(each) for each in why.nearest)
    hint = f"this much fits: --layout {near}" if near else "the profiles of this GPU: `gpufleet mig profiles`"
    return Unplaceable(why.reason, where=where, hints=(hint,))


def refuse_odd(seen: SeenGpu, change: LayoutChange, where: str) -> None:
    """Raises Refused for slices that could not be made again as they are."""
    for one in seen.slices:
        if one.placed in change.destroy and (len(one.cis) > 1 or (one.uuids and _partial(seen, one))):
            raise Refused(
                f"{one.placed} has compute instances that do not cover it, and could not be made again like that",
                where=where,
                hints=("leave it where it is, or destroy its compute instances by hand",),
            )


def _partial(seen: SeenGpu, one: SeenSlice) -> bool:
    instances = seen.gpu.mig.instances
    known = instances.value if isinstance(instances, Known) else ()
    return any("c." in each.profile for each in known if each.uuid in one.uuids)


def refuse_undescribed(look: GpuLook, change: LayoutChange, where: str, *, off: bool) -> None:
    """Raises PreflightFailed when CDI could not be written afterwards: it cannot while a GPU has MIG on and no slice."""
    gpus = look.facts.gpus.value if isinstance(look.facts.gpus, Known) else ()
    others = [one for one in gpus if one.uuid != look.seen.gpu.uuid and one.mig.current == Known(True)]
    empty = [f"{look.host.name}:{one.index}" for one in others if one.mig.gpu_instances == Known(())]
    leaves_none = not (change.keep or change.create or off)
    named = [*empty, *([where] if leaves_none else [])]
    if not look.boot.specs or not named or (leaves_none and len(empty) == len(others)):
        return
    raise PreflightFailed(
        f"CDI cannot be written while {named[0]} has MIG on and no slice, and {look.boot.specs[0]} would be stale",
        where=where,
        hints=(f"give {named[0]} a slice, or switch its MIG off",),
    )


def refuse_holders(holders: Holders, ahead: Outlook, where: str) -> None:
    if holders.blockers:
        raise PreflightFailed(
            "somebody holds the GPU; nothing was changed",
            where=where,
            rows=tuple(ErrorRow(where, one.text, one.hint, one.kind) for one in holders.blockers),
            hints=tuple(dict.fromkeys(one.hint for one in holders.blockers)),
        )
    if holders.unknown and ahead.mode_change:
        raise PreflightFailed(
            "who holds the GPU is not known; nothing was changed",
            where=where,
            rows=tuple(ErrorRow(where, one) for one in holders.unknown),
            hints=("open files of others may be read by root alone: let the account run `sudo -n`",),
        )


def refuse_homeless(homeless: Sequence[Homeless], where: str) -> None:
    if not homeless:
        return
    raise Refused(
        f"{len(homeless)} container(s) would be left without a slice; nothing was changed",
        where=where,
        rows=tuple(
            ErrorRow(where, f"{one.present.container.name}: {one.reason}", code="homeless")
            for one in homeless
        ),
        hints=(
            "keep their slices in the layout, or give them others: --by-memory takes a slice that holds as much",
            "or let them be stopped and stay so: --allow-homeless",
        ),
    )
