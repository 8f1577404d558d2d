"""The UUIDs of slices, which nobody knows before the slices are made, kept on the host for those who start containers.

Which UUID is at which place only root may be told (`-lgi`), and containers are often started by somebody else. So a
step writes a list of one GPU, `PROFILE START UUID` a line, under `/run`, which a boot empties like the GPUs; whoever
reads it compares the UUID with `nvidia-smi -L`, which everybody may ask. The join is by the device number of `-L`,
which `-q -x` gives with the GPU instance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpufleet.change.model import CannotTell, Check, Fails, Holds, Predicate, Step, Verdict
from gpufleet.hosts.probes.script import parse
from gpufleet.mig.commands import Target
from gpufleet.mig.instances import SLOW, TABLES
from gpufleet.mig.model import Placed
from gpufleet.names import HostName, StepId
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit

FOLDER = "/run/gpufleet"

_PATH = """
PATH=$PATH:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/run/nvidia/driver/usr/bin:/usr/local/nvidia/bin
LC_ALL=C
export PATH LC_ALL
gpu=$1
"""

WRITE = (
    _PATH
    + TABLES
    + """
rows=$(listed -lgi) || unread
# DEVICE GI of each slice, from the XML: the index of a device stands before its ids.
report=$(nvidia-smi -i "$gpu" -q -x 2>/dev/null </dev/null | grep -E '<(/?mig_device|index|gpu_instance_id)>')
joined=$(printf '%s\\n' "$report" | while read -r line; do
  value=${line#*>}
  value=${value%%<*}
  case $line in
  '<mig_device>'* | '</mig_device>'*) device= ;;
  '<index>'*) device=$value ;;
  '<gpu_instance_id>'*) if [ -n "$device" ]; then printf '%s %s\\n' "$device" "$value"; fi ;;
  esac
done)
list=$(nvidia-smi -i "$gpu" -L 2>/dev/null </dev/null | grep ' MIG ')
umask 022
mkdir -p /run/gpufleet || exit 1
temporary=/run/gpufleet/slices-$gpu.$$
printf '%s\\n' "$joined" | while read -r device gi; do
  [ -n "$gi" ] || continue
  place=$(printf '%s\\n' "$rows" | while read -r bar number word name id one span rest; do
    if [ "$word $one" = "MIG $gi" ]; then printf '%s %s\\n' "$name" "${span%%:*}"; fi
  done)
  uuid=$(printf '%s\\n' "$list" | while read -r word name kind number mark id rest; do
    if [ "$word $kind $number" = "MIG Device $device:" ]; then printf '%s\\n' "${id%)}"; fi
  done)
  if [ -n "$place" ] && [ -n "$uuid" ]; then printf '%s %s\\n' "$place" "$uuid"; fi
done >"$temporary" && mv -f "$temporary" "/run/gpufleet/slices-$gpu" || {
  echo "/run/gpufleet/slices-$gpu cannot be written" >&2
  exit 1
}
"""
)

LOOK = (
    _PATH
    + """
begin() { printf '@@gf begin %s\\n' "$1"; }
end() { printf '\\n@@gf end %s %s\\n' "$1" "$2"; }
begin list
nvidia-smi -i "$gpu" -L </dev/null
end list "$?"
begin names
cat "/run/gpufleet/slices-$gpu" 2>/dev/null
end names "$?"
"""
)

NAMED = """
PATH=$PATH:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/run/nvidia/driver/usr/bin:/usr/local/nvidia/bin
export PATH
uuid=
while read -r name start one; do
  if [ "$name $start" = "$2 $3" ]; then uuid=$one; fi
done <"/run/gpufleet/slices-$1"
case $uuid:$(nvidia-smi -L </dev/null) in
MIG-*"(UUID: $uuid)"*) ;;
*)
  echo "slice $2 at $3 of $1 is not there" >&2
  exit 1 ;;
esac
mark=$4
shift 4
count=$#
while [ "$count" -gt 0 ]; do
  word=$1
  shift
  case $word in
  *"$mark"*) word=${word%%"$mark"*}$uuid${word#*"$mark"} ;;
  esac
  set -- "$@" "$word"
  count=$((count - 1))
done
"""
"""Begins a script: `$1` GPU, `$2` profile, `$3` start, `$4` a mark; in the words after them the UUID stands for the mark."""


SAME = """
uuid=
while read -r name start one; do
  if [ "$name $start" = "$2 $3" ]; then uuid=$one; fi
done <"/run/gpufleet/slices-$1"
if [ "$uuid" != "$4" ]; then
  echo "slice $2 at $3 of $1 is ${uuid:-not there} now and was $4: what is bound to it must be made anew" >&2
  exit 1
fi
shift 4
"""
"""Begins a script: `$1` GPU, `$2` profile, `$3` start, `$4` the UUID that the slice must have."""


def step(
    host: HostName,
    target: Target,
    slices: Sequence[Placed],
    *,
    tail: str = "",
    after: frozenset[StepId] = frozenset(),
) -> Step:
    """Write down the UUIDs of one GPU's slices; `slices` must be among them. Nothing has to be undone."""
    command = Command(argv=(target.uuid,), script=WRITE, timeout=2 * SLOW, mutates=True, become=True)
    look = Command(argv=(target.uuid,), script=LOOK, timeout=60.0, mutates=False)
    data = tuple(f"{one.profile} {one.start}" for one in sorted(slices))
    return Step(
        id=StepId(f"names-{host}{tail}"),
        host=host,
        title="note the UUIDs of the slices",
        do=(command,),
        undo=(),
        verify=Check(look=look, expect="slices-named", data=data, within=10.0, every=1.0),
        after=after,
        phase="runtime-files",
    )


def named(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether each slice, as `PROFILE START`, has a UUID that is there."""
    sections = parse(answer.stdout, answer.stderr)
    listing, names = sections.get("list"), sections.get("names")
    if listing is None or names is None or not listing.ok:
        return CannotTell("the slices cannot be listed")
    known = dict(line.rsplit(" ", 1) for line in names.text.splitlines() if line.count(" ") == 2)
    for one in data:
        uuid = known.get(one, "")
        if not uuid or f"(UUID: {uuid})" not in listing.text:
            return Fails(f"the UUID of slice {one.replace(' ', ':')} is not known", "look: gpufleet mig show")
    return Holds()


PREDICATES: Mapping[str, Predicate] = {"slices-named": named}
