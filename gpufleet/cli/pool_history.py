"""`pool history` and `pool rollback`: what was committed, and a deploy of what an earlier commit asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli import wiring
from gpufleet.cli.console import Answer, confirm, finish, note, table, warn
from gpufleet.cli.settings import current
from gpufleet.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from gpufleet.deploy.tools import Tools
    from gpufleet.names import PoolName
    from gpufleet.pools.record import PoolRecord
    from gpufleet.pools.store import PoolStore

Name = Annotated[str, typer.Argument(metavar="NAME", help="The pool.")]


def register(app: typer.Typer) -> None:
    """Add both commands to the group."""
    app.command()(history)
    app.command()(rollback)


def history(name: Name) -> None:
    """Show what was committed for a pool, the last ten revisions, and deploys since then that were not."""
    from gpufleet.names import PoolName
    from gpufleet.pools.revisions import changed

    store = _store()
    pool = _known(store, name)
    kept, serving = store.revisions(pool), store.record(pool)
    rows: list[dict[str, object]] = [
        {
            "revision": one.revision,
            "at": one.written_at,
            "by": one.by,
            "run": one.run,
            "image": one.pulled or str(one.pool.get("engine", {}).get("image", "")),
            "changed": list(changed(kept[at - 1] if at else None, one)),
            "result": "serving" if serving is not None and one.revision == serving.revision else "replaced",
        }
        for at, one in enumerate(kept)
    ]
    rows += _not_committed(PoolName(name))
    headers = ("REVISION", "AT", "BY", "RUN", "IMAGE", "RESULT", "CHANGED")
    cells = [
        [
            *(str(row[key]) for key in ("revision", "at", "by", "run", "image", "result")),
            "; ".join(str(line) for line in _lines(row["changed"])),
        ]
        for row in rows
    ]
    raise finish(
        Answer(command="pool history", fields={"pool": name, "revisions": rows}, text=table(headers, cells))
    )


def rollback(
    name: Name,
    to: Annotated[
        int | None, typer.Option("--to", metavar="REVISION", help="Which; the one before, when not said.")
    ] = None,
    strategy: Annotated[str, typer.Option(metavar="NAME", help="In place of the revision's own.")] = "",
    max_unavailable: Annotated[
        str, typer.Option(metavar="N|N%", help="Replicas that may be down at once.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 3 if anything would change.")] = False,
) -> None:
    """Deploy what an earlier revision asked for, as a new revision; its containers need not exist any more."""
    from gpufleet.cli import pool_text
    from gpufleet.cli import pool_wishes as wishes
    from gpufleet.deploy import diff
    from gpufleet.deploy.flow import carry_out, prepare
    from gpufleet.pools.record import pool_of

    with wiring.fleet_tools(current()) as tools:
        wanted = _wanted(tools.store, _known(tools.store, name), to)
        pool = wishes.still_there(tools.inventory, pool_of(wanted, f"revision {wanted.revision}"))
        order = wishes.strategy_of(strategy, max_unavailable, "", None, None)
        if order:
            pool = wishes.altered(pool, {"strategy": order})
        prepared = prepare(
            tools, pool, command=f"pool rollback {name} --to {wanted.revision}", pulled=wanted.pulled
        )
        if dry_run or check:
            raise finish(pool_text.plan_answer("pool rollback", prepared, check=check))
        if prepared.changes:
            for line in diff.lines(prepared.plan):
                note(line)
            if not confirm(f"Deploy pool {name} as it was in revision {wanted.revision}?"):
                raise Interrupted("not confirmed; nothing was changed")
        done = carry_out(tools, prepared)
        _tell_of_definition(tools, name, wanted)
    raise finish(pool_text.done_answer("pool rollback", name, done))


def _store() -> PoolStore:
    from gpufleet.clock import SystemClock
    from gpufleet.pools.store import PoolStore

    return PoolStore(current().state_dir, SystemClock())


def _known(store: PoolStore, name: str) -> PoolName:
    from gpufleet.names import PoolName
    from gpufleet.pools.load import unknown
    from gpufleet.pools.mistakes import NAME

    if not NAME.fullmatch(name) or not store.revisions(PoolName(name)):
        raise unknown(name, tuple(store.names()))
    return PoolName(name)


def _wanted(store: PoolStore, name: PoolName, number: int | None) -> PoolRecord:
    """The revision that is asked for; without a number the one before that which serves."""
    kept, serving = store.revisions(name), store.record(name)
    numbers = [one.revision for one in kept]
    if number is None:
        older = [one for one in kept if serving is None or one.revision < serving.revision]
        if older:
            return older[-1]
        raise UsageError(
            f"pool {name} has no revision before the one that serves",
            hints=(f"gpufleet pool history {name}",),
        )
    for one in kept:
        if one.revision == number:
            return one
    raise UsageError(
        f"pool {name} has no revision {number}",
        hints=(f"kept are {', '.join(map(str, numbers))}: gpufleet pool history {name}",),
    )


def _not_committed(name: PoolName) -> list[dict[str, object]]:
    """Deploys of this machine that ended otherwise, newest last."""
    from gpufleet.change.records import journal_file
    from gpufleet.change.records.journal import Opened

    found: list[dict[str, object]] = []
    for run in reversed(journal_file.summaries(current().state_dir)):
        first = run.records[0].body if run.records else None
        if not isinstance(first, Opened) or not first.plan.title.startswith(f"deploy pool {name}, "):
            continue
        if run.ending != "committed":
            ending = {"undone": "rolled back", "": "open"}.get(run.ending, run.ending)
            row = {"revision": "-", "at": run.records[0].at, "by": first.operator, "run": run.run}
            found.append({**row, "image": "", "changed": [], "result": ending})
    return found


def _lines(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _tell_of_definition(tools: Tools, name: str, wanted: PoolRecord) -> None:
    """A definition that asks for something else brings it back with the next deploy."""
    from gpufleet.pools.document import from_model
    from gpufleet.pools.load import named

    defined = named(tools.inventory, name)
    if defined is not None and from_model(defined) != wanted.pool:
        warn(
            f"the definition of pool {name} asks for something else: the next `pool deploy {name}` brings it back"
        )
