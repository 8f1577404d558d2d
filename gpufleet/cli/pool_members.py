"""`pool set`, `drain`, `undrain`, `add`, `remove` and `candidates`: who serves a pool, and how much."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli import wiring
from gpufleet.cli.console import Answer, finish, note, warn
from gpufleet.cli.pool_options import Algorithm, Check, DryRun, Hosts, Members, Name, OptionalName
from gpufleet.cli.settings import current
from gpufleet.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from gpufleet.deploy.tools import Tools
    from gpufleet.inventory.model import Inventory
    from gpufleet.pools.model import Pool
    from gpufleet.pools.store import PoolStore

Weights = Annotated[
    list[str] | None,
    typer.Option("--weight", metavar="HOST/N=WEIGHT", help="Share of a replica; may be repeated."),
]
Limit = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="KEY=VALUE",
        help="memory, cpus or shm of the containers, from the next deploy on; an empty value lifts it.",
    ),
]


Load = Annotated[
    list[str] | None,
    typer.Option(
        "--load-adapter", metavar="NAME=PATH", help="Load a LoRA adapter on all members; may be repeated."
    ),
]
Unload = Annotated[
    list[str] | None,
    typer.Option(
        "--unload-adapter", metavar="NAME", help="Unload an adapter from all members; may be repeated."
    ),
]


def set_pool(  # options, given by name
    name: Name,
    algorithm: Algorithm = "",
    weights: Weights = None,
    limits: Limit = None,
    load: Load = None,
    unload: Unload = None,
    dry_run: DryRun = False,
    check: Check = False,
) -> None:
    """Change the algorithm, the weights, the limits or the adapters of a pool.

    Hosts are touched by adapters alone: all members load or unload them, or none does; nothing is restarted. A
    definition in the inventory or beside it is changed with the rest, its comments and order kept.
    """
    if load or unload:
        from gpufleet.cli import pool_adapters

        alone = not (algorithm or weights or limits)
        raise finish(pool_adapters.answer(name, load, unload, alone, dry_run, check))
    if dry_run or check:
        raise UsageError("`--dry-run` and `--check` go with adapters: nothing else here touches a host")
    _set(name, algorithm, weights, limits)


def _set(name: str, algorithm: str, weights: Weights, limits: Limit) -> None:
    from dataclasses import replace

    from gpufleet.cli import pool_wishes as wishes
    from gpufleet.pools import membership
    from gpufleet.pools.model import ALGORITHMS

    if algorithm and algorithm not in ALGORITHMS:
        raise UsageError(f"there is no algorithm `{algorithm}`", hints=(f"one of: {', '.join(ALGORITHMS)}",))
    if not algorithm and not weights and not limits:
        raise UsageError(
            "nothing to set",
            hints=(
                "give `--algorithm NAME`, `--weight HOST/N=WEIGHT`, `--limit KEY=VALUE` or `--load-adapter NAME=PATH`",
            ),
        )
    shares, caps = wishes.weights_of(weights or ()), wishes.limits_of(limits or ())

    def alter(pool: Pool) -> Pool:
        known = pool.limits
        limits = replace(
            known,
            memory=caps.get("memory", known.memory),
            cpus=caps.get("cpus", known.cpus),
            shm=caps.get("shm", known.shm),
        )
        capped = replace(pool, limits=limits)
        return membership.set_weights(replace(capped, algorithm=algorithm or pool.algorithm), shares)

    answer = _said("pool set", name, alter, tuple(shares), into_file=True)
    if caps:
        note(f"limits take effect with the next `gpufleet pool deploy {name}`")
    raise finish(answer)


def drain(name: Name, replicas: Members) -> None:
    """Send nothing new to replicas; what they are at is finished."""
    raise finish(_with_state("pool drain", name, replicas, "draining"))


def undrain(name: Name, replicas: Members) -> None:
    """Send requests to drained replicas again."""
    raise finish(_with_state("pool undrain", name, replicas, "active"))


def add(  # options, given by name
    name: Name,
    word: Annotated[
        str,
        typer.Argument(metavar="HOST/CONTAINER", help="What runs already; HOST/N for a replica of a pool."),
    ],
    of: Annotated[str, typer.Option(metavar="POOL", help="Whose replica HOST/N is.")] = "",
    key: Annotated[
        str, typer.Option(metavar="REFERENCE", help="The key that it asks for: ${env:NAME}, ${file:PATH}.")
    ] = "",
    port: Annotated[int, typer.Option(metavar="PORT", help="Which of its published ports.")] = 0,
    weight: Annotated[int, typer.Option(metavar="N", help="Its share.", min=0, max=1000)] = 1,
) -> None:
    """Take a running container into a pool: one that gpufleet did not start, or a replica of another pool.

    It must answer to the pool's model name at its published port. It is not touched, and no deploy ever stops it.
    """
    from gpufleet.deploy.adoption import Join, join
    from gpufleet.deploy.audit import Line, audited
    from gpufleet.deploy.members import host_of
    from gpufleet.deploy.retire import copy_routes
    from gpufleet.names import PoolName

    wish = Join(word=word, of=of, key=key, port=port, weight=weight)
    with wiring.fleet_tools(current()) as tools:
        _check_known(tools.inventory, tools.store, name)
        with audited(tools, Line(command=f"pool add {name} {word}", pool=name)) as line:
            replica, generation = join(tools, PoolName(name), wish)
            line.hosts = (host_of(replica),)
        _into_file(tools.inventory, tools.store, name)
        copy_routes(tools.store, [host_of(replica)], tools.change, tools.warn)
    fields = {"pool": name, "replica": replica, "generation": generation}
    raise finish(
        Answer(
            command="pool add",
            outcome="committed",
            fields=fields,
            text=f"pool {name}: {word} serves as {replica}, routes generation {generation}",
        )
    )


def remove(name: Name, replicas: Members) -> None:
    """Take members out of a pool; their containers run on and are not replaced."""
    from gpufleet.deploy.adoption import leave
    from gpufleet.deploy.audit import Line, audited
    from gpufleet.deploy.members import host_of
    from gpufleet.deploy.retire import copy_routes
    from gpufleet.names import PoolName, ReplicaId

    chosen = [ReplicaId(replica) for replica in dict.fromkeys(replicas)]
    with wiring.fleet_tools(current()) as tools:
        _check_known(tools.inventory, tools.store, name)
        _check_replicas(tools.store, name, chosen)
        words = " ".join(chosen)
        with audited(tools, Line(command=f"pool remove {name} {words}", pool=name)) as line:
            generation = leave(tools, PoolName(name), chosen)
            line.hosts = tuple({host_of(replica) for replica in chosen} & tools.inventory.hosts.keys())
        _into_file(tools.inventory, tools.store, name)
        hosts = {host_of(replica) for replica in chosen} & tools.inventory.hosts.keys()
        copy_routes(tools.store, hosts, tools.change, tools.warn)
    fields = {"pool": name, "replicas": chosen, "generation": generation}
    text = f"pool {name}: {', '.join(chosen)} left, containers run on, routes generation {generation}"
    raise finish(Answer(command="pool remove", outcome="committed", fields=fields, text=text))


def candidates(name: OptionalName = "", hosts: Hosts = None) -> None:
    """What could join a pool: running containers with a GPU and a port, and GPUs and slices that are free."""
    from gpufleet.cli import pool_wishes as wishes
    from gpufleet.cli.candidates_text import candidate_row, candidates_text
    from gpufleet.deploy.adoption import candidates as look
    from gpufleet.pools.load import named

    with wiring.fleet_tools(current()) as tools:
        pool = wishes.base(tools.inventory, tools.store, name, None) if name else None
        if name and pool is None:
            _check_known(tools.inventory, tools.store, name)
        if pool is not None and not hosts and named(tools.inventory, name) is None:
            pool = wishes.still_there(tools.inventory, pool)
        words = tuple(hosts or ()) or (pool.hosts if pool else ())
        found = look(tools, wiring.select(tools.inventory, words))
    rows = [candidate_row(one, pool) for one in found.running]
    room = [
        {"host": slot.host, "gpu": slot.gpu, "profile": slot.profile or None, "memory_mib": slot.memory_mib}
        for slot in found.room.free
    ]
    taken = [{"host": one.host, "what": one.what, "reason": one.reason} for one in found.room.taken]
    for host, why in found.unknown.items():
        warn(f"{host}: {why}")
    fields = {
        "pool": name or None,
        "candidates": rows,
        "room": room,
        "taken": taken,
        "unknown": [{"host": host, "reason": why} for host, why in found.unknown.items()],
    }
    code = ExitCode.UNREACHABLE if found.unknown and not rows and not room else ExitCode.OK
    raise finish(
        Answer(command="pool candidates", exit=code, fields=fields, text=candidates_text(rows, room, taken))
    )


def _with_state(command: str, name: str, replicas: list[str], word: str) -> Answer:
    from gpufleet.names import ReplicaId
    from gpufleet.pools import membership
    from gpufleet.pools.model import MemberState

    chosen = [ReplicaId(replica) for replica in replicas]
    return _said(
        command, name, lambda pool: membership.set_state(pool, chosen, MemberState(word)), tuple(chosen)
    )


def _said(
    command: str,
    name: str,
    alter: Callable[[Pool], Pool],
    replicas: tuple[str, ...],
    *,
    into_file: bool = False,
) -> Answer:
    """Change what is said of a pool: in its definition, in its record, in the route table and in the copies of it."""
    from gpufleet.deploy.retire import copy_routes
    from gpufleet.names import HostName, PoolName

    with wiring.fleet_tools(current()) as tools:
        before = tools.store.routes().generation
        answer = _said_here(tools, command, name, alter, replicas, into_file=into_file)
        known = tools.store.record(PoolName(name))
        if known is not None and tools.store.routes().generation != before:
            members = {HostName(item.host) for item in known.endpoints}
            copy_routes(tools.store, members & tools.inventory.hosts.keys(), tools.change, tools.warn)
    return answer


def _said_here(
    tools: Tools,
    command: str,
    name: str,
    alter: Callable[[Pool], Pool],
    replicas: tuple[str, ...],
    *,
    into_file: bool,
) -> Answer:
    """All of that but the copies on hosts."""
    from gpufleet.deploy.audit import Line, append
    from gpufleet.deploy.commit import rewrite
    from gpufleet.names import PoolName

    inventory, store = tools.inventory, tools.store
    _check_known(inventory, store, name, defined=into_file)
    deployed = store.record(PoolName(name)) is not None
    if deployed:
        _check_replicas(store, name, replicas)
    before = store.routes().generation
    written = _file_altered(inventory, name, alter) if into_file else False
    generation = before
    if deployed:
        record_before = store.record(PoolName(name))
        generation = rewrite(
            store, PoolName(name), lambda pool, ends: (_valid(alter(pool)), ends), tools.engine
        )
        written |= store.record(PoolName(name)) != record_before
    outcome = "committed" if written or generation != before else "no_change"
    route = next((pool for pool in store.routes().pools if pool.name == name), None)
    if route is not None and route.endpoints and all(one.state != "active" for one in route.endpoints):
        warn(f"pool {name}: every replica is drained: clients are answered 503 until one is undrained")
    if outcome == "committed":
        line = Line(command=" ".join((command, name, *replicas)), pool=name)
        append(tools.change.state_dir, tools.change.clock, tools.change.operator, line, warn)
    text = (
        f"pool {name}: routes generation {generation}"
        if deployed
        else f"pool {name}: its definition is changed"
    )
    return Answer(
        command=command, outcome=outcome, fields={"pool": name, "generation": generation}, text=text
    )


def _valid(pool: Pool) -> Pool:
    """The same pool. Raises DocumentError for one that no definition could say."""
    from gpufleet.located import Located, Problems
    from gpufleet.pools.document import from_model, to_model

    problems = Problems()
    to_model(Located.of(from_model(pool), "command line"), problems, empty=True)
    problems.raise_if_any("the options do not make a pool")
    return pool


def _file_altered(inventory: Inventory, name: str, alter: Callable[[Pool], Pool]) -> bool:
    """The same change in the definition that a person wrote, when there is one."""
    from gpufleet.pools import written
    from gpufleet.pools.load import named, place_of

    place, defined = place_of(inventory, name), named(inventory, name)
    if place is None or defined is None:
        return False
    changed = written.edit(place, name, defined, _valid(alter(defined)))
    if changed:
        note(f"{place}: changed, comments and order kept")
    return changed


def _into_file(inventory: Inventory, store: PoolStore, name: str) -> None:
    """Members and their number, as the record has them by now, into the definition that a person wrote."""
    from dataclasses import replace

    from gpufleet.names import PoolName
    from gpufleet.pools.record import pool_of

    known = store.record(PoolName(name))
    if known is not None:
        now = pool_of(known)
        _file_altered(inventory, name, lambda pool: replace(pool, members=now.members, replicas=now.replicas))


def _check_known(inventory: Inventory, store: PoolStore, name: str, *, defined: bool = False) -> None:
    """Raises UsageError unless the pool is deployed, or at least `defined` where that is enough."""
    from gpufleet.cli import pool_wishes as wishes
    from gpufleet.names import PoolName
    from gpufleet.pools.load import named, unknown
    from gpufleet.pools.mistakes import NAME

    if NAME.fullmatch(name) and store.record(PoolName(name)) is not None:
        return
    known = wishes.known_names(inventory, store)
    if name not in known:
        raise unknown(name, known)
    if not defined or named(inventory, name) is None:
        raise UsageError(f"pool {name} is not deployed", hints=(f"gpufleet pool deploy {name}",))


def _check_replicas(store: PoolStore, name: str, replicas: Sequence[str]) -> None:
    from gpufleet.names import PoolName

    known = store.record(PoolName(name))
    present = [endpoint.replica for endpoint in known.endpoints] if known else []
    for replica in replicas:
        if replica not in present:
            raise UsageError(f"pool {name} has no replica {replica}", hints=(f"it has {', '.join(present)}",))


COMMANDS: Mapping[str, Callable[..., None]] = {
    "set": set_pool,
    "drain": drain,
    "undrain": undrain,
    "add": add,
    "remove": remove,
    "candidates": candidates,
}
