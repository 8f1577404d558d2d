"""Nouns of drift: what a pool was asked to be, what was seen of it, and the findings between the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpufleet.deploy.drift.inside import HostInside
from gpufleet.engine.adapters import Loaded
from gpufleet.hosts.model import HostFacts
from gpufleet.names import HostName, PoolName, ReplicaId
from gpufleet.pools.model import Endpoint
from gpufleet.pools.routes import PoolRoute

UNKNOWN = "unknown"
"""Code of what could not be looked at; it may be looked at again."""

BLIND = "blind"
"""Code of what can never be looked at: a container without nvidia-smi."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as asked, or, with code `unknown`, that could not be looked at.

    Attributes:
        code: stable slug.
        fix: what a person may do.
    """

    pool: PoolName
    host: str
    replica: str
    code: str
    message: str
    asked: str = ""
    seen: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A pool as its record has it.

    Attributes:
        image: what the containers should run, as it is named to the runtime.
        spec: hash that they carry; empty when the record does not know.
        boots: boot ids at the time of the deploy.
        route: what should stand in the route table.
        lora: adapters that every member should have; None when the pool takes none.
    """

    pool: PoolName
    image: str
    spec: str
    endpoints: tuple[Endpoint, ...]
    boots: Mapping[str, str]
    route: PoolRoute
    lora: Mapping[str, str] | None = None

    def at(
        self,
        host: str,
        replica: str,
        code: str,
        message: str,
        *,
        want: str = "",
        have: str = "",
        fix: str = "",
    ) -> Finding:
        """A finding that is about a host, or about the pool as a whole when `host` is empty."""
        return Finding(
            pool=self.pool,
            host=host,
            replica=replica,
            code=code,
            message=message,
            asked=want,
            seen=have,
            fix=fix,
        )

    def of(
        self, one: Endpoint, code: str, message: str, *, want: str = "", have: str = "", fix: str = ""
    ) -> Finding:
        """A finding that is about a replica; the pool's next deploy repairs most of them."""
        fix = fix or (f"gpufleet pool deploy {self.pool}" if code != UNKNOWN else "")
        return self.at(one.host, one.replica, code, message, want=want, have=have, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was found.

    Attributes:
        hosts: facts, or why a host was not looked at.
        inside: what the replicas of each host see.
        route: the pool in the route table.
        others: full ids of containers that records of other pools know.
        pools: every pool that has a record here.
        adapters: which adapters each running member has, or why that is not known.
    """

    hosts: Mapping[HostName, HostFacts | str]
    inside: Mapping[HostName, HostInside | str]
    route: PoolRoute | None
    others: frozenset[str] = frozenset()
    pools: frozenset[str] = frozenset()
    adapters: Mapping[ReplicaId, tuple[Loaded, ...] | str] = field(default_factory=dict)
