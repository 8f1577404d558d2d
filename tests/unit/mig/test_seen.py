"""Who sits on a slice, however a container names it."""

from __future__ import annotations

import pytest

from gpufleet.deploy import meanwhile
from gpufleet.errors import FactUnknown
from gpufleet.hosts.model import Known, Unknown
from gpufleet.hosts.probes.mig_tables import Offer, PlacementRow, ProfileRow
from gpufleet.mig.seen import see
from gpufleet.names import HostName
from tests.kit import fleet_facts as facts

OFFERED = Known((Offer(ProfileRow(0, "3g.40gb", 9, 0, 2, 39.5), PlacementRow(0, 9, (0, 4), 4)),))


@pytest.mark.parametrize("device", ["MIG-a-0-1", "0:1"])
def test_a_container_is_found_by_uuid_and_by_number(device):
    gpu = facts.gpu("a", 0, instances=[facts.mig_slice("a", 0, 0), facts.mig_slice("a", 0, 1)])
    seen = see(gpu, OFFERED, Known((facts.container("chat", devices=(device,)),)))
    assert isinstance(seen, Known), seen
    assert [one.containers for one in seen.value.slices] == [(), ("chat",)]


def test_unknown_users_make_the_gpu_unknown():
    gpu = facts.gpu("a", 0, instances=[facts.mig_slice("a", 0, 0)])
    assert isinstance(see(gpu, OFFERED, Unknown("docker is silent")), Unknown)


def test_a_lease_that_could_not_be_read_is_not_taken_for_none():
    host = HostName("a")
    with pytest.raises(FactUnknown):
        meanwhile.refuse_leases([host], {host: facts.host("a", lease=Unknown("the lease could not be read"))})
