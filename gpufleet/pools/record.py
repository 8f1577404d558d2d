"""What was deployed: one file a pool in the state directory, written at each commit.

It is a memory of what was asked for, never the truth about hosts: plans look at the hosts themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gpufleet.located import Located, Problems
from gpufleet.names import GpuUuid, HostName, ReplicaId
from gpufleet.pools import document
from gpufleet.pools.model import Endpoint, Pool


class EndpointRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One replica that came up."""

    replica: str
    host: str
    url: str
    gpus: tuple[str, ...] = ()
    slice: str = ""
    revision: str = ""
    container: str = ""
    key: str | None = None


class PoolRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One committed revision.

    Attributes:
        pool: the definition with secrets as references.
        run: the one that made it.
        spec: hash that the containers of this revision carry.
        pulled: the image that they run, with its digest where that is known.
        boots: boot id of each host when it was planned; an unknown one is left out.
        by: who deployed it.
        orphans: replicas on hosts that could not be looked at: they run on, and are not served.
    """

    version: int = 1
    revision: int = 1
    run: str = ""
    written_at: str = ""
    pool: dict[str, Any]
    endpoints: tuple[EndpointRecord, ...] = ()
    spec: str = ""
    pulled: str = ""
    boots: dict[str, str] = {}
    by: str = ""
    orphans: tuple[EndpointRecord, ...] = ()


def encode(record: PoolRecord) -> bytes:
    """As it stands on disk."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def decode(content: bytes) -> PoolRecord:
    """Raises `msgspec.MsgspecError`, and `ValueError` for an unknown version."""
    record = msgspec.json.decode(content, type=PoolRecord)
    if record.version != 1:
        raise ValueError(f"pool record version {record.version} is newer than this gpufleet")
    return record


def pool_of(record: PoolRecord, file: str = "") -> Pool:
    """The pool as it was deployed.

    Raises:
        DocumentError: the record was edited by hand and is wrong.
    """
    problems = Problems()
    pool = document.to_model(Located.of(record.pool, file), problems, empty=True)
    problems.raise_if_any("the record of the pool is wrong")
    if pool is None:
        raise AssertionError("a definition without a problem makes a pool")
    return pool


def endpoints_of(record: PoolRecord) -> tuple[Endpoint, ...]:
    """The replicas as they were published."""
    return tuple(
        Endpoint(
            replica=ReplicaId(item.replica),
            host=HostName(item.host),
            url=item.url,
            gpus=tuple(GpuUuid(uuid) for uuid in item.gpus),
            slice=item.slice,
            revision=item.revision,
            container=item.container,
            key=item.key,
        )
        for item in record.endpoints
    )


def endpoint_records(endpoints: Sequence[Endpoint]) -> tuple[EndpointRecord, ...]:
    """The other way."""
    return tuple(
        EndpointRecord(
            replica=item.replica,
            host=item.host,
            url=item.url,
            gpus=tuple(item.gpus),
            slice=item.slice,
            revision=item.revision,
            container=item.container,
            key=item.key,
        )
        for item in endpoints
    )
