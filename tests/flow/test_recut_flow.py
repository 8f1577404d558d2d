"""`mig reconfigure` from look to retired containers, on simulated hosts in memory."""

from __future__ import annotations

import pytest

from gpufleet.change.events import Ending, Goal
from gpufleet.deploy.persist import carry_out_persist, prepare_persist
from gpufleet.errors import FactUnknown, PreflightFailed, Refused, RolledBack, Unplaceable, UsageError
from gpufleet.lab.faults import Fault, Kind
from gpufleet.lab.gpus import cdi
from gpufleet.lab.gpus.kernel_files import add_service
from gpufleet.lab.gpus.mishaps import DRAWN
from gpufleet.mig.choose import parse
from gpufleet.mig.holders import Consent
from gpufleet.names import HostName, PoolName
from gpufleet.pools.model import SliceWish
from tests.kit.deploy_site import Site
from tests.kit.killed import killed_after

CUT = ("1g.10gb:0", "1g.10gb:1", "3g.40gb:4")
HALF = SliceWish(mig="3g.40gb")
SMALL = SliceWish(mig="1g.10gb")


def site_of(path, *, gpus: str = "1xH100-80GB", count: int = 1, layouts=None, **more) -> Site:
    return Site(path, count, gpus, layouts={0: CUT} if layouts is None else layouts, **more)


def bound(site: Site) -> dict[str, str]:
    """Replica of a running container to the place of its slice, by its label, and whether its device is that slice."""
    found = {}
    for lab in site.fleet:
        places = {
            one.uuid: f"{one.profile.name}:{one.start}" for gpu in lab.gpus.gpus for _, one in gpu.devices()
        }
        for one in lab.containers.containers.values():
            labels = one.wish.labels
            if "gpufleet.replica" in labels and one.running:
                (device,) = one.wish.devices or one.wish.cdi
                place = ":".join(labels["gpufleet.slice"].split()[1:])
                assert places.get(device) == place
                assert labels["gpufleet.devices"] == device
                found[labels["gpufleet.replica"]] = place
    return found


def test_a_replica_moves_and_its_neighbours_do_not(tmp_path):
    site = site_of(tmp_path)
    site.deploy(site.pool(slice=SMALL, replicas=2))
    before, routes = site.containers(), site.routes()
    assert bound(site) == {"gpu-01/0": "1g.10gb:0", "gpu-01/1": "1g.10gb:1"}
    done = site.recut("gpu-01:0", "1g.10gb:0,1g.10gb:3,2g.20gb:4")
    assert done.outcome == "committed"
    assert site.slices() == {"gpu-01": [["MIG True True", "1g.10gb:0", "1g.10gb:3", "2g.20gb:4"]]}
    assert bound(site) == {"gpu-01/0": "1g.10gb:0", "gpu-01/1": "1g.10gb:3"}
    stayed = set(site.containers()["gpu-01"]) & set(before["gpu-01"])
    assert len(stayed) == 3  # what others run, and the replica on the slice that stays
    assert len(site.containers()["gpu-01"]) == 4
    assert site.routes() == routes
    assert not site.changes(site.pool(slice=SMALL, replicas=2))
    assert site.leases() == []
    record = site.tools().store.record(PoolName("chat"))
    assert record is not None
    assert [one.slice.split()[1:] for one in record.endpoints] == [["1g.10gb", "0"], ["1g.10gb", "3"]]


def test_nothing_to_do_does_nothing(tmp_path):
    site = site_of(tmp_path)
    assert site.recut("gpu-01:0", "2x1g.10gb,3g.40gb").outcome == "no_change"
    assert site.runs() == ()


def foreign(site: Site, device: str, name: str = "lab-book", *, image: str = "redis:7") -> None:
    """Somebody else's container on a device."""
    (lab,) = site.fleet
    lab.containers.add_image(image)
    gpus = "all" if device == "all" else f"'\"device={device}\"'"
    started = lab.sh(
        f"docker run -d --name {name} --restart always --gpus {gpus} {image} --model x", user="root"
    )
    assert started.code == 0, started.stderr


def uuid_at(site: Site, place: str) -> str:
    (lab,) = site.fleet
    (one,) = [
        one.uuid
        for gpu in lab.gpus.gpus
        for _, one in gpu.devices()
        if f"{one.profile.name}:{one.start}" == place
    ]
    return one


def test_a_container_without_a_new_home_is_named_and_needs_consent(tmp_path):
    site = site_of(tmp_path)
    foreign(site, uuid_at(site, "1g.10gb:1"))
    before = site.containers()
    with pytest.raises(Refused) as told:
        site.recut("gpu-01:0", "1g.10gb:0,2g.20gb:4")
    assert "lab-book" in str(told.value.rows)
    assert any("--allow-homeless" in hint for hint in told.value.hints)
    assert site.containers() == before
    assert site.recut("gpu-01:0", "1g.10gb:0,2g.20gb:4", allow_homeless=True).outcome == "committed"
    (left,) = [one for one in site.containers()["gpu-01"] if one[1] == "lab-book"]
    assert left[2:] == ("no", "False")


def test_a_replica_without_a_home_leaves_the_routes_and_the_record(tmp_path):
    site = site_of(tmp_path)
    site.deploy(site.pool(slice=SMALL, replicas=2))
    with pytest.raises(Refused, match="1 container"):
        site.recut("gpu-01:0", "1g.10gb:0,3g.40gb:4")
    site.recut("gpu-01:0", "1g.10gb:0,3g.40gb:4", allow_homeless=True)
    assert len(site.routes()["chat"]) == 1
    assert bound(site) == {"gpu-01/0": "1g.10gb:0"}


def test_by_memory_a_larger_slice_will_do(tmp_path):
    site = site_of(tmp_path)
    site.deploy(site.pool(slice=SMALL, replicas=2))
    with pytest.raises(Refused):
        site.recut("gpu-01:0", "2x3g.40gb")
    site.recut("gpu-01:0", "2x3g.40gb", by_memory=True, allow_homeless=True)
    assert bound(site) == {"gpu-01/0": "3g.40gb:0", "gpu-01/1": "3g.40gb:4"}
    assert len(site.routes()["chat"]) == 2


def test_mig_is_switched_on_with_a_reset_and_everybody_is_back(tmp_path):
    site = site_of(tmp_path, gpus="2xA100-80GB", layouts={})
    (lab,) = site.fleet
    ran = {"nvidia-dcgm": True, "nvidia-persistenced": True, "nvsm": False}
    for name, active in ran.items():
        add_service(lab.host, lab.gpus, name, handles=name != "nvidia-persistenced", active=active)
    foreign(site, "all", "dcgm-exporter", image="nvidia/dcgm-exporter:4")
    assert site.recut("gpu-01:0", "half").outcome == "committed"
    assert site.slices() == {"gpu-01": [["MIG True True", "3g.40gb:0", "3g.40gb:4"], ["MIG False False"]]}
    assert {name: lab.host.services[name].active for name in ran} == ran
    (monitor,) = [one for one in site.containers()["gpu-01"] if one[1] == "dcgm-exporter"]
    assert monitor[2:] == ("always", "True")
    assert uuid_at(site, "3g.40gb:0") in cdi.named(lab.host)


def test_a_reset_that_is_refused_leaves_everything_as_it_was(tmp_path):
    site = site_of(tmp_path, gpus="2xA100-80GB", layouts={})
    (lab,) = site.fleet
    add_service(lab.host, lab.gpus, "nvidia-dcgm", handles=True, active=True)
    lab.gpus.passthrough = True
    before = site.slices(), site.containers()
    with pytest.raises(RolledBack, match=r"Not Supported|not supported") as told:
        site.recut("gpu-01:0", "half")
    assert any("reboot" in hint for hint in told.value.hints)
    assert (site.slices(), site.containers()) == before
    assert lab.host.services["nvidia-dcgm"].active


def test_a_process_that_nobody_stops_is_in_the_way(tmp_path):
    site = site_of(tmp_path, gpus="1xA100-80GB", layouts={})
    site.deploy(site.pool(replicas=1))
    before = site.containers()
    with pytest.raises(Refused, match="1 container"):  # it has the whole GPU
        site.recut("gpu-01:0", "half")
    site.fleet["gpu-01"].host.parts["modules"].add_drm()
    with pytest.raises(PreflightFailed, match="holds the GPU") as told:
        site.recut("gpu-01:0", "half", allow_homeless=True)
    assert "nvidia_drm" in str(told.value.rows)
    assert site.containers() == before
    site.recut("gpu-01:0", "half", allow_homeless=True, consent=frozenset({Consent.MODULE}))
    assert site.routes() == {"chat": []}
    assert "nvidia_drm" in site.fleet["gpu-01"].host.parts["modules"].loaded


@pytest.mark.parametrize(
    ("word", "layout", "error", "said"),
    [
        ("gpu-01:0", "3g.20gb", Unplaceable, "3g.20gb"),
        ("gpu-01:0", "3x3g.40gb", Unplaceable, "at most 2"),
        ("gpu-01:5", "half", UsageError, "no GPU 5"),
        ("gpu-01:all", "half", UsageError, "one is changed at a time"),
    ],
)
def test_what_cannot_be_had_changes_nothing(tmp_path, word, layout, error, said):
    site = site_of(tmp_path, gpus="2xH100-80GB")
    before = site.slices()
    with pytest.raises(error, match=said):
        site.recut(word, layout)
    assert site.slices() == before
    assert site.runs() == ()


def test_a_mode_that_somebody_else_left_pending_is_refused(tmp_path):
    site = site_of(tmp_path, gpus="1xA100-80GB", layouts={})
    site.fleet["gpu-01"].gpus.gpus[0].pending = True
    with pytest.raises(PreflightFailed, match="after a reset") as told:
        site.recut("gpu-01:0", "half")
    assert any("-mig 0" in hint for hint in told.value.hints)


def test_a_boot_brings_the_new_layout_back_where_the_former_was_kept(tmp_path):
    site = site_of(tmp_path)
    (lab,) = site.fleet
    host = site.inventory.hosts[HostName("gpu-01")]
    kept = prepare_persist(site.tools(), host, parse("gpu-01"), remove=False, overwrite=False, command="x")
    carry_out_persist(site.tools(), kept)
    site.recut("gpu-01:0", "2g.20gb:2,3g.40gb:4")
    lab.power_on()
    assert site.slices() == {"gpu-01": [["MIG True True", "2g.20gb:2", "3g.40gb:4"]]}


def failing(detail: str) -> Fault:
    return Fault(kind=Kind.GPU_MISHAP, host="gpu-01", nth=1, detail=detail)


@pytest.mark.parametrize("skip", range(3))
@pytest.mark.parametrize(("verb", "effect"), DRAWN)
def test_whatever_nvidia_smi_does_it_is_as_wanted_or_as_before(tmp_path, verb, effect, skip):
    site = site_of(tmp_path)
    site.deploy(site.pool(slice=SMALL, replicas=2))
    before = site.slices(), site.containers(), site.routes()
    try:
        site.recut("gpu-01:0", "1g.10gb:0,1g.10gb:3,2g.20gb:4", failing(f"{verb} {effect}/{skip}"))
    except (RolledBack, FactUnknown):
        assert (site.slices(), site.containers(), site.routes()) == before
        assert bound(site) == {"gpu-01/0": "1g.10gb:0", "gpu-01/1": "1g.10gb:1"}
    else:
        assert site.slices() == {"gpu-01": [["MIG True True", "1g.10gb:0", "1g.10gb:3", "2g.20gb:4"]]}
        assert bound(site) == {"gpu-01/0": "1g.10gb:0", "gpu-01/1": "1g.10gb:3"}
    assert site.leases() == []


def test_an_engine_that_does_not_come_up_gives_everything_back(tmp_path):
    site = site_of(tmp_path)
    site.deploy(site.pool(slice=SMALL, replicas=2))
    before = site.slices(), site.containers(), site.routes()
    fault = Fault(kind=Kind.ENGINE, host="gpu-01", pattern="slices-$1", detail="oom")
    with pytest.raises(RolledBack, match="memory"):
        site.recut("gpu-01:0", "1g.10gb:0,1g.10gb:3,2g.20gb:4", fault)
    assert (site.slices(), site.containers(), site.routes()) == before


LAST = 1 + 2 * 18 + 1
"""Records of the recut below: opened, an intent and an outcome a step, publishing."""


@pytest.mark.parametrize("goal", [Goal.RESUME, Goal.UNDO])
@pytest.mark.parametrize("records", range(1, LAST))
def test_a_process_that_dies_anywhere_is_finished_by_another(tmp_path, monkeypatch, records, goal):
    site = site_of(tmp_path)
    site.deploy(site.pool(slice=SMALL, replicas=2))
    before = site.slices(), site.containers(), site.routes()
    run = killed_after(
        site,
        lambda tools: site.recut_by(tools, "gpu-01:0", "1g.10gb:0,1g.10gb:3,2g.20gb:4"),
        records,
        monkeypatch,
    )
    assert run is not None
    try:
        ending = site.take_up(run, goal).ending
    except Refused:  # it had begun to publish
        ending = site.take_up(run, Goal.RESUME).ending
    if ending is Ending.UNDONE:
        assert goal is Goal.UNDO
        assert (site.slices(), site.containers(), site.routes()) == before
    else:
        assert site.slices() == {"gpu-01": [["MIG True True", "1g.10gb:0", "1g.10gb:3", "2g.20gb:4"]]}
        assert bound(site) == {"gpu-01/0": "1g.10gb:0", "gpu-01/1": "1g.10gb:3"}
        assert len(site.containers()["gpu-01"]) == 4
    assert site.environment_files() == {}
    assert site.leases() == []
