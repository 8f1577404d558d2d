"""A description of hosts to simulated hosts with their container engine and GPUs."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpufleet.lab.containers.archives import registry_answer
from gpufleet.lab.containers.cli import container_program
from gpufleet.lab.containers.model import SOCKET, Container, Daemon, Registry, Setup
from gpufleet.lab.containers.simcontainer import ContainerEngine
from gpufleet.lab.faults import LINK, Fault, Kind
from gpufleet.lab.gpus import cdi, kernel_files, mishaps
from gpufleet.lab.gpus.boards import BOARDS
from gpufleet.lab.gpus.simgpu import GpuSet, Holder, SimGpu, make_gpus
from gpufleet.lab.gpus.smi_cli import smi_program
from gpufleet.lab.network import Network
from gpufleet.lab.programs import install
from gpufleet.lab.shell.call import Call, Program
from gpufleet.lab.shell.curl_tool import curl_program
from gpufleet.lab.shell.run import Ended, run_shell
from gpufleet.lab.simhost import EngineHost, LabClock, Listener, Service, SimHost, exec_start
from gpufleet.lab.vllm.engines import ModelEngines
from gpufleet.lab.vllm.spec import LAB_VARIABLE, engine_words

NETWORK = "127.77.0"
"""Loopback addresses of simulated hosts: each has its own, so that all can use the same ports. Linux only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWish:
    """One host that is wanted.

    Attributes:
        gpus: `8xH100-80GB`; empty for none.
        layouts: slices by GPU index, each `PROFILE:START`; these GPUs are in MIG mode.
        without: programs that this host lacks.
        toolkit: whether the container toolkit is installed; `ctk` is its version.
        rootless, cdi: how docker was set up; see `containers.model.Setup`.
    """

    name: str
    address: str = "127.0.0.1"
    gpus: str = "8xH100-80GB"
    login: str = "ops"
    runtime: str = "docker"
    version: str = "26.1.5"
    driver: str = "580.95.05"
    layouts: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()
    toolkit: bool = True
    ctk: str = "1.17.8"
    rootless: bool = False
    cdi: bool = False


@dataclass(slots=True, kw_only=True)
class LabHost:
    """A simulated host and the parts that tests and faults reach for."""

    wish: HostWish
    host: SimHost
    containers: ContainerEngine
    gpus: GpuSet
    dead: bool = False
    back_at: float | None = None
    journal: list[str] = field(default_factory=list)
    """What units that a boot started said on standard error."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by whoever runs a script here, but for its waits."""

    def __post_init__(self) -> None:
        self.host.rest = self._rest

    def _rest(self, seconds: float, pids: tuple[int, ...]) -> None:
        """Let time pass while other sessions use the host."""
        if seconds == float("inf"):
            raise RuntimeError(f"{self.name}: a program waits for ever and nobody set a deadline")
        self.lock.release()
        try:
            self.host.clock.sleep(seconds)
        finally:
            self.lock.acquire()
        self.host.check_signals(pids)

    def sh(self, text: str, *, user: str = "", stdin: bytes = b"", patience: float = 600.0) -> Ended:
        """Run a script at the host's own console, past every link and every fault of one."""
        with self.lock:
            return run_shell(self.host, text, stdin, user=user, patience=patience)

    @property
    def name(self) -> str:
        """Its name."""
        return self.host.name

    def strike(self, fault: Fault) -> None:
        """A fault that changes the host and stays."""
        match fault.kind:
            case Kind.DISK_FULL | Kind.DISK_FREED:
                for disk in self.host.fs.disks:
                    disk.full = fault.kind is Kind.DISK_FULL
            case Kind.DAEMON_STOPPED:
                self.host.change_service("docker", active=False)
            case Kind.DAEMON_KILLED:
                self.containers.kill_daemon()
            case Kind.DAEMON_HUNG:
                self.containers.daemon = Daemon.HUNG
            case Kind.DAEMON_BACK:
                self.host.change_service("docker", active=True)
            case Kind.IMAGE_MISSING:
                self.containers.registry = Registry()
                self.containers.registry.repositories = {}
                self.containers.images = {}
            case Kind.STALL:
                self.host.stalled = True
            case Kind.PORT_TAKEN:
                if not all(word.isdecimal() and int(word) < 65536 for word in fault.detail.split()):
                    raise ValueError(f"`{fault.detail}` is no list of ports")
                ports = [int(word) for word in fault.detail.split()] or list(range(8000, 8016))
                self.host.listeners += [Listener("0.0.0.0", port) for port in ports]
            case Kind.ENGINE:
                self.containers.launch_words = {LAB_VARIABLE: engine_words(fault.detail)}
            case Kind.GPU_LOST:
                self.gpus.trouble = fault.detail or "no-driver"
            case Kind.GPU_MISHAP:
                self.gpus.mishaps.append(mishaps.parse(fault.detail))
            case Kind.GPU_CLIENT:
                self.gpus.hold(fault.detail)
            case Kind.GPU_FAULT:
                self.gpus.damage(fault.detail)
            case Kind.HANDLES_LOST:
                for container in self.containers.containers.values():
                    container.handles_lost |= container.running
            case _:
                raise ValueError(f"{fault.kind} is a fault of the link")

    def power_off(self, seconds: float) -> None:
        """Dead from now on, and back after `seconds` when that is not 0."""
        self.dead = True
        self.back_at = self.host.clock.monotonic() + seconds if seconds else None

    def power_on(self) -> None:
        """Boot again."""
        self.dead, self.back_at = False, None
        self.gpus.reset()
        self.host.reboot()

    def check_power(self) -> bool:
        """Whether it runs; one whose time has come boots first."""
        if self.dead and self.back_at is not None and self.host.clock.monotonic() >= self.back_at:
            self.power_on()
        return not self.dead


@dataclass(slots=True, kw_only=True)
class Fleet:
    """Hosts by name."""

    hosts: dict[str, LabHost]
    registry: Registry
    clock: LabClock
    network: Network = field(default_factory=Network)

    def __getitem__(self, name: str) -> LabHost:
        return self.hosts[name]

    def __iter__(self) -> Iterator[LabHost]:
        return iter(self.hosts.values())


def build_fleet(
    wishes: Iterable[HostWish],
    clock: LabClock,
    *,
    engines: Callable[[SimHost], EngineHost] | None = None,
    registry: Registry | None = None,
) -> Fleet:
    """Hosts as described; `engines` gives what runs in the containers of a host, in memory by default."""
    shared = registry or Registry()
    hosts = {}
    network = Network()
    for wish in wishes:
        host = SimHost(wish.name, clock, address=wish.address, login=wish.login)
        hosts[wish.name] = _lab_host(
            wish, host, engines(host) if engines else ModelEngines(clock), shared, network
        )
    return Fleet(hosts=hosts, registry=shared, clock=clock, network=network)


def _lab_host(
    wish: HostWish, host: SimHost, engines: EngineHost, registry: Registry, network: Network
) -> LabHost:
    gpus = GpuSet(gpus=_gpus(wish), driver=wish.driver, cuda=_cuda(wish.driver))
    containers = ContainerEngine(
        host, engines, registry, kind=wish.runtime, version=wish.version, gpus=gpus.names
    )
    containers.gpu_hook = wish.toolkit
    containers.setup = Setup(rootless=wish.rootless, cdi=wish.cdi)
    if wish.runtime == "docker":
        host.parts[f"socket {SOCKET}"] = lambda path: registry_answer(containers, path)
    if wish.runtime == "podman":
        host.services["podman-restart"] = Service()
    gpus.holders = lambda: _holders(containers)
    containers.nodes = lambda one: kernel_files.nodes_of(gpus, _given(one))
    containers.smi_inside = lambda devices: smi_program(gpus.given(devices))
    for image in wish.images:
        containers.add_image(image)
    programs = {wish.runtime: container_program(containers), "curl": curl_program(network)}
    network.join(host, containers, engines)
    if gpus.gpus:
        programs["nvidia-smi"] = kernel_files.shown(smi_program(gpus), gpus)
        programs["nvidia-modprobe"] = kernel_files.node_program()
        programs["modprobe"] = kernel_files.modprobe_program()
        host.fs.write("/proc/driver/nvidia/version", f"NVRM version: {wish.driver}\n".encode())
        kernel_files.furnish(host, gpus)
    if gpus.gpus and wish.toolkit:
        programs["nvidia-ctk"] = cdi.ctk_program(gpus, wish.ctk)
        containers.cdi = lambda: cdi.named(host)
        cdi.begin(host, gpus)
        host.fs.write("/usr/bin/nvidia-container-runtime-hook", b"", mode=0o755)
    host.fs.write("/run/docker.pid", b"900\n")
    lab = LabHost(wish=wish, host=host, containers=containers, gpus=gpus)
    programs["lab-fault"] = _fault_program(lab)
    install(host, programs, without=wish.without)
    host.on_boot.insert(0, lambda: _start_units(lab))
    return lab


def _start_units(lab: LabHost) -> None:
    """Units of /etc/systemd/system that a boot starts, before containers come up again."""
    folder = "/etc/systemd/system/multi-user.target.wants"
    kernel_files.power_lost(lab.host, lab.gpus)
    for link in lab.host.fs.names(folder) if lab.host.fs.exists(folder) else ():
        name = link.removesuffix(".service")
        lab.host.services.pop(name, None)
        words = exec_start(lab.host, name)
        ended = run_shell(lab.host, " ".join(words), b"", user="root", patience=600.0) if words else None
        lab.journal += ended.stderr.decode("utf-8", "replace").splitlines() if ended else []
        if ended and ended.code == 0:
            lab.host.services[name] = Service()


def _fault_program(lab: LabHost) -> Program:
    """`lab-fault KIND [DETAIL]`: break this host, from a shell on it."""

    def program(call: Call) -> int:
        words = call.arguments
        known = sorted(kind.value for kind in Kind if kind not in LINK | {Kind.REFUSE})
        if not words or words[0] not in known:
            return call.complain(f"usage: lab-fault {'|'.join(known)} [DETAIL]", 2)
        try:
            lab.strike(Fault(kind=Kind(words[0]), host=lab.name, detail=" ".join(words[1:])))
        except ValueError as error:
            return call.complain(f"lab-fault: {error}", 2)
        return 0

    return program


def _gpus(wish: HostWish) -> list[SimGpu]:
    if not wish.gpus:
        return []
    count, key = parse_gpus(wish.gpus)
    gpus = make_gpus(wish.name, key, count)
    for index, layout in wish.layouts.items():
        gpus[index].set_mig(enabled=True)
        for text in layout:
            name, _, start = text.partition(":")
            gpus[index].create(name, int(start) if start else None)
    return gpus


def parse_gpus(text: str) -> tuple[int, str]:
    """`8xH100-80GB` as a number and a board; raises `ValueError` that names the boards there are."""
    found = re.fullmatch(r"([0-9]+)x(.+)", text)
    if found is None or found[2] not in BOARDS or not 1 <= int(found[1]) <= 16:
        raise ValueError(f"no GPUs `{text}`: write NUMBERxBOARD with 1 to 16 of {', '.join(BOARDS)}")
    return int(found[1]), found[2]


def _cuda(driver: str) -> str:
    generation = int(driver.partition(".")[0])
    known = {
        450: "11.0",
        470: "11.4",
        535: "12.2",
        550: "12.4",
        570: "12.8",
        575: "12.9",
        580: "13.0",
        590: "13.1",
    }
    return known[max(one for one in known if one <= generation)]


def _holders(containers: ContainerEngine) -> list[Holder]:
    """Running containers that were given GPUs."""
    found: list[Holder] = []
    now = containers.host.clock.now()
    for one in containers.containers.values():
        devices = _given(one)
        if one.running and devices and one.started is not None:
            age = (now - one.started).total_seconds()
            found.append(Holder(pid=one.pid, name="VLLM::EngineCore", devices=frozenset(devices), age=age))
    return found


def _given(container: Container) -> set[str]:
    """The ids of GPUs and slices that a container was given."""
    devices = {*container.wish.devices, *container.wish.cdi}
    if count := container.wish.gpu_count:
        devices |= {"all"} if count < 0 else {str(at) for at in range(count)}
    return devices


def names(count: int) -> tuple[str, ...]:
    """`gpu-01` and so on."""
    return tuple(f"gpu-{number:02d}" for number in range(1, count + 1))


def wishes_of(
    count: int,
    gpus: str = "8xH100-80GB",
    *,
    network: str = NETWORK,
    version: str = "26.1.5",
    images: tuple[str, ...] = (),
) -> tuple[HostWish, ...]:
    """`count` alike hosts with addresses of their own."""
    return tuple(
        HostWish(name=name, address=f"{network}.{number}", gpus=gpus, version=version, images=images)
        for number, name in enumerate(names(count), 1)
    )
