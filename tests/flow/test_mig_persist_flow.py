"""The files of the boot unit as a step of a change: whole, or exactly as they were."""

from __future__ import annotations

import pytest

from gpufleet.change.events import Goal
from gpufleet.change.flow import Tools, run_change, take_up
from gpufleet.change.model import Check, Plan, Step
from gpufleet.change.records import journal_file
from gpufleet.errors import FleetError, RolledBack
from gpufleet.hosts.model import Known
from gpufleet.lab.faults import Fault, FaultScript, Kind
from gpufleet.lab.fleet import HostWish, build_fleet
from gpufleet.lab.memory import MemoryTransport
from gpufleet.mig import boot_unit, runtime_files
from gpufleet.mig.boot_unit import NOTHING, BootFiles, files_for
from gpufleet.names import HostName, StepId
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit
from tests.kit.lab_kit import LabClock

HOST = HostName("gpu-01")
OLD, NEW = files_for("# an older one\nend\n"), files_for("# a newer one\nend\n")


class Desk:
    def __init__(self, path) -> None:
        self.path = path
        self.fleet = build_fleet([HostWish(name="gpu-01", gpus="1xH100-80GB")], LabClock())

    def tools(self, *faults: Fault) -> Tools:
        return Tools(
            transport=MemoryTransport(self.fleet, FaultScript(faults)),
            clock=self.fleet.clock,
            predicates={**boot_unit.PREDICATES, **runtime_files.PREDICATES},
            state_dir=self.path / "state",
            operator="ann@desk pid 1",
        )

    def seen(self) -> BootFiles:
        answer = MemoryTransport(self.fleet).open(HOST).run(boot_unit.look())
        assert isinstance(answer, Exit)
        found = boot_unit.read(answer)
        assert isinstance(found, Known), found
        return found.value.files

    def write(self, before: BootFiles, files: BootFiles, *faults: Fault, last: str = "exit 0") -> None:
        step = boot_unit.persist_step(HOST, before, files)
        end = Step(
            id=StepId("last"),
            host=HOST,
            title="last",
            do=(Command(script=last, mutates=True),),
            undo=(),
            verify=Check(look=Command(script=":", mutates=False), expect="runtime-files-any"),
            after=frozenset({step.id}),
        )
        plan = Plan(title="x", command="x", steps=(step, end))
        run_change(plan, self.tools(*faults), on_commit=lambda _run, _context: None)


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


@pytest.mark.parametrize("before", [NOTHING, OLD], ids=["nothing", "older"])
@pytest.mark.parametrize("files", [NOTHING, NEW], ids=["removed", "newer"])
def test_a_failure_behind_it_brings_the_former_files_back(desk, before, files):
    if before is not NOTHING:
        desk.write(NOTHING, before)
    with pytest.raises(RolledBack):
        desk.write(before, files, last="exit 1")
    assert desk.seen().same(before)
    desk.write(before, files)
    assert desk.seen().same(files)


def test_a_full_disk_leaves_the_former_files(desk):
    desk.write(NOTHING, OLD)
    full = Fault(kind=Kind.DISK_FULL, host="gpu-01", pattern="mig-boot.sh", nth=0)
    with pytest.raises(FleetError):
        desk.write(OLD, NEW, full)
    for disk in desk.fleet["gpu-01"].host.fs.disks:
        disk.full = False
    for summary in journal_file.summaries(desk.path / "state"):
        if summary.ending not in {"committed", "undone"}:
            take_up(
                summary.run, desk.tools(), Goal.UNDO, resolve=Secret, on_commit=lambda _run, _context: None
            )
    assert desk.seen().same(OLD)


@pytest.mark.parametrize("nth", range(3, 9))
@pytest.mark.parametrize("kind", [Kind.LOSE_BEFORE, Kind.LOSE_AFTER, Kind.POWER_OFF])
def test_whatever_is_lost_the_files_are_whole(desk, nth, kind):
    desk.write(NOTHING, OLD)
    ended = ""
    try:
        desk.write(OLD, NEW, Fault(kind=kind, host="gpu-01", nth=nth, after=4, seconds=30.0))
        ended = "committed"
    except FleetError:
        desk.fleet.clock.sleep(60.0)
        for summary in journal_file.summaries(desk.path / "state"):
            if summary.ending not in {"committed", "undone"}:
                take_up(
                    summary.run,
                    desk.tools(),
                    Goal.UNDO,
                    resolve=Secret,
                    on_commit=lambda _run, _context: None,
                )
    desk.fleet.clock.sleep(60.0)
    assert desk.seen().same(NEW if ended else OLD)
