"""A change as it goes, one line a turn of events, on standard error."""

from __future__ import annotations

import getpass
import os
import socket
from typing import TYPE_CHECKING

from gpufleet.cli.console import note, paint

if TYPE_CHECKING:
    from gpufleet.change.events import Event, Progress
    from gpufleet.change.model import Step


def operator() -> str:
    """Who holds a lease, for those who find it held: `user@machine pid N`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} pid {os.getpid()}"


def tell(step: Step | None, event: Event | Progress) -> None:
    """Observer of a change: what begins is not told, what ended is."""
    from gpufleet.change.events import Act, Ended, Observed, Progress, Result, Settled, Turned

    match event:
        case Ended(act=act, result=result, reason=reason) if step is not None:
            undoing = act is Act.UNDO
            if result is Result.SUCCEEDED:
                word = paint("undone" if undoing else "done", "yellow" if undoing else "green")
            else:
                word = paint(f"{'undo ' if undoing else ''}{result.value.replace('_', ' ')}", "red")
            note(f"{step.host}: {step.title}: {word}{f': {_first_line(reason)}' if reason else ''}")
        case Observed(found=found) if step is not None:
            note(f"{step.host}: {step.title}: looked, {found.value.replace('_', ' ')}")
        case Progress(text=text) if step is not None:
            note(f"{step.host}: {step.title}: {_first_line(text)}")
        case Turned(reason=reason):
            note(f"turning back: {_first_line(reason)}")
        case Settled(ending=ending):
            note(f"run {ending.value.replace('_', ' ')}")
        case _:
            pass


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else ""
