"""The YAML shape of `proxy.yaml`, version 1: what `proxy serve` is told by a file instead of options.

    version: 1
    listen: 0.0.0.0:8443
    certificate: /etc/gpufleet/proxy.pem
    workers: 2
    timeouts: {first_byte: 60}
    health: {every: 2}

Every field is optional, and an option of the command line wins over it. Times are seconds, sizes bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import msgspec

from gpufleet.proxy.config import Address, ProxyConfig, parse_address

Seconds = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class TimeoutsDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See `decide.deadline.Timeouts`."""

    connect: Seconds | None = None
    first_byte: Seconds | None = None
    between: Seconds | None = None
    total: Seconds | None = None
    head: Seconds | None = None
    idle: Seconds | None = None
    linger: Seconds | None = None
    upstream_idle: Seconds | None = None


class HealthDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See `decide.health.HealthRules`."""

    every: Seconds | None = None
    timeout: Seconds | None = None
    down_after: Count | None = None
    up_after: Count | None = None
    eject_after: Count | None = None
    late_after: Count | None = None
    frozen_after: Seconds | None = None
    eject_for: Seconds | None = None
    eject_most: Seconds | None = None
    warm_up: Seconds | None = None


class ScrapeDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See `config.ScrapeRules`."""

    every: Seconds | None = None
    timeout: Seconds | None = None


class ProxyDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    version: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1
    listen: str | None = None
    admin: str | None = None
    routes: str | None = None
    allow_anonymous: bool | None = None
    wait_for_routes: bool | None = None
    drain: Annotated[float, msgspec.Meta(ge=0)] | None = None
    body_limit: Count | None = None
    buffered_limit: Count | None = None
    connections: Count | None = None
    certificate: str | None = None
    private_key: str | None = None
    access_log: str | None = None
    access_share: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    trace: bool | None = None
    workers: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    timeouts: TimeoutsDocument = TimeoutsDocument()
    health: HealthDocument = HealthDocument()
    scrape: ScrapeDocument = ScrapeDocument()


_ADDRESSES = ("listen", "admin")
_RENAMED = {"connections": "connection_limit"}


def addresses(document: ProxyDocument) -> dict[str, Address]:
    """Of the fields that name one. Raises `ValueError` with field and reason."""
    found: dict[str, Address] = {}
    for name in _ADDRESSES:
        text = getattr(document, name)
        if text is not None:
            try:
                found[name] = parse_address(text)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
    return found


def to_config(document: ProxyDocument, base: ProxyConfig) -> ProxyConfig:
    """`base` with what the document says in its place. Raises `ValueError` for an address that is none."""
    said = _said(document)
    for name in ("version", "timeouts", "health", "scrape", *_ADDRESSES):
        said.pop(name, None)
    fields: dict[str, Any] = {_RENAMED.get(name, name): value for name, value in said.items()}
    return replace(
        base,
        **(fields | addresses(document)),
        timeouts=replace(base.timeouts, **_said(document.timeouts)),
        health=replace(base.health, **_said(document.health)),
        scrape=replace(base.scrape, **_said(document.scrape)),
    )


def _said(document: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(document).items() if value is not None}
