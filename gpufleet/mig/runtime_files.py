"""What a container runtime needs on a host besides the slices themselves: device files of capabilities, and CDI.

Instances come and go without anybody telling the runtime. The device file of a new instance is made by nvidia-smi
when root lists GPUs (NVIDIA/gpu-operator issue 117), or by nvidia-modprobe; a CDI specification names the slices of
the moment at which it was written (NVIDIA/nvidia-container-toolkit issue 1828), and writing it fails while a GPU has
MIG on and no slice. So both are brought up to date after every change, and looked at: each slice that is there can be
asked for, and none that is gone.

A specification is written anew where one was found, under `/etc/cdi` or `/var/run/cdi`, and by the toolkit's own
service (`nvidia-cdi-refresh`, since 1.18) where that is installed; it stays active after its first run, so that it is
restarted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpufleet.change.model import CannotTell, Check, Fails, Holds, Predicate, Step, Verdict
from gpufleet.hosts.model import Fact, Known, Unknown
from gpufleet.hosts.probes.nvidia_smi import parse_listing
from gpufleet.hosts.probes.script import Section, parse
from gpufleet.names import HostName, StepId
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit

PLACE = "/etc/cdi/nvidia.yaml"
"""Where a specification is begun when the runtime needs one and there is none."""

_PATH = """
PATH=$PATH:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/usr/lib/wsl/lib:/run/nvidia/driver/usr/bin:/usr/local/nvidia/bin
LC_ALL=C
export PATH LC_ALL
ours() {
  [ -f "$1" ] && grep -q -E '^kind: *"?nvidia[.]com/gpu"?$|"kind": *"nvidia[.]com/gpu"' "$1"
}
"""

REFRESH = (
    _PATH
    + """
create=$1
list=$(nvidia-smi -L </dev/null)
for file in /proc/driver/nvidia/capabilities/gpu*/mig/gi*/access /proc/driver/nvidia/capabilities/gpu*/mig/gi*/ci*/access; do
  [ -r "$file" ] || continue
  number=
  while read -r key value; do
    if [ "$key" = DeviceFileMinor: ]; then number=$value; fi
  done <"$file"
  if [ -n "$number" ] && [ ! -e "/dev/nvidia-caps/nvidia-cap$number" ]; then
    nvidia-modprobe -f "$file" </dev/null || {
      echo "/dev/nvidia-caps/nvidia-cap$number cannot be made by nvidia-modprobe" >&2
      exit 1
    }
  fi
done
command -v nvidia-ctk >/dev/null 2>&1 || exit 0
sliced=
gpu=
while read -r line; do
  case $line in
  GPU' '*) gpu=${line#GPU } gpu=${gpu%%:*} ;;
  MIG' '*) sliced="$sliced $gpu " ;;
  esac
done <<END
$list
END
empty=
modes=$(nvidia-smi --query-gpu=index,mig.mode.current --format=csv,noheader </dev/null)
while IFS=', ' read -r gpu mode; do
  case $mode:$sliced in
  Enabled:*" $gpu "*) ;;
  Enabled:*) empty=$gpu ;;
  esac
done <<END
$modes
END
again() {
  "$@" </dev/null >/dev/null && return 0
  # While a GPU has MIG on and no slice there is nothing to write; the look tells what that means.
  if [ -n "$empty" ]; then return 0; fi
  echo "the CDI specification cannot be written: $*" >&2
  exit 1
}
service=
if command -v systemctl >/dev/null 2>&1; then
  case $(systemctl show --property=LoadState nvidia-cdi-refresh.service 2>/dev/null </dev/null) in
  LoadState=loaded*) service=yes ;;
  esac
fi
written=$service
if [ -n "$service" ]; then again systemctl restart nvidia-cdi-refresh.service; fi
for file in /etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml /var/run/cdi/*.json; do
  ours "$file" || continue
  written=yes
  case $service:$file in
  yes:/var/run/cdi/nvidia.yaml) ;;
  *.json) again nvidia-ctk cdi generate --format=json --output="$file" ;;
  *) again nvidia-ctk cdi generate --format=yaml --output="$file" ;;
  esac
done
if [ -z "$written" ] && [ -n "$create" ]; then
  mkdir -p "${create%/*}" && again nvidia-ctk cdi generate --format=yaml --output="$create"
fi
exit 0
"""
)

LOOK = (
    _PATH
    + """
begin() { printf '@@gf begin %s\\n' "$1"; }
end() { printf '\\n@@gf end %s %s\\n' "$1" "$2"; }
begin list
nvidia-smi -L </dev/null
end list "$?"
begin modes
nvidia-smi --query-gpu=index,mig.mode.current --format=csv,noheader </dev/null
end modes "$?"
begin nodes
for file in /proc/driver/nvidia/capabilities/gpu*/mig/gi*/access /proc/driver/nvidia/capabilities/gpu*/mig/gi*/ci*/access; do
  [ -r "$file" ] || continue
  number=
  while read -r key value; do
    if [ "$key" = DeviceFileMinor: ]; then number=$value; fi
  done <"$file"
  if [ -n "$number" ] && [ ! -e "/dev/nvidia-caps/nvidia-cap$number" ]; then
    printf '%s\\n' "/dev/nvidia-caps/nvidia-cap$number"
  fi
done
end nodes 0
begin specs
for file in /etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml /var/run/cdi/*.json; do
  if ours "$file"; then printf '%s\\n' "$file"; fi
done
end specs 0
begin cdi
status=skipped
if command -v nvidia-ctk >/dev/null 2>&1; then
  nvidia-ctk cdi list </dev/null 2>/dev/null
  status=$?
fi
end cdi "$status"
"""
)

STRICT, LENIENT = "strict", "lenient"
_NAME = re.compile(r"nvidia\.com/gpu=(\S+)", re.ASCII)
_NUMBERED = re.compile(r"\d{1,4}:\d{1,4}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFiles:
    """What was seen.

    Attributes:
        slices: UUID of each slice, and `GPU:DEVICE` as runtimes take it, too.
        empty: indexes of GPUs with MIG on and no slice.
        missing: device files that are not there.
        specs: CDI specifications of NVIDIA.
        names: devices that they name.
    """

    slices: Fact[Mapping[str, str]]
    empty: tuple[int, ...]
    missing: tuple[str, ...]
    specs: tuple[str, ...]
    names: Fact[frozenset[str]]


def refresh(create: str = "") -> Command:
    """Bring device files and specifications up to date; `create` begins a specification where there is none."""
    return Command(argv=(create,), script=REFRESH, timeout=180.0, mutates=True, become=True)


def look() -> Command:
    """How device files and specifications are."""
    return Command(script=LOOK, timeout=90.0, mutates=False)


def read(answer: Exit) -> RuntimeFiles:
    """The answer of the look."""
    sections = parse(answer.stdout, answer.stderr)
    slices, indexes = _listed(sections.get("list"))
    return RuntimeFiles(
        slices=slices,
        empty=tuple(one for one in _enabled(sections.get("modes")) if one not in indexes),
        missing=_lines(sections.get("nodes")),
        specs=_lines(sections.get("specs")),
        names=_names(sections.get("cdi")),
    )


def fresh(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether the runtime can be asked for every slice and for none that is gone.

    `data`: `strict`, or `lenient` for a way back to a state that may never have been described whole; then UUIDs of
    slices that must be there.
    """
    seen = read(answer)
    if isinstance(seen.slices, Unknown):
        return CannotTell(seen.slices.reason)
    mode, *wanted = data
    lost = [uuid for uuid in wanted if uuid not in seen.slices.value]
    if lost:
        return Fails(f"slice {lost[0]} is not there", "look: gpufleet mig show")
    if seen.missing:
        return Fails(
            f"{seen.missing[0]} is missing, which a container on a slice needs",
            "make it with: sudo nvidia-smi -L; nvidia-modprobe must be installed with its set-user-ID bit",
        )
    return _described(seen, seen.slices.value, strict=mode == STRICT)


def _described(seen: RuntimeFiles, slices: Mapping[str, str], *, strict: bool) -> Verdict:
    """Whether the CDI specifications fit; a host without one has nothing to fit."""
    if not seen.specs:
        return Holds()
    if isinstance(seen.names, Unknown):
        return CannotTell(f"which devices CDI names is not known: {seen.names.reason}")
    names = seen.names.value
    if seen.empty and (not strict or not slices):
        return Holds()
    # A number means another slice after every change, so that it is believed only where slices have no other name.
    by_uuid = any(name.startswith("MIG-") for name in names)
    known = set(slices) if by_uuid else set(slices.values())
    named = {name for name in names if (name.startswith("MIG-") if by_uuid else _NUMBERED.fullmatch(name))}
    absent, stale = sorted(known - named), sorted(named - known)
    if not absent and not stale:
        return Holds()
    what = f"does not name slice {absent[0]}" if absent else f"names {stale[0]}, which is gone"
    if seen.empty:
        return Fails(
            f"CDI {what}: it cannot be written while GPU {seen.empty[0]} has MIG on and no slice",
            "give that GPU a slice, or switch its MIG off",
        )
    return Fails(
        f"CDI {what} ({', '.join(seen.specs)})",
        f"write it anew: sudo nvidia-ctk cdi generate --output={seen.specs[0]}",
    )


def anything(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Nothing is asked of the way forward here."""
    del answer, data
    return Holds()


PREDICATES: Mapping[str, Predicate] = {"runtime-files-fresh": fresh, "runtime-files-any": anything}


def guard_step(
    host: HostName, *, create: str = "", tail: str = "", after: frozenset[StepId] = frozenset()
) -> Step:
    """Comes before the first change of a GPU, and so is undone last: then the files fit what is there again."""
    return Step(
        id=StepId(f"runtime-guard-{host}{tail}"),
        host=host,
        title="remember to describe slices to the container runtime again on the way back",
        do=(),
        undo=(refresh(create),),
        verify=Check(look=Command(script=":", mutates=False), expect="runtime-files-any"),
        absent=Check(look=look(), expect="runtime-files-fresh", data=(LENIENT,), within=30.0),
        after=after,
        phase="runtime-files",
    )


def refresh_step(
    host: HostName,
    *,
    uuids: Sequence[str] = (),
    create: str = "",
    tail: str = "",
    after: frozenset[StepId] = frozenset(),
) -> Step:
    """Describe the slices to the container runtime; undone by the guard, when the former slices are back."""
    return Step(
        id=StepId(f"runtime-files-{host}{tail}"),
        host=host,
        title="make device files of slices and write the CDI specification anew",
        do=(refresh(create),),
        undo=(),
        verify=Check(look=look(), expect="runtime-files-fresh", data=(STRICT, *uuids), within=30.0),
        after=after,
        phase="runtime-files",
    )


def _listed(section: Section | None) -> tuple[Fact[Mapping[str, str]], frozenset[int]]:
    if section is None or not section.ok:
        return Unknown(f"nvidia-smi -L: {section.reason() if section else 'no answer'}"), frozenset()
    gpus = parse_listing(section.text).gpus
    found = {one.uuid: f"{gpu.index}:{one.device}" for gpu in gpus for one in gpu.slices}
    return Known(found), frozenset(gpu.index for gpu in gpus if gpu.slices)


def _enabled(section: Section | None) -> tuple[int, ...]:
    rows = (
        line.split(",") for line in (section.text.splitlines() if section is not None and section.ok else ())
    )
    return tuple(
        int(row[0])
        for row in rows
        if len(row) == 2 and row[0].strip().isdigit() and row[1].strip() == "Enabled"
    )


def _lines(section: Section | None) -> tuple[str, ...]:
    return tuple(line for line in (section.text.splitlines() if section is not None else ()) if line.strip())


def _names(section: Section | None) -> Fact[frozenset[str]]:
    if section is None or not section.ok:
        return Unknown(f"nvidia-ctk cdi list: {section.reason() if section else 'no answer'}")
    return Known(
        frozenset(found[1] for line in section.text.splitlines() if (found := _NAME.fullmatch(line.strip())))
    )
