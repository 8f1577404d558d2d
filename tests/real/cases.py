"""The table of (fault, phase) cases that a bulk deploy on three real hosts must get right.

One host of the three breaks. The exit code says how it ended: 4, 7 and 8 refused before anything was changed, 6 the
lease is held, 9 rolled back by itself, 10 rolled back but for the host that could not be reached (`change undo` ends
it once the host is back), 11 in doubt, 0 survived.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.real import faults
from tests.real.desk import Started
from tests.real.scene import FIRST_PORT, LAST_PORT, Case, Scene, nothing

PULL, START = "intent pull-{host} do", "intent start-{host}-0 do"
GATE, SETTLE = "intent gate-{host}-0 do", "intent settle-{host} do"
STARTED = "outcome start-{host}-0 do succeeded"
DOWN = ("cannot connect to the docker daemon",)


# --- injectors that need more than one line -----------------------------------------------------------------------


@contextmanager
def all_gpus_taken(scene: Scene) -> Iterator[None]:
    """Somebody else's containers hold every GPU of the host."""
    names = [f"gpu-holder-{number}" for number, _ in enumerate(scene.host.gpus)]
    for name, gpu in zip(names, scene.host.gpus, strict=True):
        words = ("docker", "run", "-d", "--name", name, "--stop-signal", "KILL", "--gpus", f'"device={gpu}"')
        scene.host.inside(*words, "--entrypoint", "sleep", scene.image(), "100000")
    try:
        yield
    finally:
        scene.host.inside("docker", "rm", "-f", *names)


@contextmanager
def all_ports_taken(scene: Scene) -> Iterator[None]:
    """Every port of the host's range is listened on."""
    scene.host.shell(
        f"for p in $(seq {FIRST_PORT} {LAST_PORT}); do busybox httpd -p 0.0.0.0:$p -h /run/host; done"
    )
    try:
        yield
    finally:
        scene.host.shell("pkill -x busybox; true")


@contextmanager
def other_key(scene: Scene) -> Iterator[None]:
    """The host does not know the operator's key."""
    path = "/home/ops/.ssh/authorized_keys"
    scene.host.shell(f"mv {path} {path}.away")
    try:
        yield
    finally:
        scene.host.shell(f"mv {path}.away {path}")


@contextmanager
def unknown_host_key(scene: Scene) -> Iterator[None]:
    """The operator's known_hosts says nothing of the host."""
    lines = scene.fleet.path("known_hosts").read_text().splitlines(keepends=True)
    own = scene.operator.desk / "known_hosts"
    own.write_text("".join(line for line in lines if not line.startswith(f"{scene.host.address} ")))
    inventory = scene.operator.inventory.read_text()
    scene.operator.write_inventory(inventory.replace(str(scene.fleet.path("known_hosts")), str(own)))
    yield
    scene.operator.write_inventory()


@contextmanager
def lease_of_another(scene: Scene) -> Iterator[None]:
    """Another operator's change is at work on the host."""
    script = """
        umask 077; mkdir -p ~/.gpufleet/lease && cd ~/.gpufleet/lease
        printf '{"token":"aaaaaaaaaaaaaaaa","run":"20260101T000000-abcdef","seat":"bbbb","holder":"alice@desk","operation":"deploy","started":%s}\\n' "$(date +%s)" > lease.json
        date +%s > beat-aaaaaaaaaaaaaaaa
    """
    scene.fleet.ssh(scene.host, script)
    try:
        yield
    finally:
        scene.fleet.ssh(scene.host, "rm -rf ~/.gpufleet/lease")


@contextmanager
def docker_moved_away(scene: Scene) -> Iterator[None]:
    """The docker program stands where no search path leads."""
    scene.host.shell("mkdir -p /srv/apps && mv /usr/bin/docker /srv/apps/docker")
    try:
        yield
    finally:
        scene.host.shell("mv /srv/apps/docker /usr/bin/docker")


@contextmanager
def gpu_unknown_to_hook(scene: Scene) -> Iterator[None]:
    """The GPU fell off the bus: NVIDIA's hook refuses it."""
    devices = scene.host.shell("cat /etc/gpu-devices")
    scene.host.write("/etc/gpu-devices", "")
    try:
        yield
    finally:
        scene.host.write("/etc/gpu-devices", devices)


@contextmanager
def image_removed(scene: Scene) -> Iterator[None]:
    """Somebody pruned the image just after it was pulled, and the registry is away."""
    with faults.service(scene.fleet.registry, "registry", "stop"):
        scene.host.shell(
            "docker rm -f $(docker ps -aq --filter label=gpufleet.pool=chat) 2>/dev/null; docker rmi -f $(docker images -q --filter label=org.opencontainers.image.version=v0.12.0)"
        )
        yield


@contextmanager
def containers_removed(scene: Scene) -> Iterator[None]:
    """Somebody removes the new container by hand."""
    scene.host.shell("docker rm -f $(docker ps -aq --filter label=gpufleet.pool=chat)")
    yield


@contextmanager
def containers_stopped(scene: Scene) -> Iterator[None]:
    """Somebody stops the new container by hand."""
    scene.host.shell("docker stop -t 5 $(docker ps -aq --filter label=gpufleet.pool=chat)")
    yield


@contextmanager
def routes_unwritable(scene: Scene) -> Iterator[None]:
    """The route table cannot be replaced: a folder that is not empty stands in its place."""
    blocked = scene.operator.state / "routes.json"
    blocked.mkdir(parents=True, exist_ok=True)
    (blocked / "in-the-way").write_text("")
    try:
        yield
    finally:
        (blocked / "in-the-way").unlink()
        blocked.rmdir()


@contextmanager
def ssh_gone(scene: Scene) -> Iterator[None]:
    """sshd is stopped and every session of it has ended."""
    with faults.service(scene.host, "ssh", "stop"):
        faults.kill_sessions(scene.host)
        yield


@contextmanager
def sessions_killed(scene: Scene) -> Iterator[None]:
    """The server's side of every connection dies once; new ones are welcome."""
    faults.kill_sessions(scene.host)
    yield


# --- what happens in the middle of a command ----------------------------------------------------------------------


def kill_sessions_midway(scene: Scene, _: Started) -> None:
    """The connection dies while docker works; docker goes on to its end."""
    faults.wait_until_held(scene.host)
    faults.kill_sessions(scene.host)
    faults.let_docker_go(scene.host)


def cut_link_midway(scene: Scene, _: Started) -> None:
    """The cable is pulled while docker works; docker goes on to its end."""
    faults.wait_until_held(scene.host)
    scene.damage.enter_context(faults.link_cut(scene.host))
    faults.let_docker_go(scene.host)


def power_off_midway(scene: Scene, _: Started) -> None:
    faults.wait_until_held(scene.host)
    scene.damage.enter_context(faults.powered_off(scene.fleet, scene.host))


def kill_docker_midway(scene: Scene, _: Started) -> None:
    faults.wait_until_held(scene.host)
    scene.damage.enter_context(faults.service(scene.host, "docker", "kill"))
    faults.let_docker_go(scene.host)


def interrupt(_: Scene, started: Started) -> None:
    """Ctrl-C."""
    started.interrupt()


# --- the table ----------------------------------------------------------------------------------------------------

IMPATIENT = {"gate": {"stall": 4}}
BRIEF = {"gate": {"stall": 8}}
NEXT = {"engine": {"image": "{v0.12.0}"}}
LARGE = {"engine": {"image": "{v0.12.0-large}"}}

BEFORE = (
    Case(fault="host powered off", phase="facts", inject=lambda s: faults.powered_off(s.fleet, s.host), exits=(7,)),
    Case(fault="link cut", phase="facts", inject=lambda s: faults.link_cut(s.host), exits=(7,)),
    Case(fault="sshd stopped", phase="facts", inject=lambda s: faults.service(s.host, "ssh", "stop"), exits=(7,), says=("refuses",)),
    Case(fault="sshd frozen", phase="facts", inject=lambda s: faults.service(s.host, "ssh", "freeze"), exits=(7,)),
    Case(fault="key refused", phase="facts", inject=other_key, exits=(7,), says=("authentication",)),
    Case(fault="host key changed", phase="facts", inject=lambda s: faults.host_key_changed(s.host), exits=(7,), says=("SHA256:",)),
    Case(fault="host key unknown", phase="facts", inject=unknown_host_key, exits=(7,), says=("hosts trust",)),
    Case(fault="docker stopped", phase="facts", inject=lambda s: faults.service(s.host, "docker", "stop"), exits=(4, 8), says=("not running",)),
    Case(fault="docker socket refused", phase="facts", inject=nothing, exits=(4, 8), user="nosudo", says=("permission denied",)),
    Case(fault="docker not in PATH", phase="facts", inject=docker_moved_away, exits=(4, 8), says=("runtime_path",)),
    Case(fault="GPU toolkit missing", phase="facts", inject=lambda s: faults.hook_gone(s.host), exits=(4, 8), says=("toolkit",)),
    Case(
        fault="driver does not answer", phase="facts", exits=(4, 8), says=("driver",),
        inject=lambda s: faults.driver_fails(s.host, 9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
    ),
    Case(fault="every GPU taken", phase="plan", inject=all_gpus_taken, exits=(4,), says=("GPU",), pool={"replicas": 9}),
    Case(fault="every port taken", phase="plan", inject=all_ports_taken, exits=(4,), says=("port",), pool={"hosts": "faulty", "replicas": 1}),
    Case(fault="home disk full", phase="lease", inject=lambda s: faults.disk_full(s.host, "/home"), exits=(4, 8), says=("full", )),
    Case(fault="lease of another", phase="lease", inject=lease_of_another, exits=(6,), says=("alice@desk",)),
)  # fmt: skip

AT_PULL = (
    Case(fault="image tag missing", phase="pull", inject=nothing, exits=(9,), names_host=False, says=("manifest",), pool={"engine": {"image": "{repository}:nosuch"}}),
    Case(fault="image digest missing", phase="pull", inject=nothing, exits=(9,), names_host=False, says=("manifest",), pool={"engine": {"image": "{repository}@sha256:" + "0" * 64}}),
    Case(fault="registry down", phase="pull", alone=True, inject=lambda s: faults.service(s.fleet.registry, "registry", "stop"), exits=(9,), names_host=False, says=("connection refused",), pool=LARGE),
    Case(fault="disk full", phase="pull", at=PULL, inject=lambda s: faults.disk_full(s.host, "/var/lib/docker"), exits=(9,), says=("no space left",), pool=LARGE),
    Case(fault="slow link", phase="pull", at=PULL, inject=lambda s: faults.slow_link(s.host, "120mbit"), exits=(0,), ends="committed", pool=LARGE),
    Case(fault="docker stopped", phase="pull", at=PULL, inject=lambda s: faults.service(s.host, "docker", "stop"), exits=(9,), says=DOWN, pool=NEXT),
    Case(fault="docker killed", phase="pull", at=PULL, inject=lambda s: faults.docker_held(s.host, "pull"), midway=kill_docker_midway, exits=(9,), says=DOWN, pool=LARGE),
    Case(fault="session killed", phase="pull", at=PULL, inject=lambda s: faults.docker_held(s.host, "pull"), midway=kill_sessions_midway, exits=(0,), ends="committed", pool=LARGE),
    Case(fault="link cut", phase="pull", at=PULL, inject=lambda s: faults.link_cut(s.host), exits=(9, 10), ends="undo", pool=NEXT),
    Case(fault="host powered off", phase="pull", at=PULL, inject=lambda s: faults.powered_off(s.fleet, s.host), exits=(9, 10), ends="undo", pool=NEXT),
    Case(fault="Ctrl-C", phase="pull", at=PULL, inject=nothing, midway=interrupt, exits=(9, 130), names_host=False),
)  # fmt: skip

AT_START = (
    Case(fault="port taken by a process", phase="start", at=START, inject=lambda s: faults.port_taken_by_process(s.host, FIRST_PORT), exits=(9,), says=("address already in use",)),
    Case(fault="port taken by a container", phase="start", at=START, inject=lambda s: faults.port_taken_by_container(s.host, FIRST_PORT, s.image()), exits=(9,), says=("port is already allocated",)),
    Case(fault="disk full", phase="start", at=START, inject=lambda s: faults.disk_full(s.host, "/var/lib/docker"), exits=(9,), says=("no space left",)),
    Case(fault="home disk full", phase="start", at=START, inject=lambda s: faults.disk_full(s.host, "/home"), exits=(9,), says=("no space left",)),
    Case(fault="GPU refused by the hook", phase="start", at=START, inject=gpu_unknown_to_hook, exits=(9,), says=("unknown device",)),
    Case(fault="CPU limit refused", phase="start", inject=nothing, exits=(9,), names_host=False, says=("CPUs",), pool={"limits": {"cpus": 512}}),
    Case(fault="image removed", phase="start", alone=True, at=START, inject=image_removed, exits=(9,), pool=NEXT),
    Case(fault="docker stopped", phase="start", at=START, inject=lambda s: faults.service(s.host, "docker", "stop"), exits=(10,), ends="undo", says=DOWN),
    Case(fault="docker killed", phase="start", at=START, inject=lambda s: faults.docker_held(s.host, "run"), midway=kill_docker_midway, exits=(10,), ends="undo", says=DOWN),
    Case(fault="session killed before its work", phase="start", at=START, inject=lambda s: faults.docker_held(s.host, "run"), midway=kill_sessions_midway, exits=(0,), ends="committed"),
    Case(fault="session killed after its work", phase="start", at=START, inject=lambda s: faults.docker_held(s.host, "run", after_it=True), midway=kill_sessions_midway, exits=(0,), ends="committed"),
    Case(fault="link cut before its work", phase="start", at=START, inject=lambda s: faults.docker_held(s.host, "run"), midway=cut_link_midway, exits=(10,), ends="undo"),
    Case(fault="link cut after its work", phase="start", at=START, inject=lambda s: faults.docker_held(s.host, "run", after_it=True), midway=cut_link_midway, exits=(10,), ends="undo"),
    Case(fault="sshd stopped", phase="start", at=START, inject=ssh_gone, exits=(9, 10), ends="undo"),
    Case(fault="host powered off", phase="start", at=START, inject=lambda s: faults.docker_held(s.host, "run"), midway=power_off_midway, exits=(10,), ends="undo"),
    Case(fault="Ctrl-C", phase="start", at=STARTED, inject=nothing, midway=interrupt, exits=(9, 130), names_host=False),
)  # fmt: skip

AT_GATE = (
    Case(fault="engine never ready", phase="gate", inject=lambda s: faults.engine_behaves(s.host, "never"), exits=(9,), says=("not listening",), pool=IMPATIENT),
    Case(fault="engine unhealthy", phase="gate", inject=lambda s: faults.engine_behaves(s.host, "unhealthy"), exits=(9,), says=("503",), pool=IMPATIENT),
    Case(fault="engine crashes", phase="gate", inject=lambda s: faults.engine_behaves(s.host, "crash"), exits=(9,), says=("No available memory for the cache blocks",)),
    Case(fault="CUDA out of memory", phase="gate", inject=lambda s: faults.engine_behaves(s.host, "cuda-oom"), exits=(9,), says=("CUDA out of memory",)),
    Case(fault="killed for memory", phase="gate", inject=lambda s: faults.engine_behaves(s.host, "oom"), exits=(9,), says=("out of memory",), pool={"limits": {"memory": "64m"}}),
    Case(fault="engine serves another model", phase="gate", inject=lambda s: faults.engine_behaves(s.host, "other-model"), exits=(9,), says=("somebody/else",)),
    Case(fault="engine streams garbage", phase="gate", inject=lambda s: faults.engine_behaves(s.host, "garbage"), exits=(9,), says=("over and over",)),
    Case(fault="container removed", phase="gate", at=GATE, inject=containers_removed, exits=(9,), says=("gone",)),
    Case(fault="container stopped", phase="gate", at=GATE, inject=containers_stopped, exits=(9,), says=("the container",)),
    Case(fault="docker killed", phase="gate", at=GATE, inject=lambda s: faults.service(s.host, "docker", "kill"), exits=(10,), ends="undo", pool=BRIEF),
    Case(fault="session killed", phase="gate", at=GATE, inject=sessions_killed, exits=(0,), ends="committed"),
    Case(fault="sshd listener killed", phase="gate", at=GATE, inject=lambda s: faults.service(s.host, "ssh", "kill"), exits=(0,), ends="committed"),
    Case(fault="link cut", phase="gate", at=GATE, inject=lambda s: faults.link_cut(s.host), exits=(10,), ends="undo", pool=BRIEF),
    Case(fault="host powered off", phase="gate", at=GATE, inject=lambda s: faults.powered_off(s.fleet, s.host), exits=(10,), ends="undo", pool=BRIEF),
    Case(fault="Ctrl-C", phase="gate", at=GATE, inject=lambda s: faults.engine_behaves(s.host, "never"), midway=interrupt, exits=(9, 130), names_host=False),
)  # fmt: skip

AT_SETTLE = (
    Case(fault="container removed", phase="settle", at=SETTLE, inject=containers_removed, exits=(9,), says=("gone",)),
    Case(fault="docker stopped", phase="settle", at=SETTLE, inject=lambda s: faults.service(s.host, "docker", "stop"), exits=(10,), ends="undo"),
    Case(fault="link cut", phase="settle", at=SETTLE, inject=lambda s: faults.link_cut(s.host), exits=(10,), ends="undo"),
    Case(fault="session killed", phase="settle", at=SETTLE, inject=sessions_killed, exits=(0,), ends="committed"),
    Case(fault="route table unwritable", phase="publish", at="publishing", inject=routes_unwritable, exits=(11,), names_host=False, ends="resume"),
)  # fmt: skip

WHOLE = {"slice": {"gpus": 4}}
IN_PLACE = (
    Case(fault="image digest missing", phase="pull", in_place=True, inject=nothing, exits=(9,), names_host=False, says=("manifest",), pool={**WHOLE, "engine": {"image": "{repository}@sha256:" + "0" * 64}}),
    Case(fault="engine crashes", phase="gate", in_place=True, inject=lambda s: faults.engine_behaves(s.host, "crash 0.12.0"), exits=(9,), says=("No available memory",), pool={**WHOLE, **NEXT}),
    Case(fault="engine never ready", phase="gate", in_place=True, inject=lambda s: faults.engine_behaves(s.host, "never 0.12.0"), exits=(9,), says=("not listening",), pool={**WHOLE, **NEXT, **IMPATIENT}),
    Case(fault="disk full", phase="start", in_place=True, at=START, inject=lambda s: faults.disk_full(s.host, "/var/lib/docker"), exits=(10,), ends="undo", says=("no space left",), pool={**WHOLE, **NEXT}),
    Case(fault="session killed", phase="stop", in_place=True, at="intent stop-{host}-*", inject=lambda s: faults.all_of(sessions_killed(s), faults.engine_behaves(s.host, "crash 0.12.0")), exits=(9,), says=("No available memory",), pool={**WHOLE, **NEXT}),
    Case(fault="docker stopped", phase="stop", in_place=True, at="intent stop-{host}-*", inject=lambda s: faults.service(s.host, "docker", "stop"), exits=(10,), ends="undo", says=DOWN, pool={**WHOLE, **NEXT}),
    Case(fault="link cut", phase="start", in_place=True, at=START, inject=lambda s: faults.link_cut(s.host), exits=(10,), ends="undo", pool={**WHOLE, **NEXT}),
    Case(fault="host powered off", phase="gate", in_place=True, at=GATE, inject=lambda s: faults.powered_off(s.fleet, s.host), exits=(10,), ends="undo", pool={**WHOLE, **NEXT}),
    Case(fault="Ctrl-C", phase="gate", in_place=True, at=GATE, inject=lambda s: faults.engine_behaves(s.host, "never 0.12.0"), midway=interrupt, exits=(9, 130), names_host=False, pool={**WHOLE, **NEXT}),
)  # fmt: skip

CASES = (*BEFORE, *AT_PULL, *AT_START, *AT_GATE, *AT_SETTLE)
