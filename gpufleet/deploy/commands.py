"""What is sent to a host to pull, start, stop, keep and remove containers, by any of three runtimes.

Every script is constant text; whatever comes from a person is a positional parameter. Environment values travel
inside the frame on standard input and are written by the shell itself, so that no process list ever shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpufleet.engine import measured
from gpufleet.engine.model import EngineContainer
from gpufleet.hosts.model import RuntimeFact
from gpufleet.names import ReplicaId, RunId, StepId
from gpufleet.pools.model import Limits
from gpufleet.redact import Secret
from gpufleet.remote.command import Command

UNTIL_READY = "on-failure:3"
WHEN_READY = "always"
PULL_TIMEOUT = 3600.0
QUICK = 60.0

_OURS = """
ours() {
  "$runtime" ps -aq --no-trunc --filter "label=gpufleet.run=$run" --filter "label=gpufleet.step=$step"
}
"""

IMAGE = """
"$1" image inspect --format '{{.Id}}' "$2"
"""

FIGURES = """
runtime=$1
for id in $("$runtime" ps -q --no-trunc --filter "label=gpufleet.run=$2" --filter "label=gpufleet.replica=$3"); do
  "$runtime" logs "$id" 2>&1 | grep -E "$4" | head -n 100
done
exit 0
"""

START = (
    """
runtime=$1 run=$2 step=$3 count=$4
shift 4
"""
    + _OURS
    + """
file="$HOME/.gpufleet/env/$run-$step"
umask 077
mkdir -p "$HOME/.gpufleet/env" || exit 1
: > "$file" || exit 1
while [ "$count" -gt 0 ]; do
  printf '%s=%s\\n' "$1" "$2" >> "$file" || exit 1
  shift 2
  count=$((count - 1))
done
for id in $(ours); do
  "$runtime" rm -f -v "$id" >/dev/null
done
errors=$("$runtime" run -d --env-file "$file" "$@" 2>&1 >/dev/null)
status=$?
rm -f "$file"
if [ "$status" -ne 0 ]; then
  printf '%s\\n' "$errors" | grep -v '[-]-help' >&2
fi
exit "$status"
"""
)

UNSTART = (
    """
runtime=$1 run=$2 step=$3
"""
    + _OURS
    + """
rm -f "$HOME/.gpufleet/env/$run-$step"
ids=$(ours) || exit 1
for id in $ids; do
  "$runtime" rm -f -v "$id" >/dev/null
done
ids=$(ours) || exit 1
[ -z "$ids" ]
"""
)

STATE = (
    """
runtime=$1 run=$2 step=$3
"""
    + _OURS
    + """
ids=$(ours) || exit 1
for id in $ids; do
  "$runtime" inspect --format '{{.State.Status}} {{.HostConfig.RestartPolicy.Name}}' "$id" || exit 1
done
if [ -e "$HOME/.gpufleet/env/$run-$step" ]; then
  echo environment-file
fi
exit 0
"""
)

STOP = """
"$1" update --restart no "$2" >/dev/null || exit 1
"$1" stop -t "$3" "$2" >/dev/null
"""

STOP_ONLY = """
"$1" stop -t "$3" "$2" >/dev/null
"""

RESTORE = """
"$1" start "$2" >/dev/null || exit 1
"$1" update --restart "$3" "$2" >/dev/null
"""

RESTORE_ONLY = """
"$1" start "$2" >/dev/null
"""

KEEP_POLICY = """
"$1" update --restart "$3" "$2" >/dev/null
"""

INSPECT = """
"$1" inspect --format '{{.State.Status}} {{.HostConfig.RestartPolicy.Name}}' "$2"
"""

POLICY = """
runtime=$1 run=$2 policy=$3
shift 3
for step in "$@"; do
  ids=$("$runtime" ps -aq --no-trunc --filter "label=gpufleet.run=$run" --filter "label=gpufleet.step=$step") || exit 1
  for id in $ids; do
    "$runtime" update --restart "$policy" "$id" >/dev/null || exit 1
  done
  rm -f "$HOME/.gpufleet/env/$run-$step"
done
exit 0
"""

POLICIES = """
runtime=$1 run=$2
shift 2
for step in "$@"; do
  ids=$("$runtime" ps -aq --no-trunc --filter "label=gpufleet.run=$run" --filter "label=gpufleet.step=$step") || exit 1
  [ -n "$ids" ] || echo gone none
  for id in $ids; do
    "$runtime" inspect --format '{{.State.Status}} {{.HostConfig.RestartPolicy.Name}}' "$id" || exit 1
  done
done
exit 0
"""

REMOVE = """
runtime=$1 id=$2 grace=$3 metrics=$4 busy=$5 pause=$6 limit=$7
ids=$("$runtime" ps -aq --no-trunc --filter "id=$id") || exit 1
[ -n "$ids" ] || exit 0
no_proxy='*' NO_PROXY='*'
export no_proxy NO_PROXY
waited=0
state=$("$runtime" inspect --format '{{.State.Status}}' "$id") || exit 1
if [ "$state" = running ] && [ -n "$metrics" ]; then
  sleep "$pause"
  while [ "$waited" -lt "$limit" ]; do
    if page=$(curl -s -f -m 5 "$metrics" 2>/dev/null); then
      counted=$(printf '%s\\n' "$page" | grep -E "$busy")
      at_work=$(printf '%s\\n' "$counted" | grep -v -E ' 0(\\.0*)?$')
      [ -z "$counted" ] || [ -n "$at_work" ] || break
    fi
    state=$("$runtime" inspect --format '{{.State.Status}}' "$id") || state=running
    [ "$state" = running ] || break
    sleep 1
    waited=$((waited + 1))
  done
fi
"$runtime" stop -t "$grace" "$id" >/dev/null
"$runtime" rm -f -v "$id" >/dev/null
ids=$("$runtime" ps -aq --no-trunc --filter "id=$id") || exit 1
[ -z "$ids" ]
"""

BY_ID = """
"$1" ps -aq --no-trunc --filter "id=$2"
"""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one runtime on one host is spoken to.

    Attributes:
        path: the runtime's program.
        kind: docker, podman or nerdctl.
        root: whether it is reached through sudo.
        updates: whether the restart policy of a container can be changed.
        rootless: whether it runs without root, so that limits cannot be raised.
        names_devices: whether GPUs are asked for as CDI devices.
        store: directory in which it keeps images; empty when that is not known.
        image_ids: what an image's id is a digest of, `config` or `manifest`; empty when that is not known.
    """

    path: str
    kind: str
    root: bool
    updates: bool
    rootless: bool
    names_devices: bool = False
    store: str = ""
    image_ids: str = ""

    @classmethod
    def of(cls, runtime: RuntimeFact) -> Dialect:
        """As the facts say."""
        rootless = runtime.rootless
        return cls(
            path=runtime.path,
            kind=runtime.kind,
            root=runtime.needs_sudo,
            updates=runtime.kind != "podman" or _at_least(runtime.version, (5, 1)),
            rootless=bool(getattr(rootless, "value", False)),
            names_devices=runtime.names_devices,
            store=str(getattr(runtime.root, "value", "")),
            image_ids=str(getattr(runtime.image_ids, "value", "")),
        )

    def script(
        self,
        text: str,
        *words: str | Secret[str],
        mutates: bool,
        timeout: float = QUICK,
    ) -> Command:
        """A script whose `$1` is the runtime's program."""
        return Command(
            argv=(self.path, *words), script=text, mutates=mutates, timeout=timeout, become=self.root
        )


def _at_least(version: str, wanted: tuple[int, int]) -> bool:
    parts = version.split(".")[:2]
    return (
        len(parts) == 2 and all(part.isdigit() for part in parts) and (int(parts[0]), int(parts[1])) >= wanted
    )


def run_words(
    dialect: Dialect,
    engine: EngineContainer,
    *,
    name: str,
    labels: Mapping[str, str],
    devices: tuple[str, ...],
    publish: str,
    limits: Limits,
) -> tuple[str, ...]:
    """The words after `run -d --env-file FILE`: exact arguments, no shell reads them."""
    words = ["--name", name, "--restart", UNTIL_READY if dialect.updates else WHEN_READY]
    words += ["--stop-timeout", str(engine.stop_timeout)]
    words += _device_words(dialect, devices)
    words += ["--shm-size", limits.shm] if limits.shm else ["--ipc", "host"]
    if not dialect.rootless and limits.memlock == "unlimited":
        words += ["--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
    words += ["--memory", limits.memory] if limits.memory else []
    words += ["--cpus", limits.cpus] if limits.cpus else []
    for mount in engine.mounts:
        words += ["--mount", f"type=bind,source={mount.source},target={mount.target},readonly"]
    words += ["-p", f"{publish}:{engine.port}"]
    for key, value in labels.items():
        words += ["--label", f"{key}={value}"]
    return (*words, "--entrypoint", engine.entrypoint, engine.image, *engine.arguments)


def _device_words(dialect: Dialect, devices: tuple[str, ...]) -> list[str]:
    """Docker takes a list only in double quotes of its own; podman takes `--gpus` and does nothing about it."""
    if dialect.names_devices:
        return [word for device in devices for word in ("--device", f"nvidia.com/gpu={device}")]
    return ["--gpus", f'"device={",".join(devices)}"']


def image(dialect: Dialect, reference: str) -> Command:
    """Look whether an image is there."""
    return dialect.script(IMAGE, reference, mutates=False)


def start(
    dialect: Dialect,
    run: RunId,
    step: StepId,
    environment: Mapping[str, str | Secret[str]],
    words: tuple[str, ...],
) -> Command:
    """Create and start a container; running it again first removes what an earlier attempt left."""
    pairs = [part for key, value in environment.items() for part in (key, value)]
    return dialect.script(
        START, run, step, str(len(environment)), *pairs, *words, mutates=True, timeout=300.0
    )


def unstart(dialect: Dialect, run: RunId, step: StepId) -> Command:
    """Remove what a start of this run and step left, in whatever state."""
    return dialect.script(UNSTART, run, step, mutates=True, timeout=180.0)


def state(dialect: Dialect, run: RunId, step: StepId) -> Command:
    """Look at what a start of this run and step left."""
    return dialect.script(STATE, run, step, mutates=False)


def figures(dialect: Dialect, run: RunId, replica: ReplicaId) -> Command:
    """The lines of a replica's log that say what its engine measured."""
    return dialect.script(FIGURES, run, replica, measured.LINES, mutates=False)


def stop(dialect: Dialect, container: str, grace: int) -> Command:
    """Stop a container that must not come back by itself."""
    text = STOP if dialect.updates else STOP_ONLY
    return dialect.script(text, container, str(grace), mutates=True, timeout=grace + QUICK)


def restore(dialect: Dialect, container: str, policy: str) -> Command:
    """Start a stopped container again, with the restart policy it had."""
    text = RESTORE if dialect.updates else RESTORE_ONLY
    return dialect.script(text, container, policy, mutates=True, timeout=120.0)


def keep_policy(dialect: Dialect, container: str, policy: str) -> Command:
    """Give one container a restart policy; one that stands still goes on standing still."""
    return dialect.script(KEEP_POLICY, container, policy, mutates=True)


def inspect(dialect: Dialect, container: str) -> Command:
    """Look at one container's state and restart policy."""
    return dialect.script(INSPECT, container, mutates=False)


def policy(dialect: Dialect, run: RunId, steps: tuple[StepId, ...], wanted: str) -> Command:
    """Give the containers of these steps a restart policy."""
    return dialect.script(POLICY, run, wanted, *steps, mutates=True)


def policies(dialect: Dialect, run: RunId, steps: tuple[StepId, ...]) -> Command:
    """Look at the restart policies of the containers of these steps."""
    return dialect.script(POLICIES, run, *steps, mutates=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """How long a replica may finish what it has.

    Attributes:
        metrics: its metrics page as the host reaches it; nothing is waited for without one, or when it does not run.
        busy: regular expression of the lines whose value is 0 when it has nothing to do.
        pause: seconds in which every proxy reads the new route table.
        limit: seconds until it is stopped whatever it does; a page that does not come is waited for so long too.
    """

    metrics: str
    busy: str
    pause: int = 2
    limit: int = 600


def remove(dialect: Dialect, container: str, grace: int, drain: Drain) -> Command:
    """Let one container finish, then stop and remove it; `container` is a full id."""
    words = (container, str(grace), drain.metrics, drain.busy, str(drain.pause), str(drain.limit))
    return dialect.script(REMOVE, *words, mutates=True, timeout=drain.limit + grace + 2 * QUICK)


def by_id(dialect: Dialect, container: str) -> Command:
    """Look whether a container is there."""
    return dialect.script(BY_ID, container, mutates=False)
