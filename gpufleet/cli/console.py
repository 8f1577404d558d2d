"""Where people and scripts are spoken to: answers, progress, questions, errors; nobody else prints."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from gpufleet.cli.settings import current
from gpufleet.errors import ExitCode, FleetError, UsageError
from gpufleet.redact import scrub

if TYPE_CHECKING:
    import typer

SCHEMA = 1
"""Version of the JSON objects on standard output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command ends with.

    Attributes:
        command: as typed, without options: `hosts facts`.
        outcome: one of the words of `docs/reference/json.md`.
        fields: what the JSON object carries beside schema, command, outcome and exit.
        text: the data for standard output in text mode.
        reveals: the command's purpose is to show a secret once (`token create`): nothing is masked.
    """

    command: str
    outcome: str = "ok"
    exit: ExitCode = ExitCode.OK
    fields: Mapping[str, object] = field(default_factory=dict)
    text: str = ""
    reveals: bool = False


def finish(answer: Answer) -> typer.Exit:
    """Say the answer; what comes back is raised and ends the command."""
    import typer

    if current().output == "json":
        fields = answer.fields if answer.reveals else _masked(answer.fields)
        _print_json(answer.command, answer.outcome, answer.exit, fields)
    elif answer.text:
        _write(sys.stdout, answer.text if answer.reveals else scrub(answer.text))
    return typer.Exit(int(answer.exit))


def note(line: str) -> None:
    """Progress for people, on standard error; silent with `--quiet`."""
    if not current().quiet:
        _write(sys.stderr, scrub(line))


def warn(line: str) -> None:
    """A warning, on standard error, also with `--quiet`."""
    _write(sys.stderr, f"{paint('warning:', 'yellow')} {scrub(line)}")


def say(line: str) -> None:
    """A line of an answer that has no end, on standard output."""
    _write(sys.stdout, scrub(line))


def confirm(question: str, option: str = "--yes") -> bool:
    """Ask a yes-or-no question; `--yes` answers it.

    Raises:
        UsageError: nobody can be asked; the option that answers is named.
    """
    settings = current()
    if settings.yes:
        return True
    if not settings.interactive:
        raise UsageError(
            f"{question} Nobody can be asked without a terminal", hints=(f"add `{option}` to go on",)
        )
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align cells in columns with spaces: readable without colour and by `awk`."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [
        max([len(header), *(len(row[column]) for row in cells)]) for column, header in enumerate(headers)
    ]
    lines = ["  ".join(header.ljust(width) for header, width in zip(headers, widths, strict=True)).rstrip()]
    lines += [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


_COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36", "dim": "2", "bold": "1"}


def paint(text: str, colour: str) -> str:
    """`text` in a colour, when standard error is a terminal and `NO_COLOR` is unset."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if plain or sys.stderr is None or not sys.stderr.isatty():
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def fail(error: FleetError, command: str) -> int:
    """Render an error, as text or as the same fields in JSON, and return its exit code."""
    if current().output == "json":
        _print_json(command, error.outcome, error.exit, _masked(_error_fields(error)))
        return int(error.exit)
    hint_mark = paint("hint:", "cyan")
    lines = [f"{paint('error:', 'red')} {error}"]
    shared = set(error.hints)  # said once below, not under every row
    for row in error.rows:
        lines.append(f"  {row.where}: {row.message}" if row.where else f"  {row.message}")
        lines += [f"    {hint_mark} {row.hint}"] if row.hint and row.hint not in shared else []
    lines += [f"{hint_mark} {hint}" for hint in dict.fromkeys(error.hints)]
    for line in lines:
        _write(sys.stderr, scrub(line))
    return int(error.exit)


def _error_fields(error: FleetError) -> dict[str, object]:
    body: dict[str, object] = {
        "code": error.code,
        "message": error.summary,
        "where": error.where,
        "hints": list(error.hints),
    }
    if error.rows:
        body["rows"] = [
            {"where": row.where, "message": row.message, "hint": row.hint, "code": row.code or error.code}
            for row in error.rows
        ]
    fields: dict[str, object] = {"error": body}
    extra = getattr(error, "fields", None)
    if isinstance(extra, Mapping):
        fields.update(extra)
    if error.run:
        fields["run"] = error.run
    return fields


def _masked(value: Mapping[str, object]) -> dict[str, object]:
    """The same fields, every string in them scrubbed."""
    return {key: _mask(item) for key, item in value.items()}


def _mask(value: object) -> object:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, Mapping):
        return {key: _mask(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mask(item) for item in value]
    return value


def _print_json(command: str, outcome: str, exit_code: ExitCode, fields: Mapping[str, object]) -> None:
    record = {"schema": SCHEMA, "command": command, "outcome": outcome, "exit": int(exit_code), **fields}
    _write(sys.stdout, json.dumps(record, ensure_ascii=False, default=str))


def _write(stream: TextIO | None, text: str) -> None:
    """One text to a stream. A stream that nobody reads changes neither what is done nor the exit code."""
    if stream is None:  # closed before we started; print() would take the other one instead
        return
    try:
        # One write a line: hosts are told of from several threads.
        stream.write(text.encode("utf-8", "replace").decode("utf-8") + "\n")
        stream.flush()
    except BrokenPipeError:
        silence(stream)


def silence(stream: TextIO) -> None:
    """Lead a stream whose reader has gone away to nowhere, so that nothing fails on it again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
