"""The systemd unit that brings slices back after a boot, before anything starts that needs them.

A boot loses every slice, and on Hopper and later the mode, too (MIG user guide, "Deployment considerations"; Ampere
keeps the mode). So a oneshot unit runs a constant script over a file of slices with their places. It is idempotent:
what is there as wanted is left alone, of a part only the rest is made, and a GPU that holds anything else, or is in
use, is left as it is; then the unit fails with a line in the journal, and everything ordered behind it starts all the
same: containers on slices that are not there do not start, the others do.

Nothing here reloads systemd: on hosts where it manages docker's cgroups a reload takes GPUs away from running
containers. Files and a link are enough, since the unit is needed at the next boot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpufleet.change.model import CannotTell, Check, Fails, Holds, Predicate, Step, Verdict
from gpufleet.hosts.model import Fact, Known, Unknown
from gpufleet.hosts.probes.boot_layout import PATH as LAYOUT
from gpufleet.hosts.probes.script import Section, parse
from gpufleet.names import HostName, StepId
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit

NAME = "gpufleet-mig.service"
SCRIPT_PATH = "/etc/gpufleet/mig-boot.sh"
UNIT_PATH = f"/etc/systemd/system/{NAME}"
LINK_PATH = f"/etc/systemd/system/multi-user.target.wants/{NAME}"

BOOT = """\
#!/bin/sh
# Brings back the MIG slices that the file named by $1 lists. Written by `gpufleet mig persist`, which replaces it.
PATH=$PATH:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/run/nvidia/driver/usr/bin:/usr/local/nvidia/bin
LC_ALL=C
export PATH LC_ALL
layout=$1
failed=
newline='
'
say() { printf 'gpufleet-mig: %s\\n' "$*"; }
fail() {
  say "$*" >&2
  failed=yes
}
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
mode() { nvidia-smi -i "$1" --query-gpu=mig.mode.current --format=csv,noheader 2>&1 </dev/null; }
# PROFILE START:SIZE ID of each GPU instance; status 1 and the reason when they cannot be read.
instances() {
  table=$(nvidia-smi mig -i "$1" -lgi 2>&1 </dev/null)
  case $table in
  *"No GPU instances found"*) return 0 ;;
  *Failed* | *Unable* | *Error*) first "$table"; return 1 ;;
  *"Start:Size"*) ;;
  *) first "$table"; return 1 ;;
  esac
  printf '%s\\n' "$table" | while read -r bar gpu word name id gi place rest; do
    if [ "$word" = MIG ]; then printf '%s %s %s\\n' "$name" "$place" "$gi"; fi
  done
}
has_compute() {
  nvidia-smi mig -i "$1" -lci 2>&1 </dev/null | while read -r bar gpu one word rest; do
    if [ "$word" = MIG ] && [ "$one" = "$2" ]; then echo yes; fi
  done
}
wanted() {
  while read -r kind owner profile from span rest; do
    if [ "$kind $owner $profile $from:$span" = "slice $1 $2 $3" ]; then return 0; fi
  done <"$layout"
  return 1
}
switch_on() {
  now=$(mode "$1")
  case $now in
  Enabled) return 0 ;;
  Disabled) ;;
  *) fail "$1: its MIG mode cannot be read: $(first "$now")"; return 1 ;;
  esac
  busy=$(nvidia-smi -i "$1" --query-compute-apps=pid --format=csv,noheader 2>&1 </dev/null)
  if [ -n "$busy" ]; then
    fail "$1: MIG is off and the GPU is in use ($(first "$busy")): left alone"
    return 1
  fi
  said=$(nvidia-smi -i "$1" -mig 1 2>&1 </dev/null)
  if [ "$(mode "$1")" = Enabled ]; then return 0; fi
  nvidia-smi -i "$1" -mig 0 >/dev/null 2>&1 </dev/null
  fail "$1: MIG could not be switched on: $(first "$said")"
  return 1
}
# A failure of one slice does not keep the others from being made.
bring_back() {
  uuid=$1
  switch_on "$uuid" || return 0
  seen=$(instances "$uuid") || {
    fail "$uuid: its GPU instances cannot be read: $seen"
    return 0
  }
  foreign=
  while read -r name place gi; do
    if [ -n "$name" ]; then wanted "$uuid" "$name" "$place" || foreign="$foreign $name:${place%%:*}"; fi
  done <<END
$seen
END
  if [ -n "$foreign" ]; then
    fail "$uuid: holds$foreign, which is not in $layout: left alone"
    return 0
  fi
  made=0
  while read -r word gpu name start size rest; do
    if [ "$word $gpu" != "slice $uuid" ]; then continue; fi
    said=
    case "$newline$seen" in
    *"$newline$name $start:$size "*) ;;
    *)
      said=$(nvidia-smi mig -i "$uuid" -cgi "$name:$start" -C 2>&1 </dev/null)
      made=$((made + 1))
      ;;
    esac
    check "$uuid" "$name" "$start:$size" "$said"
  done <"$layout"
  say "$uuid: $made slices made"
}
# The slice is there, with a compute instance.
check() {
  now=$(instances "$1") || {
    fail "$1: its GPU instances cannot be read: $now"
    return 0
  }
  gi=
  while read -r profile place id; do
    if [ "$profile $place" = "$2 $3" ]; then gi=$id; fi
  done <<END
$now
END
  if [ -z "$gi" ]; then
    fail "$1: $2 at $3 is not there: $(first "$4")"
    return 0
  fi
  if [ -z "$(has_compute "$1" "$gi")" ]; then
    said=$(nvidia-smi mig -i "$1" -gi "$gi" -cci 2>&1 </dev/null)
    [ -n "$(has_compute "$1" "$gi")" ] || fail "$1: $2 at $3 has no compute instance: $(first "$said")"
  fi
}
if [ "$(tail -n 1 "$layout" 2>/dev/null)" != end ]; then
  fail "$layout is not whole: nothing was done"
  exit 1
fi
for pause in 1 2 4 8 15 30 0; do
  if nvidia-smi -L >/dev/null 2>&1 </dev/null; then break; fi
  sleep "$pause"
done
while read -r word gpu rest; do
  if [ "$word" = gpu ]; then bring_back "$gpu"; fi
done <"$layout"
# As root this makes the device files of the slices, too.
list=$(nvidia-smi -L 2>&1 </dev/null)
while read -r word gpu name start size uuid rest; do
  case $word:$uuid in
  slice:MIG-*)
    case $list in
    *"$uuid)"*) ;;
    *) fail "$gpu: $name at $start:$size is not $uuid any more: containers that name it must be made anew" ;;
    esac
    ;;
  esac
done <"$layout"
while read -r word path rest; do
  if [ "$word" = cdi ]; then
    said=$(nvidia-ctk cdi generate --output="$path" 2>&1 </dev/null) || fail "$path could not be written: $(first "$said")"
  fi
done <"$layout"
[ -z "$failed" ]
"""

UNIT = f"""\
# Written by `gpufleet mig persist`, which replaces it.
[Unit]
Description=Bring back the MIG slices of this host
ConditionPathExists={LAYOUT}
After=systemd-modules-load.service nvidia-persistenced.service nvidia-fabricmanager.service nvidia-mig-manager.service
Before=docker.service containerd.service crio.service podman.service podman-restart.service kubelet.service
Before=nvidia-cdi-refresh.service nvidia-dcgm.service dcgm-exporter.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh {SCRIPT_PATH} {LAYOUT}
TimeoutStartSec=600

[Install]
WantedBy=multi-user.target
"""

# An empty text takes its file away. The unit goes in last and comes out first, so that no boot meets half of it.
WRITE = """
script=$1 layout=$2 unit=$3 linked=$4
shift 4
put() {
  if [ -z "$3" ]; then
    rm -f "$1"
    return
  fi
  temporary=$1.gpufleet.$$
  if mkdir -p "${1%/*}" && printf '%s' "$3" >"$temporary" && chmod "$2" "$temporary"; then
    sync "$temporary" 2>/dev/null || sync
    mv -f "$temporary" "$1" && return
  fi
  rm -f "$temporary"
  echo "$1 cannot be written" >&2
  exit 1
}
umask 022
link=$4
if [ -z "$linked" ]; then rm -f "$link"; fi
if [ -z "$unit" ]; then rm -f "$3"; fi
put "$1" 0755 "$script"
put "$2" 0644 "$layout"
put "$3" 0644 "$unit"
if [ -n "$linked" ]; then
  mkdir -p "${link%/*}" && ln -sfn "$3" "$link" || {
    echo "$link cannot be written" >&2
    exit 1
  }
fi
for folder in "${1%/*}" "${3%/*}" "${link%/*}"; do
  if [ -d "$folder" ]; then sync "$folder" 2>/dev/null || sync; fi
done
rmdir "${1%/*}" 2>/dev/null
exit 0
"""

LOOK = """
begin() { printf '@@gf begin %s\\n' "$1"; }
end() { printf '\\n@@gf end %s %s\\n' "$1" "$2"; }
show() {
  begin "$1"
  status=skipped
  if [ -e "$2" ]; then
    cat "$2"
    status=$?
  fi
  end "$1" "$status"
}
show script "$1"
show layout "$2"
show unit "$3"
begin link
if [ -h "$4" ]; then readlink "$4"; fi
end link 0
begin systemd
if [ -d /run/systemd/system ]; then echo yes; fi
end systemd 0
begin specs
for file in /etc/cdi/*.yaml /var/run/cdi/*.yaml; do
  if [ -f "$file" ] && grep -q -E '^kind: *"?nvidia[.]com/gpu"?$' "$file"; then printf '%s\\n' "$file"; fi
done
end specs 0
"""

_PATHS = (SCRIPT_PATH, LAYOUT, UNIT_PATH, LINK_PATH)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootFiles:
    """What stands on a host, as text; empty for what is not there. `linked`: whether a boot starts the unit."""

    script: str = ""
    layout: str = ""
    unit: str = ""
    linked: bool = False

    @property
    def words(self) -> tuple[str, str, str, str]:
        """As arguments of the script that writes them."""
        return self.script, self.layout, self.unit, "linked" if self.linked else ""

    def same(self, other: BootFiles) -> bool:
        """Whether both are the same but for blank ends, which a look does not show."""
        return [word.rstrip() for word in self.words] == [word.rstrip() for word in other.words]


NOTHING = BootFiles()


@dataclass(frozen=True, slots=True, kw_only=True)
class BootSite:
    """A host as it was looked at. `specs`: CDI specifications of NVIDIA that are there."""

    files: BootFiles
    systemd: bool
    specs: tuple[str, ...]


def files_for(layout: str) -> BootFiles:
    """What has to stand on a host for this layout file; nothing for an empty one."""
    return BootFiles(script=BOOT, layout=layout, unit=UNIT, linked=True) if layout else NOTHING


def look() -> Command:
    """Read what stands there; needs no rights."""
    return Command(argv=_PATHS, script=LOOK, timeout=30.0, mutates=False)


def write(files: BootFiles) -> Command:
    """Make the files be these, each whole or not at all."""
    return Command(argv=(*files.words, *_PATHS), script=WRITE, timeout=60.0, mutates=True, become=True)


def read(answer: Exit) -> Fact[BootSite]:
    """The answer of the look."""
    sections = parse(answer.stdout, answer.stderr)
    texts: dict[str, str] = {}
    for name in ("script", "layout", "unit"):
        section = sections.get(name)
        if section is None or (section.status is not None and not section.ok):
            return Unknown(f"the {name} of {NAME} cannot be read")
        texts[name] = section.text
    link, specs = sections.get("link"), sections.get("specs")
    if link is None or specs is None:
        return Unknown("the answer stops early")
    return Known(
        BootSite(
            files=BootFiles(**texts, linked=link.text.strip() == UNIT_PATH),
            systemd=_said(sections.get("systemd")) == "yes",
            specs=tuple(line for line in specs.text.splitlines() if line),
        )
    )


def as_written(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether exactly these files stand there; `data` is what `BootFiles.words` gives."""
    seen = read(answer) if answer.ok else Unknown(answer.stderr.strip() or "the files cannot be looked at")
    if isinstance(seen, Unknown):
        return CannotTell(seen.reason)
    script, layout, unit, linked = data
    wanted = BootFiles(script=script, layout=layout, unit=unit, linked=bool(linked))
    if seen.value.files.same(wanted):
        return Holds()
    return Fails("the files of the boot unit are not as they were written")


PREDICATES: Mapping[str, Predicate] = {"boot-files": as_written}


def persist_step(
    host: HostName,
    before: BootFiles,
    after_files: BootFiles,
    *,
    tail: str = "",
    after: frozenset[StepId] = frozenset(),
) -> Step:
    """Replace what stands there; undone, exactly the former texts stand there again."""
    kept = bool(after_files.layout)
    return Step(
        id=StepId(f"persist-{host}{tail}"),
        host=host,
        title="keep the slices over a boot" if kept else "keep no slices over a boot",
        do=(write(after_files),),
        undo=(write(before),),
        verify=Check(look=look(), expect="boot-files", data=after_files.words),
        absent=Check(look=look(), expect="boot-files", data=before.words),
        after=after,
        phase="persist",
    )


def _said(section: Section | None) -> str:
    return section.text.strip() if section is not None else ""
