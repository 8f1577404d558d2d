"""Taking up a run whose journal is not on this machine, from the copies on the hosts it touched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpufleet.change.reach import Reach
from gpufleet.change.records import journal_file, mirror
from gpufleet.change.records.document import JournalError, Resolve
from gpufleet.change.records.journal import Opened, Record, opening
from gpufleet.clock import Clock
from gpufleet.errors import ErrorRow, HostUnreachable, UsageError
from gpufleet.names import HostName, RunId
from gpufleet.remote.command import Command
from gpufleet.remote.result import Lost

_READ = """\
copy=$HOME/.gpufleet/runs/$1/journal.jsonl
if [ ! -f "$copy" ]; then printf 'none\\n'; exit 0; fi
printf 'copy\\n'
cat "$copy"
"""


def read_copy(run: RunId) -> Command:
    """The host's copy of a run's journal."""
    return Command(script=_READ, argv=(run,), mutates=False)


def fetch(
    run: RunId, sources: Sequence[HostName], reach: Reach, *, state_dir: Path, clock: Clock, resolve: Resolve
) -> None:
    """Make the run's journal on this machine out of the copies of every host that can be asked.

    Args:
        run: whose.
        sources: hosts to ask first; the copies say which others the run touched.
        reach: the way to them.
        state_dir: where the journal is written, in place of one that is there.
        clock: for the records that follow.
        resolve: follows the plan's secrets.

    Raises:
        UsageError: none of the sources knows the run.
        HostUnreachable: none of them answers.
        RunBusy: a process of this machine works on it.
    """
    found: dict[HostName, tuple[Record, ...] | None] = {}
    for host in sources:
        found[host] = _ask(reach, host, run)
    beginning = next((copy for copy in found.values() if copy and isinstance(copy[0].body, Opened)), None)
    if beginning is None:
        raise _nowhere(run, found)
    head = opening(beginning, resolve)
    for host in head.hosts:
        if host not in found:
            found[host] = _ask(reach, host, run)
    copies = [copy for host, copy in found.items() if copy and host in head.hosts]
    unseen = frozenset(host for host in head.hosts if found[host] is None)
    history = mirror.merged(copies, unseen, head.plan)
    journal_file.adopt(state_dir, run, clock, history).close()


def _ask(reach: Reach, host: HostName, run: RunId) -> tuple[Record, ...] | None:
    """The host's records, none when it was never touched, None when it cannot be known."""
    outcome = reach.insist(host, read_copy(run))
    if isinstance(outcome, Lost):
        return None
    word, _, content = outcome.stdout.partition("\n")
    if word == "none":
        return ()
    if word != "copy" or not outcome.ok:
        return None
    try:
        return journal_file.parse(content.encode(), f"{host}:{run}")[0]
    except JournalError:
        return None


def _nowhere(run: RunId, found: dict[HostName, tuple[Record, ...] | None]) -> UsageError | HostUnreachable:
    silent = [host for host, copy in found.items() if copy is None]
    rows = tuple(ErrorRow(where=host, message="no readable answer") for host in silent)
    if silent and len(silent) == len(found):
        return HostUnreachable(f"no host could be asked about run {run}", rows=rows)
    return UsageError(
        f"no host that was asked knows run {run}",
        rows=rows,
        hints=(
            "name a host it touched with `--from HOST`",
            "`gpufleet change list` shows the runs of this machine",
        ),
    )
