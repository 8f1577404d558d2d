"""Who copies from whom."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.deploy.staging.tree import parents
from gpufleet.names import HostName

HOSTS = st.lists(st.integers(0, 300).map(lambda n: HostName(f"h{n}")), unique=True, max_size=200)


@given(HOSTS, st.integers(0, 5), st.integers(1, 6), st.integers(1, 4))
def test_everybody_is_served_once_by_somebody_who_is_served_before(
    hosts: list[HostName], having: int, fan_out: int, roots: int
):
    have, lack = hosts[:having], hosts[having:]
    found = parents(have, lack, fan_out=fan_out, roots=roots)
    assert list(found) == lack
    served = set(have)
    for host, parent in found.items():
        assert parent is None or parent in served
        served.add(host)
    reads = sum(parent is None for parent in found.values())
    assert reads == (0 if have else min(roots, len(lack)))
    copies = Counter(parent for parent in found.values() if parent)
    assert max(copies.values(), default=0) <= fan_out


@given(st.integers(1, 300), st.integers(2, 6))
def test_the_tree_is_as_flat_as_its_fan_out_allows(count: int, fan_out: int):
    found = parents([], [HostName(f"h{n}") for n in range(count)], fan_out=fan_out)
    depth: dict[HostName, int] = {}
    for host, parent in found.items():
        depth[host] = 0 if parent is None else depth[parent] + 1
    levels = Counter(depth.values())
    full = [fan_out**level for level in range(max(levels) + 1)]
    assert all(levels[level] == full[level] for level in range(max(levels)))
    assert levels[max(levels)] <= full[-1]
