"""Bad moments for a deploy: the clock goes back, two deploy at once, a host leaves the inventory, a disk here is full."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace

import pytest

from gpufleet.change.events import Ending, Goal
from gpufleet.change.records import journal_file
from gpufleet.errors import FleetError, LeaseHeld, PreflightFailed, StalePlan
from gpufleet.names import HostName
from gpufleet.pools.model import EngineWish
from tests.flow.test_deploy_crash import killed_after
from tests.kit.deploy_site import IMAGE, Site

OTHER = EngineWish(image=IMAGE, args=("--max-model-len", "4096"))
THIRD = EngineWish(image=IMAGE, args=("--max-model-len", "2048"))
DAY = 86_400.0


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path, gpus="1xH100-80GB")


def test_a_clock_that_went_back_a_day_keeps_revisions_in_order_and_runs_can_be_ended(site, monkeypatch):
    site.deploy()
    site.clock.elapsed -= DAY
    assert site.deploy(site.pool(engine=OTHER)).outcome == "committed"
    revisions = {
        one.wish.labels["gpufleet.revision"]
        for lab in site.fleet
        for one in lab.containers.containers.values()
        if "gpufleet.pool" in one.wish.labels
    }
    assert revisions == {"2"}
    site.clock.elapsed -= DAY
    run = killed_after(site, site.pool(engine=THIRD), 12, monkeypatch)
    assert run is not None
    site.clock.elapsed -= DAY
    assert site.take_up(run, Goal.RESUME).ending is Ending.COMMITTED
    assert site.pools_containers() == {"gpu-01": ["gpu-01/0"], "gpu-02": ["gpu-02/0"]}
    assert not site.changes(site.pool(engine=THIRD))
    assert site.leases() == []


def test_of_two_deploys_of_one_pool_at_once_each_is_whole_or_refused(site):
    site.deploy()
    pools = (site.pool(engine=OTHER), site.pool(engine=THIRD))
    tools = [site.tools(), site.tools()]
    ended: list[object] = []
    begin = threading.Barrier(2)

    def deploy(number: int) -> None:
        begin.wait()
        try:
            ended.append(site.deploy_by(tools[number], pools[number]).outcome)
        except FleetError as error:
            ended.append(error)

    threads = [threading.Thread(target=deploy, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "committed" in ended, ended
    assert all(one == "committed" or isinstance(one, LeaseHeld | StalePlan) for one in ended), ended
    assert site.pools_containers() == {"gpu-01": ["gpu-01/0"], "gpu-02": ["gpu-02/0"]}
    assert [site.changes(pool) for pool in pools].count(False) == 1  # all hosts run the same one of the two
    assert len(site.routes()["chat"]) == 2
    assert site.environment_files() == {}
    assert site.leases() == []


def test_a_replica_on_a_host_that_left_the_inventory_goes_on_and_is_told(site):
    site.deploy()
    before = site.containers()["gpu-02"]
    hosts = {name: host for name, host in site.inventory.hosts.items() if name != HostName("gpu-02")}
    site.inventory = replace(site.inventory, hosts=hosts)
    done = site.deploy(site.pool(replicas=1, engine=OTHER))
    assert done.outcome == "committed"
    assert site.containers()["gpu-02"] == before
    assert any("gpu-02" in line for line in site.told), site.told
    assert any(url.startswith("http://127.77.0.1:") for url in site.routes()["chat"])


def test_a_full_disk_here_stops_before_any_host_is_touched(site, monkeypatch):
    before = site.containers()

    def full(_number: int, _content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(journal_file, "_write_whole", full)
    with pytest.raises(PreflightFailed, match="No space left on device") as caught:
        site.deploy()
    monkeypatch.undo()
    assert caught.value.where
    assert caught.value.hints
    assert site.containers() == before
    assert site.leases() == []
    assert site.deploy().outcome == "committed"
