"""Who may hold a GPU: services, kernel modules, open device files, and the processes that nvidia-smi lists.

A leaked handle keeps `-dci` and a reset from working while nvidia-smi lists nobody (NVIDIA/DCGM issues 95 and 276),
so the files that processes have open are looked at, too: all of `/proc/*/fd` with one `ls`. What was not allowed to
be read is Unknown; an empty list is believed only where every process could be looked into.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpufleet.hosts.model import (
    Fact,
    GpuProcess,
    HolderFacts,
    Known,
    ModuleFact,
    OpenDevices,
    ServiceFact,
    Unknown,
)
from gpufleet.hosts.probes.nvidia_xml import parse_report
from gpufleet.hosts.probes.script import Section, parse
from gpufleet.names import GpuUuid
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit, Lost, Outcome

SCRIPT = """\
PATH=$PATH:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/usr/lib/wsl/lib:/run/nvidia/driver/usr/bin:/usr/local/nvidia/bin
LC_ALL=C
export PATH LC_ALL
limit=
if command -v timeout >/dev/null 2>&1; then limit='timeout 30'; fi
begin() {
  printf '@@gf begin %s\\n' "$1"
  printf '@@gf begin %s\\n' "$1" >&2
}
end() {
  printf '\\n@@gf end %s %s\\n' "$1" "$2"
  printf '\\n@@gf end %s %s\\n' "$1" "$2" >&2
}
pids=
add() {
  case " $pids " in
  *" $1 "*) ;;
  *) pids="$pids $1" ;;
  esac
}

begin services
status=skipped
if command -v systemctl >/dev/null 2>&1; then
  $limit systemctl show --property=Id --property=LoadState --property=ActiveState -- "$@" </dev/null
  status=$?
else
  echo 'systemctl: not installed'
fi
end services "$status"

begin modules
status=1
if [ -r /proc/modules ]; then
  status=0
  while read -r name size uses users rest; do
    case $name in
    nvidia|nvidia_*) printf '%s %s %s\\n' "$name" "$uses" "$users" ;;
    esac
  done </proc/modules
fi
end modules "$status"

begin modeset
status=1
if [ -r /sys/module/nvidia_drm/parameters/modeset ]; then
  cat /sys/module/nvidia_drm/parameters/modeset
  status=$?
fi
end modeset "$status"

begin files
open=$(
  ls -l /proc/[0-9]*/fd </dev/null | grep -E '^/proc/[0-9]+/fd:|-> /dev/nvidia' | while IFS= read -r line; do
    case $line in
    /proc/*/fd:) owner=${line#/proc/} owner=${owner%%/*} ;;
    *) printf '%s %s\\n' "$owner" "${line##* -> }" ;;
    esac
  done | sort -u
)
printf '%s\\n' "$open"
end files 0

begin report
report=$($limit nvidia-smi -q -x </dev/null)
status=$?
printf '%s\\n' "$report"
end report "$status"

caps=
while read -r pid node; do
  case $pid in
  *[0-9]*) add "$pid" ;;
  esac
  number=${node#/dev/nvidia-caps/nvidia-cap}
  case $number in
  ''|*[!0-9]*) ;;
  *) caps="$caps|$number" ;;
  esac
done <<END
$open
END
while IFS= read -r line; do
  case $line in
  *'<pid>'*'</pid>'*)
    pid=${line#*<pid>} pid=${pid%%</pid>*}
    case $pid in
    ''|*[!0-9]*) ;;
    *) add "$pid" ;;
    esac ;;
  esac
done <<END
$report
END

begin processes
for pid in $pids; do
  name= group=
  if [ -r "/proc/$pid/comm" ]; then read -r name <"/proc/$pid/comm"; fi
  if [ -r "/proc/$pid/cgroup" ]; then
    while IFS= read -r line; do
      case $line in
      *:name=systemd:*|0::/*)
        group=${line#*:} group=${group#*:}
        break ;;
      esac
    done <"/proc/$pid/cgroup"
  fi
  printf '%s\\t%s\\t%s\\n' "$pid" "$name" "$group"
done
end processes 0

begin minors
for file in /proc/driver/nvidia/gpus/*/information; do
  [ -r "$file" ] || continue
  bus=${file%/information} bus=${bus##*/}
  while IFS= read -r line; do
    case $line in
    *'Device Minor:'*) printf '%s %s\\n' "$bus" "${line##*:}" ;;
    esac
  done <"$file"
done
end minors 0

begin caps
if [ -n "$caps" ] && [ -r /proc/driver/nvidia-caps/mig-minors ]; then
  grep -E " (${caps#|})\\$" /proc/driver/nvidia-caps/mig-minors </dev/null
fi
end caps 0
"""

SERVICES = (
    "dcgm-exporter",
    "nvidia-dcgm-exporter",
    "nvidia_gpu_exporter",
    "nvidia-gpu-exporter",
    "nvidia-dcgm",
    "dcgm",
    "nvsm",
    "nvsm-core",
    "nvsm-mqtt",
    "nvsm-api-gateway",
    "nvsm-notifier",
    "nvidia-persistenced",
    "display-manager",
    "gdm",
    "gdm3",
    "lightdm",
    "sddm",
    "nvidia-fabricmanager",
    "nvidia-imex",
    "nvidia-mig-manager",
    "nvidia-cdi-refresh",
)
"""Units that are asked about: those of the hooks of mig-parted (`hooks.sh`), NVIDIA's own daemons, known exporters and
display managers. `dcgm` and `display-manager` are aliases and come back under the names of what they lead to."""

_MODULE = re.compile(r"(nvidia\w*) (\d{1,9}) (\S+)", re.ASCII)
_OPEN = re.compile(r"(\d{1,10}) (/dev/nvidia\S*)(?: \(deleted\))?", re.ASCII)
_MINOR = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])\s+(\d{1,4})", re.ASCII)
_CAPABILITY = re.compile(r"(\S+) (\d{1,9})", re.ASCII)
_DENIED = re.compile(r"/proc/(\d{1,10})/fd.*Permission denied", re.ASCII)


def command(*, become: bool) -> Command:
    """Ask one host; without root the open files of other people's processes stay unknown."""
    return Command(argv=SERVICES, script=SCRIPT, timeout=120.0, mutates=False, become=become)


def read(outcome: Outcome) -> HolderFacts:
    """What the answer means; every part that did not come is Unknown with the reason."""
    if isinstance(outcome, Lost):
        return nothing(outcome.reason)
    if outcome.sudo_refused:
        return nothing(f"sudo refused: {outcome.sudo_refused}")
    return holders(parse(outcome.stdout, outcome.stderr), outcome)


def nothing(reason: str) -> HolderFacts:
    """Nothing is known, and why."""
    why = Unknown(reason)
    return HolderFacts(
        services=why, modules=why, modeset=why, users=why, groups={}, listed=why, minors={}, capabilities={}
    )


def holders(sections: Mapping[str, Section], answer: Exit | None = None) -> HolderFacts:
    """The sections of one answer."""
    if "caps" not in sections:
        status = f", the shell ended with status {answer.code}" if answer is not None else ""
        return nothing(f"the answer stops early{status}")
    groups = _processes(sections.get("processes"))
    return HolderFacts(
        services=_services(sections.get("services")),
        modules=_modules(sections.get("modules")),
        modeset=_modeset(sections.get("modeset")),
        users=_users(sections.get("files"), groups),
        groups=groups,
        listed=_listed(sections.get("report")),
        minors=_minors(sections.get("minors")),
        capabilities=_capabilities(sections.get("caps")),
    )


def _services(section: Section | None) -> Fact[tuple[ServiceFact, ...]]:
    """Units that are there; blocks of `Key=value` lines with blank lines between them, in any order of keys."""
    if section is None or not section.ok:
        return Unknown(f"services: {section.reason() if section else 'no answer'}")
    found: dict[str, ServiceFact] = {}
    for block in re.split(r"\n\s*\n", section.text.strip()):
        told = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        name, state = told.get("Id", "").removesuffix(".service"), told.get("ActiveState", "")
        if not name or not state:
            return Unknown("services: `systemctl show` gave a unit without name or state")
        if told.get("LoadState") != "not-found" or state != "inactive":
            found[name] = ServiceFact(name, state)
    return Known(tuple(found.values()))


def _modules(section: Section | None) -> Fact[tuple[ModuleFact, ...]]:
    if section is None or not section.ok:
        return Unknown("the list of kernel modules cannot be read")
    return Known(
        tuple(
            ModuleFact(
                found[1], int(found[2]), tuple(name for name in found[3].split(",") if name not in {"", "-"})
            )
            for line in section.text.splitlines()
            if (found := _MODULE.match(line))
        )
    )


def _modeset(section: Section | None) -> Fact[bool]:
    word = section.text.strip() if section is not None and section.ok else ""
    return (
        Known(word == "Y") if word in {"Y", "N"} else Unknown("only root may read how nvidia_drm was loaded")
    )


def _users(section: Section | None, groups: Mapping[int, OpenDevices]) -> Fact[tuple[OpenDevices, ...]]:
    if section is None:
        return Unknown("open files: no answer")
    denied = {int(found[1]) for found in _DENIED.finditer(section.errors)}
    if denied:
        return Unknown(f"the open files of {len(denied)} processes may be read by root alone")
    nodes: dict[int, set[str]] = {}
    for line in section.text.splitlines():
        if found := _OPEN.fullmatch(line.strip()):
            nodes.setdefault(int(found[1]), set()).add(found[2])
    return Known(
        tuple(
            OpenDevices(
                pid=pid,
                name=groups[pid].name if pid in groups else "",
                nodes=frozenset(paths),
                group=groups[pid].group if pid in groups else "",
            )
            for pid, paths in sorted(nodes.items())
        )
    )


def _processes(section: Section | None) -> dict[int, OpenDevices]:
    found: dict[int, OpenDevices] = {}
    for line in section.text.splitlines() if section is not None else ():
        pid, _, rest = line.partition("\t")
        name, _, group = rest.partition("\t")
        if pid.isascii() and pid.isdigit() and len(pid) <= 10:
            found[int(pid)] = OpenDevices(pid=int(pid), name=name, nodes=frozenset(), group=group)
    return found


def _listed(section: Section | None) -> Fact[Mapping[GpuUuid, tuple[GpuProcess, ...]]]:
    if section is None:
        return Unknown("nvidia-smi gave no answer")
    if section.status in {124, 127, 137}:
        return Unknown(f"nvidia-smi: {section.reason()}")
    report = parse_report(section.text)
    if isinstance(report, Unknown):
        return report
    found: dict[GpuUuid, tuple[GpuProcess, ...]] = {}
    for gpu in report.value.gpus:
        if isinstance(gpu.processes, Unknown):
            return Unknown(f"GPU {gpu.uuid or gpu.bus_id}: {gpu.processes.reason}")
        found[GpuUuid(gpu.uuid)] = gpu.processes.value
    return Known(found)


def _minors(section: Section | None) -> dict[int, str]:
    return {
        int(found[3]): bus_id(f"{found[1]}:{found[2]}")
        for line in (section.text.splitlines() if section is not None else ())
        if (found := _MINOR.match(line))
    }


def _capabilities(section: Section | None) -> dict[int, str]:
    return {
        int(found[2]): found[1]
        for line in (section.text.splitlines() if section is not None else ())
        if (found := _CAPABILITY.fullmatch(line.strip()))
    }


def bus_id(text: str) -> str:
    """One form for `0000:17:00.0` of the kernel and `00000000:17:00.0` of nvidia-smi."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):08x}:{rest}" if re.fullmatch("[0-9a-f]{4,8}", domain) else text.lower()
