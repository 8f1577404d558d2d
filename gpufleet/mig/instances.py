"""Mode and GPU instances of one GPU, changed and looked at: commands that may run again, and what their looks mean.

Every change is asked for at one place of one GPU, by its UUID, one object a command. GPU instance ids are read when
they are needed, since a run that is taken up again may meet others. The status of nvidia-smi is no witness: each
script looks again, and fails with nvidia-smi's own words when what was asked for is not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpufleet.change.model import CannotTell, Check, Fails, Holds, Predicate, Verdict
from gpufleet.hosts.model import Fact, Known, Unknown
from gpufleet.hosts.probes.nvidia_smi import parse_compute_instances, parse_gpu_instances
from gpufleet.hosts.probes.script import Section, parse
from gpufleet.mig.commands import Target
from gpufleet.mig.model import Placed
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit

_PATH = """
PATH=$PATH:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/run/nvidia/driver/usr/bin:/usr/local/nvidia/bin
LC_ALL=C
export PATH LC_ALL
gpu=$1
shift
"""

TABLES = """
# The first line that is no part of a table: an error stands under the head of one.
first() {
  printf '%s\\n' "$1" | while read -r line; do
    case $line in
    '' | '|'* | '+'*) ;;
    *)
      printf '%s\\n' "$line"
      break ;;
    esac
  done
}
# The rows of a table. A driver that fails to tell is asked again; then status 1, and the reason.
listed() {
  for pause in 1 2 0; do
    table=$(nvidia-smi mig -i "$gpu" "$1" 2>&1 </dev/null)
    case $table in
    *"No GPU instances found"* | *"No compute instances found"* | *"No MIG-enabled devices found"*) return 0 ;;
    *Failed* | *Unable* | *Error*) ;;
    *" MIG "*)
      printf '%s\\n' "$table" | grep ' MIG '
      return 0 ;;
    esac
    sleep "$pause"
  done
  first "$table" >&2
  return 1
}
# The id of the GPU instance of a profile at a start; nothing when there is none.
instance() {
  rows=$(listed -lgi) || return 1
  printf '%s\\n' "$rows" | while read -r bar number word name id gi place rest; do
    if [ "$word $name ${place%%:*}" = "MIG $1 $2" ]; then printf '%s\\n' "$gi"; fi
  done
}
# The ids of the compute instances of a GPU instance.
computes() {
  rows=$(listed -lci) || return 1
  printf '%s\\n' "$rows" | while read -r bar number gi word name id ci rest; do
    if [ "$word $gi" = "MIG $1" ]; then printf '%s\\n' "$ci"; fi
  done
}
unread() {
  echo "the instances of $gpu cannot be read" >&2
  exit 1
}
"""

_MAKE = """
# A profile at a start, with a compute instance unless the third word is empty; of a part only the rest is made. Between
# two tries it waits as long as `$pauses` says: on the way back a driver that is busy for a moment is asked again.
make() {
  found= said=
  for pause in $pauses; do
    gi=$(instance "$1" "$2") || unread
    if [ -z "$gi" ]; then
      if [ -n "$3" ]; then
        said=$(nvidia-smi mig -i "$gpu" -cgi "$1:$2" -C 2>&1 </dev/null)
      else
        said=$(nvidia-smi mig -i "$gpu" -cgi "$1:$2" 2>&1 </dev/null)
      fi
      gi=$(instance "$1" "$2") || unread
    fi
    if [ -n "$gi" ] && [ -z "$3" ]; then return 0; fi
    if [ -n "$gi" ]; then
      found=$(computes "$gi") || unread
      if [ -z "$found" ]; then
        said=$(nvidia-smi mig -i "$gpu" -gi "$gi" -cci 2>&1 </dev/null)
        found=$(computes "$gi") || unread
      fi
      if [ -n "$found" ]; then return 0; fi
    fi
    sleep "$pause"
  done
  if [ -z "$gi" ]; then
    echo "$1 at $2 was not made: $(first "$said")" >&2
  else
    echo "$1 at $2 has no compute instance: $(first "$said")" >&2
  fi
  exit 1
}
"""

CREATE = (
    _MAKE
    + """
pauses=$4
make "$1" "$2" "$3"
"""
)

DESTROY = """
profile=$1 start=$2 pauses=$3
for pause in $pauses; do
  gi=$(instance "$profile" "$start") || unread
  if [ -z "$gi" ]; then exit 0; fi
  found=$(computes "$gi") || unread
  for ci in $found; do
    said=$(nvidia-smi mig -i "$gpu" -gi "$gi" -ci "$ci" -dci 2>&1 </dev/null)
  done
  left=$(computes "$gi") || unread
  if [ -z "$left" ]; then
    said=$(nvidia-smi mig -i "$gpu" -gi "$gi" -dgi 2>&1 </dev/null)
    gi=$(instance "$profile" "$start") || unread
    if [ -z "$gi" ]; then exit 0; fi
  fi
  sleep "$pause"
done
echo "$profile at $start is still there: $(first "$said")" >&2
exit 1
"""

_SWITCH = """
modes() { nvidia-smi -i "$gpu" --query-gpu=mig.mode.current,mig.mode.pending --format=csv,noheader 2>&1 </dev/null; }
# MIG `Enabled` or `Disabled`; with a reset of this GPU when it is pending and the second word is not empty.
switch() {
  number=0
  if [ "$1" = Enabled ]; then number=1; fi
  for pause in $pauses; do
    now=$(modes)
    case $now in
    "$1, $1") return 0 ;;
    Enabled,* | Disabled,*) ;;
    *)
      echo "the MIG mode of $gpu cannot be read: $now" >&2
      exit 1 ;;
    esac
    said=$(nvidia-smi -i "$gpu" -mig "$number" 2>&1 </dev/null)
    now=$(modes)
    if [ "${now#*, }" = "$1" ] && [ "$now" != "$1, $1" ] && [ -n "$2" ]; then
      said=$(nvidia-smi -i "$gpu" --gpu-reset 2>&1 </dev/null)
      now=$(modes)
    fi
    if [ "$now" = "$1, $1" ]; then return 0; fi
    sleep "$pause"
  done
  echo "MIG is not $1: $(first "$said")" >&2
  exit 1
}
"""

MODE = (
    _SWITCH
    + """
pauses=$3
switch "$1" "$2"
"""
)

RESTORE = (
    _MAKE
    + _SWITCH
    + """
pauses=$3
switch "$1" "$2"
shift 3
while [ "$#" -gt 2 ]; do
  make "$1" "$2" "$3"
  shift 3
done
"""
)

LOOK = """
begin() { printf '@@gf begin %s\\n' "$1"; }
end() { printf '\\n@@gf end %s %s\\n' "$1" "$2"; }
begin mode
nvidia-smi -i "$gpu" --query-gpu=mig.mode.current,mig.mode.pending --format=csv,noheader </dev/null
end mode "$?"
begin lgi
nvidia-smi mig -i "$gpu" -lgi </dev/null
end lgi "$?"
begin lci
nvidia-smi mig -i "$gpu" -lci </dev/null
end lci "$?"
"""

SLOW = 120.0
"""Seconds that a change may take: drivers have been seen to answer after 20."""


ONCE, AGAIN = "0", "1 2 4 0"
"""Seconds after each try. On the way back a driver that is busy for a moment is asked again."""


def create(target: Target, slice_: Placed, *, compute: bool = True, insist: bool = False) -> Command:
    """Make one GPU instance at its place, with a compute instance over all of it; of a part only the rest is made."""
    words = (slice_.profile, str(slice_.start), "compute" if compute else "", AGAIN if insist else ONCE)
    return _change(target, CREATE, *words)


def destroy(target: Target, slice_: Placed, *, insist: bool = False) -> Command:
    """End the GPU instance at this place with its compute instances; none there is well."""
    return _change(target, DESTROY, slice_.profile, str(slice_.start), AGAIN if insist else ONCE)


def mode(target: Target, *, on: bool, reset: bool, insist: bool = False) -> Command:
    """Switch MIG; `reset`: also reset this one GPU when the mode is pending for it. A host is never booted."""
    words = ("Enabled" if on else "Disabled", "reset" if reset else "", AGAIN if insist else ONCE)
    return _change(target, MODE, *words)


def restore(
    target: Target, slices: Sequence[Placed], bare: frozenset[Placed], *, on: bool, reset: bool
) -> Command:
    """Bring a whole former layout back, its mode included; what is there is left alone, and so is what else is there."""
    words = ["Enabled" if on else "Disabled", "reset" if reset else "", AGAIN]
    for one in sorted(slices):
        words += [one.profile, str(one.start), "" if one in bare else "compute"]
    return _change(target, RESTORE, *words)


def _change(target: Target, script: str, *words: str) -> Command:
    text = _PATH + TABLES + script
    return Command(argv=(target.uuid, *words), script=text, timeout=3 * SLOW, mutates=True, become=True)


def look(target: Target) -> Command:
    """Mode and instances of one GPU."""
    return Command(argv=(target.uuid,), script=_PATH + LOOK, timeout=2 * SLOW, mutates=False, become=True)


def there(target: Target, slice_: Placed, *, compute: bool = True) -> Check:
    """Whether the slice is at its place, with a compute instance."""
    data = (_words(slice_), "compute" if compute else "bare")
    return Check(look=look(target), expect="slice-there", data=data, within=10.0, every=1.0)


def gone(target: Target, slice_: Placed) -> Check:
    """Whether nothing of the slice is left."""
    return Check(look=look(target), expect="slice-gone", data=(_words(slice_),), within=10.0, every=1.0)


def in_mode(target: Target, *, on: bool) -> Check:
    """Whether MIG is on, or off, now and after a reset."""
    data = ("Enabled" if on else "Disabled",)
    return Check(look=look(target), expect="mig-mode", data=data, within=10.0, every=1.0)


def exactly(
    target: Target, slices: Sequence[Placed], bare: frozenset[Placed] = frozenset(), *, on: bool = True
) -> Check:
    """Whether MIG is so, these slices are there, each but the `bare` ones with a compute instance, and no others."""
    words = (f"{_words(one)} bare" if one in bare else _words(one) for one in sorted(slices))
    data = ("Enabled" if on else "Disabled", *words)
    return Check(look=look(target), expect="slices-exactly", data=data, within=10.0, every=1.0)


def _words(slice_: Placed) -> str:
    return f"{slice_.profile}:{slice_.start}"


def read(answer: Exit) -> Fact[tuple[str, Mapping[str, bool]]]:
    """`Enabled, Enabled` or alike, and each slice as `PROFILE:START` with whether it has a compute instance."""
    sections = parse(answer.stdout, answer.stderr)
    mode = _text(sections.get("mode")).strip()
    if mode not in {f"{one}, {two}" for one in _MODES for two in _MODES}:
        return Unknown(f"the MIG mode cannot be read: {mode.splitlines()[0][:120] if mode else 'no answer'}")
    if mode.startswith("Disabled"):
        return Known((mode, {}))
    instances = parse_gpu_instances(_text(sections.get("lgi")))
    computes = parse_compute_instances(_text(sections.get("lci")))
    for fact in (instances, computes):
        if isinstance(fact, Unknown):
            return fact
    with_compute = {row.gi for row in computes.value} if isinstance(computes, Known) else set()
    rows = instances.value if isinstance(instances, Known) else ()
    return Known((mode, {f"{row.profile}:{row.start}": row.gi in with_compute for row in rows}))


_MODES = ("Enabled", "Disabled")


def slice_there(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """`data`: `PROFILE:START`, then `compute`, or `bare` for an instance without a compute instance."""
    seen = read(answer)
    if isinstance(seen, Unknown):
        return CannotTell(seen.reason)
    name, kind = data
    found = seen.value[1].get(name)
    if found is None:
        return Fails(f"slice {name} is not there", _MORE)
    return Holds() if found or kind == "bare" else Fails(f"slice {name} has no compute instance", _MORE)


def slice_gone(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """`data`: `PROFILE:START`."""
    seen = read(answer)
    if isinstance(seen, Unknown):
        return CannotTell(seen.reason)
    return Fails(f"slice {data[0]} is still there", _MORE) if data[0] in seen.value[1] else Holds()


def mig_mode(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """`data`: `Enabled` or `Disabled`."""
    seen = read(answer)
    if isinstance(seen, Unknown):
        return CannotTell(seen.reason)
    if seen.value[0] == f"{data[0]}, {data[0]}":
        return Holds()
    return Fails(f"MIG is {seen.value[0].replace(', ', ' and will be ')} after a reset", _MORE)


def slices_exactly(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """`data`: the mode; then each slice as `PROFILE:START`, with ` bare` for one without a compute instance."""
    seen = read(answer)
    if isinstance(seen, Unknown):
        return CannotTell(seen.reason)
    mode, *slices = data
    if seen.value[0] != f"{mode}, {mode}":
        return mig_mode(answer, (mode,))
    found, bare = seen.value[1], {one.removesuffix(" bare") for one in slices if one.endswith(" bare")}
    wanted = {one.removesuffix(" bare") for one in slices}
    without = {name for name, whole in found.items() if not whole} - bare
    wrong = sorted(without | (wanted ^ set(found)))
    return Fails(f"the layout differs at {', '.join(wrong)}", _MORE) if wrong else Holds()


_MORE = "look at it: gpufleet mig show"

PREDICATES: Mapping[str, Predicate] = {
    "slice-there": slice_there,
    "slice-gone": slice_gone,
    "mig-mode": mig_mode,
    "slices-exactly": slices_exactly,
}


def _text(section: Section | None) -> str:
    return section.text if section is not None else ""
