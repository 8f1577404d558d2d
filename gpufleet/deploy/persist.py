"""The use case of `mig persist`: look, say what a boot would bring back from now on, and write it as one change.

A GPU of which a boot should bring slices back that are not there now is not forgotten by running this: the slices
were lost, and who wants to lose them says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from gpufleet.change.flow import run_change
from gpufleet.change.model import Plan
from gpufleet.deploy import commit
from gpufleet.deploy.audit import Line, audited
from gpufleet.deploy.fingerprint import fingerprint
from gpufleet.deploy.survey import survey
from gpufleet.deploy.tools import Done, Tools, recheck, warn_of_leases
from gpufleet.errors import FactUnknown, PreflightFailed, Refused
from gpufleet.hosts.boot_drift import BootDrift, Standing, drift
from gpufleet.hosts.model import BootGpu, BootLayout, BootSlice, GpuFact, HostFacts, Known, Unknown
from gpufleet.hosts.probes import boot_layout
from gpufleet.inventory.model import Host
from gpufleet.mig import boot_unit
from gpufleet.mig.boot_unit import BootSite
from gpufleet.mig.choose import Asked, choose
from gpufleet.names import GpuUuid, HostName, RunId
from gpufleet.remote.result import Lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Persisting:
    """What would be written.

    Attributes:
        before, after: what a boot brings back, now and afterwards.
        drifts: each GPU that was named against what is kept now.
        notes: what is left out, and why.
    """

    host: HostName
    facts: HostFacts
    before: BootLayout
    after: BootLayout
    drifts: tuple[BootDrift, ...]
    plan: Plan
    notes: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether anything would be written."""
        return bool(self.plan.steps)

    def fields(self) -> dict[str, object]:
        """For JSON."""
        return {
            "host": self.host,
            "gpus": [
                {
                    "index": one.gpu.index,
                    "uuid": one.gpu.uuid,
                    "standing": one.standing.value,
                    "missing": list(one.missing),
                    "extra": list(one.extra),
                    "renamed": list(one.renamed),
                    "kept": _slices(self.after, one.gpu.uuid),
                }
                for one in self.drifts
            ],
        }


def prepare_persist(
    tools: Tools, host: Host, asked: Asked, *, remove: bool, overwrite: bool, command: str
) -> Persisting:
    """Look at the host and plan; nothing is changed.

    Raises:
        UsageError: the host has no such GPU.
        FactUnknown, Refused, PreflightFailed: what is there cannot be kept, or not on this host.
    """
    facts = survey(tools.change.transport, [host], clock=tools.change.clock, forks=1)[host.name]
    if isinstance(facts.gpus, Unknown):
        raise FactUnknown(f"the GPUs could not be read: {facts.gpus.reason}", where=host.name)
    gpus = choose(asked, host.name, facts, facts.gpus.value)
    site = _site(tools, host.name)
    before = _kept(site, host.name, remove=remove)
    capable = [one for one in gpus if one.mig.capable != Known(False)]
    found = tuple(drift(one, Known(before)) for one in capable)
    notes = [f"GPU {one.index} cannot be cut: left out" for one in gpus if one not in capable]
    wanted: dict[GpuUuid, BootGpu | None] = {}
    for one in found:
        if not (remove or overwrite):
            _refuse_loss(one, host.name)
        wanted[one.gpu.uuid] = None if remove else _boot_gpu(one.gpu, host.name, notes)
    entries = {one.uuid: one for one in before.gpus} | {
        uuid: entry for uuid, entry in wanted.items() if entry is not None
    }
    kept = [entry for uuid, entry in entries.items() if wanted.get(uuid, entry) is not None]
    after = BootLayout(tuple(sorted(kept, key=lambda one: one.uuid)), site.specs if kept else ())
    if after.gpus and not site.systemd:
        raise PreflightFailed(
            "systemd does not run here, and nothing else brings slices back at boot",
            where=host.name,
            hints=("run `gpufleet mig show` after a boot, and cut the GPUs again",),
        )
    return Persisting(
        host=host.name,
        facts=facts,
        before=before,
        after=after,
        drifts=found,
        plan=_plan(host.name, facts, site, after, command),
        notes=tuple(notes),
    )


def carry_out_persist(tools: Tools, prepared: Persisting) -> Done:
    """Write it, or nothing.

    Raises:
        RolledBack, RollbackIncomplete, InDoubt, LeaseHeld, StalePlan and what else `run_change` raises.
    """
    if not prepared.changes:
        return Done(outcome="no_change")
    line = Line(command=prepared.plan.command, pool="", hosts=prepared.plan.hosts)
    with audited(tools, line):
        change = run_change(
            prepared.plan,
            tools.change,
            on_commit=commit.finish_commit(tools.store),
            recheck=recheck(tools, prepared.plan, {prepared.host: prepared.facts}),
        )
        line.run = RunId(change.run)
    warn_of_leases(tools, change)
    return Done(outcome="committed", run=change.run, hosts=tuple(row.fields() for row in change.rows))


def _plan(host: HostName, facts: HostFacts, site: BootSite, after: BootLayout, command: str) -> Plan:
    files = boot_unit.files_for(boot_layout.render(after.gpus, after.cdi))
    steps = () if site.files.same(files) else (boot_unit.persist_step(host, site.files, files),)
    return Plan(
        title=f"slices of {host} over a boot",
        command=command,
        steps=steps,
        fingerprint=fingerprint({host: facts}),
        context={"use": commit.PERSIST},
    )


def _site(tools: Tools, host: HostName) -> BootSite:
    with closing(tools.change.transport.open(host)) as session:
        answer = session.run(boot_unit.look())
    seen = Unknown(answer.reason) if isinstance(answer, Lost) else boot_unit.read(answer)
    if isinstance(seen, Unknown):
        raise FactUnknown(f"what stands there for a boot is not known: {seen.reason}", where=host)
    return seen.value


def _kept(site: BootSite, host: HostName, *, remove: bool) -> BootLayout:
    """What is kept now. A file that nobody understands is only taken away as a whole."""
    if not site.files.layout:
        return BootLayout()
    known = boot_layout.read(site.files.layout)
    if isinstance(known, Known):
        return known.value
    if remove:
        return BootLayout()
    raise Refused(
        known.reason,
        where=host,
        hints=(f"look at it, and take it away with `gpufleet mig persist {host} --remove`",),
    )


def _refuse_loss(one: BootDrift, host: HostName) -> None:
    if one.standing is not Standing.LOST:
        return
    raise Refused(
        f"GPU {one.gpu.index}: {one.text()}; keeping what is there now would forget them",
        where=host,
        hints=(
            "bring them back: sudo systemctl restart gpufleet-mig.service; its journal tells why they were not",
            f"or forget them: `gpufleet mig persist {host}:{one.gpu.index} --remove`, or --overwrite",
        ),
    )


def _boot_gpu(gpu: GpuFact, host: HostName, notes: list[str]) -> BootGpu | None:
    """What a boot has to bring back of one GPU; None for one without slices."""
    mig = gpu.mig
    if isinstance(mig.current, Unknown) or isinstance(mig.pending, Unknown):
        raise FactUnknown(f"GPU {gpu.index}: whether MIG is on is not known", where=host)
    if isinstance(mig.gpu_instances, Unknown):
        raise FactUnknown(f"GPU {gpu.index}: {mig.gpu_instances.reason}", where=host)
    if isinstance(mig.instances, Unknown):
        raise FactUnknown(f"GPU {gpu.index}: {mig.instances.reason}", where=host)
    if mig.current.value != mig.pending.value:
        raise Refused(
            f"GPU {gpu.index}: MIG is to be switched at the next reset: what would be kept is not there yet",
            where=host,
            hints=("reset the GPU, or take the mode back",),
        )
    if not mig.gpu_instances.value:
        notes.append(f"GPU {gpu.index} has no slices: nothing to bring back")
        return None
    uuids: dict[int, list[str]] = {}
    for one in mig.instances.value:
        if isinstance(one.gi, Unknown):
            raise FactUnknown(f"GPU {gpu.index}: {one.gi.reason}", where=host)
        uuids.setdefault(one.gi.value, []).append(one.uuid)
    odd = [one.gi for one in mig.gpu_instances.value if len(uuids.get(one.gi, ())) != 1]
    odd += [one.gi.value for one in mig.instances.value if "c." in one.profile and isinstance(one.gi, Known)]
    if odd:
        raise Refused(
            f"GPU {gpu.index}: GPU instance {odd[0]} has not one compute instance over all of it, and nothing else is kept",
            where=host,
            hints=("give it one, or destroy it",),
        )
    ordered = sorted(mig.gpu_instances.value, key=lambda one: one.gi)
    return BootGpu(
        gpu.uuid,
        tuple(
            BootSlice(profile=one.profile, start=one.start, size=one.size, uuid=uuids[one.gi][0])
            for one in ordered
        ),
    )


def _slices(layout: BootLayout, uuid: GpuUuid) -> Sequence[dict[str, object]]:
    entry = layout.of(uuid)
    slices = entry.slices if entry is not None else ()
    return [
        {"profile": one.profile, "start": one.start, "size": one.size, "uuid": one.uuid} for one in slices
    ]
