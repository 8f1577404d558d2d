"""The catalogue: the entries shipped with gpufleet, and over them those of the team, from `models/` beside the inventory.

A team's entry replaces the shipped one of the same name. Every mistake in every file is reported at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from gpufleet.errors import UsageError
from gpufleet.inventory.model import Inventory
from gpufleet.located import Located, Problems, did_you_mean
from gpufleet.models.config import architecture
from gpufleet.models.document import to_model
from gpufleet.models.model import Architecture, Entry
from gpufleet.yaml_source import read_into

SHIPPED = Path(__file__).with_name("shipped")
CONFIG_LIMIT = 5_000_000


@cache
def shipped() -> Mapping[str, Entry]:
    """The entries that come with gpufleet, by name."""
    problems = Problems()
    found = {}
    for path in sorted(SHIPPED.glob("*.yaml")):
        entry = _entry(path, problems)
        if entry is not None:
            found[entry.name] = entry
    problems.raise_if_any("the shipped catalogue is damaged: install gpufleet again")
    return found


def catalogue(inventory: Inventory | None) -> dict[str, Entry]:
    """Every model by name; the team's own win.

    Raises:
        DocumentError: every mistake in any of the team's files, with file and line.
    """
    problems = Problems()
    own: dict[str, Entry] = {}
    for name, raw in (inventory.models if inventory else {}).items():
        source = raw if isinstance(raw, Located) else Located.of(raw, inventory.path if inventory else "")
        entry = to_model(source, name, problems)
        if entry is not None:
            own[entry.name] = entry
    problems.raise_if_any("the catalogue is wrong")
    return dict(sorted({**shipped(), **own}.items()))


def named(name: str, known: Mapping[str, Entry]) -> Entry:
    """The entry of a name, or of a hub name that one entry has.

    Raises:
        UsageError: there is none; the nearest name is the hint.
    """
    if name in known:
        return known[name]
    by_hub = [entry for entry in known.values() if entry.hub == name]
    if len(by_hub) == 1:
        return by_hub[0]
    close = did_you_mean(name, known)
    raise UsageError(
        f"there is no model `{name}` in the catalogue",
        hints=(*((close,) if close else ()), "`gpufleet models list` shows all; `--config` takes any other"),
    )


def config_file(path: Path) -> Architecture:
    """What a config.json says.

    Raises:
        DocumentError: it cannot be read, or is no config.json.
    """
    problems = Problems()
    found = None
    try:
        if path.stat().st_size > CONFIG_LIMIT:
            problems.add(
                str(path), f"the file is larger than {CONFIG_LIMIT // 1_000_000} MB", "is it the right one?"
            )
        else:
            found = architecture(Located.of(json.loads(path.read_bytes()), str(path)), problems)
    except OSError as error:
        problems.add(str(path), f"cannot be read: {(error.strerror or str(error)).lower()}")
    except (ValueError, RecursionError):
        problems.add(str(path), "this is not JSON", "a model's config.json is")
    problems.raise_if_any(f"{path} is not usable")
    if found is None:
        raise AssertionError("no architecture and no problem")
    return found


def _entry(path: Path, problems: Problems) -> Entry | None:
    source = read_into(path, problems)
    return None if source is None else to_model(source, path.stem, problems)
