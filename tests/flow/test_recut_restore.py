"""`mig restore`: a GPU as a run found it, who was stopped for it among it."""

from __future__ import annotations

import pytest

from gpufleet.deploy.recut import snapshot
from gpufleet.errors import RolledBack, UsageError
from gpufleet.lab.faults import Fault, Kind
from gpufleet.lab.gpus.kernel_files import add_service
from gpufleet.names import RunId
from gpufleet.pools.model import SliceWish
from tests.flow.test_recut_flow import bound, foreign, site_of, uuid_at


def restore(site, run, *faults, **more):
    shot = snapshot.kept_by(site.path / "state", RunId(run))
    revive = snapshot.revived_of(shot)
    return site.recut("gpu-01:0", snapshot.layout_of(shot), *faults, revive=revive, **more)


def life(site) -> dict[str, tuple[str, ...]]:
    return {one[1]: one[2:] for one in site.containers()["gpu-01"]}


def test_slices_and_the_containers_that_were_stopped_for_them_come_back(tmp_path):
    site = site_of(tmp_path)
    foreign(site, uuid_at(site, "1g.10gb:1"))
    site.deploy(site.pool(slice=SliceWish(mig="3g.40gb"), replicas=1))
    before, slices = life(site), site.slices()
    done = site.recut("gpu-01:0", "1g.10gb:2,3g.40gb:4", allow_homeless=True)
    assert life(site)["lab-book"] == ("no", "False")
    assert restore(site, done.run).outcome == "committed"
    assert site.slices() == slices
    assert life(site) == before
    assert bound(site) == {"gpu-01/0": "3g.40gb:4"}
    assert restore(site, done.run).outcome == "no_change"


def test_a_container_alone_is_started_again(tmp_path):
    site = site_of(tmp_path)
    foreign(site, uuid_at(site, "1g.10gb:1"))
    before = life(site)
    done = site.recut("gpu-01:0", "1g.10gb:2,3g.40gb:4", allow_homeless=True)
    site.recut("gpu-01:0", "1g.10gb:0,1g.10gb:1,3g.40gb:4", allow_homeless=True)
    assert life(site)["lab-book"][1] == "False"
    assert restore(site, done.run).outcome == "committed"
    assert life(site) == before


def test_what_cannot_be_restored_leaves_everything_as_it_is(tmp_path):
    site = site_of(tmp_path)
    foreign(site, uuid_at(site, "1g.10gb:1"))
    done = site.recut("gpu-01:0", "1g.10gb:2,3g.40gb:4", allow_homeless=True)
    before = site.slices(), site.containers()
    with pytest.raises(RolledBack):
        restore(
            site, done.run, Fault(kind=Kind.GPU_MISHAP, host="gpu-01", nth=5, detail="-cgi Unknown Error")
        )
    assert (site.slices(), site.containers()) == before


@pytest.mark.parametrize("board", ["A100-80GB", "H100-80GB"])
def test_a_gpu_that_had_no_mig_has_none_again(tmp_path, board):
    site = site_of(tmp_path, gpus=f"2x{board}", layouts={})
    (lab,) = site.fleet
    add_service(lab.host, lab.gpus, "nvidia-dcgm", handles=True, active=True)
    before = site.slices()
    done = site.recut("gpu-01:0", "half")
    site.deploy(site.pool(slice=SliceWish(mig="3g.40gb"), replicas=1))
    assert restore(site, done.run, allow_homeless=True).outcome == "committed"
    assert site.slices() == before
    assert lab.host.services["nvidia-dcgm"].active
    assert site.routes() == {"chat": []}


@pytest.mark.parametrize("effect", ["In use by another client", "lie"])
def test_a_mode_that_does_not_go_off_brings_the_slices_back(tmp_path, effect):
    site = site_of(tmp_path)
    before = site.slices(), site.containers()
    with pytest.raises(RolledBack, match="MIG"):
        site.recut(
            "gpu-01:0", "off", Fault(kind=Kind.GPU_MISHAP, host="gpu-01", nth=5, detail=f"-mig {effect}")
        )
    assert (site.slices(), site.containers()) == before


def test_a_file_of_mig_show_is_a_snapshot_too(tmp_path):
    site = site_of(tmp_path)
    (gpu,) = site.fleet["gpu-01"].gpus.gpus
    text = (
        b'{"command": "mig show", "gpus": [{"host": "gpu-01", "index": 0, "uuid": "%s", "current": true, '
        b'"slices": [{"profile": "1g.10gb", "start": 0, "size": 1, "gi": 7, "uuids": ["MIG-1"]}]}]}'
        % gpu.uuid.encode()
    )
    shot = snapshot.in_file(text, gpu.uuid, "kept.json")
    assert snapshot.layout_of(shot) == "1g.10gb:0"
    for wrong, uuid in ((b"{}", gpu.uuid), (b"no json", gpu.uuid), (text, "GPU-other")):
        with pytest.raises(UsageError):
            snapshot.in_file(wrong, uuid, "kept.json")


def test_a_run_that_cut_nothing_is_no_snapshot(tmp_path):
    site = site_of(tmp_path)
    done = site.deploy(site.pool(slice=SliceWish(mig="1g.10gb"), replicas=1))
    with pytest.raises(UsageError, match="changed no layout"):
        snapshot.kept_by(site.path / "state", RunId(done.run))
