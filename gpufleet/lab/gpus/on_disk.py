"""The simulated GPUs as a file of a real host, and nvidia-smi over it as a real program.

So the same double stands behind simulated hosts and behind real ones. Needs the standard library alone: it is copied
to hosts that have nothing else.

    /etc/gpus.json          [{"uuid": ..., "board": ...}], what is built in
    STATE/gpus.json         modes, slices, mishaps; written whole, under the lock of STATE/lock
    STATE/devices           what a container may be given besides whole GPUs: one name a line
    STATE/holders/PID       who was given devices: start time of the process, then their names, a line each
    STATE/boot              changes when the host boots; slices are lost when it is not the one of the state
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpufleet.clock import SystemClock
from gpufleet.lab.gpus import mishaps
from gpufleet.lab.gpus.boards import BOARDS
from gpufleet.lab.gpus.simgpu import GpuSet, Holder, Instance, Mishap, SimGpu
from gpufleet.lab.gpus.smi_cli import smi_program

CHANGES = frozenset({"-mig", "--multi-instance-gpu", "-r", "--gpu-reset", "-cgi", "-cci", "-dgi", "-dci"})


@dataclass(slots=True)
class Standing:
    """The GPUs of a host and where they are kept.

    Attributes:
        pace: how long a second of the double lasts, in seconds: 0.1 makes a driver that takes 20 s take 2.
    """

    folder: Path
    devices: GpuSet
    pace: float = 1.0


def read(folder: Path, built_in: Path) -> Standing:
    """The state as it is; after a boot without what a boot takes."""
    try:
        document = json.loads((folder / "gpus.json").read_text())
    except FileNotFoundError:
        document = {"gpus": [_new(at, one) for at, one in enumerate(json.loads(built_in.read_text()))]}
    devices = GpuSet(
        gpus=[_gpu(one) for one in document["gpus"]],
        driver=document.get("driver", "580.95.05"),
        cuda=document.get("cuda", "13.0"),
        trouble=document.get("trouble", ""),
        strict=document.get("strict", True),
        clients=document.get("clients", {}),
        passthrough=document.get("passthrough", False),
        mishaps=[Mishap(**one) for one in document.get("mishaps", ())],
        holders=lambda: tuple(_holders(folder / "holders")),
    )
    if document.get("boot", "") != _boot(folder):
        devices.reset()
    return Standing(folder, devices, document.get("pace", 1.0))


def write(standing: Standing) -> None:
    """Keep the state; readers see the old one or the new one."""
    devices = standing.devices
    document = {
        "boot": _boot(standing.folder),
        "driver": devices.driver,
        "cuda": devices.cuda,
        "trouble": devices.trouble,
        "strict": devices.strict,
        "clients": devices.clients,
        "passthrough": devices.passthrough,
        "pace": standing.pace,
        "mishaps": [{"verb": one.verb, "effect": one.effect, "skip": one.skip} for one in devices.mishaps],
        "gpus": [_kept(one) for one in devices.gpus],
    }
    whole = {name for gpu in devices.gpus for name in (gpu.uuid, str(gpu.index))}
    _replace(standing.folder / "gpus.json", json.dumps(document))
    _replace(
        standing.folder / "devices", "".join(f"{name}\n" for name in devices.names() if name not in whole)
    )


@contextmanager
def changing(folder: Path, built_in: Path) -> Iterator[Standing]:
    """The state under its lock; kept at the end, also after a failure half way."""
    with (folder / "lock").open("a") as file:
        # Whoever comes first makes it, and that may be root: any account that looks takes this lock, too.
        with suppress(PermissionError):
            os.fchmod(file.fileno(), 0o666)
        fcntl.flock(file, fcntl.LOCK_EX)
        standing = read(folder, built_in)
        try:
            yield standing
        finally:
            write(standing)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.chmod(0o666)
    temporary.replace(path)


def _boot(folder: Path) -> str:
    try:
        return (folder / "boot").read_text().strip()
    except FileNotFoundError:
        return ""


def _new(index: int, built_in: Mapping[str, str]) -> dict[str, Any]:
    bus = f"00000000:{index + 1:02X}:00.0"
    return {"index": index, "uuid": built_in["uuid"], "bus_id": bus, "board": built_in["board"]}


def _gpu(kept: Mapping[str, Any]) -> SimGpu:
    board = BOARDS[kept["board"]]
    gpu = SimGpu(index=kept["index"], uuid=kept["uuid"], bus_id=kept["bus_id"], board=board)
    gpu.mig, gpu.pending, gpu.fault = (
        kept.get("mig", False),
        kept.get("pending", False),
        kept.get("fault", ""),
    )
    for one in kept.get("instances", ()):
        profile = board.profile(one["profile"])
        if profile is None:
            raise ValueError(f"{board.name} has no profile {one['profile']}")
        instance = Instance(profile=profile, gi=one["gi"], start=one["start"], uuid=one["uuid"], ci=one["ci"])
        gpu.instances.append(instance)
    return gpu


def _kept(gpu: SimGpu) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "bus_id": gpu.bus_id,
        "board": gpu.board.key,
        "mig": gpu.mig,
        "pending": gpu.pending,
        "fault": gpu.fault,
        "instances": [
            {"profile": one.profile.name, "gi": one.gi, "start": one.start, "uuid": one.uuid, "ci": one.ci}
            for one in gpu.instances
        ],
    }


def _holders(folder: Path) -> Iterator[Holder]:
    """Processes that were given devices and still run; one that got the number later started later."""
    ticks = os.sysconf("SC_CLK_TCK")
    for path in sorted(folder.glob("*")):
        try:
            started, *names = path.read_text().split()
            now = (Path("/proc") / path.name / "stat").read_text().rpartition(")")[2].split()[19]
            uptime = float(Path("/proc/uptime").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            continue
        if started == now:
            age = max(0.0, uptime - int(started) / ticks)
            yield Holder(pid=int(path.name), name="VLLM::EngineCore", devices=frozenset(names), age=age)


@dataclass(slots=True)
class _Process:
    """The process that runs, as nvidia-smi sees it."""

    arguments: list[str]
    pace: float = 1.0
    user: str = field(default_factory=lambda: "root" if os.geteuid() == 0 else "somebody")
    out: Any = field(default_factory=lambda: sys.stdout)
    clock: SystemClock = field(default_factory=SystemClock)

    @property
    def host(self) -> _Process:
        return self

    def say(self, *lines: str) -> None:
        for line in lines:
            self.out.write(f"{line}\n")
        self.out.flush()

    def complain(self, text: str, status: int = 1) -> int:
        sys.stderr.write(f"{text}\n")
        return status

    def pause(self, seconds: float) -> None:
        self.clock.sleep(min(seconds, 3600.0) * self.pace)


def nvidia_smi(words: Sequence[str], folder: Path, built_in: Path) -> int:
    """Run it; only what may change the state takes the lock, so a look never waits for a slow change."""
    call = _Process(list(words))
    standing = read(folder, built_in)
    call.pace = standing.pace
    if not CHANGES.intersection(words) and not standing.devices.mishaps:
        return smi_program(standing.devices)(call)
    with changing(folder, built_in) as standing:
        return smi_program(standing.devices)(call)


USAGE = """\
usage: lab-gpus mishap VERB EFFECT[/SKIP] | client GPU|SLICE [NAME] | fault INDEX [lost|requires reset]
       lab-gpus trouble [no-driver|mismatch|no-devices|hang] | passthrough yes|no | pace NUMBER | board INDEX BOARD
       lab-gpus driver VERSION | calm"""


def lab_gpus(words: Sequence[str], folder: Path, built_in: Path) -> int:
    """Arrange what goes wrong; `calm` takes everything back but modes and slices."""
    try:
        with changing(folder, built_in) as standing:
            _arrange(standing, list(words))
    except (ValueError, IndexError, KeyError) as error:
        return _Process([]).complain(f"lab-gpus: {error}\n{USAGE}", 2)
    return 0


def _arrange(standing: Standing, words: list[str]) -> None:
    devices = standing.devices
    match words:
        case ["mishap", *rest]:
            devices.mishaps.append(mishaps.parse(" ".join(rest)))
        case ["client", uuid, *name]:
            devices.clients[uuid] = " ".join(name)
        case ["fault", index, *fault]:
            devices.gpus[int(index)].fault = " ".join(fault)
        case ["trouble", *trouble]:
            devices.trouble = " ".join(trouble)
        case ["passthrough", yes]:
            devices.passthrough = yes == "yes"
        case ["pace", number]:
            standing.pace = float(number)
        case ["driver", version]:
            devices.driver = version
        case ["board", index, board]:
            devices.gpus[int(index)].board = BOARDS[board]
            devices.gpus[int(index)].set_mig(enabled=False)
        case ["calm"]:
            devices.mishaps, devices.clients, devices.trouble, devices.passthrough = [], {}, "", False
            standing.pace = 1.0
            for gpu in devices.gpus:
                gpu.fault = ""
        case _:
            raise ValueError(f"`{' '.join(words)}` is not understood")
