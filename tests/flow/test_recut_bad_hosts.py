"""Hosts on which no layout can be changed: told before anything stops, with the fix, and left as they are."""

from __future__ import annotations

import pytest

from gpufleet.errors import ExitCode, FactUnknown, FleetError, RolledBack
from gpufleet.lab.faults import Fault, Kind
from gpufleet.pools.model import SliceWish
from tests.flow.test_recut_flow import site_of

WANTED = "1g.10gb:0,1g.10gb:3,2g.20gb:4"


def trouble(word: str):
    def act(lab) -> None:
        lab.gpus.trouble = word

    return act


def fault(word: str):
    def act(lab) -> None:
        lab.gpus.gpus[0].fault = word

    return act


@pytest.mark.parametrize(
    ("act", "said", "fix"),
    [
        (trouble("mismatch"), "driver/library version mismatch", "reboot the host"),
        (trouble("no-driver"), "couldn't communicate with the nvidia driver", "modprobe nvidia"),
        (trouble("no-devices"), "finds no device", "hosts check"),
        (fault("lost"), "gpu is lost", "until it is reset or the host rebooted"),
        (fault("requires reset"), "requires a reset", "hosts check"),
    ],
)
def test_a_host_that_cannot_be_cut_is_refused_before_anything_stops(tmp_path, act, said, fix):
    site = site_of(tmp_path)
    (lab,) = site.fleet
    site.deploy(site.pool(slice=SliceWish(mig="1g.10gb"), replicas=2))
    before = site.slices(), site.containers(), site.routes(), len(site.runs())
    act(lab)
    with pytest.raises(FleetError) as told:
        site.recut("gpu-01:0", WANTED)
    text = f"{told.value} {told.value.rows} {told.value.hints}".lower()
    assert told.value.exit is ExitCode.REFUSED
    assert said in text
    assert fix in text
    assert (site.slices(), site.containers(), site.routes(), len(site.runs())) == before


def test_an_account_that_may_not_list_instances_is_told_what_it_needs(tmp_path):
    site = site_of(tmp_path, login="nosudo")
    before = site.slices()
    with pytest.raises(FactUnknown, match="Insufficient Permissions") as told:
        site.recut("gpu-01:0", WANTED)
    assert any("sudo -n" in hint for hint in told.value.hints)
    assert site.slices() == before


def test_a_gpu_that_somebody_holds_without_a_process_is_given_back(tmp_path):
    """Nobody can see such a client before the driver refuses; then it is named as the cause."""
    site = site_of(tmp_path)
    site.deploy(site.pool(slice=SliceWish(mig="1g.10gb"), replicas=2))
    before = site.slices(), site.containers(), site.routes()
    with pytest.raises(RolledBack, match="In use by another client") as told:
        site.recut("gpu-01:0", WANTED, Fault(kind=Kind.GPU_CLIENT, host="gpu-01", nth=1, detail="0"))
    assert any("something holds the GPU" in hint for hint in told.value.hints)
    assert (site.slices(), site.containers(), site.routes()) == before
