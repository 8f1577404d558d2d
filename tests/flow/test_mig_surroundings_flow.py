"""A whole change of a GPU with who holds it: looked at, decided, carried out, turned back, on simulated hosts."""

from __future__ import annotations

import pytest

from gpufleet.change.events import Goal
from gpufleet.change.flow import Tools, run_change, take_up
from gpufleet.change.model import Check, Holds, Plan, Step
from gpufleet.change.records import journal_file
from gpufleet.errors import FleetError, RolledBack
from gpufleet.hosts.gather import gather
from gpufleet.hosts.model import BootGpu, BootLayout, BootSlice, GpuFact, HolderFacts, HostFacts, Known
from gpufleet.hosts.probes import holders as probe
from gpufleet.inventory.model import Address, Host
from gpufleet.lab.faults import Fault, FaultScript, Kind
from gpufleet.lab.fleet import HostWish, LabHost, build_fleet
from gpufleet.lab.gpus import cdi
from gpufleet.lab.gpus.kernel_files import add_service
from gpufleet.lab.memory import MemoryTransport
from gpufleet.mig import boot_unit, runtime_files, services
from gpufleet.mig.boot_unit import NOTHING
from gpufleet.mig.holders import Consent, Reach, Touched, decide
from gpufleet.mig.model import Placed
from gpufleet.mig.surroundings import Surroundings, keep_step, kept_layout
from gpufleet.names import GpuUuid, HostName, StepId
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit
from tests.kit.lab_kit import LabClock

HOST = HostName("gpu-01")
RAN = {"dcgm-exporter": True, "nvidia-dcgm": True, "nvidia-persistenced": True, "nvsm": False}
SWITCH = "nvidia-smi -i 0 -mig 1"


class Desk:
    def __init__(self, path, gpus: str = "2xA100-80GB", **more) -> None:
        self.path = path
        self.fleet = build_fleet([HostWish(**{"name": "gpu-01", "gpus": gpus, **more})], LabClock())
        self.lab: LabHost = self.fleet["gpu-01"]
        for name, active in RAN.items():
            add_service(
                self.lab.host, self.lab.gpus, name, handles=name != "nvidia-persistenced", active=active
            )

    def tools(self, *faults: Fault) -> Tools:
        return Tools(
            transport=MemoryTransport(self.fleet, FaultScript(faults)),
            clock=self.fleet.clock,
            predicates={**services.PREDICATES, **runtime_files.PREDICATES, **boot_unit.PREDICATES},
            state_dir=self.path / "state",
            operator="ann@desk pid 1",
        )

    def facts(self) -> HostFacts:
        host = Host(name=HOST, address=Address("127.0.0.1"))
        seen = gather(MemoryTransport(self.fleet), [host], clock=self.fleet.clock)[HOST]
        assert isinstance(seen, HostFacts)
        return seen

    def gpu(self) -> GpuFact:
        seen = self.facts().gpus
        assert isinstance(seen, Known)
        return seen.value[0]

    def ask(self, command: Command) -> Exit:
        answer = MemoryTransport(self.fleet).open(HOST).run(command)
        assert isinstance(answer, Exit), answer
        return answer

    def held(self) -> HolderFacts:
        return probe.read(MemoryTransport(self.fleet).open(HOST).run(probe.command(become=True)))

    def plan(self, reach: Reach, *acts: tuple[str, str], **touched) -> Plan:
        seen = self.held()
        decision = decide(
            Touched(gpu=self.gpu(), reach=reach, **touched), seen, (), frozenset({Consent.MODULE})
        )
        assert decision.blockers == ()
        assert decision.unknown == ()
        around = Surroundings(host=HOST, holders=decision, seen=seen)
        steps = list(around.first())
        for number, (do, undo) in enumerate(acts):
            steps.append(
                Step(
                    id=StepId(f"act-{number}"),
                    host=HOST,
                    title=do,
                    do=(Command(script=do, mutates=True, become=True),),
                    undo=(Command(script=undo, mutates=True, become=True),) if undo else (),
                    verify=Check(look=Command(script=":", mutates=False), expect="runtime-files-any"),
                    after=frozenset({steps[-1].id}),
                )
            )
        steps += around.last(frozenset({steps[-1].id}))
        return Plan(title="cut", command="mig reconfigure", steps=tuple(steps))

    def run(self, plan: Plan, *faults: Fault) -> bool:
        """Whether it went through; a run that did not settle is undone."""
        try:
            run_change(plan, self.tools(*faults), on_commit=lambda _run, _context: None)
        except FleetError:
            self.fleet.clock.sleep(120.0)
            for summary in journal_file.summaries(self.path / "state"):
                if summary.ending not in {"committed", "undone"}:
                    take_up(
                        summary.run,
                        self.tools(),
                        Goal.UNDO,
                        resolve=Secret,
                        on_commit=lambda _run, _context: None,
                    )
            return False
        return True

    def ran(self) -> dict[str, bool]:
        return {name: self.lab.host.services[name].active for name in RAN}


def test_a_mode_change_with_reset_goes_through_and_everything_runs_again(tmp_path):
    desk = Desk(tmp_path)
    desk.lab.host.parts["modules"].add_drm()
    stuck = desk.lab.sh(SWITCH, user="root").stdout
    assert b"pending enable state" in stuck
    desk.lab.sh("nvidia-smi -i 0 -mig 0", user="root")
    back = "nvidia-smi -i 0 -mig 0"
    cut = "nvidia-smi mig -i 0 -cgi 3g.40gb:4 -C"
    uncut = "nvidia-smi mig -i 0 -dci; nvidia-smi mig -i 0 -dgi"
    plan = desk.plan(Reach.RESET, (SWITCH, back), (cut, uncut))
    assert [step.phase for step in plan.steps if step.phase] == [
        "runtime-files",
        "stop-services",
        "unload-modules",
        "load-modules",
        "runtime-files",
        "start-services",
    ]
    assert desk.run(plan)
    assert desk.ran() == RAN
    assert "nvidia_drm" in desk.lab.host.parts["modules"].loaded
    assert desk.lab.gpus.gpus[0].devices()[0][1].uuid in cdi.named(desk.lab.host)


def test_a_failure_after_the_reset_gives_everything_back(tmp_path):
    desk = Desk(tmp_path)
    desk.lab.host.parts["modules"].add_drm()
    before = cdi.named(desk.lab.host)
    plan = desk.plan(Reach.RESET, (SWITCH, "nvidia-smi -i 0 -mig 0"), ("exit 1", ""))
    with pytest.raises(RolledBack):
        run_change(plan, desk.tools(), on_commit=lambda _run, _context: None)
    assert desk.ran() == RAN
    assert (desk.lab.gpus.gpus[0].mig, desk.lab.gpus.gpus[0].pending) == (False, False)
    assert cdi.named(desk.lab.host) == before
    assert "nvidia_drm" in desk.lab.host.parts["modules"].loaded


def recut(desk: Desk) -> Plan:
    """A slice away and another one in its place; every act may run twice."""
    old = desk.lab.gpus.gpus[0].instances[0]
    gone = f"nvidia-smi mig -i 0 -gi {old.gi} -ci 0 -dci; nvidia-smi mig -i 0 -gi {old.gi} -dgi; :"
    there = "nvidia-smi mig -i 0 -cgi 1g.10gb:0 -C; :"
    new = "nvidia-smi mig -i 0 -cgi 2g.20gb:2 -C; :"
    away = "nvidia-smi mig -i 0 -gi 4 -ci 0 -dci; nvidia-smi mig -i 0 -gi 4 -dgi; :"
    return desk.plan(Reach.INSTANCES, (gone, there), (new, away), gis=frozenset({old.gi}))


@pytest.mark.parametrize("nth", range(3, 26, 3))
@pytest.mark.parametrize("kind", [Kind.LOSE_BEFORE, Kind.LOSE_AFTER])
def test_whatever_is_lost_services_and_files_are_as_the_slices_are(tmp_path, nth, kind):
    desk = Desk(tmp_path, "1xH100-80GB", layouts={0: ("1g.10gb:0",)})
    before = cdi.named(desk.lab.host)
    done = desk.run(recut(desk), Fault(kind=kind, host="gpu-01", nth=nth))
    assert desk.ran() == RAN
    assert {one.profile.name for one in desk.lab.gpus.gpus[0].instances} == {"2g.20gb" if done else "1g.10gb"}
    assert (cdi.named(desk.lab.host) == before) != done
    assert runtime_files.fresh(desk.ask(runtime_files.look()), (runtime_files.STRICT,)) == Holds()


def test_a_boot_brings_back_what_the_change_made(tmp_path):
    desk = Desk(tmp_path, "1xH100-80GB", layouts={0: ("1g.10gb:0",)})
    uuid = GpuUuid(desk.lab.gpus.gpus[0].uuid)
    kept = BootLayout((BootGpu(uuid, (BootSlice(profile="1g.10gb", start=0, size=1),)),))
    first = keep_step(HOST, NOTHING, kept)
    assert desk.run(Plan(title="x", command="x", steps=(first,)))
    before = boot_unit.read(desk.ask(boot_unit.look()))
    assert isinstance(before, Known)
    wanted = kept_layout(kept, uuid, [Placed(2, 2, "2g.20gb")])
    plan = recut(desk)
    keep = keep_step(HOST, before.value.files, wanted, tail="-0", after=frozenset({plan.steps[-1].id}))
    assert desk.run(Plan(title="x", command="x", steps=(*plan.steps, keep)))
    desk.lab.power_on()
    assert {one.profile.name for one in desk.lab.gpus.gpus[0].instances} == {"2g.20gb"}
    assert desk.facts().boot_layout == Known(wanted)
    assert kept_layout(BootLayout(), uuid, [Placed(2, 2, "2g.20gb")]) == BootLayout()
    assert kept_layout(kept, uuid, []).gpus == ()
