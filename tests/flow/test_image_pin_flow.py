"""A tag is resolved once: what it meant when the plan was made is what hosts pull and run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.deploy.flow import carry_out, prepare
from gpufleet.errors import PreflightFailed
from gpufleet.pools.model import WeightsWish
from tests.kit import weight_sources
from tests.kit.deploy_site import IMAGE, Site
from tests.kit.lab_sites import bridge

FIRST, SECOND = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"


def images(site: Site) -> set[str]:
    """What the pool's containers were started from."""
    return {
        one.wish.image
        for lab in site.fleet
        for one in lab.containers.containers.values()
        if one.wish.labels.get("gpufleet.pool") == "chat" and one.running
    }


def test_the_digest_of_the_plan_wins_over_a_tag_that_moved_before_the_deploy(tmp_path: Path):
    site = Site(tmp_path)
    site.fleet.registry.asked_by_plugin = True
    site.fleet.registry.moved[IMAGE] = FIRST
    tools = site.tools()
    prepared = prepare(tools, site.pool(), command="pool deploy chat")
    site.fleet.registry.moved[IMAGE] = SECOND
    carry_out(tools, prepared)
    assert images(site) == {f"vllm/vllm-openai@{FIRST}"}
    assert {
        one.wish.labels["gpufleet.image"]
        for lab in site.fleet
        for one in lab.containers.containers.values()
        if one.wish.labels.get("gpufleet.pool") == "chat"
    } == {f"{IMAGE}@{FIRST}"}


def test_a_host_that_has_the_image_says_what_the_tag_means(tmp_path: Path):
    site = Site(tmp_path)
    site.fleet.registry.moved[IMAGE] = FIRST
    site.fleet["gpu-02"].containers.add_image(IMAGE, 1 << 30)
    site.fleet.registry.moved[IMAGE] = SECOND
    site.deploy()
    assert images(site) == {f"vllm/vllm-openai@{FIRST}"}
    assert not site.changes()


def test_givers_run_the_same_digest(tmp_path: Path):
    site = Site(tmp_path, count=3)
    site.fleet.registry.asked_by_plugin = True
    with weight_sources.hub({"config.json": b"{}"}) as (hub, storage):
        for server in (hub, storage):
            bridge(site.fleet.network, server.url)
        pool = site.pool(staging=WeightsWish(source="hf://org/name", endpoint=hub.url))
        plan = prepare(site.tools(), pool, command="pool plan chat").plan.bring_up
    given = [step for step in plan.steps if step.id.startswith("give-")]
    assert given
    digest = site.fleet.registry.digest(IMAGE)
    assert all(f"vllm/vllm-openai@{digest}" in step.do[0].argv for step in given)


def test_an_unknown_digest_is_said_and_learning_it_later_replaces_nothing(tmp_path: Path):
    site = Site(tmp_path)
    site.deploy()
    assert images(site) == {IMAGE}
    assert any("used by its tag" in line for line in site.told)
    assert not site.changes()


def test_hosts_that_differ_under_one_tag_leave_it_unknown(tmp_path: Path):
    site = Site(tmp_path)
    for name, digest in (("gpu-01", FIRST), ("gpu-02", SECOND)):
        site.fleet.registry.moved[IMAGE] = digest
        site.fleet[name].containers.add_image(IMAGE)
    prepare(site.tools(), site.pool(), command="pool plan chat")
    assert any("gpu-01, gpu-02 hold different images" in line for line in site.told)


def test_a_host_without_room_for_the_image_is_found_before_anything(tmp_path: Path):
    site = Site(tmp_path)
    site.fleet["gpu-01"].containers.add_image(IMAGE, 60 << 30)
    for disk in site.fleet["gpu-02"].host.fs.disks:
        disk.used_kib = disk.total_kib - (50 << 20)
    before = site.containers()
    with pytest.raises(PreflightFailed) as failed:
        site.deploy()
    assert [(row.where, row.code) for row in failed.value.rows] == [("gpu-02", "image-room")]
    assert site.containers() == before
