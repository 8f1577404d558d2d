"""`gpufleet pool`: deploy pools as one change, show them, change and drain their members."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli import pool_history, wiring
from gpufleet.cli.console import Answer, confirm, finish, note, table
from gpufleet.cli.settings import current
from gpufleet.errors import ExitCode, Interrupted, UsageError

if TYPE_CHECKING:
    from gpufleet.deploy.flow import Prepared
    from gpufleet.deploy.tools import Tools
    from gpufleet.pools.model import Pool
    from gpufleet.pools.store import PoolStore

app = typer.Typer(
    no_args_is_help=True,
    help="Deploy pools of replicas as one change, show and change them.",
    rich_markup_mode=None,
    add_completion=False,
)

pool_history.register(app)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The pool.")]
OptionalName = Annotated[str, typer.Argument(metavar="[NAME]", help="The pool; a file may say it instead.")]
File = Annotated[Path | None, typer.Option("--file", "-f", metavar="POOL.YAML", help="A pool definition.")]
Model = Annotated[str, typer.Option(metavar="NAME|PATH", help="What the engine loads.")]
Hosts = Annotated[list[str] | None, typer.Option(metavar="SELECTOR", help="Where; may be repeated.")]
Replicas = Annotated[int | None, typer.Option(metavar="N", help="How many.")]
Algorithm = Annotated[
    str, typer.Option(metavar="NAME", help="round-robin, least-busy, weighted-static, random.")
]
Image = Annotated[str, typer.Option(metavar="IMAGE", help="The engine's image.")]
EngineArg = Annotated[
    list[str] | None, typer.Option(metavar="WORD", help="One word for the engine; may be repeated.")
]
Gpus = Annotated[int | None, typer.Option(metavar="N", help="GPUs a replica takes.")]
Mig = Annotated[str, typer.Option(metavar="PROFILE", help="The MIG slice a replica takes.")]
Strategy = Annotated[
    str,
    typer.Option(metavar="NAME", help="all-at-once, rolling, canary, blue-green: how replicas are replaced."),
]
MaxUnavailable = Annotated[
    str, typer.Option(metavar="N|N%", help="Replicas that may be down at once while they are replaced.")
]
Canary = Annotated[str, typer.Option(metavar="N|N%", help="New replicas that are watched before the others.")]
CanaryTraffic = Annotated[
    int | None, typer.Option(metavar="PERCENT", help="Share of requests that the canaries get.")
]
Observe = Annotated[float | None, typer.Option(metavar="SECONDS", help="How long new replicas are watched.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")]
Check = Annotated[bool, typer.Option("--check", help="Exit with 3 if anything would change.")]
Save = Annotated[
    Path | None, typer.Option(metavar="PLAN.JSON", help="Keep the plan for `pool deploy --plan`.")
]
Commands = Annotated[
    bool, typer.Option("--commands", help="Show every command as it would be sent, secrets masked.")
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


@app.command(name="set")
def set_pool(
    name: Name,
    algorithm: Algorithm = "",
    weight: Annotated[
        list[str] | None, typer.Option(metavar="HOST/N=WEIGHT", help="Share of a replica; may be repeated.")
    ] = None,
) -> None:
    """Change the algorithm or the weights of a pool that is served; hosts are not touched."""
    from dataclasses import replace

    from gpufleet.cli import pool_wishes as wishes
    from gpufleet.pools import membership
    from gpufleet.pools.model import ALGORITHMS

    if algorithm and algorithm not in ALGORITHMS:
        raise UsageError(f"there is no algorithm `{algorithm}`", hints=(f"one of: {', '.join(ALGORITHMS)}",))
    if not algorithm and not weight:
        raise UsageError("nothing to set", hints=("give `--algorithm NAME` or `--weight HOST/N=WEIGHT`",))
    weights = wishes.weights_of(weight or ())

    def alter(pool: Pool) -> Pool:
        return membership.set_weights(replace(pool, algorithm=algorithm or pool.algorithm), weights)

    raise finish(_republished("pool set", name, alter, tuple(weights)))


@app.command()
def drain(name: Name, replicas: Annotated[list[str], typer.Argument(metavar="HOST/N...")]) -> None:
    """Send nothing new to replicas; what they are at is finished."""
    raise finish(_with_state("pool drain", name, replicas, "draining"))


@app.command()
def undrain(name: Name, replicas: Annotated[list[str], typer.Argument(metavar="HOST/N...")]) -> None:
    """Send requests to drained replicas again."""
    raise finish(_with_state("pool undrain", name, replicas, "active"))


@app.command()
def delete(name: Name, dry_run: DryRun = False, check: Check = False) -> None:
    """Take a pool away: its containers as one change, and its routes."""
    from gpufleet.cli import pool_text
    from gpufleet.cli import pool_wishes as wishes
    from gpufleet.deploy.deletion import delete as carry_out
    from gpufleet.deploy.deletion import prepare_deletion
    from gpufleet.names import PoolName
    from gpufleet.pools.load import unknown

    with wiring.fleet_tools(current()) as tools:
        known = wishes.known_names(tools.inventory, tools.store)
        if name not in known:
            raise unknown(name, known)
        definition = wishes.base(tools.inventory, tools.store, name, None)
        hosts = wiring.select(tools.inventory, definition.hosts if definition else ())
        deletion = prepare_deletion(tools, PoolName(name), hosts, command=f"pool delete {name}")
        lines = [
            f"pool {name} goes:",
            *(f"  - {one.replica}  container {one.container.name}" for one in deletion.gone),
        ]
        if dry_run or check:
            outcome, code = ("changes", ExitCode.CHANGES) if check else ("changes", ExitCode.OK)
            rows = [{"host": one.host, "replica": one.replica, "status": "goes"} for one in deletion.gone]
            raise finish(
                Answer(
                    command="pool delete",
                    outcome=outcome,
                    exit=code,
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


def _with_state(command: str, name: str, replicas: list[str], word: str) -> Answer:
    from gpufleet.names import ReplicaId
    from gpufleet.pools import membership
    from gpufleet.pools.model import MemberState

    chosen = [ReplicaId(replica) for replica in replicas]
    return _republished(
        command, name, lambda pool: membership.set_state(pool, chosen, MemberState(word)), tuple(chosen)
    )


def _republished(command: str, name: str, alter: Callable[[Pool], Pool], replicas: tuple[str, ...]) -> Answer:
    """Change a served pool in its record and in the route table."""
    from gpufleet.cli import pool_wishes as wishes
    from gpufleet.deploy.commit import republish
    from gpufleet.names import PoolName
    from gpufleet.pools.document import NAME
    from gpufleet.pools.load import unknown

    store = _store()
    known = store.record(PoolName(name)) if NAME.fullmatch(name) else None
    if known is None:
        inventory = wiring.load_inventory(current())
        if name in wishes.known_names(inventory, store):
            raise UsageError(f"pool {name} is not deployed", hints=(f"gpufleet pool deploy {name}",))
        raise unknown(name, tuple(store.names()))
    present = [endpoint.replica for endpoint in known.endpoints]
    for replica in replicas:
        if replica not in present:
            raise UsageError(f"pool {name} has no replica {replica}", hints=(f"it has {', '.join(present)}",))
    before = store.routes().generation
    generation = republish(store, PoolName(name), alter)
    outcome = "no_change" if generation == before else "committed"
    fields = {"pool": name, "generation": generation}
    return Answer(
        command=command, outcome=outcome, fields=fields, text=f"pool {name}: routes generation {generation}"
    )
