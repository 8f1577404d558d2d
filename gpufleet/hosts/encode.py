"""Facts as the JSON of `hosts facts`: a value that could not be read is null, and its reason stands under `unknown`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass

from gpufleet.hosts.model import HostFacts, Known, Unknown


def encode(facts: HostFacts) -> Mapping[str, object]:
    """One host. Every object inside carries its own `unknown`: field name to reason, empty when all is known."""
    encoded = plain(facts)
    if not isinstance(encoded, dict):
        raise TypeError("facts are an object")
    return encoded


def plain(value: object) -> object:
    """Any value of facts as JSON has it; a bare Unknown becomes an object with its reason."""
    if isinstance(value, Known):
        return plain(value.value)
    if isinstance(value, Unknown):
        return {"unknown": value.reason}
    if is_dataclass(value):
        return _object(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(plain(item) for item in value)  # type: ignore[type-var]  # sets here hold ports or UUIDs alone
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def _object(value: object) -> dict[str, object]:
    encoded: dict[str, object] = {}
    unknown: dict[str, str] = {}
    for field in fields(value):  # type: ignore[arg-type]  # the caller looked
        item = getattr(value, field.name)
        if isinstance(item, Unknown):
            encoded[field.name] = None
            unknown[field.name] = item.reason
        else:
            encoded[field.name] = plain(item)
    encoded["unknown"] = unknown
    return encoded
