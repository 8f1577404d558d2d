"""gpufleet's command line, run in a process that stops itself at a chosen record of a run's journal.

    python -m tests.real.watched_cli kill N ARGUMENTS...
        kill -9 of this very process as soon as the Nth record is on disk
    python -m tests.real.watched_cli pause PATTERN REACHED GO ARGUMENTS...
        at the first record that matches PATTERN, say so on descriptor REACHED and wait for a byte on GO

The product knows nothing of this: the one function that appends to a journal is wrapped, and everything before and
after a record is the product's own work. Threads that talk to hosts run on while the deciding thread waits.
"""

from __future__ import annotations

import fnmatch
import os
import signal
import sys
from collections.abc import Callable, Sequence

from gpufleet.change.records.journal import Body, Record
from gpufleet.change.records.journal_file import JournalFile
from gpufleet.cli.app import main


def words_of(body: Body) -> str:
    """A record as patterns see it: `intent start-h3-0 do`, `outcome gate-h1-0 do succeeded`, `settled committed`."""
    kind = type(body).__name__.lower()
    parts = (getattr(body, name, "") for name in ("step", "act", "result", "found", "goal", "ending"))
    return " ".join([kind, *(str(part) for part in parts if part)])


def watch(seen: Callable[[int, str], None]) -> None:
    """Call `seen` with number and words of each record that this process wrote, once it is on disk."""
    append, written = JournalFile.append, [0]

    def watched(self: JournalFile, body: Body) -> Record:
        record = append(self, body)
        written[0] += 1
        seen(written[0], words_of(body))
        return record

    JournalFile.append = watched  # type: ignore[method-assign]  # the seam of this whole module


def killing(number: int) -> Callable[[int, str], None]:
    """Die at the given record."""

    def seen(count: int, _: str) -> None:
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return seen


def pausing(pattern: str, reached: int, go: int) -> Callable[[int, str], None]:
    """Wait once, at the first record that matches."""
    waited = [False]

    def seen(_: int, words: str) -> None:
        if not waited[0] and fnmatch.fnmatch(words, pattern):
            waited[0] = True
            os.write(reached, b"!")
            os.read(go, 1)

    return seen


def run(words: Sequence[str]) -> int:
    """Watch as told, then be gpufleet."""
    if words[0] == "kill":
        watch(killing(int(words[1])))
        rest = list(words[2:])
    else:
        watch(pausing(words[1], int(words[2]), int(words[3])))
        rest = list(words[4:])
    sys.argv = ["gpufleet", *rest]
    return main(rest)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
