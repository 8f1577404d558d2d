"""Path to Inventory, with every problem of every file reported at once.

Beside `inventory.yaml`, `models/*.yaml` and `proxy.yaml` are read; a catalogue entry is named by its `name` field,
else by its file. They and the `pools`, `models` and `proxy` of the inventory are kept raw, as `located.Located`
values that know their lines. `pools/*.yaml` is read by `pools.load`, which gives all pools their meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from gpufleet.inventory.document import to_model
from gpufleet.inventory.model import Inventory
from gpufleet.inventory.secrets import LazySecret
from gpufleet.located import Located, Problems
from gpufleet.redact import Secret
from gpufleet.yaml_source import read_into


def load(path: Path, secret: Callable[[str], Secret[str]] | None = None) -> Inventory:
    """The inventory at `path` and what lies beside it.

    Args:
        path: the YAML file.
        secret: makes a secret of a reference; by default one that follows it when it is first used, so that
            loading an inventory reads no secret and starts no program.

    Raises:
        DocumentError: every mistake as a row with `file:line`.
    """
    problems = Problems()
    folder = path.parent
    source = read_into(path, problems)
    inventory = None
    if source is not None:
        lazily = secret or cache(lambda reference: LazySecret(reference, folder))
        inventory = to_model(source, lazily, problems)
    models = _beside(folder / "models", inventory.models if inventory else {}, problems)
    proxy = inventory.proxy if inventory else None
    proxy_path = folder / "proxy.yaml"
    if proxy_path.is_file():
        own = read_into(proxy_path, problems)
        if own is not None and isinstance(proxy, Located):
            problems.add(own, f"the proxy section stands here and in {proxy.where}", "keep one of them")
        proxy = own
    problems.raise_if_any(f"{path} is not usable")
    if inventory is None:
        raise AssertionError("no inventory and no problem")
    return replace(inventory, models=models, proxy=proxy)


def _beside(folder: Path, inside: Mapping[str, object], problems: Problems) -> dict[str, object]:
    """What the inventory holds and what files of their own hold, by name."""
    found = dict(inside)
    for path in sorted(folder.glob("*.yaml")):
        located = read_into(path, problems)
        if located is None:
            continue
        named = located.at("name").value
        name = named if isinstance(named, str) else path.stem
        earlier = found.setdefault(name, located)
        if earlier is not located and isinstance(earlier, Located):
            problems.add(
                located.at("name"), f"`{name}` stands here and in {earlier.where}", "keep one of them"
            )
    return found
