"""Weights on simulated hosts: as part of a deploy and alone, on the desk's fleet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpufleet.change.events import Goal
from gpufleet.deploy.flow import carry_out, prepare
from gpufleet.deploy.staging import flow, survey
from gpufleet.deploy.staging.model import Kind, Source
from gpufleet.deploy.tools import Tools
from gpufleet.errors import FleetError, HostUnreachable, PreflightFailed, RolledBack
from gpufleet.lab.faults import Fault
from gpufleet.lab.faults import Kind as FaultKind
from gpufleet.names import HostName
from gpufleet.pools.model import WeightsWish
from gpufleet.redact import Secret
from gpufleet.remote.offer import Offer
from tests.kit import weight_sources
from tests.kit.deploy_site import Site
from tests.kit.lab_sites import bridge

FILES = {"config.json": b"{}", "model-1.safetensors": b"one" * 900, "sub/model-2.safetensors": b"two" * 900}
FINAL = f"/home/ops/.gpufleet/models/org--name@{weight_sources.COMMIT[:16]}"
TOKEN = "hf_averysecrettokenindeed"


@contextmanager
def sources(site: Site, **more: object) -> Iterator[tuple[weight_sources.Served, weight_sources.Served]]:
    """A hub that the desk and every host reach."""
    with weight_sources.hub(FILES, **more) as (hub, storage):
        bridge(site.fleet.network, hub.url)
        bridge(site.fleet.network, storage.url)
        yield hub, storage


def wish(hub: weight_sources.Served, **more: object) -> WeightsWish:
    fields: dict[str, object] = {"source": "hf://org/name", "endpoint": hub.url}
    return WeightsWish(**{**fields, **more})  # type: ignore[arg-type]  # fields by name


def staged(site: Site, host: str) -> dict[str, bytes]:
    """What stands in the store of a host, asked past gpufleet."""
    fs = site.fleet[host].host.fs
    if not fs.exists(FINAL):
        return {}
    return {
        path.removeprefix(f"{FINAL}/"): fs.read(path)
        for path, node in fs.walk(FINAL)
        if hasattr(node, "content")
    }


def stores(site: Site) -> dict[str, list[str]]:
    found = {}
    for lab in site.fleet:
        folder = "/home/ops/.gpufleet/models"
        found[lab.name] = lab.host.fs.names(folder) if lab.host.fs.exists(folder) else []
    return found


def test_a_deploy_brings_the_weights_first_and_engines_read_them_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    site = Site(tmp_path)
    with sources(site, token=TOKEN) as (hub, storage):
        pool = site.pool(staging=wish(hub, token=Secret("", reference="${env:HF_TOKEN}")))
        assert site.deploy(pool).outcome == "committed"
        assert not any("authorization" in headers for _, _, headers in storage.asked)
        assert not site.changes(pool)
    for lab in site.fleet:
        assert {name: staged(site, lab.name)[name] for name in FILES} == FILES
        one = next(
            c for c in lab.containers.containers.values() if c.wish.labels.get("gpufleet.pool") == "chat"
        )
        words = one.wish.arguments
        assert words[:4] == ("serve", FINAL, "--served-model-name", "qwen")
        assert f"{FINAL}:{FINAL}:ro" in one.wish.binds
        assert "HF_HUB_OFFLINE=1" in one.wish.env
    assert TOKEN not in "".join(
        path.read_text(errors="replace") for path in (tmp_path / "state").rglob("*.jsonl")
    )


def test_nothing_stops_when_the_weights_do_not_come(tmp_path: Path):
    site = Site(tmp_path)
    site.deploy()
    before = site.containers()
    with sources(site) as (hub, storage):
        storage.files["model-1.safetensors"] = b"!" * len(FILES["model-1.safetensors"])
        with pytest.raises(RolledBack) as failed:
            site.deploy(site.pool(staging=wish(hub)))
    assert "SHA-256" in str(failed.value.rows[0].message)
    assert site.containers() == before
    assert stores(site) == {"gpu-01": [], "gpu-02": []}
    assert list((tmp_path / "state" / "staging").glob("*.word")) == []  # nobody takes this run up again


def prepared(
    site: Site, tools: Tools, hub: weight_sources.Served, hosts: list[str], **more: object
) -> flow.Prepared:
    names = [HostName(host) for host in hosts]
    options: dict[str, object] = {"store": "", "shared": False, "verify": False}
    staging = survey.prepare(
        Source(kind=Kind.HUB, model="org/name", endpoint=hub.url),
        names,
        transport=tools.change.transport,
        clock=site.clock,
        forks=4,
        warn=site.told.append,
        **{**options, **more},  # type: ignore[arg-type]  # options by name
    )
    return flow.plan_of(staging, names, tools.change, command="models stage org/name")


def test_a_host_without_room_or_curl_is_found_before_anything(tmp_path: Path):
    site = Site(tmp_path, without=frozenset({"curl"}))
    for disk in site.fleet["gpu-02"].host.fs.disks:
        disk.used_kib = disk.total_kib - 1000
    with sources(site) as (hub, _), pytest.raises(PreflightFailed) as failed:
        prepared(site, site.tools(), hub, ["gpu-01", "gpu-02"])
    assert {(row.where, row.code) for row in failed.value.rows} == {
        ("gpu-01", "store-tools"),
        ("gpu-02", "store-tools"),
        ("gpu-02", "store-full"),
    }


def test_a_disk_that_fills_up_turns_everything_back(tmp_path: Path):
    site = Site(tmp_path)
    with sources(site) as (hub, _):
        tools = site.tools(Fault(kind=FaultKind.DISK_FULL, host="gpu-02", pattern="ask_where"))
        plan = prepared(site, tools, hub, ["gpu-01", "gpu-02"])
        with pytest.raises(FleetError) as failed:
            flow.carry_out(tools.change, plan)
        assert "disk" in str(failed.value.rows)
    site.heal()
    assert stores(site)["gpu-02"] == []


def test_many_hosts_cost_one_read_of_the_source_and_no_giver_is_left(tmp_path: Path):
    site = Site(tmp_path, count=7)
    with sources(site) as (hub, storage):
        assert site.deploy(site.pool(staging=wish(hub))).outcome == "committed"
        assert storage.reads("model-1.safetensors") == 1
        site.told.clear()
    for lab in site.fleet:
        assert {name: staged(site, lab.name)[name] for name in FILES} == FILES
        assert not [c for c in lab.containers.containers.values() if c.name.startswith("gpufleet-give")]
    assert not list((tmp_path / "state" / "staging").iterdir())


def test_a_new_host_copies_from_one_that_has_the_weights(tmp_path: Path):
    site = Site(tmp_path, count=3)
    with sources(site) as (hub, storage):
        site.deploy(site.pool(staging=wish(hub), hosts=("gpu-01",), replicas=1))
        site.deploy(site.pool(staging=wish(hub), hosts=("gpu-01", "gpu-02", "gpu-03"), replicas=6))
        assert storage.reads("model-1.safetensors") == 1
    assert {name: staged(site, "gpu-03")[name] for name in FILES} == FILES


def test_hosts_that_do_not_reach_each_other_read_the_source(tmp_path: Path):
    site = Site(tmp_path, count=3)
    addresses = [lab.host.address for lab in site.fleet]
    site.fleet.network.walls = {(one, other) for one in addresses for other in addresses if one != other}
    with sources(site) as (hub, storage):
        assert site.deploy(site.pool(staging=wish(hub))).outcome == "committed"
        assert storage.reads("model-1.safetensors") == 3


def test_of_a_shared_store_one_host_is_the_writer(tmp_path: Path):
    site = Site(tmp_path, count=3)
    with sources(site) as (hub, _):
        tools = site.tools()
        plan = prepared(site, tools, hub, ["gpu-01", "gpu-02", "gpu-03"], shared=True)
        assert [bool(step.do) for step in plan.plan.steps] == [True, False, False]
        assert {step.id for step in plan.plan.steps if step.after} == {"stage-gpu-02", "stage-gpu-03"}


def test_a_run_that_was_lost_is_resumed_and_an_undone_one_leaves_no_partial_copy(tmp_path: Path):
    site = Site(tmp_path)
    with sources(site) as (hub, _):
        tools = site.tools(Fault(kind=FaultKind.POWER_OFF, host="gpu-02", pattern="ask_where", after=400))
        plan = prepared(site, tools, hub, ["gpu-01", "gpu-02"])
        with pytest.raises(FleetError):
            flow.carry_out(tools.change, plan)
        site.heal()
        site.clock.sleep(500)
        site.take_up(plan.run, Goal.UNDO)
        assert [name for name in stores(site)["gpu-02"] if "@" in name] == []
        assert {name: staged(site, "gpu-01").get(name) for name in FILES} in (FILES, dict.fromkeys(FILES))
        again = prepared(site, site.tools(), hub, ["gpu-01", "gpu-02"])
        flow.carry_out(site.tools().change, again)
    assert {name: staged(site, "gpu-02")[name] for name in FILES} == FILES


class Uploads:
    """Counts what this machine gave, and to how many commands."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[str, int]] = []
        give = Offer.pieces

        def counted(offer: Offer, number: int, start: int, count: int) -> Iterator[bytes]:
            self.sent.append((Path(offer.files[number]).name, start))
            return give(offer, number, start, count)

        monkeypatch.setattr(Offer, "pieces", counted)

    def of(self, name: str) -> list[int]:
        """From which bytes a file was given."""
        return [start for sent, start in self.sent if sent == name]


def directory(tmp_path: Path) -> Path:
    """Weights on the operator's machine."""
    for name, content in FILES.items():
        path = tmp_path / "weights" / "toy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "weights" / "toy"


def arrived(site: Site, host: str) -> dict[str, bytes]:
    """The files in the only revision of a host's store."""
    fs, top = site.fleet[host].host.fs, "/home/ops/.gpufleet/models"
    (name,) = fs.names(top)
    return {file: fs.read(f"{top}/{name}/{file}") for file in FILES}


def test_a_directory_here_is_sent_once_for_many_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    site, uploads = Site(tmp_path, count=7), Uploads(monkeypatch)
    pool = site.pool(staging=WeightsWish(source=f"file://{directory(tmp_path)}"))
    assert site.deploy(pool).outcome == "committed"
    assert uploads.of("model-1.safetensors") == [0]
    assert all(arrived(site, lab.name) == FILES for lab in site.fleet)
    assert not site.changes(pool)


def test_a_host_that_dies_while_it_is_sent_a_directory_leaves_nothing_anywhere(tmp_path: Path):
    site = Site(tmp_path)
    pool = site.pool(staging=WeightsWish(source=f"file://{directory(tmp_path)}"))
    fault = Fault(kind=FaultKind.POWER_OFF, host="gpu-01", pattern="ask_where", after=140, seconds=5)
    with pytest.raises(RolledBack):
        site.deploy(pool, fault)
    assert stores(site) == {"gpu-01": [], "gpu-02": []}
    assert site.deploy(pool).outcome == "committed"
    assert all(arrived(site, lab.name) == FILES for lab in site.fleet)


def test_an_answer_that_is_lost_sends_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    site, uploads = Site(tmp_path), Uploads(monkeypatch)
    pool = site.pool(staging=WeightsWish(source=f"file://{directory(tmp_path)}"))
    site.deploy(pool, Fault(kind=FaultKind.LOSE_AFTER, host="gpu-01", pattern="ask_where"))
    assert sorted(name for name, _ in uploads.sent) == sorted(Path(name).name for name in FILES)


def test_a_directory_here_whose_file_changes_on_the_way_is_refused_and_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    site, top = Site(tmp_path), directory(tmp_path)
    tools = site.tools()
    prepared = prepare(
        tools, site.pool(staging=WeightsWish(source=f"file://{top}")), command="pool deploy chat"
    )
    (top / "model-1.safetensors").write_bytes(b"oNe" * 900)
    with pytest.raises(RolledBack, match="the source tells"):
        carry_out(tools, prepared)
    assert stores(site) == {"gpu-01": [], "gpu-02": []}
    assert site.pools_containers() == {"gpu-01": [], "gpu-02": []}


def test_a_host_that_is_away_is_named(tmp_path: Path):
    site = Site(tmp_path)
    site.fleet["gpu-02"].power_off(0)
    with sources(site) as (hub, _), pytest.raises(HostUnreachable):
        prepared(site, site.tools(), hub, ["gpu-01", "gpu-02"])
