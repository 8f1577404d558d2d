"""`gpufleet hosts`: list them, read their facts, say what is wrong, trust a host key, run a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli import wiring
from gpufleet.cli.console import Answer, confirm, finish, note, table
from gpufleet.cli.settings import current
from gpufleet.errors import ExitCode, FleetError, UsageError

if TYPE_CHECKING:
    from gpufleet.hosts.doctor import Finding
    from gpufleet.hosts.model import HostFacts
    from gpufleet.inventory.model import Host, Inventory
    from gpufleet.names import HostName

app = typer.Typer(
    no_args_is_help=True,
    help="List hosts, read their facts, say what is wrong and how to mend it.",
    rich_markup_mode=None,
    add_completion=False,
)

Selector = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[HOSTS]...", help="Names, globs, group=NAME, label=value, !negation; all by default."
    ),
]


@app.command(name="list")
def list_hosts(selector: Selector = None) -> None:
    """List the hosts of the inventory that a selector names; nothing is connected."""
    hosts = wiring.select(wiring.load_inventory(current()), selector or ())
    rows = [
        (
            host.name,
            str(host.address),
            host.connection.value,
            ",".join(sorted(host.groups)),
            ",".join(f"{key}={value}" for key, value in sorted(host.labels.items())),
        )
        for host in hosts
    ]
    fields = [
        {
            "host": host.name,
            "address": host.address.host,
            "port": host.address.port,
            "user": host.ssh.user,
            "connection": host.connection.value,
            "groups": sorted(host.groups),
            "labels": dict(sorted(host.labels.items())),
        }
        for host in hosts
    ]
    text = table(("HOST", "ADDRESS", "CONNECTION", "GROUPS", "LABELS"), rows)
    raise finish(Answer(command="hosts list", fields={"hosts": fields}, text=text))


@app.command()
def facts(selector: Selector = None) -> None:
    """Read GPUs, slices, containers, disks and ports of hosts, one round trip each."""
    from gpufleet.cli import hosts_text
    from gpufleet.hosts.encode import encode

    inventory = wiring.load_inventory(current())
    seen, _ = _look(inventory, wiring.select(inventory, selector or ()))
    rows: list[Mapping[str, object]] = [
        _unreached(name, outcome) if isinstance(outcome, FleetError) else {"status": "ok", **encode(outcome)}
        for name, outcome in seen.items()
    ]
    raise finish(
        _answer(
            "hosts facts",
            rows,
            hosts_text.facts(seen),
            {name: outcome for name, outcome in seen.items() if isinstance(outcome, FleetError)},
        )
    )


@app.command()
def check(selector: Selector = None) -> None:
    """Say what is wrong with hosts and how to mend it: exit 8 when a deploy would fail, 7 when one was not reached."""
    from gpufleet.cli import hosts_text
    from gpufleet.hosts.doctor import diagnose
    from gpufleet.hosts.symptoms import Severity

    inventory = wiring.load_inventory(current())
    hosts = {host.name: host for host in wiring.select(inventory, selector or ())}
    seen, seconds = _look(inventory, tuple(hosts.values()))
    findings = {
        name: () if isinstance(outcome, FleetError) else diagnose(outcome, hosts[name])
        for name, outcome in seen.items()
    }
    rows = [_checked(name, seen[name], findings[name], seconds.get(name, 0.0)) for name in seen]
    failed = {
        name: [one for one in found if one.severity is Severity.ERROR] for name, found in findings.items()
    }
    raise finish(
        _answer(
            "hosts check",
            rows,
            hosts_text.check(rows, findings),
            {name: outcome for name, outcome in seen.items() if isinstance(outcome, FleetError)},
            sick=[name for name, errors in failed.items() if errors],
        )
    )


@app.command()
def run(
    selector: Annotated[str, typer.Argument(metavar="HOSTS", help="A selector; words are joined by commas.")],
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="The program and its arguments.")
    ],
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds until it is ended.")] = 60.0,
    sudo: Annotated[bool, typer.Option("--sudo", help="Run it as root.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show where it would run, and end.")] = False,
) -> None:
    """Run one program on many hosts. Each word is an argument: no shell reads it, here or there.

    Exit 0 when it ended with 0 everywhere, 8 when it did not, 7 when a host was not reached, 11 when an answer was lost.
    """
    from gpufleet.cli import hosts_run

    inventory = wiring.load_inventory(current())
    hosts = wiring.select(inventory, (selector,))
    if dry_run:
        import shlex

        words = shlex.join(command)
        raise finish(
            Answer(
                command="hosts run",
                outcome="changes",
                fields={"hosts": [{"host": host.name} for host in hosts], "command_line": list(command)},
                text="\n".join(f"{host.name}: {words}" for host in hosts),
            )
        )
    with closing(wiring.transport(inventory, current())) as transport:
        raise finish(
            hosts_run.run(transport, hosts, command, timeout=timeout, become=sudo, forks=current().forks)
        )


@app.command()
def trust(
    host: Annotated[str, typer.Argument(metavar="HOST", help="One host of the inventory.")],
    fingerprint: Annotated[
        str,
        typer.Option("--fingerprint", metavar="SHA256:...", help="Accept the key that has this fingerprint."),
    ] = "",
) -> None:
    """Add the key that a host shows to known_hosts, once its fingerprint was compared."""
    from gpufleet.cli import hosts_trust

    inventory = wiring.load_inventory(current())
    named = wiring.select(inventory, (host,))
    if len(named) != 1:
        raise UsageError(
            f"`{host}` names {len(named)} hosts; a key is trusted one host at a time",
            hints=("name one host of `gpufleet hosts list`",),
        )
    raise finish(hosts_trust.trust(inventory, named[0], fingerprint, confirm))


def _look(
    inventory: Inventory, hosts: Sequence[Host]
) -> tuple[Mapping[HostName, HostFacts | FleetError], Mapping[HostName, float]]:
    from gpufleet.clock import SystemClock
    from gpufleet.hosts.gather import gather

    seconds: dict[HostName, float] = {}

    def observe(name: HostName, took: float) -> None:
        seconds[name] = took
        if current().verbose:
            note(f"{name}: {took:.2f} s")

    with closing(wiring.transport(inventory, current())) as transport:
        seen = gather(transport, hosts, clock=SystemClock(), forks=current().forks, observe=observe)
    return seen, seconds


def _checked(
    name: HostName, outcome: HostFacts | FleetError, findings: Sequence[Finding], seconds: float
) -> Mapping[str, object]:
    if isinstance(outcome, FleetError):
        return {**_unreached(name, outcome), "duration_s": round(seconds, 3), "findings": []}
    first = findings[0] if findings else None
    return {
        "host": name,
        "status": first.severity.value if first else "ok",
        "phase": "preflight",
        "reason": first.message if first else "",
        "hint": first.fix if first else "",
        "duration_s": round(seconds, 3),
        "findings": [
            {"code": one.code, "severity": one.severity.value, "message": one.message, "fix": one.fix}
            for one in findings
        ],
    }


def _unreached(name: HostName, error: FleetError) -> Mapping[str, object]:
    return {
        "host": name,
        "status": "unreachable",
        "phase": "connect",
        "code": error.code,
        "reason": error.summary,
        "hint": error.hints[0] if error.hints else "",
    }


def _answer(
    command: str,
    rows: Sequence[Mapping[str, object]],
    text: str,
    unreached: Mapping[HostName, FleetError],
    sick: Sequence[HostName] = (),
) -> Answer:
    fields: dict[str, object] = {"hosts": list(rows)}
    if not unreached and not sick:
        return Answer(command=command, fields=fields, text=text)
    parts = [f"{len(unreached)} of {len(rows)} hosts not reached"] if unreached else []
    parts += [f"{len(sick)} of {len(rows)} hosts with errors"] if sick else []
    message, where = ", ".join(parts), ", ".join([*unreached, *sick])
    hints = [hint for error in unreached.values() for hint in error.hints]
    hints += [str(row["hint"]) for row in rows if row["host"] in sick]
    fields["error"] = {
        "code": "unreachable" if unreached else "preflight",
        "message": message,
        "where": where,
        "hints": list(dict.fromkeys(hints)),
    }
    note(f"error: {where}: {message}")
    for hint in dict.fromkeys(hint for error in unreached.values() for hint in error.hints[1:]):
        note(f"hint: {hint}")  # the first stands beside its host
    return Answer(
        command=command,
        outcome="failed" if unreached else "refused",
        exit=ExitCode.UNREACHABLE if unreached else ExitCode.PREFLIGHT,
        fields=fields,
        text=text,
    )
