"""Pulls and copies that stand still end with their reason; slow ones that move go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.errors import RolledBack
from gpufleet.lab.faults import Fault, Kind
from gpufleet.pools.model import GateWish, WeightsWish
from tests.kit import weight_sources
from tests.kit.deploy_site import IMAGE, Site
from tests.kit.lab_sites import bridge

GATE = GateWish(stall=30.0, within=200.0, every=2.0)


def stall(pattern: str, host: str = "gpu-02") -> Fault:
    return Fault(kind=Kind.STALL, host=host, pattern=pattern)


def test_a_pull_that_stands_still_is_ended_after_five_minutes(tmp_path: Path):
    site = Site(tmp_path)
    before, began = site.containers(), site.clock.monotonic()
    with pytest.raises(RolledBack, match=r"the pull of .* brought nothing for 300 s"):
        site.deploy(None, stall("pull -q"))
    assert 300 <= site.clock.monotonic() - began < 700
    assert site.containers() == before
    assert not any("pull" in process.command for process in site.fleet["gpu-02"].host.processes.values())


def test_a_slow_pull_that_moves_is_waited_for(tmp_path: Path):
    site = Site(tmp_path, count=1)
    site.fleet.registry.seconds = 2400.0
    began = site.clock.monotonic()
    assert site.deploy().outcome == "committed"
    assert site.clock.monotonic() - began >= 2400


def test_the_limit_is_the_pools(tmp_path: Path):
    site = Site(tmp_path, count=1)
    gate = GateWish(stall=30.0, within=200.0, every=2.0, pull_stall=40.0)
    began = site.clock.monotonic()
    with pytest.raises(RolledBack, match="brought nothing for 40 s"):
        site.deploy(site.pool(gate=gate), stall("pull -q", "gpu-01"))
    assert site.clock.monotonic() - began < 200


def test_weights_that_stand_still_end_the_copy_and_nothing_is_left(tmp_path: Path):
    site = Site(tmp_path, count=1)
    site.fleet["gpu-01"].containers.add_image(IMAGE)
    with weight_sources.hub({"config.json": b"{}", "a.safetensors": b"x" * 5000}) as (hub, storage):
        for server in (hub, storage):
            bridge(site.fleet.network, server.url)
        pool = site.pool(staging=WeightsWish(source="hf://org/name", endpoint=hub.url), gate=GATE)
        with pytest.raises(RolledBack, match="no byte for 300 s"):
            site.deploy(pool, stall("ask_where", "gpu-01"))
    assert site.fleet["gpu-01"].host.fs.names("/home/ops/.gpufleet/models") == []


def test_an_image_that_stands_still_on_its_way_from_another_host_ends_the_copy(tmp_path: Path):
    site = Site(tmp_path)
    site.fleet["gpu-01"].containers.add_image(IMAGE)
    site.fleet.registry.unreached = {"gpu-02"}
    with pytest.raises(RolledBack, match="gpu-01 does not give the image"):
        site.deploy(None, stall("giver=$3"))
    assert IMAGE not in site.fleet["gpu-02"].containers.images
