"""The policies by the name that an operator writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpufleet.proxy.decide.balance.api import Policy
from gpufleet.proxy.decide.balance.cache_aware import CacheAware
from gpufleet.proxy.decide.balance.least_busy import LeastBusy
from gpufleet.proxy.decide.balance.random_choice import RandomChoice
from gpufleet.proxy.decide.balance.round_robin import RoundRobin
from gpufleet.proxy.decide.balance.weighted_static import WeightedStatic

POLICIES: Mapping[str, Callable[[], Policy]] = {
    "round-robin": RoundRobin,
    "least-busy": LeastBusy,
    "weighted-static": WeightedStatic,
    "random": RandomChoice,
    "cache-aware": CacheAware,
}
