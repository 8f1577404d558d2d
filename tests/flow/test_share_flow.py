"""Weights from a directory on the hosts: copied by those that see it, given to the others, or used where it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpufleet.deploy.flow import carry_out, prepare
from gpufleet.deploy.staging.settled import SourceMoving
from gpufleet.errors import FleetError, PreflightFailed, RolledBack
from gpufleet.pools.model import WeightsWish
from tests.kit.deploy_site import Site

TOP = "/mnt/share/toy"
FILES = {"config.json": b"{}", "a.safetensors": b"one" * 900, "sub/b.safetensors": b"two" * 900}
WISH = WeightsWish(source=f"host://{TOP}")


def mount(site: Site, *hosts: str) -> None:
    """The same directory on these hosts."""
    for host in hosts:
        fs = site.fleet[host].host.fs
        for name, content in FILES.items():
            fs.write(f"{TOP}/{name}", content)
        for _, node in fs.walk("/mnt"):
            node.mtime = 1_700_000_000.0


def arrived(site: Site, host: str) -> dict[str, bytes]:
    fs, top = site.fleet[host].host.fs, "/home/ops/.gpufleet/models"
    (name,) = fs.names(top)
    return {file: fs.read(f"{top}/{name}/{file}") for file in FILES}


def pool(site: Site, **changes: Any) -> Any:
    return site.pool(staging=WISH, **changes)


def test_one_host_that_sees_it_is_enough(tmp_path: Path):
    site = Site(tmp_path, count=4)
    mount(site, "gpu-03")
    assert site.deploy(pool(site)).outcome == "committed"
    assert all(arrived(site, lab.name) == FILES for lab in site.fleet)
    assert not site.changes(pool(site))


def test_a_host_that_neither_sees_it_nor_can_be_given_it_ends_the_plan(tmp_path: Path):
    site = Site(tmp_path, count=2)
    mount(site, "gpu-02")
    addresses = [lab.host.address for lab in site.fleet]
    site.fleet.network.walls = {(one, other) for one in addresses for other in addresses if one != other}
    with pytest.raises(FleetError) as failed:
        site.deploy(pool(site))
    assert "gpu-01" in str(failed.value.rows or failed.value)
    assert site.pools_containers() == {"gpu-01": [], "gpu-02": []}


def test_nobody_sees_it(tmp_path: Path):
    site = Site(tmp_path)
    with pytest.raises(PreflightFailed, match=f"no host sees {TOP}") as failed:
        site.deploy(pool(site))
    assert failed.value.code == "weights-missing"


def test_a_directory_that_is_written_to_is_refused(tmp_path: Path):
    site = Site(tmp_path)
    mount(site, "gpu-01", "gpu-02")
    fs = site.fleet["gpu-01"].host.fs
    fs.write(f"{TOP}/a.safetensors.incomplete", b"half")
    with pytest.raises(SourceMoving, match="incomplete"):
        site.deploy(pool(site))
    fs.unlink(f"{TOP}/a.safetensors.incomplete")
    site.fleet["gpu-02"].host.fs.find(f"{TOP}/config.json").mtime += 5
    with pytest.raises(SourceMoving, match=r"config\.json is not the same on gpu-01 and gpu-02"):
        site.deploy(pool(site))


def test_a_file_that_changes_before_it_is_copied_turns_the_deploy_back(tmp_path: Path):
    site = Site(tmp_path)
    mount(site, "gpu-01", "gpu-02")
    tools = site.tools()
    ready = prepare(tools, pool(site), command="pool deploy chat")
    site.fleet["gpu-01"].host.fs.write(f"{TOP}/a.safetensors", b"new" * 900)
    with pytest.raises(RolledBack, match="changed since it was listed"):
        carry_out(tools, ready)
    assert site.pools_containers() == {"gpu-01": [], "gpu-02": []}


def test_it_is_used_where_it_is_when_asked(tmp_path: Path):
    site = Site(tmp_path)
    mount(site, "gpu-01", "gpu-02")
    wanted = site.pool(staging=WeightsWish(source=f"host://{TOP}", in_place=True))
    assert site.deploy(wanted).outcome == "committed"
    for lab in site.fleet:
        assert not lab.host.fs.exists("/home/ops/.gpufleet/models")
        (one,) = [c for c in lab.containers.containers.values() if c.wish.labels.get("gpufleet.pool")]
        assert f"{TOP}:{TOP}:ro" in one.wish.binds
        assert one.wish.arguments[:2] == ("serve", TOP)
    assert not site.changes(wanted)


def test_used_in_place_every_host_must_see_it_and_it_must_not_change(tmp_path: Path):
    site = Site(tmp_path)
    mount(site, "gpu-02")
    wanted = site.pool(staging=WeightsWish(source=f"host://{TOP}", in_place=True))
    with pytest.raises(PreflightFailed) as failed:
        site.deploy(wanted)
    assert [(row.where, row.code) for row in failed.value.rows] == [("gpu-01", "store-unseen")]
    mount(site, "gpu-01")
    tools = site.tools()
    ready = prepare(tools, wanted, command="pool deploy chat")
    site.fleet["gpu-02"].host.fs.write(f"{TOP}/new.json", b"{}")
    with pytest.raises(RolledBack, match="changed since the plan was made"):
        carry_out(tools, ready)
