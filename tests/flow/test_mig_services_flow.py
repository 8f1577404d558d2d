"""Services and modules around a change on simulated hosts: whatever happens, what ran before runs afterwards."""

from __future__ import annotations

import pytest

from gpufleet.change.events import Goal
from gpufleet.change.flow import Tools, run_change, take_up
from gpufleet.change.model import Check, Holds, Plan, Step
from gpufleet.change.records import journal_file
from gpufleet.errors import FleetError, RolledBack
from gpufleet.lab.faults import Fault, FaultScript, Kind
from gpufleet.lab.fleet import HostWish, LabHost, build_fleet
from gpufleet.lab.gpus.kernel_files import add_service
from gpufleet.lab.memory import MemoryTransport
from gpufleet.mig import services
from gpufleet.names import HostName, StepId
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from tests.kit.lab_kit import LabClock

HOST = HostName("gpu-01")
NAMES = ("dcgm-exporter", "nvidia-dcgm", "nvidia-persistenced")
RAN = {**dict.fromkeys(NAMES, True), "nvsm": False}


class Desk:
    def __init__(self, path) -> None:
        self.fleet = build_fleet([HostWish(name="gpu-01", gpus="1xA100-80GB")], LabClock())
        self.path = path
        self.lab: LabHost = self.fleet["gpu-01"]
        for name, active in RAN.items():
            add_service(
                self.lab.host, self.lab.gpus, name, handles=name != "nvidia-persistenced", active=active
            )
        self.lab.host.parts["modules"].add_drm()

    def tools(self, *faults: Fault) -> Tools:
        return Tools(
            transport=MemoryTransport(self.fleet, FaultScript(faults)),
            clock=self.lab.host.clock,
            predicates={**services.PREDICATES, "yes": lambda _exit, _data: Holds()},
            state_dir=self.path / "state",
            operator="ann@desk pid 1",
        )

    def state(self) -> dict[str, bool]:
        return {name: self.lab.host.services[name].active for name in RAN}

    def plan(self, reset: str = "nvidia-smi --gpu-reset -i 00000000:16:00.0") -> Plan:
        stop = services.stop_step(HOST, NAMES)
        unload = services.unload_step(HOST, ("nvidia_drm",), "Y", after=frozenset({stop.id}))
        middle = Step(
            id=StepId("reset"),
            host=HOST,
            title="reset",
            do=(Command(script=reset, mutates=True, become=True),),
            undo=(),
            verify=Check(look=Command(script=":", mutates=False), expect="yes"),
            after=frozenset({unload.id}),
        )
        load = services.load_step(HOST, ("nvidia_drm",), "Y", after=frozenset({middle.id}))
        start = services.start_step(HOST, NAMES, after=frozenset({load.id}))
        return Plan(title="reset", command="mig reconfigure", steps=(stop, unload, middle, load, start))


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


def loaded(desk: Desk) -> bool:
    return "nvidia_drm" in desk.lab.host.parts["modules"].loaded


def test_cases_01_and_02_a_reset_goes_through_with_holders_out_of_the_way(desk):
    refused = desk.lab.sh("nvidia-smi --gpu-reset -i 0", user="root")
    assert refused.code == 255
    assert b"currently in use" in refused.stdout
    change = run_change(desk.plan(), desk.tools(), on_commit=lambda _run, _context: None)
    assert change.run
    assert desk.state() == RAN
    assert loaded(desk)
    assert desk.lab.host.parts["modules"].modeset == "Y"


def test_a_failed_reset_brings_everything_back(desk):
    with pytest.raises(RolledBack):
        run_change(desk.plan("exit 1"), desk.tools(), on_commit=lambda _run, _context: None)
    assert desk.state() == RAN
    assert loaded(desk)


def test_without_stopping_anybody_the_reset_is_refused(desk):
    plan = desk.plan()
    alone = Plan(title="reset", command="x", steps=(plan.steps[2],))
    with pytest.raises(FleetError):
        run_change(
            Plan(title="x", command="x", steps=(_free(alone.steps[0]),)),
            desk.tools(),
            on_commit=lambda _run, _context: None,
        )
    assert desk.state() == RAN


def _free(step: Step) -> Step:
    return Step(id=step.id, host=step.host, title=step.title, do=step.do, undo=step.undo, verify=step.verify)


@pytest.mark.parametrize("nth", range(4, 22, 2))
@pytest.mark.parametrize("kind", [Kind.LOSE_BEFORE, Kind.LOSE_AFTER])
def test_lost_answers_end_one_way_or_the_other(desk, nth, kind):
    fault = Fault(kind=kind, host="gpu-01", nth=nth)
    try:
        run_change(desk.plan(), desk.tools(fault), on_commit=lambda _run, _context: None)
    except FleetError:
        for summary in journal_file.summaries(desk.path / "state"):
            if not summary.ending:
                take_up(
                    summary.run,
                    desk.tools(),
                    Goal.UNDO,
                    resolve=Secret,
                    on_commit=lambda _run, _context: None,
                )
    assert desk.state() == RAN
    assert loaded(desk)
