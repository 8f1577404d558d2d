"""An image from a host that has it, where no registry gives it: planned, carried in a tree, compared, undone."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from gpufleet.change.events import Goal
from gpufleet.deploy import diff, saved_plan
from gpufleet.deploy.flow import Prepared, carry_out, prepare
from gpufleet.errors import FleetError, InDoubt, PreflightFailed, Refused, RollbackIncomplete, RolledBack
from gpufleet.lab.containers.model import Container, Image, Wish
from gpufleet.lab.faults import USUAL, Fault, FaultScript, Kind
from gpufleet.names import PoolName
from gpufleet.pools.model import WeightsWish
from tests.kit import weight_sources
from tests.kit.deploy_site import IMAGE, Site
from tests.kit.lab_sites import bridge

ID = f"sha256:{'7' * 64}"
SIZE = 9 << 30


def site_with(tmp_path: Path, count: int = 3, *, having: tuple[str, ...] = ("gpu-02",), **more: Any) -> Site:
    """Hosts that no registry reaches; some of them have the image, as a registry once gave it."""
    site = Site(tmp_path, count=count, **more)
    site.fleet.registry.moved[IMAGE] = ID
    for name in having:
        site.fleet[name].containers.add_image(IMAGE, SIZE)
    site.fleet.registry.unreached = {lab.name for lab in site.fleet}
    return site


def build(site: Site, name: str) -> None:
    """An image that was built on a host: no registry knows it."""
    site.fleet[name].containers.images[IMAGE] = Image(id=ID, reference=IMAGE, size=SIZE)


def running(site: Site) -> dict[str, str]:
    """What the pool's containers were started from."""
    return {
        one.wish.labels["gpufleet.replica"]: one.wish.image
        for lab in site.fleet
        for one in lab.containers.containers.values()
        if one.wish.labels.get("gpufleet.pool") == "chat" and one.running
    }


def left(site: Site) -> dict[str, list[str]]:
    """Archives and marks in the stores, and givers."""
    found = {}
    for lab in site.fleet:
        fs, top = lab.host.fs, "/home/ops/.gpufleet/images"
        found[lab.name] = [name for name in (fs.names(top) if fs.exists(top) else []) if "loaded" not in name]
        found[lab.name] += [c.name for c in lab.containers.containers.values() if "give" in c.name]
    return found


def has(site: Site) -> set[str]:
    return {lab.name for lab in site.fleet if IMAGE in lab.containers.images}


def prepared(site: Site, **changes: Any) -> Prepared:
    return prepare(site.tools(), site.pool(**changes), command="pool plan chat")


def test_a_host_takes_the_image_from_one_that_has_it_and_all_run_its_id(tmp_path: Path):
    site = site_with(tmp_path)
    plan = prepared(site).plan
    shown = "\n".join(diff.lines(plan))
    for host in ("gpu-01", "gpu-03"):
        assert f"{host} takes the image (9.0 GiB) from gpu-02: it does not reach the registry" in shown
    assert any("pinned by its image id" in line for line in site.told)
    assert site.deploy().outcome == "committed"
    assert set(running(site).values()) == {ID}
    assert len(running(site)) == 3
    assert not any(left(site).values())
    assert not site.changes()


def test_twelve_hosts_cost_one_archive_and_no_host_gives_to_more_than_four(tmp_path: Path):
    site = site_with(tmp_path, count=12, having=("gpu-07",))
    steps = prepared(site).plan.bring_up.steps
    assert [step.host for step in steps if step.id.startswith("save-image-")] == ["gpu-07"]
    takes = [step for step in steps if step.id.startswith("take-image-")]
    assert len(takes) == 11
    feeds = [step.after for step in takes]
    assert all(feeds.count(one) <= 4 for one in feeds)
    assert site.deploy().outcome == "committed"
    assert has(site) == {lab.name for lab in site.fleet}
    assert not any(left(site).values())


def test_an_image_that_was_built_on_a_host_is_carried_although_a_registry_has_the_tag(tmp_path: Path):
    site = Site(tmp_path, count=2)
    build(site, "gpu-02")
    assert site.deploy().outcome == "committed"
    assert set(running(site).values()) == {ID}
    assert site.fleet["gpu-01"].containers.images[IMAGE].digests == ()
    assert not site.changes()


def test_an_image_is_not_copied_into_another_kind_of_store(tmp_path: Path):
    site = site_with(tmp_path)
    for name in ("gpu-01", "gpu-03"):
        site.fleet[name].containers.setup.containerd = True
    before = site.containers()
    with pytest.raises(PreflightFailed, match="another kind of store than gpu-02") as caught:
        site.deploy()
    assert [(row.where, "containerd" in row.message) for row in caught.value.rows] == [
        ("gpu-01", True),
        ("gpu-03", True),
    ]
    assert "registry" in caught.value.hints[0]
    assert "containerd-snapshotter" in caught.value.hints[1]
    assert site.containers() == before
    site.fleet["gpu-02"].containers.setup.containerd = True
    assert site.deploy().outcome == "committed"


def test_a_registry_that_gives_the_image_is_used(tmp_path: Path):
    site = site_with(tmp_path)
    site.fleet.registry.unreached = set()
    plan = prepared(site).plan
    assert not plan.carried
    assert {step.id for step in plan.bring_up.steps if step.phase == "pull"} == {
        f"pull-{lab.name}" for lab in site.fleet
    }


def test_a_registry_of_which_nobody_knows_is_pulled_from(tmp_path: Path):
    site = site_with(tmp_path, without=frozenset({"curl"}))
    assert not prepared(site).plan.carried


def test_the_next_plan_needs_no_registry_and_carries_nothing(tmp_path: Path):
    site = site_with(tmp_path)
    site.deploy()
    again = prepared(site, served_name="other").plan
    assert again.start
    assert not again.carried
    assert {step.title for step in again.bring_up.steps if step.phase == "pull"} == {
        f"use {ID}, which is there"
    }


@pytest.mark.parametrize("built", [False, True])
def test_a_saved_plan_that_carries_an_image_is_carried_out_as_it_is(tmp_path: Path, *, built: bool):
    site = site_with(tmp_path, having=() if built else ("gpu-02",))
    if built:
        build(site, "gpu-02")
    tools, path = site.tools(), tmp_path / "plan.json"
    saved_plan.save(tools, prepared(site), path)
    saved, pool = saved_plan.load(path)
    again = prepare(
        tools,
        pool,
        command="pool deploy chat --plan",
        stands=saved_plan.stands(saved, path),
        pulled=saved_plan.image_of(saved),
    )
    saved_plan.refuse_other(tools, again, saved, path)
    assert carry_out(tools, again).outcome == "committed"
    assert set(running(site).values()) == {ID}
    known = tools.store.record(PoolName("chat"))
    assert known is not None
    assert known.pulled == (ID if built else f"vllm/vllm-openai@{ID}")


def test_weights_are_given_once_the_image_is_there(tmp_path: Path):
    site = site_with(tmp_path, count=4)
    with weight_sources.hub({"config.json": b"{}", "a.safetensors": b"x" * 500}) as (hub, storage):
        for server in (hub, storage):
            bridge(site.fleet.network, server.url)
        pool = site.pool(staging=WeightsWish(source="hf://org/name", endpoint=hub.url))
        assert site.deploy(pool).outcome == "committed"
        assert storage.reads("a.safetensors") == 1
    assert set(running(site).values()) == {ID}
    assert not any(left(site).values())


FAULTS = {
    "the giver dies": Fault(kind=Kind.POWER_OFF, host="gpu-02", pattern='"$runtime" save', after=20, seconds=5),
    "the taker dies": Fault(kind=Kind.POWER_OFF, host="gpu-03", pattern="giver=$3", after=20, seconds=5),
    "the taker's disk fills up": Fault(kind=Kind.DISK_FULL, host="gpu-03", pattern="giver=$3"),
    "the giver's disk fills up": Fault(kind=Kind.DISK_FULL, host="gpu-02", pattern='"$runtime" save'),
    "the disk fills up at the load": Fault(kind=Kind.DISK_FULL, host="gpu-01", pattern='"$runtime" load'),
    "an engine crashes": Fault(kind=Kind.ENGINE, host="gpu-01", pattern='"$runtime" run -d --env', detail="crash", times=9),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_failure_takes_away_what_was_loaded_and_every_archive(tmp_path: Path, name: str):
    site = site_with(tmp_path)
    before = site.containers()
    with pytest.raises(RolledBack):
        site.deploy(None, FAULTS[name])
    site.heal()
    assert has(site) == {"gpu-02"}
    assert not any(left(site).values())
    assert site.containers(life=False) == {host: [row[:3] for row in rows] for host, rows in before.items()}


def test_a_runtime_that_does_not_answer_an_undo_has_not_said_that_the_image_is_gone(tmp_path: Path):
    site = site_with(tmp_path)
    loading = '"$runtime" load'
    faults = (
        Fault(kind=Kind.LOSE_AFTER, host="gpu-03", pattern=loading),
        Fault(kind=Kind.DAEMON_STOPPED, host="gpu-03", pattern="users=$("),
        Fault(kind=Kind.ENGINE, host="gpu-01", pattern='"$runtime" run -d --env', detail="crash", times=9),
    )
    with pytest.raises(FleetError):
        site.deploy(None, *faults)
    site.heal()
    with contextlib.suppress(Refused):
        site.take_up(site.runs()[-1].run, Goal.UNDO)
    assert has(site) == {"gpu-02"}
    assert not any(left(site).values())


@pytest.mark.parametrize("kind", [Kind.LOSE_BEFORE, Kind.LOSE_AFTER])
def test_lost_answers_change_nothing(tmp_path: Path, kind: Kind):
    site = site_with(tmp_path)
    faults = [
        Fault(kind=kind, host=host, pattern=pattern)
        for host, pattern in (
            ("gpu-02", '"$runtime" save'),
            ("gpu-01", "giver=$3"),
            ("gpu-03", '"$runtime" load'),
        )
    ]
    assert site.deploy(None, *faults).outcome == "committed"
    assert set(running(site).values()) == {ID}
    assert not any(left(site).values())


def test_an_image_that_somebody_uses_by_now_is_not_taken_away(tmp_path: Path):
    site = site_with(tmp_path)
    tools = site.tools(Fault(kind=Kind.DISK_FULL, host="gpu-03", pattern='"$runtime" load'))
    engine = site.fleet["gpu-01"].containers
    seen: list[Container] = []

    def use(_step: object, _event: object) -> None:
        if IMAGE in engine.images and not seen:
            seen.append(engine.create(Wish(name="somebody-elses", image=ID)))

    object.__setattr__(tools.change, "observer", use)
    with pytest.raises(RolledBack):
        site.deploy_by(tools, site.pool())
    if seen:
        assert "gpu-01" in has(site)
    assert "gpu-03" not in has(site)


def test_an_image_that_changed_on_its_host_is_not_given(tmp_path: Path):
    site = site_with(tmp_path)
    tools = site.tools()
    ready = prepare(tools, site.pool(), command="pool deploy chat")
    engine = site.fleet["gpu-02"].containers
    engine.images[IMAGE] = Image(id=f"sha256:{'8' * 64}", reference=IMAGE, size=SIZE)
    with pytest.raises(RolledBack, match=r"sha256:7+ is not there|, not sha256:7"):
        carry_out(tools, ready)
    assert has(site) == {"gpu-02"}
    assert not any(left(site).values())


def test_hosts_without_room_for_the_archive_are_found_before_anything(tmp_path: Path):
    site = site_with(tmp_path)
    for disk in site.fleet["gpu-01"].host.fs.disks:
        disk.used_kib = disk.total_kib - (5 << 20)
    before = site.containers()
    with pytest.raises(PreflightFailed) as failed:
        site.deploy()
    assert {(row.where, row.code) for row in failed.value.rows} == {("gpu-01", "image-room")}
    assert site.containers() == before


def test_podman_carries_too(tmp_path: Path):
    site = site_with(tmp_path, runtime="podman", version="5.4.0")
    build(site, "gpu-02")
    assert site.deploy().outcome == "committed"
    assert set(running(site).values()) == {ID}
    assert not any(left(site).values())


def random_run(tmp_path: Path, seed: int) -> None:
    """Whatever goes wrong, a host keeps no image that it did not have, no archive and no giver."""
    site = site_with(tmp_path, count=4)
    hosts = [lab.name for lab in site.fleet]
    script = FaultScript.random(seed, hosts, commands=18, kinds=(*USUAL, Kind.STALL))
    lost = {fault.host for fault in script.faults if fault.kind is Kind.IMAGE_MISSING}
    before, had = site.containers(life=False), has(site)
    try:
        site.deploy(None, *script.faults)
    except FleetError as error:
        site.heal()
        if isinstance(error, InDoubt | RollbackIncomplete):
            for lab in site.fleet:
                lab.host.stalled = False
            site.clock.sleep(700)
            site.take_up(site.runs()[-1].run, Goal.UNDO)
        assert has(site) - lost == had - lost, script
        assert site.containers(life=False) == before, script
    else:
        assert set(running(site).values()) == {ID}, script
    assert not any(left(site).values()), script


@pytest.mark.parametrize("seed", range(12))
def test_random_faults_leave_nothing_of_an_image(tmp_path: Path, seed: int):
    random_run(tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_many_random_faults_leave_nothing_of_an_image(tmp_path: Path, seed: int):
    random_run(tmp_path, seed)
