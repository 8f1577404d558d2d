"""Random changes of layout with random faults and crashes: as wanted, or exactly as before, containers included.

One run is a layout, a wanted layout, a script of faults, and a journal record after which the process dies, or none.
The runs of a chunk follow each other on one host: each begins with what the run before left. A chunk is repeated by
its first seed.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpufleet.change.events import Ending, Goal
from gpufleet.deploy.persist import carry_out_persist, prepare_persist
from gpufleet.deploy.recut.flow import RecutWish, carry_out_recut, prepare_recut
from gpufleet.deploy.recut.model import Recut
from gpufleet.deploy.tools import Done
from gpufleet.errors import FleetError, HostUnreachable, InDoubt, Refused, RollbackIncomplete, RolledBack
from gpufleet.lab.faults import LINK, Fault, FaultScript, Kind
from gpufleet.lab.gpus.kernel_files import add_service
from gpufleet.lab.gpus.simgpu import NoRoom, SimGpu, make_gpus
from gpufleet.mig.choose import parse
from gpufleet.names import HostName, RunId
from gpufleet.pools.model import SliceWish
from tests.kit.deploy_site import Site
from tests.kit.killed import killed_after

RUNS = {"dev": 50, "ci": 2_000, "deep": 10_000}[os.environ.get("HYPOTHESIS_PROFILE", "dev")]
CHUNK = 25
HOST = HostName("gpu-01")
BOARDS = ("H100-80GB", "A100-80GB", "A30-24GB", "H200-141GB")
RUNTIME = (Kind.DAEMON_STOPPED, Kind.DAEMON_KILLED, Kind.DAEMON_HUNG)
KINDS = (
    *(Kind.GPU_MISHAP,) * 8,
    *(Kind.LOSE_BEFORE, Kind.LOSE_AFTER) * 3,
    *(Kind.HANG, Kind.SLOW, Kind.REFUSE, Kind.GPU_CLIENT, Kind.ENGINE),
    *(*RUNTIME, Kind.DISK_FULL, Kind.PORT_TAKEN, Kind.GPU_LOST),
)
"""What goes wrong; a host that is cut off from its power has tests of its own below."""


def random_layout(dice: random.Random, board: str, *, most: int) -> list[str]:
    """Slices that fit side by side, as `PROFILE:START`."""
    gpu: SimGpu = make_gpus("any", board, 1)[0]
    gpu.set_mig(enabled=True)
    for _ in range(dice.randint(0, most)):
        profile = dice.choice(gpu.board.profiles)
        free = gpu.free_starts(profile) if gpu.free_count(profile) else []
        if free:
            try:
                gpu.create(profile.name, dice.choice(free))
            except NoRoom:  # one set of media engines
                continue
    return [f"{one.profile.name}:{one.start}" for one in gpu.instances]


@dataclass(slots=True)
class Seen:
    """A host as somebody sees it who does not go through gpufleet."""

    slices: object
    containers: object
    routes: object
    services: object
    bound: object

    @classmethod
    def of(cls, site: Site, *, life: bool) -> Seen:
        (lab,) = site.fleet
        services = {name: one.active for name, one in lab.host.services.items() if name != "docker"}
        return cls(
            site.slices(), site.containers(life=life), site.routes(), services, bound(site) if life else None
        )


def bound(site: Site) -> dict[str, str]:
    """Running replicas to their places; each must have the device that its labels say."""
    (lab,) = site.fleet
    places = {
        one.uuid: f"{one.profile.name} {one.start}" for gpu in lab.gpus.gpus for _, one in gpu.devices()
    }
    found = {}
    for one in lab.containers.containers.values():
        labels = one.wish.labels
        if "gpufleet.replica" in labels and one.running:
            (device,) = one.wish.devices or one.wish.cdi
            if device in places:
                assert labels["gpufleet.slice"].split(" ", 1)[1] == places[device]
                assert labels["gpufleet.devices"] == device
            found[labels["gpufleet.replica"]] = places.get(device, "whole")
    return found


class Chunk:
    """One host, and runs that follow each other on it."""

    def __init__(self, path: Path, first: int) -> None:
        self.dice = random.Random(first)
        self.board = BOARDS[first // CHUNK % len(BOARDS)]
        off = first // CHUNK % 3 == 0
        layouts = {} if off else {0: tuple(random_layout(self.dice, self.board, most=6))}
        self.site = Site(path, 1, f"1x{self.board}", layouts=layouts)
        (self.lab,) = self.site.fleet
        add_service(self.lab.host, self.lab.gpus, "nvidia-dcgm", handles=True, active=True)
        add_service(self.lab.host, self.lab.gpus, "nvidia-persistenced", handles=False, active=first % 2 == 0)
        self.lab.containers.add_image("nvidia/dcgm-exporter:4")
        if off:  # to a deploy every GPU is taken by a container that was given all of them
            self.lab.sh(
                "docker run -d --name dcgm-exporter --restart always --gpus all nvidia/dcgm-exporter:4",
                user="root",
            )

    def populate(self) -> None:
        """A pool on free slices of one profile, and now and then somebody else's container on another."""
        site, (gpu,) = self.site, self.lab.gpus.gpus
        names = sorted({one.profile.name for one in gpu.instances if one.ci is not None})
        if not names:
            return
        profile = self.dice.choice(names)
        count = sum(one.profile.name == profile for one in gpu.instances)
        site.delete()
        for name in ("book", "dcgm-exporter"):
            self.lab.sh(f"docker rm -f {name}", user="root")
        pool = site.pool(slice=SliceWish(mig=profile), replicas=self.dice.randint(1, min(count, 3)))
        site.deploy(pool)
        taken = {device for one in self.lab.containers.containers.values() for device in one.wish.devices}
        free = [one.uuid for _, one in gpu.devices() if one.uuid not in taken]
        if free and self.dice.random() < 0.3:
            device = self.dice.choice(free)
            self.lab.sh(
                f"docker run -d --name book --restart always --gpus '\"device={device}\"' redis:7",
                user="root",
            )

    def heal(self) -> None:
        """Whatever broke works again, and time passes."""
        self.site.heal()
        gpus = self.lab.gpus
        gpus.mishaps.clear()
        for gpu in gpus.gpus:
            if gpus.clients.get(gpu.uuid) == "nv-hostengine":
                gpus.clients.pop(gpu.uuid)
            gpu.fault = ""
        self.site.clock.sleep(150.0)

    def run(self, seed: int) -> str:
        """One run; says how it ended."""
        dice, site = random.Random(seed), self.site
        wanted = random_layout(dice, self.board, most=6)
        explicit = dice.random() < 0.5
        layout = ",".join(wanted if explicit else [one.partition(":")[0] for one in wanted]) or "none"
        script = FaultScript.random(seed, (HOST,), most=2, commands=45, kinds=KINDS)
        dies = dice.randint(1, 45) if dice.random() < 0.5 else 10_000
        life = not any(fault.kind in {*RUNTIME, Kind.DISK_FULL} for fault in script.faults)
        goal = dice.choice((Goal.RESUME, Goal.UNDO))
        wish = RecutWish(layout=layout, allow_homeless=True, by_memory=dice.random() < 0.5, drain=20.0)
        before, held = Seen.of(site, life=life), site.leases()
        told = f"seed {seed}: {self.board} {site.slices()} to {layout}; {script}; dies after {dies}, {goal}"
        ended, recut = self._attempt(wish, script, dies, goal)
        told = f"{told}: {ended}"
        after = Seen.of(site, life=life)
        if not held and not any(fault.kind in {Kind.DISK_FULL, *LINK} for fault in script.faults):
            assert site.leases() == [], told  # else it cannot be given back, and expires
        assert site.environment_files() == {}, told
        if ended != "committed":
            assert after == before, told
            return ended
        assert recut is not None
        if not recut.plan.steps:
            assert after == before, told
            return "no_change"
        whole = sorted(str(one) for one in (*recut.change.keep, *recut.change.create))
        assert after.slices == {HOST: [["MIG True True", *whole]]}, told
        assert after.services == before.services, told
        assert self._containers(recut, life=life) == after.containers, told
        return ended

    def _attempt(
        self, wish: RecutWish, script: FaultScript, dies: int, goal: Goal
    ) -> tuple[str, Recut | None]:
        site = self.site
        plans: list[Recut] = []
        done: list[Done] = []
        host = site.inventory.hosts[HOST]
        self._before = site.containers(life=True)

        def act(tools: Any) -> None:
            plans.append(prepare_recut(tools, host, parse("gpu-01:0"), wish, command="mig reconfigure"))
            done.append(carry_out_recut(tools, plans[-1]))

        with pytest.MonkeyPatch.context() as patch:
            try:
                run = killed_after(site, act, dies, patch, script)
                ended = "committed"
            except (InDoubt, RollbackIncomplete) as error:
                run, ended, goal = RunId(error.run), "", Goal.UNDO
            except FleetError as error:
                run, ended = None, f"{type(error).__name__} {error} {error.rows}"
        self.heal()
        if run is not None:
            ended = self._finish(run, goal)
        if done and done[0].leftovers:  # named, and removed as the hint says
            assert {row.hint for row in done[0].leftovers} == {f"gpufleet change resume {done[0].run}"}
            self.site.take_up(RunId(done[0].run), Goal.RESUME)
        return ended, plans[-1] if plans else None

    def _finish(self, run: RunId, goal: Goal) -> str:
        """What an operator is told to do."""
        try:
            ending = self.site.take_up(run, goal).ending
        except Refused:  # it had begun to publish
            ending = self.site.take_up(run, Goal.RESUME).ending
        except (InDoubt, RollbackIncomplete):
            ending = self.site.take_up(run, Goal.UNDO).ending
        except FleetError as error:
            return type(error).__name__
        return "committed" if ending is Ending.COMMITTED else ending.value

    def _containers(self, recut: Recut, *, life: bool) -> dict[str, list[tuple[str, ...]]]:
        """What there has to be: the others as they were, heirs in place of what moved, the homeless stopped."""
        moved = {one.present.container.id for one in recut.moves}
        stopped = {one.present.container.id for one in recut.homeless if one.up}
        kept = [one for one in self._before[HOST] if one[0] not in moved]
        rows = [(one[0], one[1], "no", "False") if one[0] in stopped else one for one in kept]
        for one in self.lab.containers.containers.values():
            if one.wish.labels.get("gpufleet.run") == recut.run:
                rows.append((one.id, one.name, "always", "True"))
        assert len(rows) == len(kept) + len(recut.moves)
        return {HOST: sorted(row if life else row[:3] for row in rows)}


@pytest.mark.parametrize("board", ["H100-80GB", "A100-80GB"])
@pytest.mark.parametrize("nth", range(7, 43, 5))
def test_a_host_that_loses_its_power_is_named_and_undone_when_it_is_back(tmp_path, board, nth):
    """A boot takes every slice, also those that nobody changes; what a boot brings back is the former layout."""
    cut = ("1g.10gb:0", "1g.10gb:1", "3g.40gb:4")
    site = Site(tmp_path, 1, f"1x{board}", layouts={0: cut})
    host = site.inventory.hosts[HOST]
    kept = prepare_persist(site.tools(), host, parse(HOST), remove=False, overwrite=False, command="x")
    carry_out_persist(site.tools(), kept)
    site.deploy(site.pool(slice=SliceWish(mig="1g.10gb"), replicas=2))
    before = site.slices(), site.containers(life=False), site.routes()
    try:
        site.recut(
            "gpu-01:0", "1g.10gb:0,1g.10gb:3,2g.20gb:4", Fault(kind=Kind.POWER_OFF, host=HOST, nth=nth)
        )
    except (InDoubt, RollbackIncomplete) as error:
        assert HOST in str([row.where for row in error.rows])
        site.heal()
        site.clock.sleep(150.0)
        assert site.take_up(RunId(error.run), Goal.UNDO).ending is Ending.UNDONE
    except (HostUnreachable, RolledBack):  # nothing had been sent yet
        assert nth < 15
        site.heal()
    else:
        assert nth > 32
        site.heal()
        assert site.slices() != before[0]
        return
    assert (site.slices(), site.containers(life=False), site.routes()) == before


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, RUNS, CHUNK))
def test_random_changes_of_layout(tmp_path, first):
    chunk = Chunk(tmp_path, first)
    ends = []
    for seed in range(first, first + CHUNK):
        if seed % 6 == first % 2:
            chunk.populate()
        ends.append(chunk.run(seed))
    assert "committed" in ends
