"""The one script that asks a host everything, and its answer cut into sections.

One exec costs one round trip whatever it asks. Each probe stands between two markers on both streams:

    @@gf begin NAME
    ...what the program printed...
    @@gf end NAME STATUS

STATUS is its exit status, or `skipped` with the reason as text. A program that prints a marker itself cannot take
another's place: inside a section only its own end counts, and text between two sections makes the one before it
unusable. The script is constant; what the inventory says of the host arrives as arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpufleet.hosts.probes.nvidia_smi import APPS_FIELDS, QUERY_FIELDS, trouble_line
from gpufleet.inventory.model import Become, Runtime
from gpufleet.remote.command import Command

PROBE_SECONDS = 30
"""How long one probe may take: a stopped Docker engine or a broken driver never answers."""

SCRIPT_SECONDS = 180.0
"""How long the whole script may take; it gives up on a tool after its first silence."""

PLACES = ("/usr/bin", "/usr/local/bin", "/snap/bin", "/opt/bin", "~/bin", "~/.local/bin")
"""Where a runtime is looked for after PATH, as people read it."""

BOOT_LAYOUT = "/etc/gpufleet/mig-layout"
"""Where a host keeps the slices that a boot brings back; `probes.boot_layout` reads it."""

SCRIPT = f"""\
wanted=$1
given=$2
become=$3
PATH=$PATH:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin
export PATH
home=${{HOME:-/}}
limit=
if command -v timeout >/dev/null 2>&1; then limit='timeout {PROBE_SECONDS}'; fi
begin() {{
  printf '@@gf begin %s\\n' "$1"
  printf '@@gf begin %s\\n' "$1" >&2
}}
end() {{
  printf '\\n@@gf end %s %s\\n' "$1" "$2"
  printf '\\n@@gf end %s %s\\n' "$1" "$2" >&2
}}
skip() {{
  begin "$1"
  printf '%s\\n' "$2"
  end "$1" skipped
}}
probe() {{
  section=$1
  shift
  begin "$section"
  $limit "$@" </dev/null
  status=$?
  end "$section" "$status"
}}
locate() {{
  found=$(command -v "$1" 2>/dev/null)
  case $found in
    /*) return 0 ;;
  esac
  for place in /usr/bin /usr/local/bin /snap/bin /opt/bin "$home/bin" "$home/.local/bin" $2; do
    if [ -f "$place/$1" ] && [ -x "$place/$1" ]; then
      found=$place/$1
      return 0
    fi
  done
  found=
  return 1
}}

begin system
boot=
if [ -r /proc/sys/kernel/random/boot_id ]; then read -r boot </proc/sys/kernel/random/boot_id; fi
user=$(id)
printf 'id=%s\\nhome=%s\\nuname=%s\\nboot_id=%s\\n' "$user" "$home" "$(uname -n -r -m)" "$boot"
devices=0
for file in /sys/bus/pci/devices/*/vendor; do
  [ -r "$file" ] || continue
  vendor=
  class=
  read -r vendor <"$file"
  [ "$vendor" = 0x10de ] || continue
  read -r class <"${{file%vendor}}class"
  case $class in
    0x03*) devices=$((devices + 1)) ;;
  esac
done
printf 'nvidia_devices=%s\\n' "$devices"
if [ -e /proc/driver/nvidia/version ]; then echo module=loaded; else echo module=absent; fi
end system 0

case $become:$user in
  never:*) skip sudo 'become is never' ;;
  *:uid=0'('*|*:uid=0' '*)
    begin sudo
    end sudo 0
    ;;
  *) probe sudo sudo -n true ;;
esac

begin runtime
kind=
path=
if [ -n "$given" ]; then
  if command -v "$given" >/dev/null 2>&1 && [ ! -d "$given" ]; then
    path=$given
    kind=$wanted
    if [ "$kind" = auto ]; then kind=${{given##*/}}; fi
  fi
elif [ "$wanted" = auto ]; then
  for name in docker podman nerdctl; do
    if locate "$name" ''; then
      path=$found
      kind=$name
      break
    fi
  done
elif locate "$wanted" ''; then
  path=$found
  kind=$wanted
fi
real=$path
if [ -h "$path" ]; then real=$(readlink -f "$path" 2>/dev/null); fi
printf 'kind=%s\\npath=%s\\nreal=%s\\n' "$kind" "$path" "$real"
end runtime 0

through=
status=127
if [ -n "$path" ]; then
  case $kind in
    docker) format='{{{{.Server.Version}}}}' ;;
    *) format='{{{{.Client.Version}}}}' ;;
  esac
  asked=version
  case $become:$user in
    always:uid=0'('*|always:uid=0' '*) ;;
    always:*)
      through='sudo -n'
      asked=version-sudo
      ;;
  esac
  begin "$asked"
  answer=$($limit $through "$path" version --format "$format" 2>&1 </dev/null)
  status=$?
  printf '%s\\n' "$answer"
  end "$asked" "$status"
  case $become:$status:$answer in
    auto:0:*) ;;
    auto:*:*ermission\\ denied*|auto:*:*rootless*)
      begin version-sudo
      answer=$($limit sudo -n "$path" version --format "$format" 2>&1 </dev/null)
      status=$?
      printf '%s\\n' "$answer"
      end version-sudo "$status"
      if [ "$status" -eq 0 ]; then through='sudo -n'; fi
      ;;
  esac
fi
root=
if [ "$status" -eq 0 ]; then
  begin info
  info=$($limit $through "$path" info --format '{{{{json .}}}}' </dev/null)
  status=$?
  printf '%s\\n' "$info"
  end info "$status"
  case $info in
    *'"DockerRootDir":'*) root=${{info#*'"DockerRootDir":'}} ;;
    *'"graphRoot":'*) root=${{info#*'"graphRoot":'}} ;;
  esac
  root=${{root#*'"'}}
  root=${{root%%'"'*}}
  begin containers
  ids=$($limit $through "$path" ps -aq --no-trunc </dev/null)
  status=$?
  if [ "$status" -eq 0 ] && [ -n "$ids" ]; then
    case $kind in
      podman) $limit $through "$path" inspect --type container $ids </dev/null ;;
      *) $limit $through "$path" inspect --format '{{{{json .}}}}' $ids </dev/null ;;
    esac
    status=$?
  fi
  end containers "$status"
  if [ "$kind" = podman ]; then
    case $through:$user in
      sudo*|:uid=0'('*|:uid=0' '*) probe restart systemctl is-enabled podman-restart.service ;;
      *) probe restart systemctl --user is-enabled podman-restart.service ;;
    esac
  fi
fi

if locate nvidia-ctk ''; then
  probe toolkit "$found" --version
  probe cdi "$found" cdi list
else
  skip toolkit 'not installed'
fi
begin hook
for name in nvidia-container-runtime-hook nvidia-container-toolkit; do
  if locate "$name" ''; then
    printf 'path=%s\\ninstalled=%s\\n' "$found" "$(stat -c %Z "$found" 2>/dev/null)"
    config=/etc/nvidia-container-runtime/config.toml
    if [ -r "$config" ] && grep -q -E '^ *no-cgroups *= *true' "$config"; then echo no_cgroups=true; fi
    break
  fi
done
for file in /run/docker.pid /var/run/docker.pid; do
  if [ -e "$file" ]; then
    printf 'engine_started=%s\\n' "$(stat -c %Y "$file" 2>/dev/null)"
    break
  fi
done
end hook 0

if locate nvidia-smi '/usr/lib/wsl/lib /run/nvidia/driver/usr/bin /usr/local/nvidia/bin'; then
  smi=$found
  probe list "$smi" -L
  case $status in
    9|12|18|124|137) ;;
    *)
      begin query
      answer=$($limit "$smi" --query-gpu={",".join(QUERY_FIELDS)} --format=csv,noheader,nounits </dev/null)
      status=$?
      printf '%s\\n' "$answer"
      end query "$status"
      case $answer in
        *'
'*) probe topology "$smi" topo -m ;;
      esac
      probe report "$smi" -q -x
      if [ "$status" -ne 0 ]; then
        probe apps "$smi" --query-compute-apps={",".join(APPS_FIELDS)} --format=csv,noheader,nounits
        probe table "$smi"
      fi
      case $answer in
        *Enabled*)
          for table in lgi lci; do
            begin "$table"
            answer=$($limit "$smi" mig "-$table" </dev/null)
            status=$?
            case $become:$answer in
              never:*) ;;
              *'Insufficient Permissions'*)
                again=$($limit sudo -n "$smi" mig "-$table" </dev/null)
                asroot=$?
                if [ -n "$again" ]; then answer=$again status=$asroot; fi
                ;;
            esac
            printf '%s\\n' "$answer"
            end "$table" "$status"
          done
          ;;
      esac
      ;;
  esac
else
  skip list 'not installed'
fi

begin disks
set -- /
for place in "$root" "$home"; do
  if [ -n "$place" ] && [ -d "$place" ]; then set -- "$@" "$place"; fi
done
printf 'path=%s\\n' "$@"
$limit df -P -k "$@" </dev/null
end disks "$?"
begin listening
ss -Htln </dev/null
status=$?
end listening "$status"
if [ "$status" -ne 0 ]; then
  probe sockets cat /proc/net/tcp /proc/net/tcp6
fi
begin lease
lease=$home/.gpufleet/lease
if [ -d "$lease" ]; then
  now=$(date +%s)
  beat=$(cat "$lease"/beat-* 2>/dev/null | sort | tail -n 1)
  if [ -z "$beat" ]; then beat=$(stat -c %Y "$lease" 2>/dev/null); fi
  printf 'held %s\\n' "$((now - ${{beat:-$now}}))"
  cat "$lease/lease.json"
fi
end lease 0
begin boot
status=skipped
if [ -e {BOOT_LAYOUT} ]; then
  cat {BOOT_LAYOUT}
  status=$?
fi
end boot "$status"
begin runs
for run in "$home"/.gpufleet/runs/*/; do
  if [ -e "${{run}}journal.jsonl" ] && [ ! -e "${{run}}settled" ]; then
    run=${{run%/}}
    printf '%s\\n' "${{run##*/}}"
  fi
done
end runs 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What one probe said.

    Attributes:
        text: standard output without its last newline.
        errors: standard error.
        status: exit status; None when it was skipped, and `text` is the reason then.
    """

    name: str
    text: str = ""
    errors: str = ""
    status: int | None = None

    @property
    def ok(self) -> bool:
        return self.status == 0

    def reason(self) -> str:
        """Why there is no answer, in one line."""
        words = trouble_line(self.text) or trouble_line(self.errors)
        words = words or next(
            (line.strip() for line in (self.errors + "\n" + self.text).splitlines() if line.strip()), ""
        )
        match self.status:
            case None:
                return words or "not asked"
            case 124 | 137:
                return f"no answer within {PROBE_SECONDS} s"
            case 127 if not words:
                return "not installed"
            case _:
                return words[:300] or f"it ended with status {self.status} and said nothing"


def command(*, runtime: Runtime, runtime_path: str | None, become: Become, as_root: bool = False) -> Command:
    """The script with what the inventory says of this host; `as_root` runs all of it through sudo."""
    wanted = (runtime.value, runtime_path or "", "never" if as_root else become.value)
    return Command(argv=wanted, script=SCRIPT, timeout=SCRIPT_SECONDS, mutates=False, become=as_root)


# Nothing that moves a terminal's cursor or that Python takes for the end of a line, but tabs and newlines.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_MARKER = re.compile(r"^@@gf (begin|end) ([a-z-]+)(?: ([0-9]{1,3}|skipped))?$", re.ASCII)


def parse(stdout: str, stderr: str) -> Mapping[str, Section]:
    """Sections by name. One whose end is missing, or that is followed by stray text, is left out."""
    errors = {name: text for name, (text, _) in _cut(stderr).items()}
    return {
        name: Section(
            name=name,
            text=text,
            errors=errors.get(name, ""),
            status=None if status == "skipped" else int(status),
        )
        for name, (text, status) in _cut(stdout).items()
    }


def _cut(stream: str) -> dict[str, tuple[str, str]]:
    stream = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", stream.replace("\r\n", "\n"))
    found: dict[str, tuple[str, str]] = {}
    spoiled: set[str] = set()
    name = last = ""
    lines: list[str] = []
    for line in stream.split("\n"):
        marker = _MARKER.match(line)
        if name:
            if marker and marker[1] == "end" and marker[2] == name and marker[3]:
                text = "\n".join(lines)
                found[name] = (text.removesuffix("\n"), marker[3])
                last, name, lines = name, "", []
            else:
                lines.append(line)
        elif marker and marker[1] == "begin" and not marker[3]:
            name = marker[2]
            if name in found:
                spoiled.add(name)
        elif line.strip():
            spoiled.add(last)
    return {key: value for key, value in found.items() if key not in spoiled}
