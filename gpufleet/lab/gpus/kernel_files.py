"""What the driver shows outside of nvidia-smi: modules, device files, capabilities, and services that hold GPUs.

Numbers of capabilities as `/proc/driver/nvidia-caps/mig-minors` lists them for every GPU, GPU instance and compute
instance that could be, whether it is there or not: `config 1`, `monitor 2`, then 135 for each of 32 GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

from gpufleet.lab.gpus.simgpu import GpuSet, SimGpu
from gpufleet.lab.shell.call import Call, Program
from gpufleet.lab.simfs import Directory
from gpufleet.lab.simhost import Service, SimHost

GPUS, GIS, CIS = 32, 15, 8
CAPABILITIES = "/proc/driver/nvidia/capabilities"


@dataclass(slots=True)
class Modules:
    """Loaded kernel modules: how often each is in use, and by whom. `modeset` is how `nvidia_drm` was loaded."""

    loaded: dict[str, tuple[int, str]] = field(
        default_factory=lambda: {"nvidia": (40, "nvidia_uvm"), "nvidia_uvm": (4, "-")}
    )
    modeset: str = ""

    def add_drm(self, *, uses: int = 0, modeset: str = "Y") -> None:
        """Load `nvidia_drm` and what it rests on."""
        self.loaded |= {"nvidia_modeset": (1, "nvidia_drm"), "nvidia_drm": (uses, "-")}
        self.modeset = modeset


def capability(gpu: int, gi: int, ci: int | None = None) -> int:
    """The minor number of an instance's capability."""
    return 3 + (gpu * GIS + gi) * (CIS + 1) + (0 if ci is None else ci + 1)


def _minors() -> Iterator[str]:
    yield "config 1"
    yield "monitor 2"
    for gpu in range(GPUS):
        for gi in range(GIS):
            yield f"gpu{gpu}/gi{gi}/access {capability(gpu, gi)}"
            for ci in range(CIS):
                yield f"gpu{gpu}/gi{gi}/ci{ci}/access {capability(gpu, gi, ci)}"


@cache
def _minors_text() -> str:
    return "".join(f"{line}\n" for line in _minors())


def furnish(host: SimHost, devices: GpuSet) -> Modules:
    """The driver's files on a host with GPUs."""
    modules = Modules()
    host.parts["modules"] = modules
    host.file_from(
        "/proc/modules",
        lambda: "".join(
            f"{name} 99328 {uses} {users} Live 0x0\n" for name, (uses, users) in modules.loaded.items()
        ),
    )
    host.file_from("/sys/module/nvidia_drm/parameters/modeset", lambda: f"{modules.modeset}\n", mode=0o400)
    host.file_from("/proc/driver/nvidia-caps/mig-minors", _minors_text)
    for gpu in devices.gpus:
        bus = gpu.bus_id.lower()[4:]
        text = f"Model: \t\t {gpu.board.name}\nBus Location: \t {bus}\nDevice Minor: \t {gpu.index}\n"
        host.fs.write(f"/proc/driver/nvidia/gpus/{bus}/information", text.encode(), mode=0o444)
        host.fs.write(f"/dev/nvidia{gpu.index}", b"", mode=0o666)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2"):
        host.fs.write(f"/dev/{name}", b"", mode=0o666)
    devices.kept_open = lambda gpu: _kept_open(host, gpu)
    show_capabilities(host, devices)
    make_nodes(host, devices)
    return modules


def _kept_open(host: SimHost, gpu: SimGpu) -> bool:
    """Whether somebody keeps the GPU open without being a process on it: a reset minds."""
    drm = host.parts["modules"].loaded.get("nvidia_drm")
    if drm is not None and (drm[0] or host.parts["modules"].modeset == "Y"):
        return True
    wanted = f"/dev/nvidia{gpu.index}"
    return any(wanted in paths for paths in host.parts.get("held", {}).values())


def nodes_of(devices: GpuSet, names: Iterable[str]) -> list[str]:
    """Device files that a process has open which was given these devices."""
    given = set(names)
    found: list[str] = []
    for gpu in devices.gpus:
        whole = bool({"all", gpu.uuid, str(gpu.index)} & given)
        slices = [one for at, one in gpu.devices() if {one.uuid, f"{gpu.index}:{at}"} & given]
        if whole or slices:
            found.append(f"/dev/nvidia{gpu.index}")
        for one in gpu.instances if whole else slices:
            numbers = [capability(gpu.index, one.gi)]
            numbers += [] if one.ci is None else [capability(gpu.index, one.gi, one.ci)]
            found += [f"/dev/nvidia-caps/nvidia-cap{number}" for number in numbers]
    return ["/dev/nvidiactl", "/dev/nvidia-uvm", *found] if found else []


def add_service(
    host: SimHost, devices: GpuSet, name: str, *, handles: bool = True, active: bool = True
) -> None:
    """A service that has every GPU open while it runs; with `handles` no instance can be ended meanwhile, either."""
    state = {"pid": 0}
    held: dict[str, list[str]] = host.parts.setdefault("held", {})

    def act(on: bool, restarted: bool) -> None:  # noqa: FBT001 as SimHost calls it
        if state["pid"] and (restarted or not on):
            host.finish(state["pid"])
            state["pid"] = 0
            held.pop(name, None)
        if on and not state["pid"]:
            state["pid"] = host.spawn("root", name, f"/system.slice/{name}.service")
            held[name] = ["/dev/nvidiactl", *(f"/dev/nvidia{gpu.index}" for gpu in devices.gpus)]
            host.hold_open(state["pid"], held[name])
        for gpu in devices.gpus if handles else ():
            if on:
                devices.clients[gpu.uuid] = name
            elif devices.clients.get(gpu.uuid) == name:
                del devices.clients[gpu.uuid]

    def boot() -> None:
        if host.services[name].active:
            act(True, True)

    host.services[name] = Service(active=False)
    host.on_service.setdefault(name, []).append(act)
    host.on_boot.append(boot)
    if active:
        host.change_service(name, active=True)


def modprobe_program() -> Program:
    """Loads and unloads the driver's modules: `-r` refuses one that is in use, as the kernel does."""

    def program(call: Call) -> int:
        modules: Modules = call.host.parts["modules"]
        words = call.arguments
        if call.user != "root":
            return call.complain("modprobe: ERROR: could not insert module: Operation not permitted")
        if words[:1] == ["-r"]:
            uses, _ = modules.loaded.get(words[1], (0, ""))
            if uses:
                return call.complain(f"modprobe: FATAL: Module {words[1]} is in use.")
            modules.loaded.pop(words[1], None)
            if words[1] == "nvidia_drm":
                modules.loaded.pop("nvidia_modeset", None)
                modules.modeset = ""
            return 0
        if words[:1] == ["nvidia_drm"]:
            modules.add_drm(modeset=next((word[8:] for word in words if word.startswith("modeset=")), "Y"))
        return 0

    return program


def node_program() -> Program:
    """nvidia-modprobe -f: makes the device file of a capability."""

    def program(call: Call) -> int:
        files = [word for word in call.arguments if word.startswith(CAPABILITIES)]
        if call.user != "root":
            return call.complain("nvidia-modprobe: failed to create device file: Permission denied")
        numbers = dict(line.split(" ") for line in _minors())
        for path in files:
            name = path.removeprefix(f"{CAPABILITIES}/").replace("/mig/", "/").removeprefix("mig/")
            if name not in numbers:
                return call.complain(f"nvidia-modprobe: no such capability: {path}")
            make_node(call.host, int(numbers[name]))
        return 0

    return program


def make_node(host: SimHost, number: int) -> None:
    """The device file of a capability, if it is not there."""
    path = f"/dev/nvidia-caps/nvidia-cap{number}"
    if not host.fs.exists(path):
        host.fs.write(path, b"", mode=0o444)


def make_nodes(host: SimHost, devices: GpuSet) -> None:
    """What `nvidia-smi -L` does when root runs it: a device file for every instance that is there."""
    for gpu in devices.gpus:
        for one in gpu.instances:
            make_node(host, capability(gpu.index, one.gi))
            if one.ci is not None:
                make_node(host, capability(gpu.index, one.gi, one.ci))


def shown(program: Program, devices: GpuSet) -> Program:
    """nvidia-smi, after which the kernel shows the instances that are there; `-L` by root makes their device files."""

    def run(call: Call) -> int:
        status = program(call)
        show_capabilities(call.host, devices)
        if call.user == "root" and call.arguments == ["-L"]:
            make_nodes(call.host, devices)
        return status

    return run


def show_capabilities(host: SimHost, devices: GpuSet) -> None:
    """The folders under /proc/driver/nvidia/capabilities: one an instance that is there; written when that moved."""
    now = tuple((gpu.index, one.gi, one.ci) for gpu in devices.gpus for one in gpu.instances)
    if host.parts.get("capabilities shown") == now:
        return
    host.parts["capabilities shown"] = now
    for gpu in devices.gpus:
        top = f"{CAPABILITIES}/gpu{gpu.index}/mig"
        host.fs.make_directories(top)
        host.fs.remove_tree(top)
        host.fs.mkdir(top)
        for one in gpu.instances:
            _capability_file(host, f"{top}/gi{one.gi}/access", capability(gpu.index, one.gi))
            if one.ci is not None:
                place = f"{top}/gi{one.gi}/ci{one.ci}/access"
                _capability_file(host, place, capability(gpu.index, one.gi, one.ci))


def _capability_file(host: SimHost, place: str, number: int) -> None:
    text = f"DeviceFileMinor: {number}\nDeviceFileMode: 256\nDeviceFileModify: 1\n"
    host.fs.write(place, text.encode(), mode=0o444)


def power_lost(host: SimHost, devices: GpuSet) -> None:
    """A boot: no service holds a GPU yet, and devtmpfs is empty but for what the driver makes by itself."""
    held = host.parts.get("held", {})
    devices.clients = {uuid: name for uuid, name in devices.clients.items() if name not in held}
    held.clear()
    show_capabilities(host, devices)
    folder = host.fs.seek("/dev/nvidia-caps")
    if isinstance(folder, Directory):
        for name in [name for name in folder.entries if name not in {"nvidia-cap1", "nvidia-cap2"}]:
            del folder.entries[name]
