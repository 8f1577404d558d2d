"""Stopping services and modules that hold GPUs, and bringing exactly those back: commands, looks and steps.

Each pair is two steps of a plan: the first stops and its undo starts, the last starts and its undo stops. So a change
that goes on and one that is turned back both end with what ran before, and a crash between them is undone alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpufleet.change.model import CannotTell, Check, Fails, Holds, Predicate, Step, Verdict, Waits
from gpufleet.names import HostName, StepId
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit

_STOP = """
for unit in "$@"; do
  systemctl stop "$unit.service" </dev/null || exit 1
done
"""
_START = """
status=0
for unit in "$@"; do
  systemctl start "$unit.service" </dev/null || status=1
done
exit "$status"
"""
_STATES = """
for unit in "$@"; do
  printf '%s %s\\n' "$unit" "$(systemctl is-active "$unit.service" </dev/null)"
done
"""
_UNLOAD = """
PATH=$PATH:/usr/sbin:/sbin
export PATH
for module in "$@"; do
  while read -r name rest; do
    if [ "$name" = "$module" ]; then modprobe -r "$module" </dev/null || exit 1; fi
  done </proc/modules
done
"""
_LOAD = """
PATH=$PATH:/usr/sbin:/sbin
export PATH
modeset=$1
shift
for module in "$@"; do
  case $module:$modeset in
  nvidia_drm:?*) modprobe "$module" "modeset=$modeset" </dev/null || exit 1 ;;
  *) modprobe "$module" </dev/null || exit 1 ;;
  esac
done
"""
_MODULES = """
while read -r name rest; do
  printf '%s\\n' "$name"
done </proc/modules
"""

RUNS, STANDS = "runs", "stands"
LOADED, ABSENT = "loaded", "absent"


def stop(names: Sequence[str]) -> Command:
    """Stop services in this order; one that does not run is no trouble."""
    return Command(argv=tuple(names), script=_STOP, timeout=180.0, mutates=True, become=True)


def start(names: Sequence[str]) -> Command:
    """Start services in this order; one that fails does not keep the others from being started."""
    return Command(argv=tuple(names), script=_START, timeout=180.0, mutates=True, become=True)


def states(names: Sequence[str]) -> Command:
    """How each service is."""
    return Command(argv=tuple(names), script=_STATES, timeout=30.0, mutates=False)


def services_in_state(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether all services run, or all stand still; `data` is `runs` or `stands`, then their names."""
    wanted, *names = data
    told = dict(line.split(" ", 1) for line in answer.stdout.splitlines() if " " in line)
    for name in names:
        state = told.get(name, "").strip()
        if state in {"", "unknown"}:
            return CannotTell(f"systemd does not tell how {name} is")
        if wanted == STANDS and state not in {"inactive", "failed"}:
            return Waits(reason=f"{name} is {state}")
        if wanted == RUNS and state == "failed":
            return Fails(f"{name} did not come up again", f"look at it: sudo journalctl -u {name} -n 50")
        if wanted == RUNS and state not in {"active", "reloading"}:
            return Waits(reason=f"{name} is {state}")
    return Holds()


def modules_in_state(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether all kernel modules are loaded, or none is; `data` is `loaded` or `absent`, then their names."""
    wanted, *names = data
    if not answer.ok or not answer.stdout.strip():
        return CannotTell("the list of kernel modules cannot be read")
    there = set(answer.stdout.split())
    wrong = [name for name in names if (name in there) != (wanted == LOADED)]
    return Waits(reason=f"{', '.join(wrong)}: not {wanted}") if wrong else Holds()


PREDICATES: Mapping[str, Predicate] = {
    "services-in-state": services_in_state,
    "modules-in-state": modules_in_state,
}


def stop_step(
    host: HostName, names: Sequence[str], *, tail: str = "", after: frozenset[StepId] = frozenset()
) -> Step:
    """Stop services that run; undone, they run again. `names` in the order in which they are stopped."""
    return Step(
        id=StepId(f"services-stop-{host}{tail}"),
        host=host,
        title=f"stop {', '.join(names)}",
        do=(stop(names),),
        undo=(start(names[::-1]),),
        verify=_services(names, STANDS),
        absent=_services(names, RUNS),
        after=after,
        phase="stop-services",
    )


def start_step(
    host: HostName, names: Sequence[str], *, tail: str = "", after: frozenset[StepId] = frozenset()
) -> Step:
    """Start the services again that `stop_step` stopped; `names` as given there."""
    return Step(
        id=StepId(f"services-start-{host}{tail}"),
        host=host,
        title=f"start {', '.join(names[::-1])} again",
        do=(start(names[::-1]),),
        undo=(stop(names),),
        verify=_services(names, RUNS),
        absent=_services(names, STANDS),
        after=after,
        phase="start-services",
    )


def unload_step(
    host: HostName,
    names: Sequence[str],
    modeset: str,
    *,
    tail: str = "",
    after: frozenset[StepId] = frozenset(),
) -> Step:
    """Take kernel modules out; undone, they are loaded again, `nvidia_drm` with the `modeset` (`Y`, `N`) it had."""
    return Step(
        id=StepId(f"modules-unload-{host}{tail}"),
        host=host,
        title=f"unload {', '.join(names)}",
        do=(_unload(names),),
        undo=(_load(names, modeset),),
        verify=_modules(names, ABSENT),
        absent=_modules(names, LOADED),
        after=after,
        phase="unload-modules",
    )


def load_step(
    host: HostName,
    names: Sequence[str],
    modeset: str,
    *,
    tail: str = "",
    after: frozenset[StepId] = frozenset(),
) -> Step:
    """Load the modules again that `unload_step` took out."""
    return Step(
        id=StepId(f"modules-load-{host}{tail}"),
        host=host,
        title=f"load {', '.join(names)} again",
        do=(_load(names, modeset),),
        undo=(_unload(names),),
        verify=_modules(names, LOADED),
        absent=_modules(names, ABSENT),
        after=after,
        phase="load-modules",
    )


def _unload(names: Sequence[str]) -> Command:
    return Command(argv=tuple(names), script=_UNLOAD, timeout=60.0, mutates=True, become=True)


def _load(names: Sequence[str], modeset: str) -> Command:
    return Command(argv=(modeset, *names[::-1]), script=_LOAD, timeout=60.0, mutates=True, become=True)


def _services(names: Sequence[str], wanted: str) -> Check:
    return Check(
        look=states(names), expect="services-in-state", data=(wanted, *names), within=60.0, every=1.0
    )


def _modules(names: Sequence[str], wanted: str) -> Check:
    look = Command(script=_MODULES, timeout=30.0, mutates=False)
    return Check(look=look, expect="modules-in-state", data=(wanted, *names), within=10.0, every=1.0)
