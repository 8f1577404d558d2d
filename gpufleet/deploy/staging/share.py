"""A directory on the hosts as a source of weights: a mounted share, mostly, that others write to as well.

It has no revisions and gives no promise, so it is looked at again and again: twice before anything is done, a pause
between; by every host that sees it; before and after each file is copied; and where it is used in place, by each host
before an engine starts. What counts is the list of paths, sizes and times; a file `SHA256SUMS` or a manifest beside
the weights adds checksums. Source: stat(1), whose `%Y` is whole seconds, so that a pause of two shows what grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gpufleet.change.model import CannotTell, Fails, Holds, Verdict
from gpufleet.deploy.staging import hub, s3
from gpufleet.deploy.staging.model import MANIFEST, SUMS, Fetch, Kind, Listing, Source, WeightFile
from gpufleet.deploy.staging.patient import ANSWER_SECONDS, PATIENTLY
from gpufleet.deploy.staging.settled import unfinished
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit

PAUSE = 2.0
"""Seconds between two looks."""

LIST = f"""
{PATIENTLY}
top=$1
patiently {ANSWER_SECONDS} /dev/null ls -a "$top"
if [ "$?" -eq 124 ]; then echo hung; exit 0; fi
if [ ! -d "$top" ]; then echo absent; exit 0; fi
if [ ! -r "$top" ] || [ ! -x "$top" ]; then echo denied; exit 0; fi
walk() {{
  for one in "$1"/*; do
    if [ -d "$one" ]; then
      if [ -r "$one" ] && [ -x "$one" ]; then walk "$one"; else echo denied; exit 0; fi
    elif [ -f "$one" ]; then
      printf 'file %s %s\\n' "$(stat -L -c '%s %Y' "$one")" "${{one#"$top"/}}"
    fi
  done
}}
echo there
walk "$top"
for name in SHA256SUMS sha256sums.txt .gpufleet-manifest; do
  if [ -r "$top/$name" ]; then
    while read -r line; do printf 'sum %s\\n' "$line"; done <"$top/$name"
    break
  fi
done
echo end
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What one host saw. `state`: `there`, `absent`, `denied`, `hung`; files in the order of their paths."""

    state: str
    files: tuple[WeightFile, ...] = ()
    times: Mapping[str, str]

    @property
    def revision(self) -> str:
        """A digest of everything that was seen."""
        return s3.revision_of(self.files, self.times)


def look(top: str) -> Command:
    """List a directory of a host."""
    return Command(argv=(top,), script=LIST, mutates=False, timeout=120.0)


def read(text: str, source: Source) -> Shown | None:
    """The answer of `look`; None when it is not one, or not whole."""
    lines = text.split("\n")
    if lines[0] in {"absent", "denied", "hung"}:
        return Shown(state=lines[0], times={})
    if lines[0] != "there" or "end" not in lines:
        return Shown(state="denied", times={}) if "denied" in lines else None
    found: list[WeightFile] = []
    times: dict[str, str] = {}
    sums = s3.sums_of("\n".join(line[4:] for line in lines if line.startswith("sum ")))
    for line in lines:
        word, _, rest = line.partition(" ")
        if word != "file":
            continue
        size, _, rest = rest.partition(" ")
        time, _, path = rest.partition(" ")
        if not (size.isdigit() and len(size) < 19 and time.lstrip("-").isdigit() and hub.is_plain(path)):
            return None
        if path not in {*SUMS, MANIFEST}:
            found.append(WeightFile(path=path, size=int(size), check=sums.get(path, f"mtime:{time}")))
            times[path] = time
    chosen = hub.chosen(found, source)
    return Shown(state="there", files=chosen, times={one.path: times[one.path] for one in chosen})


def listing(source: Source, shown: Shown) -> Listing:
    """What was seen, as a revision."""
    return Listing(source=source, revision=shown.revision, files=shown.files)


def fetches(found: Listing) -> tuple[Fetch, ...]:
    """How a host that sees the directory gets each file: it copies it."""
    return tuple(Fetch(file=one, url=f"{found.source.place}/{one.path}") for one in found.files)


def data_of(found: Listing) -> tuple[str, ...]:
    """What `unchanged` needs."""
    source = found.source
    return (
        found.revision,
        source.place,
        msgspec.json.encode((source.include, source.exclude)).decode(),
    )


def unchanged(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether a directory that is used in place is as it was when the plan was made."""
    revision, place, patterns = data
    include, exclude = msgspec.json.decode(patterns, type=tuple[tuple[str, ...], tuple[str, ...]])
    source = Source(kind=Kind.DIRECTORY, model="", place=place, include=include, exclude=exclude)
    seen = read(answer.stdout, source) if answer.ok else None
    if seen is None:
        return CannotTell(answer.stderr.strip() or f"{place} could not be listed")
    if seen.state != "there":
        return Fails(f"{place} is {trouble(seen.state)}", remedy(seen.state))
    if seen.revision != revision:
        return Fails(f"{place} changed since the plan was made", "plan again once nobody writes there")
    return Holds()


_STATES = {
    "absent": "not there",
    "denied": "not readable",
    "hung": f"not answering for {ANSWER_SECONDS} s: a mount whose server is gone",
}


def trouble(state: str) -> str:
    """In words."""
    return _STATES.get(state, state)


def remedy(state: str) -> str:
    """What to do about it."""
    if state == "hung":
        return "look at the mount's server, and at `dmesg` there; `umount -f -l` lets go of a mount that stays dead"
    return "mount it, or let the SSH user read it"


def moving(first: Shown, second: Shown) -> str:
    """Which file changed between two looks; empty when none did."""
    before = {one.path: (one.size, first.times[one.path]) for one in first.files}
    after = {one.path: (one.size, second.times[one.path]) for one in second.files}
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return changed[0] if changed else ""


def left_over(files: Sequence[WeightFile]) -> tuple[str, ...]:
    """Files whose name says that they are not whole."""
    return unfinished(one.path for one in files)
