"""Who sits on a slice, however a container names it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.deploy import meanwhile
from gpufleet.errors import FactUnknown
from gpufleet.hosts.model import Known, Unknown
from gpufleet.hosts.probes.mig_tables import Offer, PlacementRow, ProfileRow
from gpufleet.mig.bindings import unbound
from gpufleet.mig.boards import BOARDS
from gpufleet.mig.layout import Wanted
from gpufleet.mig.model import Profile
from gpufleet.mig.outlook import outlook
from gpufleet.mig.plan import LayoutChange, plan
from gpufleet.mig.seen import see
from gpufleet.names import GpuUuid, HostName
from tests.kit import fleet_facts as facts

HALF = Profile(name="3g.40gb", id=9, total=2, memory_gib=39.5, starts=(0, 4), size=4)
OFFERED = Known((Offer(ProfileRow(0, "3g.40gb", 9, 0, 2, 39.5), PlacementRow(0, 9, (0, 4), 4)),))


@pytest.mark.parametrize("device", ["MIG-a-0-1", "0:1"])
def test_a_container_is_found_by_uuid_and_by_number(device):
    gpu = facts.gpu("a", 0, instances=[facts.mig_slice("a", 0, 0), facts.mig_slice("a", 0, 1)])
    seen = see(gpu, OFFERED, Known((facts.container("chat", devices=(device,)),)))
    assert isinstance(seen, Known), seen
    assert [one.containers for one in seen.value.slices] == [(), ("chat",)]


def test_case_28_the_same_uuid_may_name_another_slice():
    here, there = facts.mig_slice("a", 0, 0, profile="1g.10gb+me"), facts.mig_slice("a", 0, 1)
    gpu = facts.gpu("a", 0, instances=[here, there])

    def told(device: str, label: str = "") -> list[str]:
        labels = {"gpufleet.slice": label} if label else {}
        one = facts.container("chat", devices=(device,), labels=labels, state="exited")
        return [found.reason for found in unbound([gpu], Known((one,)))]

    assert told("MIG-gone") == ["is not there"]
    assert told(here.uuid) == []
    assert told(here.uuid, f"{gpu.uuid} 1g.10gb+me 0") == []
    assert told(here.uuid, f"{gpu.uuid} 1g.10gb 0") == ["is 1g.10gb+me:0 now and was 1g.10gb:0"]
    assert told(here.uuid, f"{gpu.uuid} 1g.10gb+me 4") == ["is 1g.10gb+me:0 now and was 1g.10gb+me:4"]
    assert told(gpu.uuid) == []
    unread = replace(gpu, mig=replace(gpu.mig, instances=Unknown("no answer")))
    assert list(unbound([unread], Known((facts.container("chat", devices=("MIG-gone",)),)))) == []


def test_unknown_users_make_the_gpu_unknown():
    gpu = facts.gpu("a", 0, instances=[facts.mig_slice("a", 0, 0)])
    assert isinstance(see(gpu, OFFERED, Unknown("docker is silent")), Unknown)


def test_a_lease_that_could_not_be_read_is_not_taken_for_none():
    host = HostName("a")
    with pytest.raises(FactUnknown):
        meanwhile.refuse_leases(
            [host],
            {host: facts.host("a", lease=Unknown("the lease could not be read"))},
            lambda _run: False,
        )


@pytest.mark.parametrize("state", ["exited", "created", "dead"])
def test_a_stopped_container_counts_for_the_slice_it_was_made_for(state):
    gpu = facts.gpu("a", 0, instances=[facts.mig_slice("a", 0, 0), facts.mig_slice("a", 0, 1)])
    containers = Known((facts.container("chat", devices=("MIG-a-0-1",), state=state),))
    seen = see(gpu, OFFERED, containers)
    assert isinstance(seen, Known), seen
    assert [(one.containers, one.resting, one.busy) for one in seen.value.slices] == [
        ((), (), False),
        ((), ("chat",), True),
    ]
    whole = see(gpu, OFFERED, Known((facts.container("old", devices=("all",), state=state),)))
    assert isinstance(whole, Known)
    assert (whole.value.whole, whole.value.resting) == ((), ("old",))


def test_a_plan_prefers_slices_nobody_is_made_for_and_says_who_loses_his():
    slices = [facts.mig_slice("a", 0, 0), facts.mig_slice("a", 0, 1)]
    gpu = facts.gpu("a", 0, instances=slices)
    containers = Known((facts.container("chat", devices=("MIG-a-0-0",), state="exited"),))
    seen = see(gpu, OFFERED, containers)
    assert isinstance(seen, Known), seen
    here = seen.value
    stays = plan(BOARDS["H100-80GB"], here.placed, [Wanted(HALF)], busy=here.busy)
    assert isinstance(stays, LayoutChange)
    assert stays.keep == (here.slices[0].placed,)
    gone = plan(BOARDS["H100-80GB"], here.placed, [], busy=here.busy)
    assert isinstance(gone, LayoutChange)
    uuid = GpuUuid("GPU-0d0831da-0c98-2717-6446-8acd91d39b65")
    ahead = outlook(replace(here, gpu=replace(here.gpu, uuid=uuid)), gone)
    assert (ahead.containers, ahead.resting) == ((), ("chat",))
