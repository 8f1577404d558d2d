"""The steps of a recut of one GPU, in the order in which they wait for each other.

    cordon, drain, stop            what loses its slice, and monitors in containers
    guard, services, modules       who else holds the GPU
    mode, destroy, create, look    the GPU itself
    modules, files, services       everything back, and the slices described to the container runtime
    names, monitors                the UUIDs of the slices
    start, gate, settle, publish   the replicas on their new slices, and containers that get theirs back
    persist                        the layout for the next boot, where one was kept

Undone in the mirrored order: the former slices are back before a container starts on them, and a container is ready
before it is in the routes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpufleet.change.model import Step
from gpufleet.deploy import commands, steps
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.recut.model import Homeless, Move, Revived
from gpufleet.deploy.recut.traffic import Traffic
from gpufleet.deploy.replicas import Present
from gpufleet.engine.vllm import STOP_TIMEOUT
from gpufleet.hosts.model import ContainerFact, Known
from gpufleet.hosts.probes import boot_layout
from gpufleet.mig import naming
from gpufleet.mig.boot_unit import BootSite
from gpufleet.mig.gpu_steps import GpuChange
from gpufleet.mig.surroundings import Surroundings, keep_step, kept_layout
from gpufleet.names import ReplicaId, StepId
from gpufleet.remote.command import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the steps are made from."""

    gpu: GpuChange
    around: Surroundings
    traffic: Traffic
    dialect: Dialect
    moves: tuple[Move, ...]
    homeless: tuple[Homeless, ...]
    revived: tuple[tuple[Revived, Present], ...]
    boot: BootSite


def steps_of(parts: Parts) -> tuple[Step, ...]:
    """All of them."""
    emptied = [*_emptied(parts), *_pauses(parts)]
    first = parts.around.first(_ids(emptied))
    cut = parts.gpu.steps(_ids(first[-1:]))
    last = parts.around.last(_ids(cut[-1:]))
    homes = [*(one.home for one in parts.moves), *(one.slice for one, _ in parts.revived)]
    gpu = parts.gpu
    named = [naming.step(gpu.host, gpu.target, homes, tail=gpu.tail, after=_ids(last[-1:]))] if homes else []
    ready = _ids([*last, *named][-1:])
    made = [*emptied, *first, *cut, *last, *named, *_resumes(parts, ready)]
    made += [*_starts(parts, ready), *_revived(parts, ready)]
    made += parts.traffic.publish(parts.moves, _ids(made))
    return (*made, *_kept(parts, _ids(made)))


def _emptied(parts: Parts) -> list[Step]:
    """Out of the routes, finished, stopped; what does not run has nothing to finish."""
    graces = {one.present.container.id: one.launch.container.stop_timeout for one in parts.moves}
    leaving = [*(one.present for one in parts.moves), *(one.present for one in parts.homeless if one.up)]
    cordons = parts.traffic.cordons(leaving)
    made = list(cordons)
    for one in leaving:
        after = _ids(cordons)
        if one.container.ports:
            made.append(parts.traffic.drain(one, after))
            after = _ids(made[-1:])
        grace = graces.get(one.container.id, STOP_TIMEOUT)
        made.append(steps.stop_step(one, parts.dialect, grace, after))
    return made


def _pauses(parts: Parts) -> list[Step]:
    """Monitors in containers stop, too: they hold handles of the GPU."""
    return [
        replace(
            steps.stop_step(_monitor(parts, one), parts.dialect, STOP_TIMEOUT, frozenset()),
            title=f"stop the monitor {one.name} meanwhile",
        )
        for one in parts.around.holders.pause
    ]


def _resumes(parts: Parts, after: frozenset[StepId]) -> list[Step]:
    """The same step the other way round."""
    made: list[Step] = []
    for one in parts.around.holders.pause:
        stop = steps.stop_step(_monitor(parts, one), parts.dialect, STOP_TIMEOUT, after)
        if not isinstance(stop.undo, tuple) or stop.absent is None:
            raise TypeError(stop.id)
        made.append(
            replace(
                stop,
                id=StepId(f"again-{stop.id}"),
                title=f"start the monitor {one.name} again",
                do=stop.undo,
                undo=stop.do,
                verify=stop.absent,
                absent=stop.verify,
                phase="start-services",
            )
        )
    return made


def _revived(parts: Parts, after: frozenset[StepId]) -> list[Step]:
    """Containers that were stopped for want of their slice, started again when it is back under the same UUID."""
    made: list[Step] = []
    for one, present in parts.revived:
        stop = steps.stop_step(present, parts.dialect, STOP_TIMEOUT, after)
        policy = one.policy or present.container.restart_policy or "no"
        start = commands.restore(parts.dialect, present.container.id, policy)
        words = (parts.gpu.target.uuid, one.slice.profile, str(one.slice.start), one.uuid, *start.argv)
        made.append(
            replace(
                stop,
                id=StepId(f"revive-{present.host}-{present.container.id[:12]}"),
                title=f"start {present.container.name} again on {one.slice}",
                do=(replace(start, argv=words, script=naming.SAME + start.script),),
                undo=(*stop.do, *_policy(parts, present)),
                verify=replace(stop.absent or stop.verify, data=("running,restarting", "")),
                absent=replace(stop.verify, data=("exited,dead,created", "")),
                phase="revive",
            )
        )
    return made


def _policy(parts: Parts, present: Present) -> tuple[Command, ...]:
    """The restart policy that a stopped container had before it was started."""
    policy = present.container.restart_policy or "no"
    if not parts.dialect.updates or policy == "no":
        return ()
    return (commands.keep_policy(parts.dialect, present.container.id, policy),)


def _monitor(parts: Parts, one: ContainerFact) -> Present:
    return Present(replica=ReplicaId(one.name), host=parts.gpu.host, container=one)


def _starts(parts: Parts, ready: frozenset[StepId]) -> list[Step]:
    """Each replica on its new slice, asked until it streams; the runtime brings it back by itself from then on."""
    made: list[Step] = []
    for move in parts.moves:
        start = _start(parts, move, ready)
        gate = steps.gate_step(move.launch, move.new, parts.traffic.host, parts.dialect)
        made += [start, gate]
        if parts.dialect.updates:
            tail = f"-{move.new.number}{move.new.tail}"
            run = move.launch.run
            made.append(steps.settle_step(run, parts.dialect, [start], _ids([gate]), tail=tail))
        made.append(parts.traffic.serve(move, _ids(made[-1:])))
    return made


def _start(parts: Parts, move: Move, after: frozenset[StepId]) -> Step:
    """The start of a deploy, with the UUID of the slice in place of its mark once it is known."""
    step = steps.start_step(move.launch, move.new, parts.traffic.host, parts.dialect, after)
    (command,) = step.do
    mark = move.new.placed.slots[0].device
    words = (parts.gpu.target.uuid, move.home.profile, str(move.home.start), mark, *command.argv)
    return replace(step, do=(replace(command, argv=words, script=naming.NAMED + commands.START),))


def _kept(parts: Parts, after: frozenset[StepId]) -> list[Step]:
    """What a boot brings back, where somebody asked for that."""
    known = boot_layout.read(parts.boot.files.layout) if parts.boot.files.layout else None
    if not isinstance(known, Known) or known.value.of(parts.gpu.target.uuid) is None:
        return []
    slices = (*parts.gpu.change.keep, *parts.gpu.change.create)
    layout = kept_layout(known.value, parts.gpu.target.uuid, slices)
    return [keep_step(parts.gpu.host, parts.boot.files, layout, tail=parts.gpu.tail, after=after)]


def _ids(made: Sequence[Step]) -> frozenset[StepId]:
    return frozenset(step.id for step in made)
