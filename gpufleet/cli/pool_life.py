"""`pool create`, `scale`, `logs` and `delete`: a pool from its beginning to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli import wiring
from gpufleet.cli.console import Answer, confirm, finish, note, say, warn
from gpufleet.cli.pool_options import (
    Algorithm,
    Check,
    DryRun,
    EngineArg,
    File,
    Gpus,
    Hosts,
    Image,
    Mig,
    Model,
    Name,
    OptionalName,
)
from gpufleet.cli.settings import current
from gpufleet.errors import ExitCode, Interrupted, UsageError

if TYPE_CHECKING:
    from gpufleet.deploy.log_reading import LogLine
    from gpufleet.deploy.tools import Tools
    from gpufleet.inventory.model import Host
    from gpufleet.names import PoolName
    from gpufleet.pools.model import Endpoint, Pool


def create(  # options, given by name
    name: OptionalName = "",
    file: File = None,
    model: Model = "",
    hosts: Hosts = None,
    algorithm: Algorithm = "",
    image: Image = "",
    engine_arg: EngineArg = None,
    gpus: Gpus = None,
    mig: Mig = "",
) -> None:
    """Make an empty pool: it has an address at the proxy and no member yet.

    `pool add` takes running containers in, `pool scale` starts replicas.
    """
    from dataclasses import replace

    from gpufleet.cli import pool_wishes as wishes
    from gpufleet.deploy.audit import Line, audited
    from gpufleet.deploy.commit import begin
    from gpufleet.inventory.select import select

    changes = wishes.changes_of(model, hosts, None, algorithm, image, engine_arg, gpus, mig)
    with wiring.fleet_tools(current()) as tools:
        if "model" not in changes and wishes.base(tools.inventory, tools.store, name, file) is None:
            raise UsageError(
                f"which model is pool {name} to serve?",
                hints=("give --model MODEL, or define the pool in the inventory or in pools/*.yaml",),
            )
        pool = replace(wishes.wanted(tools.inventory, tools.store, name, file, changes), replicas=0)
        select(
            tools.inventory, pool.hosts, where=pool.hosts_at
        )  # a pool of hosts that nobody knows could do nothing
        with audited(tools, Line(command=f"pool create {pool.name}", pool=pool.name)):
            generation = begin(
                tools.store, pool, tools.engine, at=tools.change.clock.now().isoformat(timespec="seconds")
            )
    fields = {"pool": pool.name, "generation": generation, "hosts": []}
    text = (
        f"pool {pool.name}: created without members, routes generation {generation}\n"
        f"next: gpufleet pool add {pool.name} HOST/CONTAINER, or gpufleet pool scale {pool.name} N"
    )
    raise finish(Answer(command="pool create", outcome="committed", fields=fields, text=text))


def scale(
    name: Name,
    replicas: Annotated[int, typer.Argument(metavar="N", help="How many replicas.", max=1000)],
    dry_run: DryRun = False,
    check: Check = False,
) -> None:
    """Bring a pool to N replicas, all else as it was deployed: all of the change or none."""
    from dataclasses import replace

    from gpufleet.cli import pool_text
    from gpufleet.cli import pool_wishes as wishes
    from gpufleet.deploy import diff
    from gpufleet.deploy.flow import carry_out, prepare
    from gpufleet.names import PoolName
    from gpufleet.pools.load import named
    from gpufleet.pools.mistakes import NAME
    from gpufleet.pools.record import pool_of

    if replicas < 1:
        raise UsageError(
            f"pool {name} cannot be scaled to {replicas}",
            hints=(
                f"gpufleet pool delete {name} takes it away; gpufleet pool drain keeps its replicas idle",
            ),
        )
    with wiring.fleet_tools(current()) as tools:
        known = tools.store.record(PoolName(name)) if NAME.fullmatch(name) else None
        pool = (
            wishes.still_there(tools.inventory, pool_of(known))
            if known
            else wishes.wanted(tools.inventory, tools.store, name, None, {})
        )
        defined = named(tools.inventory, name)
        if defined is not None and defined.replicas != replicas:
            warn(
                f"the definition at {defined.hosts_at or name} says {defined.replicas} replica(s): "
                "`pool deploy` goes back to that"
            )
        prepared = prepare(tools, replace(pool, replicas=replicas), command=f"pool scale {name} {replicas}")
        if dry_run or check:
            raise finish(pool_text.plan_answer("pool scale", prepared, check=check))
        if prepared.changes:
            for line in diff.lines(prepared.plan):
                note(line)
            if not confirm(f"Scale pool {name} to {replicas} replica(s)?"):
                raise Interrupted("not confirmed; nothing was changed")
        done = carry_out(tools, prepared)
    raise finish(pool_text.done_answer("pool scale", name, done))


def logs(
    words: Annotated[
        list[str],
        typer.Argument(metavar="POOL|HOST/N...", help="A pool, or some replicas; both: of that pool."),
    ],
    tail: Annotated[
        int, typer.Option(metavar="N", help="Lines of each member at first.", min=0, max=100_000)
    ] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-F", help="Go on with what is new until Ctrl-C.")
    ] = False,
) -> None:
    """What engines print, of all members in the order of time; secrets are masked.

    Hosts' clocks are not compared: lines of two hosts may stand in another order than they were written.
    """
    from gpufleet.deploy.log_reading import LogReader

    if follow and current().output == "json":
        raise UsageError("`--follow` has no end, and JSON is one object", hints=("leave one of them out",))
    with wiring.fleet_tools(current()) as tools:
        members = _members(tools, words)
        reader = LogReader.of(tools, members)
        lines = reader.read(tail)
        for replica, why in reader.trouble.items():
            warn(f"{replica}: {why}")
        while follow:
            for line in lines:
                say(_line(line))
            tools.change.clock.sleep(FOLLOW_EVERY)
            lines = reader.read(tail)
        reader.reach.close()
    fields = {
        "lines": [
            {"pool": line.pool, "replica": line.replica, "at": line.at, "text": line.text} for line in lines
        ],
        "unknown": [{"replica": replica, "reason": why} for replica, why in reader.trouble.items()],
    }
    code = ExitCode.UNREACHABLE if reader.trouble and not lines else ExitCode.OK
    text = "\n".join(map(_line, lines))
    raise finish(Answer(command="pool logs", exit=code, fields=fields, text=text))


FOLLOW_EVERY = 2.0
"""Seconds between two looks of `pool logs --follow`."""


def _line(line: LogLine) -> str:
    return f"{line.replica} | {line.text}"


def _members(tools: Tools, words: list[str]) -> list[tuple[PoolName, Endpoint]]:
    """The members that the words mean."""
    from gpufleet.cli import pool_wishes as wishes
    from gpufleet.pools.load import unknown
    from gpufleet.pools.record import endpoints_of

    pools = [word for word in words if "/" not in word]
    replicas = [word for word in words if "/" in word]
    known = {name: record for name in tools.store.names() if (record := tools.store.record(name)) is not None}
    for name in pools:
        if name not in known:
            names = wishes.known_names(tools.inventory, tools.store)
            if name in names:
                raise UsageError(f"pool {name} is not deployed", hints=(f"gpufleet pool deploy {name}",))
            raise unknown(name, names)
    found = [
        (name, endpoint)
        for name, record in known.items()
        for endpoint in endpoints_of(record)
        if (not pools or name in pools) and (not replicas or endpoint.replica in replicas)
    ]
    missing = [replica for replica in replicas if replica not in {endpoint.replica for _, endpoint in found}]
    if missing or not found:
        raise UsageError(
            f"there is no replica {', '.join(missing)}"
            if missing
            else f"pool {', '.join(pools)} has no member",
            hints=("`gpufleet pool show NAME` lists a pool's replicas",),
        )
    return found


def delete(
    name: Name,
    keep_members: Annotated[
        bool, typer.Option("--keep-members", help="Take only the pool away; its containers run on.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also stop containers that were added, and forget replicas out of reach."
        ),
    ] = False,
    no_drain: Annotated[
        bool, typer.Option("--no-drain", help="Stop at once, and cut off what is in flight.")
    ] = False,
    dry_run: DryRun = False,
    check: Check = False,
) -> None:
    """Take a pool away: its containers as one change, and its routes."""
    from gpufleet.cli import pool_text
    from gpufleet.cli import pool_wishes as wishes
    from gpufleet.deploy.deletion import delete as carry_out
    from gpufleet.deploy.deletion import prepare_deletion
    from gpufleet.names import PoolName
    from gpufleet.pools.load import unknown

    if keep_members and force:
        raise UsageError("`--keep-members` and `--force` exclude each other")
    with wiring.fleet_tools(current()) as tools:
        known = wishes.known_names(tools.inventory, tools.store)
        if name not in known:
            raise unknown(name, known)
        definition = wishes.base(tools.inventory, tools.store, name, None)
        hosts = _where_it_may_be(tools, definition)
        command = f"pool delete {name}"
        deletion = prepare_deletion(
            tools, PoolName(name), hosts, command=command, keep=keep_members, force=force, drain=not no_drain
        )
        lines = [f"pool {name} goes:", *deletion.lines]
        if dry_run or check:
            rows = [{"host": one.host, "replica": one.replica, "status": "goes"} for one in deletion.gone]
            raise finish(
                Answer(
                    command="pool delete",
                    outcome="changes",
                    exit=ExitCode.CHANGES if check else ExitCode.OK,
                    fields={"hosts": rows},
                    text="\n".join(lines),
                )
            )
        for line in lines:
            note(line)
        if not confirm(f"Delete pool {name} and its {len(deletion.gone)} replica(s)?"):
            raise Interrupted("not confirmed; nothing was changed")
        done = carry_out(tools, deletion)
    raise finish(pool_text.done_answer("pool delete", name, done))


def _where_it_may_be(tools: Tools, definition: Pool | None) -> tuple[Host, ...]:
    """Hosts to look at beside those of the record; one that left the inventory keeps no pool from going."""
    from gpufleet.inventory.select import surviving

    if definition is None:
        return wiring.select(tools.inventory, ())
    kept, _ = surviving(tools.inventory, definition.hosts)
    return wiring.select(tools.inventory, kept) if kept else ()


COMMANDS: Mapping[str, Callable[..., None]] = {
    "create": create,
    "scale": scale,
    "logs": logs,
    "delete": delete,
}
