"""The lease on a host: one run at a time changes it, and a holder that died does not hold it for ever.

Theory of operation. `~/.gpufleet/lease` is made by `mkdir`, which succeeds for one taker only. In it `lease.json` says
who holds it, and a file named after the holder's token carries the last heartbeat in seconds of the *host's own*
clock: two machines' clocks are never compared. A lease without a heartbeat for `EXPIRES` seconds has expired; one
whose taker died between `mkdir` and `lease.json` counts from the folder's own time. A heartbeat that lies ahead shows
that the clock went back: whoever wants the lease writes it anew, and a holder that lives has as long as any to renew it.

A lease is taken over by moving its folder away, which again succeeds for one taker only, guarded by a folder named
after the old token so that nobody can move the folder of a newer holder. Taken over without asking is only

- our own run's lease, when it was taken from the same state directory (the run's file lock says that process is
  dead) or has expired;
- an expired lease whose run never acted on this host, or has settled.

An expired lease whose run is open is left: `change resume` or `change undo` of that run ends it properly, and
`change unlock` breaks it.

Commands of a holder whose lease was taken over are stopped by `fence`.

Results are read from our own words on standard output, never from another program's text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpufleet.names import HostName, RunId
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit

HEARTBEAT = 20.0
"""Seconds between two heartbeats."""

EXPIRES = 120
"""Seconds without a heartbeat after which a lease has expired."""

KEPT_RUNS = 20
"""Journals of settled runs that a host keeps; of older ones only the ending stays, so that nobody resumes them."""

WORD = "gpufleet-lease"
_TIMEOUT = 30.0


class Standing(StrEnum):
    """What the host says about its lease."""

    TAKEN = "taken"
    HELD = "held"
    EXPIRED = "expired"
    FREE = "free"
    RENEWED = "renewed"
    RELEASED = "released"
    BROKEN = "broken"
    LOST = "lost"
    FULL = "full"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who asks for a lease, or holds it. `started` and `age` are seconds of the host's clock, None when unknown."""

    who: str
    run: str
    operation: str
    token: str = ""
    seat: str = ""
    started: int | None = None
    age: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One host's answer to a lease command.

    Attributes:
        root: the absolute path of `~/.gpufleet` there, once taken: root through sudo has another home.
        over: the token of the holder that was replaced.
        open_run: the holder's run acted on this host and has not settled.
        last_line: of the journal's copy, once taken: it tells a journal that another machine went on with.
        ending: how the run settled, when the host knows it to be over.
    """

    standing: Standing
    root: str = ""
    holder: Holder | None = None
    over: str = ""
    open_run: bool = False
    last_line: str = ""
    ending: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A lease that we hold."""

    host: HostName
    token: str
    run: RunId
    root: str


# Shared by every script: where things are, and what lease.json says. The three values that decide come first in the
# file and are made of letters, digits and dashes, so nothing that a person wrote can stand in their place.
_PRELUDE = """\
umask 077
root=$HOME/.gpufleet
lease=$root/lease
field() {
  rest=${json#*\\"$1\\":\\"}
  [ "$rest" != "$json" ] || rest=
  printf '%s' "${rest%%\\"*}"
}
read_lease() {
  json=$(cat "$lease/lease.json" 2>/dev/null)
  token=$(field token)
  run=$(field run)
  seat=$(field seat)
  now=$(date +%s)
  beat=$(cat "$lease/beat-$token" 2>/dev/null)
  [ -n "$beat" ] || beat=$(stat -c %Y "$lease" 2>/dev/null)
  age=$((now - ${beat:-$now}))
  ahead=no
  if [ "$age" -lt 0 ]; then ahead=yes age=0; fi
  standing=held
  [ "$age" -le EXPIRES ] || standing=expired
  open=no
  if [ -n "$run" ] && [ -f "$root/runs/$run/acted" ] && [ ! -f "$root/runs/$run/settled" ]; then open=yes; fi
}
say() { printf '%s %s %s %s %s\\n%s\\n' 'WORD' "$1" "$age" "$open" "${2:--}" "$json"; }
""".replace("EXPIRES", str(EXPIRES)).replace("WORD", WORD)

# $1 token, $2 run, $3 seat, $4 lease.json without its end, $5 `tidy` for a run that is known to be over; standard
# input: the head of the journal's copy.
_TAKE = (
    _PRELUDE
    + """\
mkdir -p "$root" && chmod 700 "$root"
over=
attempt=1
if [ "$5" != tidy ] && [ -f "$root/runs/$2/settled" ]; then
  printf '%s settled %s\\n' 'WORD' "$(cat "$root/runs/$2/settled")"
  exit 0
fi
while ! mkdir "$lease" 2>/dev/null; do
  read_lease
  if [ ! -d "$lease" ]; then
    if [ "$attempt" -gt 5 ]; then printf '%s full\\n' 'WORD'; exit 0; fi
    attempt=$((attempt + 1))
    continue
  fi
  if [ "$ahead" = yes ]; then
    if [ -n "$token" ]; then date +%s >"$lease/beat-$token"; else touch "$lease"; fi 2>/dev/null
  fi
  mine=no
  if [ "$run" = "$2" ] && { [ "$seat" = "$3" ] || [ "$standing" = expired ]; }; then mine=yes; fi
  if [ "$standing" = expired ] && [ "$open" = no ]; then mine=yes; fi
  if [ "$mine" = no ] || [ "$attempt" -gt 5 ]; then say "$standing"; exit 0; fi
  attempt=$((attempt + 1))
  MOVE
done
printf '%s"started":%s}\\n' "$4" "$(date +%s)" >"$lease/new-$1" &&
date +%s >"$lease/beat-$1" &&
mkdir -p "$root/runs/$2" &&
{ [ -f "$root/runs/$2/journal.jsonl" ] ||
  { cat >"$root/runs/$2/journal.new" && mv "$root/runs/$2/journal.new" "$root/runs/$2/journal.jsonl"; }; } &&
mv "$lease/new-$1" "$lease/lease.json" ||
{ rm -rf "$lease"; printf '%s full\\n' 'WORD'; exit 0; }
sync "$root/runs/$2/journal.jsonl" 2>/dev/null
read_lease
if [ "$token" != "$1" ]; then say "$standing"; exit 0; fi
printf '%s taken %s %s\\n' 'WORD' "${over:--}" "$root"
tail -n 1 "$root/runs/$2/journal.jsonl"
"""
).replace("WORD", WORD)

# Exactly one taker makes the folder named after the old token, and only that one moves the old lease away. If it
# died in between, its mark is as old as an expired lease and is removed.
_MOVE = """\
  mark=$root/over-${token:-half-$beat}
  if mkdir "$mark" 2>/dev/null; then
    over=${token:-half}
    mv "$lease" "$root/was-$over-$1" 2>/dev/null
    rm -rf "$root/was-$over-$1"
    rmdir "$mark"
  else
    made=$(($(date +%s) - $(stat -c %Y "$mark" 2>/dev/null || echo 0)))
    if [ "$made" -gt 120 ] || [ "$made" -lt 0 ]; then rmdir "$mark" 2>/dev/null; fi
    sleep 1
  fi
"""
_TAKE = _TAKE.replace("  MOVE\n", _MOVE)

# $1 token
_RENEW = (
    _PRELUDE
    + """\
read_lease
if [ "$token" != "$1" ]; then say lost; exit 0; fi
date +%s >"$lease/beat-$1" && printf '%s renewed\\n' 'WORD' || printf '%s full\\n' 'WORD'
"""
).replace("WORD", WORD)

_SHOW = (
    _PRELUDE
    + """\
if [ -d "$lease" ]; then read_lease; say "$standing"; else printf '%s free\\n' 'WORD'; fi
"""
).replace("WORD", WORD)

# $1 token, $2 run, $3 ending or nothing; standard input: what the journal's copy still lacks.
_RELEASE = (
    (
        _PRELUDE
        + """\
read_lease
if [ "$token" != "$1" ]; then say lost; exit 0; fi
cat >>"$root/runs/$2/journal.jsonl"
if [ -n "$3" ]; then
  printf '%s\\n' "$3" >"$root/runs/$2/settled"
  old=0
  for one in "$root"/runs/*; do
    if [ -f "$one/settled" ] && [ -f "$one/journal.jsonl" ]; then old=$((old + 1)); fi
  done
  for one in "$root"/runs/*; do
    [ "$old" -gt KEPT ] || break
    if [ -f "$one/settled" ] && [ -f "$one/journal.jsonl" ] && [ "$one" != "$root/runs/$2" ]; then
      rm -f "$one/journal.jsonl" "$one/acted"
      old=$((old - 1))
    fi
  done
elif [ ! -f "$root/runs/$2/acted" ]; then
  rm -rf "$root/runs/$2"
fi
if ! mkdir "$root/over-$1" 2>/dev/null; then
  if [ -d "$root/over-$1" ]; then say lost; exit 0; fi
  # No room for a directory: the heartbeat of the lease that ends makes some.
  rm -f "$lease/beat-$1"
  mkdir "$root/over-$1" || { say lost; exit 0; }
fi
mv "$lease" "$root/was-$1" && rm -rf "$root/was-$1"
rmdir "$root/over-$1"
printf '%s released\\n' 'WORD'
"""
    )
    .replace("WORD", WORD)
    .replace("KEPT", str(KEPT_RUNS))
)

# $1 token that is to be broken, as `show` gave it; nothing when the lease was half made
_BREAK = (
    _PRELUDE
    + """\
if [ ! -d "$lease" ]; then printf '%s free\\n' 'WORD'; exit 0; fi
read_lease
if [ "$token" != "$1" ]; then say "$standing"; exit 0; fi
mark=$root/over-${1:-half-$beat}
mkdir "$mark" 2>/dev/null || { say "$standing"; exit 0; }
mv "$lease" "$root/was-${1:-half}" 2>/dev/null && rm -rf "$root/was-${1:-half}"
rmdir "$mark"
say broken
"""
).replace("WORD", WORD)


def take(holder: Holder, copy_head: bytes, *, tidy: bool = False) -> Command:
    """Take the lease; `copy_head` begins the journal's copy on that host, unless there is one.

    `tidy`: the run is over and its lease is only to be given back. Answer: TAKEN, HELD, EXPIRED, SETTLED or FULL.
    """
    head = {
        "token": holder.token,
        "run": holder.run,
        "seat": holder.seat,
        "holder": holder.who,
        "operation": holder.operation,
    }
    text = json.dumps(head, separators=(",", ":"))[:-1] + ","
    return Command(
        script=_TAKE,
        argv=(holder.token, holder.run, holder.seat, text, "tidy" if tidy else ""),
        stdin=copy_head,
        timeout=_TIMEOUT,
        mutates=True,
    )


def renew(grant: Grant) -> Command:
    """One heartbeat. Answer: RENEWED, LOST or FULL."""
    return Command(script=_RENEW, argv=(grant.token,), timeout=_TIMEOUT, mutates=True)


def show() -> Command:
    """Who holds it. Answer: FREE, HELD or EXPIRED."""
    return Command(script=_SHOW, timeout=_TIMEOUT, mutates=False)


def release(grant: Grant, ending: str, rest_of_copy: bytes) -> Command:
    """Give it back, completing the journal's copy. Answer: RELEASED or LOST."""
    argv = (grant.token, grant.run, ending)
    return Command(script=_RELEASE, argv=argv, stdin=rest_of_copy, timeout=_TIMEOUT, mutates=True)


def break_lease(token: str) -> Command:
    """Take it away from the holder of `token`. Answer: BROKEN, FREE, or who holds it by now."""
    return Command(script=_BREAK, argv=(token,), timeout=_TIMEOUT, mutates=True)


def parse(answer: Exit) -> Answer | None:
    """What a lease script said; None when it did not say it: then nothing is known."""
    lines = answer.stdout.splitlines()
    for number, line in enumerate(lines):
        words = line.split(" ", 4)
        if words[0] != WORD or len(words) < 2 or words[1] not in set(Standing):
            continue
        standing = Standing(words[1])
        if standing is Standing.TAKEN and len(words) >= 4:
            return Answer(
                standing=standing,
                over=words[2].replace("-", ""),
                root=" ".join(words[3:]),
                last_line="".join(lines[number + 1 : number + 2]),
            )
        if standing is Standing.SETTLED:
            return Answer(standing=standing, ending=" ".join(words[2:]))
        if len(words) < 4:
            return Answer(standing=standing)
        holder = _holder("\n".join(lines[number + 1 :]), words[2])
        return Answer(standing=standing, holder=holder, open_run=words[3] == "yes")
    return None


def _holder(text: str, age: str) -> Holder:
    """lease.json is display: whatever stands there, the lease is held."""
    try:
        found = json.loads(text)
    except ValueError:
        found = {}
    if not isinstance(found, Mapping):
        found = {}
    started = found.get("started")
    return Holder(
        who=str(found.get("holder", "somebody whose name was never written")),
        run=str(found.get("run", "")),
        operation=str(found.get("operation", "")),
        token=str(found.get("token", "")),
        seat=str(found.get("seat", "")),
        started=started if isinstance(started, int) else None,
        age=int(age) if re.fullmatch(r"-?[0-9]+", age) else None,
    )
