"""The container runtime: where it is, whether it answers us, whether it can hand out GPUs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpufleet.hosts.model import Fact, Known, RuntimeFact, Symptom, Unknown
from gpufleet.hosts.probes.script import PLACES, Section
from gpufleet.hosts.probes.system import pairs
from gpufleet.remote.sudo import SudoFailure, classify, meaning

_REFUSED = re.compile(r"permission denied", re.IGNORECASE)
_DOWN = re.compile(
    r"cannot connect to the|is the docker daemon running|connection refused|connect: no such file",
    re.IGNORECASE,
)
_VERSION = re.compile(r"^\s*v?(\d+\.\d+[\w.+~-]*)\s*$", re.ASCII)
_TOOLKIT = re.compile(r"\bversion\s+v?(\d[\w.+~-]*)", re.ASCII)
_CDI_NAME = re.compile(r"^[a-z0-9.-]+/[\w.-]+=\S+$", re.ASCII)
_CDI_SINCE = 25
_NUMBERS = re.compile(r"(\d+)\.(\d+)", re.ASCII)
_LEAST = {"podman": (4, 1), "nerdctl": (2, 1)}
"""podman 4.1 is the first that reads CDI specifications; nerdctl 2.1 the first that takes CDI devices, 2.0.5 that
tells the restart policy in `inspect`, 1.2 that changes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the runtime's sections say together."""

    runtime: Fact[RuntimeFact]
    toolkit: Fact[str]
    cdi_devices: Fact[tuple[str, ...]]
    symptoms: tuple[Symptom, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    """What speaks for GPUs in containers."""

    ready: Fact[bool]
    cdi: Fact[bool]
    by_flag: bool = True
    symptoms: tuple[Symptom, ...] = ()


def parse(sections: Mapping[str, Section], *, user: str, root_shell: bool) -> Answer:
    """The sections `runtime`, `version`, `version-sudo`, `info`, `toolkit`, `cdi` and `hook`."""
    toolkit = _toolkit(sections.get("toolkit"))
    devices = _cdi_devices(sections.get("cdi"), toolkit)
    found, symptoms = _runtime(sections, toolkit, devices, user=user, root_shell=root_shell)
    return Answer(runtime=found, toolkit=toolkit, cdi_devices=devices, symptoms=symptoms)


def _runtime(
    sections: Mapping[str, Section],
    toolkit: Fact[str],
    devices: Fact[tuple[str, ...]],
    *,
    user: str,
    root_shell: bool,
) -> tuple[Fact[RuntimeFact], tuple[Symptom, ...]]:
    search = sections.get("runtime")
    if search is None:
        return Unknown("the search for a container runtime gave no answer"), ()
    where = pairs(search.text)
    kind, path = where.get("kind", ""), where.get("path", "")
    if not path:
        tried = "PATH " + " ".join(PLACES)
        reason = "no container runtime was found"
        return Unknown(f"{reason}; looked in {tried}"), (Symptom("runtime-missing", tried),)
    answered = sections.get("version-sudo")
    needs_sudo = answered is not None and answered.ok
    if not needs_sudo:  # with `become: always` nothing but sudo was tried
        answered = sections.get("version", answered)
    if answered is None or not answered.ok:
        return _no_answer(kind, path, answered, user)
    info = _info(sections.get("info"))
    if isinstance(info, Unknown):
        return Unknown(f"`{kind} info`: {info.reason}"), (Symptom("runtime-silent", info.reason),)
    if "host" in info.value and "store" in info.value:
        kind = "podman"  # podman-docker puts podman behind the name docker
    gpu = _gpu(kind, info.value, toolkit, devices, pairs(_text_of(sections.get("hook"))))
    symptoms = list(gpu.symptoms)
    if needs_sudo:
        symptoms.append(Symptom("runtime-by-sudo", user))
    if where.get("real", "").endswith("/snap") or path.startswith("/snap/"):
        symptoms.append(Symptom("runtime-snap", path))
    rootless = _rootless(kind, info.value)
    told = pairs(_text_of(sections.get("hook"))).get("no_cgroups") == "true"
    if rootless == Known(True) and kind == "docker" and gpu.cdi != Known(True) and not told:
        symptoms.append(Symptom("rootless-hook", path))
    if kind == "docker" and info.value.get("CgroupDriver") == "systemd" and gpu.cdi != Known(True):
        symptoms.append(Symptom("cgroup-reload"))
    version = _version(info.value, answered.text)
    symptoms += [*_too_old(kind, version), *_restarts(kind, sections.get("restart"))]
    return (
        Known(
            RuntimeFact(
                kind=kind,
                path=path,
                version=version,
                needs_sudo=needs_sudo or root_shell,
                rootless=rootless,
                gpu_ready=gpu.ready,
                cdi=gpu.cdi,
                root=_root(info.value),
                by_flag=gpu.by_flag,
                image_ids=_image_ids(kind, info.value),
            )
        ),
        tuple(symptoms),
    )


def _too_old(kind: str, version: str) -> tuple[Symptom, ...]:
    """Versions whose commands differ from those that we send."""
    least = _LEAST.get(kind)
    found = _NUMBERS.match(version)
    if least is None or found is None or (int(found[1]), int(found[2])) >= least:
        return ()
    return (
        Symptom("runtime-too-old", f"{kind} {version}, and {kind} {least[0]}.{least[1]} is the first that"),
    )


def _restarts(kind: str, section: Section | None) -> tuple[Symptom, ...]:
    """Podman has no daemon: after a boot a service of systemd starts what has the restart policy `always`."""
    if kind != "podman" or section is None or (section.ok and section.text.startswith("enabled")):
        return ()
    return (Symptom("podman-restart-off", section.text.strip() or section.reason()),)


def _no_answer(
    kind: str, path: str, answered: Section | None, user: str
) -> tuple[Fact[RuntimeFact], tuple[Symptom, ...]]:
    if answered is None:
        return Unknown(f"{path} gave no answer"), (Symptom("runtime-silent", path),)
    words = f"{answered.text}\n{answered.errors}"
    reason = answered.reason()
    failure = classify(words)
    if answered.name == "version-sudo" and failure is not SudoFailure.OTHER:
        said = meaning(failure)
        return Unknown(said), (Symptom("sudo-refused", said),)
    if _REFUSED.search(words):
        who = user or "this user"
        return Unknown(f"{kind} refuses {who}: permission denied on its socket"), (
            Symptom("runtime-refused", who),
        )
    if answered.status in {124, 137}:
        return Unknown(f"{kind} hangs: {reason}"), (Symptom("runtime-silent", reason),)
    if _DOWN.search(words):
        return Unknown(f"{kind} is not running: {reason}"), (Symptom("runtime-down", kind),)
    return Unknown(f"`{path} version`: {reason}"), (Symptom("runtime-broken", reason),)


def _gpu(
    kind: str,
    info: Mapping[str, object],
    toolkit: Fact[str],
    devices: Fact[tuple[str, ...]],
    hook: Mapping[str, str],
) -> _Gpu:
    """Docker finds the hook once, when it starts; an nvidia runtime or CDI devices need no such luck."""
    cdi = _cdi(kind, info, devices)
    if cdi == Known(True):
        by_flag = "nvidia" in _names(info.get("Runtimes")) or _hook_ready(hook) == Known(True)
        return _Gpu(ready=Known(True), cdi=cdi, by_flag=by_flag)
    if kind == "podman":
        return _Gpu(ready=cdi, cdi=cdi, symptoms=(Symptom("cdi-missing"),) if cdi == Known(False) else ())
    if "nvidia" in _names(info.get("Runtimes")):
        return _Gpu(ready=Known(True), cdi=cdi)
    if hook.get("path"):
        return _Gpu(ready=_hook_ready(hook), cdi=cdi, symptoms=_hook_symptoms(hook))
    if isinstance(toolkit, Unknown):
        return _Gpu(ready=Unknown(f"nvidia-ctk: {toolkit.reason}"), cdi=cdi)
    if toolkit.value:
        return _Gpu(ready=Known(False), cdi=cdi, symptoms=(Symptom("runtime-not-configured", toolkit.value),))
    return _Gpu(ready=Known(False), cdi=cdi, symptoms=(Symptom("toolkit-missing"),))


def _hook_ready(hook: Mapping[str, str]) -> Fact[bool]:
    installed, started = hook.get("installed", ""), hook.get("engine_started", "")
    if not (installed.isdigit() and started.isdigit()):
        return Unknown("the toolkit's hook is installed; whether docker was started after it, is not known")
    return Known(int(installed) <= int(started))


def _hook_symptoms(hook: Mapping[str, str]) -> tuple[Symptom, ...]:
    return (Symptom("runtime-not-restarted", hook["path"]),) if _hook_ready(hook) == Known(False) else ()


def _cdi(kind: str, info: Mapping[str, object], devices: Fact[tuple[str, ...]]) -> Fact[bool]:
    """Whether `--device nvidia.com/gpu=...` works: the runtime reads specifications, and there are devices in them."""
    if kind == "docker":
        major = str(info.get("ServerVersion", "")).partition(".")[0]
        directories = info.get("CDISpecDirs")
        if not major.isdigit():
            return Unknown("the version of docker is not known")
        if int(major) < _CDI_SINCE or not directories:
            return Known(False)
    if isinstance(devices, Unknown):
        return devices
    return Known(any(name.startswith("nvidia.com/") for name in devices.value))


def _cdi_devices(section: Section | None, toolkit: Fact[str]) -> Fact[tuple[str, ...]]:
    if section is None:
        return Known(()) if toolkit == Known("") else Unknown("`nvidia-ctk cdi list` gave no answer")
    names = tuple(line.strip() for line in section.text.splitlines() if _CDI_NAME.match(line.strip()))
    if section.ok:
        return Known(names)
    return Unknown(f"`nvidia-ctk cdi list`: {section.reason()}")


def _toolkit(section: Section | None) -> Fact[str]:
    if section is None:
        return Unknown("the toolkit was not asked for")
    if section.status is None:
        return Known("")
    found = _TOOLKIT.search(section.text)
    return Known(found[1]) if section.ok and found else Unknown(section.reason())


def _info(section: Section | None) -> Fact[Mapping[str, object]]:
    if section is None:
        return Unknown("it was not asked")
    if not section.ok:
        return Unknown(section.reason())
    try:
        value = json.loads(section.text)
    except (ValueError, RecursionError):
        return Unknown("its answer is cut off or is no JSON")
    if not isinstance(value, dict):
        return Unknown("its answer is no description of a runtime")
    errors = value.get("ServerErrors")
    if errors and isinstance(errors, list):
        return Unknown(str(errors[0])[:200])
    return Known(value)


def _rootless(kind: str, info: Mapping[str, object]) -> Fact[bool]:
    if kind == "podman":
        host = info.get("host")
        security = host.get("security") if isinstance(host, dict) else None
        value = security.get("rootless") if isinstance(security, dict) else None
        return Known(value) if isinstance(value, bool) else Unknown("`podman info` does not say")
    options = info.get("SecurityOptions")
    if options is None and "SecurityOptions" not in info:
        return Unknown(f"`{kind} info` does not say")
    return (
        Known(any("rootless" in str(word) for word in options)) if isinstance(options, list) else Known(False)
    )


def _root(info: Mapping[str, object]) -> Fact[str]:
    store = info.get("store")
    root = info.get("DockerRootDir") or (store.get("graphRoot") if isinstance(store, dict) else None)
    return (
        Known(root)
        if isinstance(root, str) and root
        else Unknown("the runtime does not say where its data is")
    )


def _image_ids(kind: str, info: Mapping[str, object]) -> Fact[str]:
    """Docker with containerd's image store has a driver of the type `io.containerd.snapshotter.v1`
    (docs.docker.com, "containerd image store with Docker Engine"); podman's ids are those of Docker's older store.
    """
    if kind == "podman":
        return Known("config")
    status = info.get("DriverStatus")
    if kind != "docker" or not isinstance(status, list):
        return Unknown(f"`{kind} info` does not say")
    types = [
        pair[1] for pair in status if isinstance(pair, list) and len(pair) == 2 and pair[0] == "driver-type"
    ]
    return Known("manifest" if any(str(one).startswith("io.containerd.") for one in types) else "config")


def _version(info: Mapping[str, object], text: str) -> str:
    stated = info.get("ServerVersion")
    if isinstance(stated, str) and stated:
        return stated
    own = info.get("version")
    if isinstance(own, dict) and isinstance(own.get("Version"), str):
        return str(own["Version"])
    lines = [found[1] for line in text.splitlines() if (found := _VERSION.match(line))]
    return lines[-1] if lines else ""


def _names(value: object) -> frozenset[str]:
    return frozenset(str(key) for key in value) if isinstance(value, (dict, list)) else frozenset()


def _text_of(section: Section | None) -> str:
    return section.text if section else ""
