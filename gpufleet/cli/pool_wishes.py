"""From options and definitions to the pool that somebody asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpufleet.cli.console import warn
from gpufleet.errors import SelectionError, UsageError
from gpufleet.inventory.model import Inventory
from gpufleet.inventory.select import surviving
from gpufleet.located import Located, Problems
from gpufleet.names import PoolName, ReplicaId
from gpufleet.pools.document import from_model, to_model
from gpufleet.pools.load import definitions, from_file, named, unknown
from gpufleet.pools.mistakes import NAME
from gpufleet.pools.model import Pool
from gpufleet.pools.record import pool_of
from gpufleet.pools.store import PoolStore


def changes_of(  # the options of two commands, in their order
    model: str,
    hosts: list[str] | None,
    replicas: int | None,
    algorithm: str,
    image: str,
    engine_arg: list[str] | None,
    gpus: int | None,
    mig: str,
) -> dict[str, object]:
    """What the options say, in the shape of a definition."""
    if gpus is not None and mig:
        raise UsageError("`--gpus` and `--mig` exclude each other")
    options = {"model": model, "algorithm": algorithm, "hosts": hosts, "replicas": replicas}
    said: dict[str, object] = {key: value for key, value in options.items() if value}
    if replicas == 0:
        raise UsageError(
            "`--replicas 0` serves nothing", hints=("`gpufleet pool delete NAME` takes a pool away",)
        )
    engine = {key: value for key, value in (("image", image), ("args", engine_arg)) if value}
    if engine:
        said["engine"] = engine
    if gpus is not None or mig:
        said["slice"] = {"gpus": gpus} if gpus is not None else {"mig": mig}
    return said


def base(inventory: Inventory, store: PoolStore, name: str, file: Path | None) -> Pool | None:
    """What is known of a pool before options: the file, the definition, or what was deployed."""
    if file is not None:
        return from_file(file, name)
    if not name:
        raise UsageError("which pool?", hints=("give its NAME, or a definition with `-f POOL.YAML`",))
    if not NAME.fullmatch(name):
        raise UsageError(f"`{name}` is no pool name", hints=("letters, digits, `-`, `_` and `.`",))
    defined = named(inventory, name)
    if defined is not None:
        return defined
    known = store.record(PoolName(name))
    return pool_of(known, str(store.record_path(PoolName(name)))) if known is not None else None


def wanted(
    inventory: Inventory, store: PoolStore, name: str, file: Path | None, changes: Mapping[str, object]
) -> Pool:
    """The pool that a command line asks for; options win over the definition."""
    found = base(inventory, store, name, file)
    if found is None and "model" not in changes:
        raise unknown(name, known_names(inventory, store))
    if found is not None and "hosts" not in changes and file is None and named(inventory, name) is None:
        found = still_there(inventory, found)
    if found is not None and not changes:
        return found
    return altered(found, changes, name)


def still_there(inventory: Inventory, pool: Pool) -> Pool:
    """A pool as it was deployed, without the hosts that left the inventory since, which is said.

    Raises:
        SelectionError: none of its hosts is left.
    """
    kept, lost = surviving(inventory, pool.hosts)
    if not lost:
        return pool
    if not kept:
        raise SelectionError(
            f"no host of pool {pool.name} is in the inventory any more: {', '.join(lost)}",
            hints=(
                f"gpufleet pool deploy {pool.name} --hosts SELECTOR names others",
                f"gpufleet pool delete {pool.name} --force forgets it",
            ),
        )
    warn(
        f"pool {pool.name} was deployed on {', '.join(lost)}, which the inventory does not know any more: left out"
    )
    return replace(pool, hosts=kept)


def altered(found: Pool | None, changes: Mapping[str, object], name: str = "") -> Pool:
    """A pool with what the options say of it; they are checked as a definition is."""
    plain: dict[str, object] = from_model(found) if found is not None else {"pool": name}
    engine = {**_mapping(plain.get("engine")), **_mapping(changes.get("engine"))}
    parts = {"engine": engine} if engine else {}
    if "strategy" in changes:
        parts["strategy"] = _strategy(plain.get("strategy", "all-at-once"), _mapping(changes["strategy"]))
    plain = {**plain, **changes, **parts}
    problems = Problems()
    pool = to_model(Located.of(plain, "command line"), problems, empty=True)
    problems.raise_if_any("the options do not make a pool")
    if pool is None:
        raise AssertionError("a definition without a problem makes a pool")
    return pool


def strategy_of(
    kind: str,
    max_unavailable: str,
    canary: str,
    canary_traffic: int | None,
    observe: float | None,
) -> dict[str, object]:
    """What the options say of the strategy, in the shape of a definition; nothing when they say nothing."""
    options: dict[str, object] = {
        "kind": kind,
        "max_unavailable": _count(max_unavailable),
        "canary": _count(canary),
        "traffic": canary_traffic,
        "observe": observe,
    }
    said = {key: value for key, value in options.items() if value not in ("", None)}
    if "kind" not in said and {"canary", "traffic"} & said.keys():
        said["kind"] = "canary"
    elif "kind" not in said and "max_unavailable" in said:
        said["kind"] = "rolling"
    return said


def _count(word: str) -> int | str:
    return int(word) if word.isdigit() else word


def _strategy(defined: object, said: Mapping[str, object]) -> dict[str, object]:
    """Options over the definition's block; another kind begins with that kind's own defaults."""
    before = dict(_mapping(defined)) if isinstance(defined, Mapping) else {"kind": defined}
    before.setdefault("kind", "rolling")
    if said.get("kind", before["kind"]) != before["kind"]:
        before.pop("observe", None)
    return {**before, **said}


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def known_names(inventory: Inventory, store: PoolStore) -> tuple[str, ...]:
    """Every pool that is defined, deployed or served."""
    served = {pool.name for pool in store.routes().pools}
    return tuple(sorted({*definitions(inventory), *store.names(), *served}))


def limits_of(words: Sequence[str]) -> dict[str, str | None]:
    """`KEY=VALUE` words; None lifts a limit."""
    found: dict[str, str | None] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in {"memory", "cpus", "shm"}:
            raise UsageError(
                f"`--limit {word}` is not memory=, cpus= or shm=", hints=("for example --limit memory=64g",)
            )
        found[key] = value or None
    return found


def weights_of(words: Sequence[str]) -> dict[ReplicaId, int]:
    """`HOST/N=WEIGHT` words."""
    found: dict[ReplicaId, int] = {}
    for word in words:
        replica, equals, number = word.rpartition("=")
        if not equals or "/" not in replica or not number.isdigit() or int(number) > 1000:
            raise UsageError(
                f"`--weight {word}` is not HOST/N=WEIGHT", hints=("for example gpu-01/0=4, 1000 at most",)
            )
        found[ReplicaId(replica)] = int(number)
    return found
