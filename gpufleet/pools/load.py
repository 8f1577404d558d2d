"""Pool definitions from where people keep them: the inventory, `pools/*.yaml` beside it, or a file that is named."""

from __future__ import annotations

from pathlib import Path

from gpufleet import yaml_source
from gpufleet.errors import UsageError
from gpufleet.inventory.model import Inventory
from gpufleet.located import Located, Problems, did_you_mean
from gpufleet.names import PoolName
from gpufleet.pools.document import to_model
from gpufleet.pools.model import Pool


def from_file(path: Path, name: str = "") -> Pool:
    """The pool that a file defines.

    Raises:
        DocumentError: every mistake, with file and line.
    """
    problems = Problems()
    source = yaml_source.read_into(path, problems)
    pool = to_model(source, problems, name) if source is not None else None
    problems.raise_if_any(f"{path} is not usable")
    if pool is None:
        raise AssertionError("a definition without a problem makes a pool")
    return pool


def definitions(inventory: Inventory) -> dict[PoolName, Pool]:
    """Every pool of the inventory and of `pools/*.yaml` beside it, by name.

    Raises:
        DocumentError: every mistake in any of them, and names that are defined twice.
    """
    problems = Problems()
    found: dict[PoolName, Pool] = {}
    places: dict[PoolName, str] = {}
    for source, name in _sources(inventory, problems):
        pool = to_model(source, problems, name)
        if pool is None:
            continue
        if pool.name in found:
            problems.add(source, f"pool `{pool.name}` is defined a second time; first at {places[pool.name]}")
        found[pool.name], places[pool.name] = pool, source.where
    problems.raise_if_any("pool definitions are wrong")
    return found


def _sources(inventory: Inventory, problems: Problems) -> list[tuple[Located, str]]:
    sources = [
        (raw if isinstance(raw, Located) else Located.of(raw, inventory.path), name)
        for name, raw in inventory.pools.items()
    ]
    folder = Path(inventory.path).parent / "pools"
    for path in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))) if inventory.path else ():
        located = yaml_source.read_into(path, problems)
        if located is not None:
            sources.append((located, ""))
    return sources


def named(inventory: Inventory, name: str) -> Pool | None:
    """The definition of one pool, or None when nobody wrote one."""
    return definitions(inventory).get(PoolName(name))


def place_of(inventory: Inventory, name: str) -> Path | None:
    """The file in which a pool is defined; None when nobody wrote one."""
    problems = Problems()
    for source, key in _sources(inventory, problems):
        pool = to_model(source, problems, key)
        if pool is not None and pool.name == name and source.file:
            return Path(source.file)
    return None


def unknown(name: str, known: tuple[str, ...]) -> UsageError:
    """There is no such pool; the nearest name is the hint."""
    close = did_you_mean(name, known)
    hints = (close,) if close else (f"known here: {', '.join(known)}",) if known else ()
    return UsageError(
        f"there is no pool `{name}`",
        hints=(
            *hints,
            "define it under `pools:` in the inventory, in pools/*.yaml, or give --model and --hosts",
        ),
    )
