"""Who loses a slice, and what becomes of it: made anew on another one, or left without."""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.deploy.placement.api import Placed as PlacedReplica
from gpufleet.deploy.placement.api import Slot
from gpufleet.deploy.recut.homes import homes, memory_mib
from gpufleet.deploy.recut.launches import Launches
from gpufleet.deploy.recut.model import GpuLook, Homeless, Move
from gpufleet.deploy.replicas import LABEL, New, Present
from gpufleet.deploy.steps import Launch
from gpufleet.hosts.model import ContainerFact
from gpufleet.mig.holders import is_monitor
from gpufleet.mig.model import Placed
from gpufleet.mig.outlook import Outlook
from gpufleet.mig.plan import LayoutChange
from gpufleet.names import HostName, ReplicaId, RunId


def shares(
    look: GpuLook,
    change: LayoutChange,
    ahead: Outlook,
    launches: Launches,
    *,
    run: RunId,
    by_memory: bool,
) -> tuple[tuple[Move, ...], tuple[Homeless, ...]]:
    """Who moves where, and who cannot. A container that does not run is never made anew: nobody asked it to run."""
    able, homeless = _sorted(look, change, launches)
    wanted = [(key, one.old) for key, one in able.items()]
    found = homes(look.seen, change, wanted, by_memory=by_memory)
    moves: list[Move] = []
    for key, one in able.items():
        if key in found:
            moves.append(_move(look, one, found[key], run))
        else:
            reason = f"loses {one.old}, and no slice is left for it"
            homeless.append(Homeless(present=one.present, old=one.old, reason=reason))
    if ahead.mode_change:
        names = {one.name: one for one in look.containers}
        reason = "has the whole GPU, which is cut into slices"
        homeless += [
            Homeless(present=_present(look.host.name, names[name]), old=None, reason=reason)
            for name in (*look.seen.whole, *look.seen.resting)
            if not is_monitor(names[name])
        ]
    return tuple(moves), tuple(homeless)


@dataclass(frozen=True, slots=True)
class _Able:
    """A replica that can be made anew."""

    present: Present
    old: Placed
    launch: Launch


def _sorted(
    look: GpuLook, change: LayoutChange, launches: Launches
) -> tuple[dict[str, _Able], list[Homeless]]:
    """Containers on slices that go: those that can be made anew, by id, and the others."""
    names = {one.name: one for one in look.containers}
    gone = [one for one in look.seen.slices if one.placed in change.destroy]
    able: dict[str, _Able] = {}
    homeless: dict[str, Homeless] = {}
    for old, name in [(one.placed, name) for one in gone for name in (*one.containers, *one.resting)]:
        present = _present(look.host.name, names[name])
        key = present.container.id
        if key in able or key in homeless:
            continue
        launch = launches.of(present) if present.up else "it does not run"
        if isinstance(launch, str):
            homeless[key] = Homeless(present=present, old=old, reason=f"loses {old}; {launch}")
        else:
            able[key] = _Able(present, old, launch)
    return able, list(homeless.values())


def _present(host: HostName, container: ContainerFact) -> Present:
    replica = container.labels.get(f"{LABEL}.replica", "") or container.name
    return Present(replica=ReplicaId(replica), host=host, container=container)


def _move(look: GpuLook, one: _Able, home: Placed, run: RunId) -> Move:
    gpu = look.seen.gpu
    slot = Slot(
        host=look.host.name,
        gpu=gpu.uuid,
        device=f"slice-of-run-{run}",
        index=gpu.index,
        profile=home.profile,
        start=home.start,
        memory_mib=memory_mib(look.seen.geometry, home),
    )
    new = New(
        replica=one.present.replica,
        placed=PlacedReplica(look.host.name, (slot,)),
        port=one.present.container.ports[0],
        tail=f"-{one.launch.pool.name}",
    )
    return Move(present=one.present, old=one.old, new=new, home=home, launch=one.launch)
