"""`mig reconfigure --pool`: GPU by GPU, never under the minimum, and no further than the first failure."""

from __future__ import annotations

import json

import pytest

from gpufleet.deploy.recut.flow import RecutWish
from gpufleet.deploy.recut.rolling import carry_out_rolling, prepare_rolling
from gpufleet.errors import Refused, RolledBack, UsageError
from gpufleet.lab.faults import Fault, Kind
from gpufleet.names import PoolName
from gpufleet.pools.model import SliceWish, StrategyWish
from tests.flow.test_recut_flow import bound, site_of
from tests.kit.deploy_site import Site

CHAT = PoolName("chat")
CUT = ("1g.10gb:0", "3g.40gb:4")
WANTED = "1g.10gb:1,2g.20gb:4"
BEFORE, AFTER = ["MIG True True", *CUT], ["MIG True True", "1g.10gb:1", "2g.20gb:4"]


class Serving(list[object]):
    """Every event of a change, and how few members got requests when one came."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.least = 99

    def append(self, event: object) -> None:
        super().append(event)
        table = json.loads((self.site.path / "state" / "routes.json").read_text())
        (pool,) = [pool for pool in table["pools"] if pool["name"] == "chat"]
        self.least = min(self.least, sum(one["state"] == "active" for one in pool["endpoints"]))


def least(site: Site) -> int:
    """How few members got requests at any moment."""
    assert isinstance(site.events, Serving)
    return site.events.least


def fleet(path, **pool) -> Site:
    site = site_of(path, count=3, gpus="2xH100-80GB", layouts={0: CUT, 1: CUT})
    site.deploy(site.pool(slice=SliceWish(mig="1g.10gb"), replicas=6, **pool))
    site.events = Serving(site)
    return site


def roll(site: Site, *faults: Fault, layout: str = WANTED, minimum: int | None = None, **more):
    tools = site.tools(*faults)
    wish = RecutWish(layout=layout, **more)
    rolling = prepare_rolling(tools, CHAT, wish, minimum=minimum, command="mig reconfigure --pool chat")
    return carry_out_rolling(tools, rolling)


def test_a_pool_is_recut_gpu_by_gpu_and_never_serves_with_fewer(tmp_path):
    site = fleet(tmp_path)
    done = roll(site)
    assert [one.outcome for _, one in done] == ["committed"] * 6
    assert site.slices() == {f"gpu-0{number}": [AFTER, AFTER] for number in (1, 2, 3)}
    assert set(bound(site).values()) == {"1g.10gb:1"}
    assert len(bound(site)) == 6
    assert least(site) == 5
    assert len(site.routes()["chat"]) == 6
    assert [one.outcome for _, one in roll(site)] == ["no_change"] * 6


def test_the_first_that_is_rolled_back_is_the_last_that_was_begun(tmp_path):
    site = fleet(tmp_path)
    fault = Fault(kind=Kind.GPU_MISHAP, host="gpu-02", nth=2, detail="-cgi Insufficient Resources/2")
    with pytest.raises(RolledBack) as told:
        roll(site, fault)
    assert site.slices() == {
        "gpu-01": [AFTER, AFTER],
        "gpu-02": [AFTER, BEFORE],
        "gpu-03": [BEFORE, BEFORE],
    } or (site.slices() == {"gpu-01": [AFTER, AFTER], "gpu-02": [BEFORE, AFTER], "gpu-03": [BEFORE, BEFORE]})
    done = told.value.fields["done"]
    assert isinstance(done, list)
    assert len(done) == 3
    assert any("run the command again" in hint for hint in told.value.hints)
    assert len(bound(site)) == 6
    assert [one.outcome for _, one in roll(site)].count("committed") == 3
    assert least(site) == 5


def test_a_pool_that_would_serve_with_too_few_is_left_alone(tmp_path):
    site = fleet(tmp_path)
    with pytest.raises(Refused, match="6 have to serve") as told:
        roll(site, minimum=6)
    assert any("--min-available" in hint for hint in told.value.hints)
    assert site.slices() == {f"gpu-0{number}": [BEFORE, BEFORE] for number in (1, 2, 3)}
    for lab in site.fleet:  # two hosts lose their members
        if lab.name != "gpu-01":
            for one in list(lab.containers.containers.values()):
                if "gpufleet.replica" in one.wish.labels:
                    lab.sh(f"docker stop {one.id}", user="root")
    with pytest.raises(Refused, match="2 member"):
        roll(site, allow_homeless=True)


def test_members_without_a_home_count_for_the_rest_of_the_way(tmp_path):
    site = fleet(tmp_path, strategy=StrategyWish(max_unavailable="50%"))
    with pytest.raises(Refused, match="3 have to serve"):
        roll(site, layout="2g.20gb:0,3g.40gb:4", allow_homeless=True)
    assert site.slices() == {f"gpu-0{number}": [BEFORE, BEFORE] for number in (1, 2, 3)}


def test_a_pool_on_whole_gpus_and_an_unknown_one_have_no_slices(tmp_path):
    site = site_of(tmp_path, gpus="1xH100-80GB", layouts={})
    with pytest.raises(UsageError, match="not deployed"):
        roll(site)
    site.deploy(site.pool(replicas=1))
    with pytest.raises(UsageError, match="on a slice"):
        roll(site)
