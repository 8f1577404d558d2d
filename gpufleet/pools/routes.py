"""The route table: the one file that the control plane writes and the data plane reads.

A generation is published whole, by rename; a proxy that reads it keeps the one it has when the new one is wrong.
Because `proxy` may not import `engine`, what it must know of an engine (health path, metrics path) is data here.
"""

from __future__ import annotations

import msgspec


class EndpointRoute(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One member. `url` is `http://host:port` or `https://host:port` without a path; `state` is `active` or `draining`.

    `key` is a reference (`${file:...}`, `${env:...}`) to the engine's API key, never the key.
    """

    id: str
    url: str
    weight: int = 1
    state: str = "active"
    key: str | None = None
    health: str = "/health"
    metrics: str = "/metrics"


class PoolRoute(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pool: `models` are the names clients may send; the first is the pool's own."""

    name: str
    algorithm: str = "round-robin"
    models: tuple[str, ...] = ()
    endpoints: tuple[EndpointRoute, ...] = ()


class RouteTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a proxy serves. `generation` grows by one with each publication."""

    version: int = 1
    generation: int = 0
    written_at: str = ""
    pools: tuple[PoolRoute, ...] = ()


def encode(table: RouteTable) -> bytes:
    """As it stands on disk: indented, so that a person can read it at night."""
    return msgspec.json.format(msgspec.json.encode(table), indent=2) + b"\n"


def decode(content: bytes) -> RouteTable:
    """Raises `msgspec.ValidationError` or `msgspec.DecodeError`, and `ValueError` for an unknown version."""
    table = msgspec.json.decode(content, type=RouteTable)
    if table.version != 1:
        raise ValueError(f"route table version {table.version} is newer than this gpufleet")
    return table
