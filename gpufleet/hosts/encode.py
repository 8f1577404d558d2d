"""Facts as the JSON of `hosts facts`: a value that could not be read is null, and its reason stands under `unknown`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass

from gpufleet.hosts.model import HostFacts, Known, Unknown


def encode(facts: HostFacts) -> Mapping[str, object]:
    """One host. Every object inside carries its own `unknown`: field name to reason, empty when all is known."""
    encoded = _plain(facts)
    if not isinstance(encoded, dict):
        raise TypeError("facts are an object")
    return encoded


def _plain(value: object) -> object:
    if isinstance(value, Known):
        return _plain(value.value)
    if is_dataclass(value):
        return _object(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(_plain(item) for item in value)  # type: ignore[type-var]  # sets here hold ports alone
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _object(value: object) -> dict[str, object]:
    plain: dict[str, object] = {}
    unknown: dict[str, str] = {}
    for field in fields(value):  # type: ignore[arg-type]  # the caller looked
        item = getattr(value, field.name)
        if isinstance(item, Unknown):
            plain[field.name] = None
            unknown[field.name] = item.reason
        else:
            plain[field.name] = _plain(item)
    plain["unknown"] = unknown
    return plain
