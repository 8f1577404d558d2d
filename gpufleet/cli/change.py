"""`gpufleet change`: what was done to hosts, and how an interrupted run is finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli import wiring
from gpufleet.cli.console import Answer, confirm, finish, note, warn
from gpufleet.cli.settings import current
from gpufleet.errors import ExitCode, Interrupted, UsageError

if TYPE_CHECKING:
    from gpufleet.change.events import Goal
    from gpufleet.change.records.document import Resolve
    from gpufleet.deploy.tools import Tools
    from gpufleet.errors import ErrorRow
    from gpufleet.inventory.model import Host
    from gpufleet.names import HostName, RunId

app = typer.Typer(
    no_args_is_help=True,
    help="List, resume and undo runs; take over a lease.",
    rich_markup_mode=None,
    add_completion=False,
)

Run = Annotated[str, typer.Argument(metavar="RUN", help="The run, as `change list` names it.")]
From = Annotated[
    list[str] | None,
    typer.Option(
        "--from", metavar="SELECTOR", help="Read the run's journal from these hosts; may be repeated."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show where the run stands and change nothing.")]
Check = Annotated[bool, typer.Option("--check", help="Exit with 3 if there is anything to do.")]
HostArgument = Annotated[str, typer.Argument(metavar="HOST", help="Whose lease.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; kept in the audit record.")]


@app.command("list")
def list_runs() -> None:
    """Every run of this machine, the latest first; what was interrupted says so."""
    from gpufleet.change.records.journal_file import summaries
    from gpufleet.cli import change_text

    runs = [change_text.run_fields(summary) for summary in summaries(current().state_dir)]
    raise finish(Answer(command="change list", fields={"runs": runs}, text=change_text.run_table(runs)))


@app.command()
def show(run: Run) -> None:
    """One run: who made it, each step, what is left and what to do."""
    from gpufleet.change.records import journal_file
    from gpufleet.cli import change_text
    from gpufleet.names import RunId

    summary = journal_file.summary(current().state_dir, RunId(run))
    fields = change_text.details(summary)
    raise finish(Answer(command="change show", fields=fields, text=change_text.details_text(fields)))


@app.command()
def resume(run: Run, sources: From = None, dry_run: DryRun = False, check: Check = False) -> None:
    """Go on with an interrupted run; one that was turning back goes on turning back.

    Every step whose outcome is not known is looked at first. When its host cannot be asked, nothing is started.
    """
    from gpufleet.change.events import Goal

    _take_up(run, Goal.RESUME, sources or [], stop=_showing(dry_run=dry_run, check=check))


@app.command()
def undo(run: Run, sources: From = None, dry_run: DryRun = False, check: Check = False) -> None:
    """Undo an interrupted or stuck run; hosts that do not answer are named and can be undone later."""
    from gpufleet.change.events import Goal

    _take_up(run, Goal.UNDO, sources or [], stop=_showing(dry_run=dry_run, check=check))


@app.command()
def unlock(host: HostArgument, reason: Reason = "") -> None:
    """Break the lease of a host whose holder is gone; audited, and its holder can change nothing more there."""
    from contextlib import closing

    from gpufleet.change.leases import lease_keeper
    from gpufleet.change.leases.lease import Standing
    from gpufleet.change.reach import Reach
    from gpufleet.cli import change_text, progress
    from gpufleet.clock import SystemClock

    if not reason.strip():
        raise UsageError(
            "a lease is broken for a reason", hints=("add `--reason TEXT`: it is kept in the audit record",)
        )
    settings, clock = current(), SystemClock()
    inventory = wiring.load_inventory(settings)
    chosen = _one_host(host, wiring.select(inventory, [host]))
    with closing(wiring.transport(inventory, settings)) as transport:
        reach = Reach(transport, clock)
        before = lease_keeper.show(reach, chosen)
        if before.standing is Standing.FREE:
            fields = {"hosts": [{"host": chosen, "status": "free"}]}
            raise finish(
                Answer(
                    command="change unlock", outcome="no_change", fields=fields, text=f"{chosen} has no lease"
                )
            )
        note(change_text.holder_line(chosen, before))
        if not confirm(f"Break the lease of {chosen}?"):
            raise Interrupted("not confirmed; nothing was changed")
        audit = lease_keeper.Audit(settings.state_dir, clock)
        answer = lease_keeper.unlock(reach, chosen, who=progress.operator(), reason=reason, audit=audit)
        reach.close()
    raise finish(change_text.unlocked(chosen, answer))


def _one_host(word: str, found: Sequence[Host]) -> HostName:
    if len(found) != 1:
        raise UsageError(f"`{word}` names {len(found)} hosts, and a lease is broken on one")
    return found[0].name


def _showing(*, dry_run: bool, check: bool) -> ExitCode | None:
    """The exit code of an invocation that only shows; None when it is to act."""
    if check:
        return ExitCode.CHANGES
    return ExitCode.OK if dry_run else None


def _take_up(word: str, goal: Goal, sources: list[str], *, stop: ExitCode | None) -> None:
    from gpufleet.change.events import Ending
    from gpufleet.change.flow import take_up
    from gpufleet.change.records import journal_file
    from gpufleet.cli import change_text
    from gpufleet.deploy.audit import Line, audited
    from gpufleet.deploy.commit import finish_commit
    from gpufleet.deploy.deletion import retire_after
    from gpufleet.deploy.staging.word import forget_word
    from gpufleet.deploy.tools import resolver
    from gpufleet.names import RunId

    command, run = f"change {goal.value}", RunId(word)
    with wiring.fleet_tools(current()) as tools:
        resolve = resolver(tools.inventory, goal)
        _find(run, sources, tools, resolve)
        if stop is not None:
            fields = change_text.details(journal_file.summary(current().state_dir, run))
            outcome, code = ("no_change", ExitCode.OK) if fields["over"] else ("changes", stop)
            raise finish(
                Answer(
                    command=command,
                    outcome=outcome,
                    exit=code,
                    fields=fields,
                    text=change_text.details_text(fields),
                )
            )
        with audited(tools, Line(command=f"{command} {run}", pool="", run=run)) as line:
            change = take_up(run, tools.change, goal, resolve=resolve, on_commit=finish_commit(tools.store))
            line.result, line.pool = change.ending.value, change.context.get("pool", "")
            line.hosts = tuple(row.host for row in change.rows)
        forget_word(current().state_dir, run)
        leftovers: tuple[ErrorRow, ...] = ()
        if change.ending is Ending.COMMITTED:
            leftovers = retire_after(tools, change.context).leftovers
        for host in change.unreleased:
            warn(f"{host}: the lease could not be given back; it expires by itself")
    raise finish(change_text.taken_up(command, change, leftovers))


def _find(run: RunId, sources: list[str], tools: Tools, resolve: Resolve) -> None:
    """Make the journal be here: from the hosts that were named, or from any when this machine has none."""
    from gpufleet.change.reach import Reach
    from gpufleet.change.records import copies, journal_file

    settings = current()
    if not sources and journal_file.exists(settings.state_dir, run):
        return
    hosts = [host.name for host in wiring.select(tools.inventory, sources)]
    note(f"reading the journal of run {run} from {len(hosts)} host(s)")
    reach = Reach(tools.change.transport, tools.change.clock)
    try:
        copies.fetch(
            run,
            hosts,
            reach,
            state_dir=settings.state_dir,
            clock=tools.change.clock,
            resolve=resolve,
        )
    finally:
        reach.close()
