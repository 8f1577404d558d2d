"""Who stands in the way of a change of one GPU: what is stopped for it, what has to be asked, what is left alone.

Three reaches, with what each needs of the driver (mig-parted's hooks, NVIDIA/gpu-operator issue 118, NVIDIA/mig-parted
issue 181, NVIDIA/DCGM issues 95 and 276):

    reach      | ends                     | is refused while there are
    -----------|--------------------------|--------------------------------------------------------------
    RESET      | everything on the GPU    | any open `/dev/nvidiaN` of it, `nvidia_drm` with modeset among them
    MODE       | everything on the GPU    | processes on it, and monitors with handles of it
    INSTANCES  | some GPU instances       | processes on them, and monitors with handles of them

Monitors are stopped where they run and started again; only what runs is stopped. Fabric Manager is never stopped: a
reset over NVSwitch needs it. Nobody's process is ended: it is told, with the way to end it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from gpufleet.hosts.model import (
    ContainerFact,
    GpuFact,
    HolderFacts,
    Known,
    ModuleFact,
    OpenDevices,
    ServiceFact,
    Unknown,
)
from gpufleet.hosts.probes.holders import bus_id

EXPORTERS = ("dcgm-exporter", "nvidia-dcgm-exporter", "nvidia_gpu_exporter", "nvidia-gpu-exporter")
MONITORS = (*EXPORTERS, "nvidia-dcgm", "dcgm")
"""Hold handles of GPUs and of their instances; in the order in which they are stopped: what asks another one first."""
SYSTEM_MONITORS = ("nvsm-notifier", "nvsm-api-gateway", "nvsm-mqtt", "nvsm", "nvsm-core")
"""NVIDIA System Management of DGX machines: stopped when a whole GPU is touched."""
PERSISTENCE = "nvidia-persistenced"
"""Keeps every GPU open; only a reset minds."""
DISPLAYS = ("gdm", "gdm3", "lightdm", "sddm", "display-manager")
"""Stopping one ends somebody's desktop, so that it wants to be asked for."""
KEPT = ("nvidia-fabricmanager", "nvidia-imex")

_DRAWS = frozenset(
    {"Xorg", "Xwayland", "gnome-shell", "kwin_wayland", "kwin_x11", "plasmashell", "gnome-session-b"}
)
"""Names, as the kernel cuts them, of what a display manager starts in sessions of its own."""

_EXPORTER = re.compile(r"dcgm[-_]exporter|gpu[-_]exporter", re.IGNORECASE)
_NODE = re.compile(r"/dev/nvidia(\d{1,4})", re.ASCII)
_CAPABILITY_NODE = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d{1,9})", re.ASCII)
_INSTANCE = re.compile(r"gpu(\d{1,4})/gi(\d{1,4})/", re.ASCII)


class Reach(Enum):
    """How much of a GPU a change takes."""

    RESET = "reset"
    MODE = "mode"
    INSTANCES = "instances"


class Consent(Enum):
    """What is done only when the operator asked for it."""

    DISPLAY = "display"
    """Stop the display manager, and with it desktop sessions."""
    MODULE = "module"
    """Unload `nvidia_drm` around the reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """What a change takes.

    Attributes:
        gis: GPU instances that go, for INSTANCES.
        containers: those that the change stops itself.
    """

    gpu: GpuFact
    reach: Reach
    gis: frozenset[int] = frozenset()
    containers: tuple[ContainerFact, ...] = ()


@dataclass(frozen=True, slots=True)
class Blocker:
    """Something that is not ours to end: `kind` is process, container, service or module."""

    kind: str
    text: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """What a change does about those who hold the GPU.

    Attributes:
        stop: services, in the order in which they are stopped; they are started in the opposite one.
        unload: kernel modules to take out around a reset.
        pause: monitors in containers, to be stopped and started again.
        blockers: the change is refused while there is one.
        unknown: what could not be looked at. A RESET or MODE change rests on it and is refused; changes of instances
            are looked at one by one, so that they may go on.
        notes: what is left alone, and why.
    """

    stop: tuple[str, ...] = ()
    unload: tuple[str, ...] = ()
    pause: tuple[ContainerFact, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def decide(
    touched: Touched,
    seen: HolderFacts,
    containers: Sequence[ContainerFact],
    consent: frozenset[Consent] = frozenset(),
) -> Holders:
    """What to do about holders of one GPU; `containers` are all of the host."""
    stop = _services(touched, seen, consent)
    pause = tuple(_exporters(touched, seen, containers))
    running = (
        {one.name: one for one in seen.services.value if one.runs} if isinstance(seen.services, Known) else {}
    )
    blockers = [
        _display(name)
        for name in DISPLAYS
        if name in running and name not in stop and touched.reach is Reach.RESET
    ]
    unload, module = _module(touched, seen, stop, consent)
    blockers += module
    display = touched.reach is Reach.RESET and bool(running.keys() & set(DISPLAYS))
    explained = _DRAWS if display else frozenset()
    ours = [*touched.containers, *pause]
    blockers += [
        blocker
        for pid, blocker in _processes(touched, seen, ours, containers, {*stop, *DISPLAYS})
        if seen.groups[pid].name not in explained
    ]
    return Holders(
        stop=stop,
        unload=unload,
        pause=pause,
        blockers=tuple(blockers),
        unknown=tuple(_unknown(touched, seen)),
        notes=tuple(_notes(touched, running)),
    )


def _services(touched: Touched, seen: HolderFacts, consent: frozenset[Consent]) -> tuple[str, ...]:
    """Services that run and have to be stopped."""
    if isinstance(seen.services, Unknown):
        return ()
    wanted = list(MONITORS)
    if touched.reach is not Reach.INSTANCES:
        wanted += SYSTEM_MONITORS
    if touched.reach is Reach.RESET:
        wanted += [PERSISTENCE, *(DISPLAYS if Consent.DISPLAY in consent else ())]
    # A monitor that is left alone as a rule is stopped when it has what goes open.
    holding = {one.service for one in _holding(touched, seen)}
    wanted += [name for name in SYSTEM_MONITORS if name in holding and name not in wanted]
    running = {one.name for one in seen.services.value if one.runs}
    return tuple(name for name in wanted if name in running)


def is_monitor(container: ContainerFact) -> bool:
    """Whether a container watches GPUs and serves nobody: it stops for a change and starts again."""
    return bool(_EXPORTER.search(f"{container.image} {container.name}"))


def _exporters(
    touched: Touched, seen: HolderFacts, containers: Sequence[ContainerFact]
) -> Iterator[ContainerFact]:
    """Monitors that run in containers and see this GPU."""
    ours = {one.id for one in touched.containers}
    names = {"all", touched.gpu.uuid, str(touched.gpu.index)}
    holding = _holding(touched, seen)
    for one in containers:
        if one.state not in {"running", "paused"} or one.id in ours:
            continue
        if not is_monitor(one):
            continue
        if names & set(one.devices) or any(user.within(one.id) for user in holding):
            yield one


def _module(
    touched: Touched, seen: HolderFacts, stop: tuple[str, ...], consent: frozenset[Consent]
) -> tuple[tuple[str, ...], list[Blocker]]:
    """`nvidia_drm`: with modeset it holds every GPU although no process does."""
    if touched.reach is not Reach.RESET or isinstance(seen.modules, Unknown):
        return (), []
    module = next((one for one in seen.modules.value if one.name == "nvidia_drm"), None)
    if module is None or (module.uses == 0 and seen.modeset == Known(False)):
        return (), []
    if module.uses and not set(stop) & set(DISPLAYS):
        return (), [_in_use(module)]
    if isinstance(seen.modeset, Unknown) and not module.uses:
        return (), []  # told among what is not known
    if Consent.MODULE in consent:
        return (module.name,), []
    return (), [
        Blocker(
            "module",
            "the kernel module nvidia_drm holds every GPU of this host, although no process shows it",
            "allow it to be unloaded around the reset; by hand: sudo modprobe -r nvidia_drm",
        )
    ]


def _in_use(module: ModuleFact) -> Blocker:
    by = f" by {', '.join(module.users)}" if module.users else ""
    return Blocker(
        "module",
        f"the kernel module nvidia_drm is in use {module.uses} times{by}: a display, or another drm client",
        "stop the display manager, for example: sudo systemctl stop gdm",
    )


def _display(name: str) -> Blocker:
    return Blocker(
        "service",
        f"the display manager {name} runs, and a GPU that it may draw on cannot be reset",
        f"allow it to be stopped, which ends desktop sessions; by hand: sudo systemctl stop {name}",
    )


def _holding(touched: Touched, seen: HolderFacts) -> tuple[OpenDevices, ...]:
    """Processes with device files open of what goes."""
    if isinstance(seen.users, Unknown):
        return ()
    here = bus_id(touched.gpu.bus_id)
    minors = {number for number, place in seen.minors.items() if place == here}
    return tuple(one for one in seen.users.value if _holds(one, minors, touched, seen))


def _holds(user: OpenDevices, minors: set[int], touched: Touched, seen: HolderFacts) -> bool:
    for node in user.nodes:
        if (
            touched.reach is not Reach.INSTANCES
            and (found := _NODE.fullmatch(node))
            and int(found[1]) in minors
        ):
            return True
        capability = _CAPABILITY_NODE.fullmatch(node)
        place = _INSTANCE.match(seen.capabilities.get(int(capability[1]), "")) if capability else None
        if place is None or int(place[1]) not in minors:
            continue
        if touched.reach is not Reach.INSTANCES or int(place[2]) in touched.gis:
            return True
    return False


def _processes(
    touched: Touched,
    seen: HolderFacts,
    stopped: Sequence[ContainerFact],
    containers: Sequence[ContainerFact],
    services: set[str],
) -> Iterator[tuple[int, Blocker]]:
    """Processes that nobody stops: neither a container of the change, nor a service that is stopped or may stay."""
    stays = {*services, *KEPT, PERSISTENCE}
    ended = [one.id for one in stopped]
    for pid, what in sorted(_at_work(touched, seen).items()):
        known = seen.groups.get(pid)
        if known is None or not known.group:
            continue  # told among what is not known
        if known.service in stays or any(known.within(one) for one in ended):
            continue
        name = f" ({known.name})" if known.name else ""
        owner = next((one for one in containers if known.within(one.id)), None)
        if owner is not None:
            text = f"container {owner.name} {what} with pid {pid}{name}"
            yield (
                pid,
                Blocker("container", text, f"stop it, or leave this GPU out: {owner.name} would lose it"),
            )
        else:
            end = f"sudo systemctl stop {known.service}" if known.service else f"sudo kill {pid}"
            yield pid, Blocker("process", f"pid {pid}{name} {what}", f"end it, or wait for it: {end}")


def _at_work(touched: Touched, seen: HolderFacts) -> dict[int, str]:
    """Pids on what goes, and what each does there."""
    found = {one.pid: f"holds {', '.join(sorted(one.nodes))} open" for one in _holding(touched, seen)}
    if isinstance(seen.listed, Known):
        for one in seen.listed.value.get(touched.gpu.uuid, ()):
            if touched.reach is not Reach.INSTANCES:
                found[one.pid] = "computes on this GPU"
            elif one.gi is not None and one.gi in touched.gis:
                found[one.pid] = f"computes on GPU instance {one.gi}"
    return found


def _unknown(touched: Touched, seen: HolderFacts) -> Iterator[str]:
    for fact in (seen.services, seen.users, seen.listed):
        if isinstance(fact, Unknown):
            yield fact.reason
    for pid, what in sorted(_at_work(touched, seen).items()):
        if pid not in seen.groups or not seen.groups[pid].group:
            yield f"pid {pid} {what}, and whose it is cannot be seen"
    if touched.reach is not Reach.RESET:
        return
    if isinstance(seen.modules, Unknown):
        yield seen.modules.reason
    elif isinstance(seen.modeset, Unknown) and any(one.name == "nvidia_drm" for one in seen.modules.value):
        yield f"nvidia_drm is loaded: {seen.modeset.reason}"
    if isinstance(seen.users, Known) and bus_id(touched.gpu.bus_id) not in seen.minors.values():
        yield "which /dev/nvidiaN is this GPU, the driver does not tell"


def _notes(touched: Touched, running: dict[str, ServiceFact]) -> Iterator[str]:
    for name in KEPT:
        if name in running:
            yield f"{name} is left running: GPUs behind NVSwitch need it"
    if PERSISTENCE in running and touched.reach is not Reach.RESET:
        yield f"{PERSISTENCE} is left running: only a reset minds it"
    if "nvidia-mig-manager" in running:
        yield "nvidia-mig-manager cuts GPUs at boot as its own configuration says, whatever is changed now"
