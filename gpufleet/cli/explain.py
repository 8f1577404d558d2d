"""`gpufleet explain`: why an engine did not come up, from its log in a file or on standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli.console import Answer, finish, note
from gpufleet.errors import ExitCode, UsageError
from gpufleet.paths import expanded

if TYPE_CHECKING:
    from gpufleet.engine.diagnose import Diagnosis

app = typer.Typer(
    help="Say why an engine did not come up, from its log.", rich_markup_mode=None, add_completion=False
)

MOST = 512 << 20
"""Bytes of a log that are read: its end."""

HOW = "`docker logs NAME 2>&1 | gpufleet explain` reads the log of a container"


@app.command()
def explain(
    file: Annotated[
        str,
        typer.Argument(metavar="[FILE|-]", help="A log; standard input when it is `-` or left out."),
    ] = "-",
) -> None:
    """Name the phase that a start reached, the first real cause of its failure, and what to do about it.

    Reads logs of the engine, of container runtimes and of SSH. Exit 0: explained, or nothing failed. Exit 4: the
    cause is not known; the last 40 lines are shown, without secrets.
    """
    from gpufleet.engine.diagnose import diagnose, tail

    log = _read(file)
    if not log.strip():
        raise UsageError("the log is empty", where=file, hints=(HOW,))
    found = diagnose(log)
    known = found.real_cause is not None or found.well
    last = () if known else tuple(tail(log).split("\n"))
    raise finish(
        Answer(
            command="explain",
            outcome="ok" if known else "failed",
            exit=ExitCode.OK if known else ExitCode.REFUSED,
            fields={**_fields(found), **({} if known else {"tail": list(last)})},
            text=_text(found, last),
        )
    )


def _read(file: str) -> str:
    """The end of a log as text; bytes that are no text become replacement characters."""
    if file == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("no log was given", hints=("name a file", HOW))
        content = sys.stdin.buffer.read()
    else:
        path = expanded(file)
        try:
            content = _end_of(path)
        except OSError as error:
            raise UsageError(
                f"the log cannot be read: {(error.strerror or str(error)).lower()}", where=file, hints=(HOW,)
            ) from error
    if len(content) > MOST:
        note(f"only the last {MOST >> 20} MiB are read")
        content = content[-MOST:]
    return content.decode("utf-8", "replace")


def _end_of(path: Path) -> bytes:
    """The end of a file; of what cannot be measured, such as a pipe, everything."""
    with path.open("rb") as stream:
        if stream.seekable():
            size = stream.seek(0, 2)
            stream.seek(max(0, size - MOST - 1))
        return stream.read()


def _fields(found: Diagnosis) -> dict[str, object]:
    cause = found.cause
    return {
        "phase": found.phase.id if found.phase else None,
        "reached": found.phase.told if found.phase else None,
        "cause": cause and {"id": cause.id, "line": cause.line, "fix": cause.fix, "kind": cause.kind.value},
        "wrapper_skipped": found.wrapper_skipped,
    }


def _text(found: Diagnosis, last: tuple[str, ...]) -> str:
    lines = [
        f"phase: {found.phase.id} ({found.phase.told})" if found.phase else "phase: no start is in this log"
    ]
    cause = found.cause
    if cause is not None:
        lines += [f"cause: {cause.id} ({cause.kind.value})", f"  {cause.line}", f"fix: {cause.fix}"]
    elif found.well:
        lines.append("cause: none, the engine came up")
    else:
        lines.append("cause: not known")
    if last:
        lines += ["the end of the log:", *(f"  {line}" for line in last)]
    return "\n".join(lines)
