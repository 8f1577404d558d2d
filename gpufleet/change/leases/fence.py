"""The fence around every mutating command of a run: no lease, no act.

Every mutating command of a run is sent through `guarded`: the same script first checks that the lease still
carries our token, writes what the journal's copy on that host lacks, and notes that the step is busy. A holder whose
lease was taken over therefore changes nothing more. A command whose answer was lost may still be at work: the
next guarded command of the same step waits for it, and gives up as `BUSY` rather than act beside it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gpufleet.change.leases.lease import WORD, Grant
from gpufleet.names import StepId
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit

FENCED = 86
BUSY = 87
NO_COPY = 88
"""Exit statuses of the guard, each believed only together with the guard's own word."""

# $1 root, $2 token, $3 run, $4 step's file name, $5 lines for the copy, $6 what to do when they cannot be written.
# A process is told from a later one with the same number by its start time, where /proc has it.
_GUARD = """\
born() { cut -d ' ' -f 22 "/proc/$1/stat" 2>/dev/null; }
alive() { [ -d "/proc/$1" ] || kill -0 "$1" 2>/dev/null; }
json=$(cat "$1/lease/lease.json" 2>/dev/null)
token=${json#*\\"token\\":\\"}
if [ "${token%%\\"*}" != "$2" ]; then printf '%s fenced\\n' 'WORD' >&2; exit 86; fi
busy=$1/runs/$3/busy-$4
waited=0
while [ -f "$busy" ]; do
  pid= since=
  read pid since <"$busy"
  if [ -z "$pid" ] || [ "$pid" = "$$" ] || ! alive "$pid" || [ "$(born "$pid")" != "$since" ]; then break; fi
  if [ "$waited" -ge PATIENCE ]; then printf '%s busy\\n' 'WORD' >&2; exit 87; fi
  waited=$((waited + 1))
  sleep 1
done
"""
_MARK = """\
(
  umask 077
  cd "$1/runs/$3" || exit 1
  [ -f acted ] || : >acted || exit 1
  [ -z "$5" ] || { printf '%s\\n' "$5" >>journal.jsonl && { sync journal.jsonl || :; } || exit 1; }
  printf '%s %s\\n' "$$" "$(born "$$")" >"busy-$4" || :
) 2>/dev/null || [ "$6" = anyway ] || { printf '%s nocopy\\n' 'WORD' >&2; exit 88; }
shift 6
"""
_UNMARK = """\
status=$?
rm -f "$busy"
exit "$status"
"""
PATIENCE = 30
"""Seconds that a guarded command waits for an earlier one of its step whose answer was lost."""


def guarded(command: Command, grant: Grant, step: StepId, *, copy: str = "", anyway: bool = False) -> Command:
    """The same command behind the fence; its standard input, timeout and sudo stay.

    `copy`: lines for the journal's copy on that host, written before the command runs. When they cannot be written
    the command does not run, unless `anyway`: an undo is not held up by a full disk.
    """
    words = (
        grant.root,
        grant.token,
        grant.run,
        _file_name(step),
        copy.rstrip("\n"),
        "anyway" if anyway else "",
    )
    body = command.script.rstrip() if command.script else '"$@"'
    script = f"{_prelude(_GUARD + _MARK)}(\n{body}\n)\n{_UNMARK}"
    return replace(command, script=script, argv=(*words, *command.argv))


def quiet(look: Command, grant: Grant, step: StepId) -> Command:
    """A look that first waits until no earlier command of the step is at work on the host."""
    words = (grant.root, grant.token, grant.run, _file_name(step))
    body = look.script.rstrip() if look.script else '"$@"'
    script = f"{_prelude(_GUARD)}shift 4\n{body}\n"
    return replace(look, script=script, argv=(*words, *look.argv), timeout=look.timeout + PATIENCE)


def _prelude(text: str) -> str:
    """Our own part of a script, with its constants; the command's part is never touched."""
    return text.replace("WORD", WORD).replace("PATIENCE", str(PATIENCE))


def refusal(answer: Exit) -> int | None:
    """FENCED, BUSY or NO_COPY when the guard, and not the command, ended it."""
    words = {FENCED: "fenced", BUSY: "busy", NO_COPY: "nocopy"}
    word = words.get(answer.code)
    if word is None or f"{WORD} {word}" not in answer.stderr.splitlines():
        return None
    return answer.code


def _file_name(step: StepId) -> str:
    """The step as part of a file name; the plan's ids are short, and two that fall together only wait for each other."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", step)[:100]
