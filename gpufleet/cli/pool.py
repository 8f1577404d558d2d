"""`gpufleet pool`: deploy pools as one change, show them, change and drain their members."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli import pool_history, pool_life, pool_members, wiring
from gpufleet.cli.console import Answer, confirm, finish, note, table
from gpufleet.cli.pool_options import (
    Algorithm,
    Canary,
    CanaryTraffic,
    Check,
    Commands,
    DryRun,
    EngineArg,
    File,
    Gpus,
    Hosts,
    Image,
    MaxUnavailable,
    Mig,
    Model,
    Name,
    Observe,
    OptionalName,
    Replicas,
    Strategy,
)
from gpufleet.cli.settings import current
from gpufleet.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from gpufleet.deploy.flow import Prepared
    from gpufleet.deploy.tools import Tools
    from gpufleet.pools.store import PoolStore

app = typer.Typer(
    no_args_is_help=True,
    help="Deploy pools of replicas as one change, show and change them.",
    rich_markup_mode=None,
    add_completion=False,
)

pool_history.register(app)

Save = Annotated[
    Path | None, typer.Option(metavar="PLAN.JSON", help="Keep the plan for `pool deploy --plan`.")
]
IgnoreMemory = Annotated[
    bool, typer.Option("--ignore-memory", help="Go on although the model does not fit by the memory verdict.")
]
SavedPlan = Annotated[
    Path | None,
    typer.Option("--plan", metavar="PLAN.JSON", help="A plan of `pool plan --save`; refused when stale."),
]


@app.command()
def deploy(  # options, given by name
    name: OptionalName = "",
    file: File = None,
    model: Model = "",
    hosts: Hosts = None,
    replicas: Replicas = None,
    algorithm: Algorithm = "",
    image: Image = "",
    engine_arg: EngineArg = None,
    gpus: Gpus = None,
    mig: Mig = "",
    strategy: Strategy = "",
    max_unavailable: MaxUnavailable = "",
    canary: Canary = "",
    canary_traffic: CanaryTraffic = None,
    observe: Observe = None,
    plan: SavedPlan = None,
    dry_run: DryRun = False,
    check: Check = False,
    ignore_memory: IgnoreMemory = False,
) -> None:
    """Bring a pool up on its hosts: all replicas or none.

    Every replica must stream a token before any request is sent to one; when one cannot, every host is put back
    as it was.
    """
    from gpufleet.cli import pool_text
    from gpufleet.cli import pool_wishes as wishes
    from gpufleet.deploy.flow import carry_out, prepare

    changes = wishes.changes_of(model, hosts, replicas, algorithm, image, engine_arg, gpus, mig)
    order = wishes.strategy_of(strategy, max_unavailable, canary, canary_traffic, observe)
    changes |= {"strategy": order} if order else {}
    with wiring.fleet_tools(current()) as tools:
        if plan is not None:
            if name or file or changes:
                raise UsageError("`--plan` stands alone: the saved plan says everything")
            prepared = _from_saved(tools, plan, ignore_memory=ignore_memory)
        else:
            pool = wishes.wanted(tools.inventory, tools.store, name, file, changes)
            prepared = prepare(tools, pool, command=f"pool deploy {pool.name}", ignore_memory=ignore_memory)
        if dry_run or check:
            raise finish(pool_text.plan_answer("pool deploy", prepared, check=check))
        if prepared.changes and plan is None:
            _ask(prepared)
        done = carry_out(tools, prepared)
    raise finish(pool_text.done_answer("pool deploy", prepared.plan.pool.name, done))


@app.command(name="plan")
def plan_pool(  # options, given by name
    name: OptionalName = "",
    file: File = None,
    model: Model = "",
    hosts: Hosts = None,
    replicas: Replicas = None,
    algorithm: Algorithm = "",
    image: Image = "",
    engine_arg: EngineArg = None,
    gpus: Gpus = None,
    mig: Mig = "",
    strategy: Strategy = "",
    max_unavailable: MaxUnavailable = "",
    canary: Canary = "",
    canary_traffic: CanaryTraffic = None,
    observe: Observe = None,
    save: Save = None,
    commands: Commands = False,
    check: Check = False,
    ignore_memory: IgnoreMemory = False,
) -> None:
    """Show what `pool deploy` would do; nothing is changed.

    Placement, ports, image, order, downtime; with `--commands` every command as it would be sent, secrets masked.
    """
    from gpufleet.cli import pool_text
    from gpufleet.cli import pool_wishes as wishes
    from gpufleet.deploy import saved_plan
    from gpufleet.deploy.flow import prepare

    changes = wishes.changes_of(model, hosts, replicas, algorithm, image, engine_arg, gpus, mig)
    order = wishes.strategy_of(strategy, max_unavailable, canary, canary_traffic, observe)
    changes |= {"strategy": order} if order else {}
    with wiring.fleet_tools(current()) as tools:
        pool = wishes.wanted(tools.inventory, tools.store, name, file, changes)
        prepared = prepare(tools, pool, command=f"pool plan {pool.name}", ignore_memory=ignore_memory)
        if save is not None:
            saved_plan.save(tools, prepared, save)
            note(f"saved to {save}")
    told = commands or current().verbose
    raise finish(pool_text.plan_answer("pool plan", prepared, check=check, commands=told))


@app.command()
def drift(
    name: OptionalName = "",
    accept_boots: Annotated[
        bool,
        typer.Option("--accept-boots", help="Take the boots seen now for known, when all else is as asked."),
    ] = False,
) -> None:
    """Compare what was deployed with what is seen: containers, images, slices, GPUs inside, boots, routes.

    Exit 3: something is not as asked. Exit 7: nothing that could be looked at differs, and something could not be.
    """
    from gpufleet.cli import pool_drift

    raise finish(pool_drift.run(name, accept=accept_boots))


@app.command(name="list")
def list_pools() -> None:
    """List pools that are defined or deployed, and how many replicas each has in the route table."""
    from gpufleet.cli import pool_text
    from gpufleet.cli import pool_wishes as wishes

    inventory, store = wiring.load_inventory(current()), _store()
    rows = [pool_text.summary(inventory, store, name) for name in wishes.known_names(inventory, store)]
    headers = ("POOL", "MODEL", "ALGORITHM", "WANTED", "SERVED", "REVISION")
    text = table(headers, [tuple(str(value) for value in row.values()) for row in rows])
    raise finish(Answer(command="pool list", fields={"pools": rows}, text=text))


@app.command()
def show(name: Name) -> None:
    """Show one pool: what is wanted, and where it is served."""
    from gpufleet.cli import pool_text
    from gpufleet.cli import pool_wishes as wishes
    from gpufleet.pools.load import unknown

    inventory, store = wiring.load_inventory(current()), _store()
    known = wishes.known_names(inventory, store)
    if name not in known:
        raise unknown(name, known)
    fields = pool_text.summary(inventory, store, name)
    served = next((pool for pool in store.routes().pools if pool.name == name), None)
    endpoints = served.endpoints if served else ()
    members = [
        {"replica": one.id, "endpoint": one.url, "weight": one.weight, "state": one.state}
        for one in endpoints
    ]
    lines = [f"{key:<10} {value}" for key, value in fields.items()]
    lines += [
        "",
        table(
            ("REPLICA", "ENDPOINT", "WEIGHT", "STATE"),
            [[str(cell) for cell in row.values()] for row in members],
        ),
    ]
    raise finish(Answer(command="pool show", fields={**fields, "members": members}, text="\n".join(lines)))


def _store() -> PoolStore:
    from gpufleet.clock import SystemClock
    from gpufleet.pools.store import PoolStore

    return PoolStore(current().state_dir, SystemClock())


def _from_saved(tools: Tools, path: Path, *, ignore_memory: bool) -> Prepared:
    """The plan of a file, made anew; refused when it does not come out the same."""
    from gpufleet.deploy import saved_plan
    from gpufleet.deploy.flow import prepare

    saved, pool = saved_plan.load(path)
    command = f"pool deploy {pool.name} --plan {path}"
    prepared = prepare(
        tools,
        pool,
        command=command,
        stands=saved_plan.stands(saved, path),
        ignore_memory=ignore_memory,
        pulled=saved_plan.image_of(saved),
    )
    saved_plan.refuse_other(tools, prepared, saved, path)
    return prepared


def _ask(prepared: Prepared) -> None:
    from gpufleet.deploy import diff

    for line in diff.lines(prepared.plan):
        note(line)
    if not confirm(f"Deploy pool {prepared.plan.pool.name}?"):
        raise Interrupted("not confirmed; nothing was changed")


for _name, _command in (*pool_members.COMMANDS.items(), *pool_life.COMMANDS.items()):
    app.command(name=_name)(_command)
