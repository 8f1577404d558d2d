"""The audit trail: who did what to a pool, when, on which hosts, with what result; here and on the touched hosts.

One JSON object a line in `audit/changes.jsonl` of the state directory, appended and synced, never rewritten, and the
same line in `~/.gpufleet/audit/changes.jsonl` of each touched host. A command that failed has its line too; one that
was killed has none, and whoever resumes or undoes its run writes one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpufleet.change.leases.lease_keeper import Audit
from gpufleet.clock import Clock
from gpufleet.deploy.tools import Tools
from gpufleet.errors import FleetError
from gpufleet.names import HostName
from gpufleet.redact import scrub
from gpufleet.remote.command import Command
from gpufleet.remote.fanout import fanout
from gpufleet.remote.result import Exit

APPEND = """
umask 077
mkdir -p "$HOME/.gpufleet/audit" && printf '%s\\n' "$1" >> "$HOME/.gpufleet/audit/changes.jsonl"
"""


@dataclass(slots=True, kw_only=True)
class Line:
    """What is to be told of a command; `result` and `run` may be filled in while it goes on."""

    command: str
    pool: str
    hosts: tuple[HostName, ...] = ()
    run: str = ""
    revision: int = 0
    result: str = "committed"


@contextmanager
def audited(tools: Tools, line: Line) -> Iterator[Line]:
    """Write the line when the command has ended, however it ended; nothing is written for one that changed nothing."""
    try:
        yield line
    except FleetError as error:
        line.result, line.run = error.code, error.run or line.run
        write(tools, line)
        raise
    if line.result != "no_change":
        write(tools, line)


def write(tools: Tools, line: Line) -> None:
    """Append it here and on the hosts. What was done is done: a trail that cannot be written is only told."""
    change = tools.change
    text = append(change.state_dir, change.clock, change.operator, line, tools.warn)
    copy_to(tools, text, line.hosts)


def append(state_dir: Path, clock: Clock, who: str, line: Line, warn: Callable[[str], None]) -> str:
    """Append it on this machine; the text that was written."""
    fields = {
        "at": clock.now().isoformat(timespec="seconds"),
        "who": who,
        "command": scrub(line.command),
        "pool": line.pool,
        "run": line.run,
        "revision": line.revision,
        "hosts": list(line.hosts),
        "result": line.result,
    }
    text = json.dumps(fields, ensure_ascii=True)
    try:
        Audit(state_dir, clock, "changes").append(text)
    except FleetError as error:
        warn(f"the audit trail was not written: {error}")
    return text


def copy_to(tools: Tools, text: str, hosts: Iterable[HostName]) -> None:
    """The same line on the hosts; one that does not answer is only told."""
    command = Command(script=APPEND, argv=(text,), mutates=True, timeout=30.0)

    def put(host: HostName) -> str:
        session = tools.change.transport.open(host)
        answer = session.run(command)
        session.close()
        if isinstance(answer, Exit):
            return "" if answer.ok else answer.stderr.strip() or f"exit status {answer.code}"
        return answer.reason

    known = [host for host in sorted(set(hosts)) if host in tools.inventory.hosts]
    for host, outcome in fanout(known, put, forks=tools.change.forks).items():
        if str(outcome):
            tools.warn(f"{host}: the copy of the audit trail was not written: {outcome}")
