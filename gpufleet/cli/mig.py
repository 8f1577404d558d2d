"""`gpufleet mig`: what GPUs can be cut into, how they are cut now, and what a change of layout would take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli.console import Answer, finish, note, table
from gpufleet.errors import UsageError

if TYPE_CHECKING:
    from gpufleet.cli.mig_look import Look
    from gpufleet.deploy.recut.flow import RecutWish
    from gpufleet.mig.model import Geometry

app = typer.Typer(
    no_args_is_help=True,
    help="Show how GPUs are cut into MIG slices, and plan another layout.",
    rich_markup_mode=None,
    add_completion=False,
)

Layout = Annotated[
    str,
    typer.Option(
        "--layout",
        metavar="LAYOUT",
        help="All slices afterwards: 3g.40gb,2x1g.10gb, 1g.10gb:4 at a place, 2x>=20gib by memory, a preset"
        " (whole, half, balanced, all-smallest) or none.",
    ),
]
Add = Annotated[str, typer.Option("--add", metavar="LAYOUT", help="Slices beside those that are there.")]
File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        metavar="PATH",
        help="Where the name given to --layout stands: layouts, or mig-parted's.",
    ),
]
Check = Annotated[bool, typer.Option("--check", help="Exit with 3 if anything would change.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and end.")]
AllowHomeless = Annotated[
    bool,
    typer.Option(
        "--allow-homeless", help="Also when containers get no other slice: they are stopped and stay so."
    ),
]
ByMemory = Annotated[
    bool,
    typer.Option(
        "--by-memory", help="Where no slice of the same profile is left, take one that holds as much."
    ),
]
DrainTimeout = Annotated[
    float,
    typer.Option(
        "--drain-timeout",
        metavar="SECONDS",
        min=0.0,
        help="How long replicas may finish what they have in flight.",
    ),
]
StopDisplay = Annotated[
    bool,
    typer.Option(
        "--stop-display", help="For a reset: stop the display manager, which ends desktop sessions."
    ),
]
UnloadModule = Annotated[
    bool, typer.Option("--unload-module", help="For a reset: unload nvidia_drm meanwhile.")
]
Gpus = Annotated[
    list[str] | None,
    typer.Argument(metavar="[GPU]...", help="HOST, HOST:INDEX, HOST:UUID or HOST:all; every GPU by default."),
]


@app.command()
def profiles(gpus: Gpus = None) -> None:
    """Show the profiles that each GPU offers, how many fit now, and where they may start."""
    from dataclasses import asdict

    from gpufleet.cli import mig_look
    from gpufleet.mig.geometry import free_count

    rows: list[tuple[str, ...]] = []
    fields: list[Mapping[str, object]] = []
    looks = mig_look.look(gpus or ())
    for one in looks:
        offered = []
        for profile in one.seen.geometry.profiles if one.seen else ():
            free = free_count(one.seen.geometry, one.seen.placed, profile) if one.seen else 0
            offered.append(
                {
                    "name": profile.name,
                    "id": profile.id,
                    "memory_gib": profile.memory_gib,
                    "free": free,
                    "total": profile.total,
                    "engines": asdict(profile.engines) if profile.engines else None,
                    "placements": [{"start": start, "size": profile.size} for start in profile.starts],
                }
            )
            starts = ",".join(str(start) for start in profile.starts)
            counts = f"{free}/{profile.total}"
            gib = "unknown" if profile.memory_gib is None else f"{profile.memory_gib:g}"
            compute = str(profile.engines.sm) if profile.engines and profile.engines.sm else "?"
            rows.append(
                (one.name, profile.name, str(profile.id), gib, compute, counts, starts, str(profile.size))
            )
        fields.append({**one.identity, "profiles": offered if one.seen else None})
    text = table(("GPU", "PROFILE", "ID", "GIB", "SM", "FREE", "STARTS", "SLOTS"), rows)
    raise finish(mig_look.answer("mig profiles", looks, fields, text))


@app.command()
def show(
    gpus: Gpus = None,
    parted: Annotated[
        bool, typer.Option("--mig-parted", help="As a configuration of mig-parted; one host, and no places.")
    ] = False,
) -> None:
    """Show how each GPU is cut now: a picture of its memory, and who sits on each slice."""
    from gpufleet.cli import mig_look, mig_text

    looks = mig_look.look(gpus or ())
    if parted:
        raise finish(mig_look.as_parted(looks))
    fields = [
        {**one.identity, **(mig_look.layout(one.seen) if one.seen else {}), **mig_look.boot(one.boot)}
        for one in looks
    ]
    pictures = [mig_text.shown(one.host, one.seen, one.boot) for one in looks if one.seen]
    gone = mig_look.without_slice(looks)
    pictures += [
        f"{row['host']}: {row['container']} ({row['state']}): {row['device']} {row['reason']}" for row in gone
    ]
    raise finish(mig_look.answer("mig show", looks, fields, "\n".join(pictures), without_slice=gone))


@app.command()
def persist(
    gpu: Annotated[
        str,
        typer.Argument(
            metavar="GPU", help="HOST, HOST:INDEX or HOST:UUID; every GPU of the host by default."
        ),
    ],
    remove: Annotated[
        bool, typer.Option("--remove", help="Bring nothing back at boot any more; what is there now stays.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Also where slices that a boot should bring back are lost.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare: exit 3 when what is kept is not what is there.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and end.")] = False,
) -> None:
    """Keep the slices that are there over a boot: a systemd unit makes them again, at their places, before containers start."""
    from gpufleet.cli import mig_persist

    if check and (remove or overwrite):
        raise UsageError("--check only compares", hints=("leave out --remove and --overwrite",))
    if check:
        raise finish(mig_persist.compare(gpu))
    raise finish(mig_persist.keep(gpu, remove=remove, overwrite=overwrite, dry_run=dry_run))


@app.command()
def plan(
    gpu: Annotated[
        str, typer.Argument(metavar="[GPU]", help="HOST:INDEX or HOST:UUID; left out with --model.")
    ] = "",
    layout: Layout = "",
    add: Add = "",
    file: File = None,
    model: Annotated[
        str, typer.Option("--model", metavar="BOARD", help="Plan without a host, such as H100-80GB.")
    ] = "",
) -> None:
    """Plan another layout: what stays, goes and comes, who is touched, and the commands. Nothing is changed."""
    from gpufleet.cli import mig_look
    from gpufleet.mig.boards import board

    _refuse_both(layout, add, file)
    if model and gpu:
        raise UsageError(
            "a GPU and --model exclude each other", hints=("the host's own tables need no --model",)
        )
    if not model and not gpu:
        raise UsageError("name one GPU, or a board with --model", hints=("for example gpu-01:0",))
    if model:
        geometry = board(model)
        if file is not None:
            layout = mig_look.from_file(file, layout, index=0, name=geometry.board)
        _plan_offline(geometry, layout or add)
    found = mig_look.one(gpu)
    seen = mig_look.known(found)
    if file is not None:
        layout = mig_look.from_file(file, layout, index=seen.gpu.index, name=seen.gpu.name)
    _plan_seen(found, layout, add)


def _refuse_both(layout: str, add: str, file: Path | None) -> None:
    """Raises UsageError unless one of the two is given, and no file with slices to add."""
    if bool(layout) == bool(add):
        raise UsageError("say what is wanted with --layout or with --add", hints=("one of the two",))
    if file is not None and add:
        raise UsageError("--file holds whole layouts", hints=("name one with --layout",))


@app.command()
def reconfigure(
    gpu: Annotated[
        str, typer.Argument(metavar="[GPU]", help="HOST:INDEX or HOST:UUID; left out with --pool.")
    ] = "",
    pool: Annotated[
        str,
        typer.Option("--pool", metavar="POOL", help="Every GPU that has replicas of this pool, one by one."),
    ] = "",
    min_available: Annotated[
        int | None,
        typer.Option(
            "--min-available",
            metavar="N",
            min=0,
            help="With --pool: members that serve at any time; by default those that max_unavailable leaves.",
        ),
    ] = None,
    layout: Layout = "",
    add: Add = "",
    file: File = None,
    allow_homeless: AllowHomeless = False,
    by_memory: ByMemory = False,
    drain_timeout: DrainTimeout = 600.0,
    stop_display: StopDisplay = False,
    unload_module: UnloadModule = False,
    check: Check = False,
    dry_run: DryRun = False,
) -> None:
    """Give a GPU, or those of a pool, another layout: replicas on slices that go are drained and made anew on new ones.

    What stays is not touched. When anything fails, the former slices are back at their places, and so is every
    container.
    """
    from gpufleet.cli import mig_recut

    _refuse_both(layout, add, file)
    wish = _wish(layout, add, allow_homeless, by_memory, drain_timeout, stop_display, unload_module)
    if bool(gpu) == bool(pool) or (min_available is not None and not pool) or (file is not None and pool):
        raise UsageError(
            "name one GPU, or a pool with --pool",
            hints=("--min-available is for pools, --file for one GPU",),
        )
    if pool:
        from gpufleet.cli import mig_roll

        raise finish(mig_roll.roll(pool, wish, min_available, dry_run=dry_run, check=check))
    raise finish(mig_recut.reconfigure(gpu, wish, file, dry_run=dry_run, check=check))


def _wish(layout: str, add: str, *given: float) -> RecutWish:
    """What was typed, in the order of the options."""
    from gpufleet.deploy.recut.flow import RecutWish
    from gpufleet.mig.holders import Consent

    allow_homeless, by_memory, drain, display, module = given
    consent = [*([Consent.DISPLAY] if display else []), *([Consent.MODULE] if module else [])]
    return RecutWish(
        layout=layout,
        add=add,
        allow_homeless=bool(allow_homeless),
        by_memory=bool(by_memory),
        drain=drain,
        consent=frozenset(consent),
    )


@app.command()
def restore(
    gpu: Annotated[
        str, typer.Argument(metavar="[GPU]", help="HOST:INDEX or HOST:UUID; the GPU of the run by default.")
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="RUN|FILE",
            help="A run that changed its layout, or a kept answer of `mig show -o json`.",
        ),
    ] = "",
    allow_homeless: AllowHomeless = False,
    by_memory: ByMemory = False,
    drain_timeout: DrainTimeout = 600.0,
    stop_display: StopDisplay = False,
    unload_module: UnloadModule = False,
    check: Check = False,
    dry_run: DryRun = False,
) -> None:
    """Give a GPU the layout that it had, slices at their places and its mode, and start again who was stopped for it."""
    from gpufleet.cli import mig_restore

    if not source:
        raise UsageError(
            "say what is to be restored with --from",
            hints=(
                "a run of `gpufleet change list`, or a file with the answer of `gpufleet mig show -o json`",
            ),
        )
    wish = _wish("", "", allow_homeless, by_memory, drain_timeout, stop_display, unload_module)
    raise finish(mig_restore.restore(gpu, source, wish, dry_run=dry_run, check=check))


def _plan_offline(geometry: Geometry, layout: str) -> None:
    from gpufleet.cli import mig_look, mig_text
    from gpufleet.mig.layout import parse
    from gpufleet.mig.plan import NoLayout
    from gpufleet.mig.plan import plan as make

    change = make(geometry, (), parse(layout, geometry))
    if isinstance(change, NoLayout):
        raise finish(mig_look.no_layout(change, geometry.board, {"model": geometry.board}))
    if geometry.guessed:
        note(f"nobody has printed the placements of {geometry.board} yet: the host's own tables decide")
    fields = {"model": geometry.board, **mig_look.parts(change)}
    fields |= {"mode_change": None, "needs_reset": None}
    fields |= dict.fromkeys(("containers", "resting", "services", "blockers", "unknown", "commands"), ())
    text = mig_text.change(geometry.board, geometry.slots, (), change, None)
    raise finish(Answer(command="mig plan", outcome=mig_look.outcome(change), fields=fields, text=text))


def _plan_seen(found: Look, layout: str, add: str) -> None:
    from gpufleet.cli import mig_holders, mig_look, mig_text
    from gpufleet.deploy.recut.look import refuse_pending
    from gpufleet.mig.layout import parse
    from gpufleet.mig.outlook import outlook
    from gpufleet.mig.plan import NoLayout, added
    from gpufleet.mig.plan import plan as make

    seen = mig_look.known(found)
    refuse_pending(seen, found.name)
    wanted = parse(layout or add, seen.geometry)
    if add:
        wanted = added(seen.placed, seen.geometry, wanted)
    change = make(seen.geometry, seen.placed, wanted, busy=seen.busy)
    if isinstance(change, NoLayout):
        raise finish(mig_look.no_layout(change, found.name, found.identity))
    ahead = outlook(seen, change)
    holders = mig_holders.ask(found, change, ahead)
    fields = {
        **found.identity,
        **mig_look.parts(change),
        "mode_change": ahead.mode_change,
        "needs_reset": ahead.needs_reset,
        "containers": list(ahead.containers),
        "resting": list(ahead.resting),
        "processes": list(ahead.processes),
        **mig_holders.fields(holders),
        "commands": [list(words) for words in ahead.lines],
    }
    title = f"{found.name}  {seen.gpu.name}  {seen.gpu.uuid}"
    text = mig_text.change(title, seen.geometry.slots, seen.placed, change, ahead)
    text = "\n".join([text, *mig_holders.lines(holders)])
    raise finish(Answer(command="mig plan", outcome=mig_look.outcome(change), fields=fields, text=text))
