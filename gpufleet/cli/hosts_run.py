"""`hosts run`: one program on many hosts, its answers side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpufleet.cli.console import Answer, note
from gpufleet.clock import SystemClock
from gpufleet.errors import ExitCode, FleetError
from gpufleet.inventory.model import Host
from gpufleet.names import HostName
from gpufleet.remote.command import Command
from gpufleet.remote.fanout import fanout
from gpufleet.remote.result import Exit, Lost, Outcome
from gpufleet.remote.sudo import refusal
from gpufleet.remote.transport import Transport

Timed = tuple[Outcome, float]


def run(
    transport: Transport,
    hosts: Sequence[Host],
    argv: Sequence[str],
    *,
    timeout: float,
    become: bool,
    forks: int,
) -> Answer:
    """Run `argv` on every host and tell each answer; the worst one decides the exit code."""
    command = Command(argv=tuple(argv), timeout=timeout, mutates=True, become=become)
    clock = SystemClock()

    def on(name: HostName) -> Timed:
        begun = clock.monotonic()
        outcome = transport.open(name).run(command)
        if isinstance(outcome, Exit) and (refused := refusal(outcome, name)):
            raise refused
        return outcome, clock.monotonic() - begun

    seen = fanout([host.name for host in hosts], on, forks=forks)
    rows = [_row(name, outcome) for name, outcome in seen.items()]
    worst = max((_exit(outcome) for outcome in seen.values()), key=_RANK.index, default=ExitCode.OK)
    fields: dict[str, object] = {"hosts": rows}
    if worst is not ExitCode.OK:
        bad = [str(row["host"]) for row in rows if row["status"] != "ok"]
        message, where = f"{len(bad)} of {len(rows)} hosts did not end with status 0", ", ".join(bad)
        hints = list(dict.fromkeys(str(row["hint"]) for row in rows if row["hint"]))
        fields["error"] = {"code": _CODES[worst], "message": message, "where": where, "hints": hints}
        note(f"error: {where}: {message}")
    return Answer(
        command="hosts run",
        outcome="ok" if worst is ExitCode.OK else _OUTCOMES[worst],
        exit=worst,
        fields=fields,
        text="\n".join(line for row in rows for line in _lines(row)),
    )


_RANK = (ExitCode.OK, ExitCode.PREFLIGHT, ExitCode.UNREACHABLE, ExitCode.IN_DOUBT)
_CODES = {
    ExitCode.PREFLIGHT: "command-failed",
    ExitCode.UNREACHABLE: "unreachable",
    ExitCode.IN_DOUBT: "in-doubt",
}
_OUTCOMES = {
    ExitCode.PREFLIGHT: "failed",
    ExitCode.UNREACHABLE: "failed",
    ExitCode.IN_DOUBT: "in_doubt",
}


def _exit(outcome: Timed | FleetError) -> ExitCode:
    match outcome:
        case FleetError():
            return ExitCode.UNREACHABLE
        case (Lost(sent=True), _):
            return ExitCode.IN_DOUBT
        case (Lost(), _):
            return ExitCode.UNREACHABLE
        case (Exit(code=0), _):
            return ExitCode.OK
        case _:
            return ExitCode.PREFLIGHT


def _row(name: HostName, outcome: Timed | FleetError) -> Mapping[str, object]:
    match outcome:
        case FleetError(summary=summary, hints=hints, code=code):
            return {
                "host": name,
                "status": "unreachable",
                "phase": "connect",
                "code": code,
                "reason": summary,
                "hint": hints[0] if hints else "",
                "duration_s": None,
            }
        case (Lost(reason=reason, sent=sent), seconds):
            return {
                "host": name,
                "status": "in_doubt" if sent else "unreachable",
                "phase": "run" if sent else "connect",
                "reason": reason,
                "hint": "it may have run: look before it is run again" if sent else "",
                "duration_s": round(seconds, 3),
            }
        case (Exit() as ended, seconds):
            return {
                "host": name,
                "status": "ok" if ended.ok else "failed",
                "phase": "run",
                "reason": "" if ended.ok else f"ended with status {ended.code}",
                "hint": "",
                "duration_s": round(seconds, 3),
                "exit": ended.code,
                "stdout": ended.stdout,
                "stderr": ended.stderr,
            }


def _lines(row: Mapping[str, object]) -> list[str]:
    name = row["host"]
    lines = [f"{name} | {line}" for line in str(row.get("stdout", "")).splitlines()]
    lines += [f"{name} ! {line}" for line in str(row.get("stderr", "")).splitlines()]
    if row["status"] != "ok":
        lines.append(f"{name} # {row['reason']}")
        lines += [f"{name} # fix: {row['hint']}"] if row["hint"] else []
    return lines
