"""What a host looks like right now. Every value is Known or Unknown; unknown is never no, empty or zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from gpufleet.names import GpuUuid, HostName

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Known(Generic[T_co]):
    """The host told us."""

    value: T_co


@dataclass(frozen=True, slots=True)
class Unknown:
    """We could not look, or did not understand the answer; why."""

    reason: str


Fact: TypeAlias = Known[T_co] | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """One slice with a compute instance.

    Attributes:
        uuid: `MIG-...` as `nvidia-smi -L` prints it.
        profile: name with its suffix (`1g.10gb+me`), from `-lgi` where it was printed.
        gi, ci: GPU instance and compute instance ids.
        start, size: placement in memory slots of the GPU.
        memory_mib: memory of the slice.
    """

    uuid: str
    profile: str
    gi: Fact[int]
    ci: Fact[int]
    start: Fact[int]
    size: Fact[int]
    memory_mib: Fact[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstanceFact:
    """A GPU instance as `-lgi` lists it, with compute instances or without; `start` and `size` in memory slots."""

    gi: int
    profile: str
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigFact:
    """MIG of one GPU.

    Attributes:
        capable: whether the GPU can be cut at all (`[N/A]` means it cannot).
        current, pending: `Enabled` or `Disabled` as booleans.
        instances: slices seen now.
        gpu_instances: what takes room on the GPU: an instance without a compute instance is no slice, and does.
    """

    capable: Fact[bool]
    current: Fact[bool]
    pending: Fact[bool]
    instances: Fact[tuple[MigInstance, ...]]
    gpu_instances: Fact[tuple[GpuInstanceFact, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process on a GPU as nvidia-smi lists it; `gi` is None outside MIG."""

    pid: int
    name: str
    memory_mib: Fact[int]
    gi: int | None = None
    ci: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFact:
    """One GPU. Memory in MiB, temperature in degrees Celsius, utilization in percent."""

    index: int
    uuid: GpuUuid
    name: str
    bus_id: str
    memory_total_mib: Fact[int]
    memory_used_mib: Fact[int]
    temperature_c: Fact[int]
    utilization_pct: Fact[int]
    driver: Fact[str]
    mig: MigFact
    processes: Fact[tuple[GpuProcess, ...]]
    nvlink: Fact[frozenset[GpuUuid]] = field(default=Unknown("how GPUs are linked was not asked"))
    """GPUs of the host that NVLink, or NVSwitch, joins to this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFact:
    """One container, running or not, as the runtime's `inspect` describes it.

    Attributes:
        id: full id.
        state: `created`, `running`, `restarting`, `paused`, `exited`, `dead`.
        ports: published host ports, and every port when it shares the host's network and says so by label.
        devices: GPU or MIG UUIDs or indexes it was given, or `all`.
        created_at, started_at: RFC 3339 as the runtime printed them.
    """

    id: str
    name: str
    image: str
    image_id: str
    state: str
    exit_code: int
    restart_policy: str
    restart_count: int
    labels: Mapping[str, str]
    ports: tuple[int, ...]
    devices: tuple[str, ...]
    host_network: bool
    created_at: str
    started_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFact:
    """Free and total space in MiB of the file system that holds `path`."""

    path: str
    free_mib: int
    total_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFact:
    """The container runtime.

    Attributes:
        kind: `docker`, `podman` or `nerdctl`.
        path: absolute path of its program.
        version: server version.
        needs_sudo: the socket refused us and sudo without a password works.
        rootless: whether it runs without root.
        gpu_ready: whether it can hand out GPUs: an nvidia runtime, the hook, or CDI.
        cdi: whether CDI devices can be named.
        root: its data directory.
        by_flag: whether `--gpus` works, by the toolkit's hook or runtime.
        image_ids: what the id of an image is a digest of: `config`, or with containerd's image store `manifest`.
    """

    kind: str
    path: str
    version: str
    needs_sudo: bool
    rootless: Fact[bool]
    gpu_ready: Fact[bool]
    cdi: Fact[bool]
    root: Fact[str]
    by_flag: bool = True
    image_ids: Fact[str] = field(default=Unknown("the runtime does not say"))

    @property
    def names_devices(self) -> bool:
        """Whether GPUs are asked for as CDI devices: podman ignores `--gpus`, and a rootless hook may not work."""
        if self.kind == "podman":
            return True
        if self.cdi != Known(True):
            return False
        return self.kind == "nerdctl" or not self.by_flag or self.rootless == Known(True)


@dataclass(frozen=True, slots=True)
class Symptom:
    """Something a probe met that no single value carries; `doctor` knows each code and its fix.

    Attributes:
        code: stable slug, one a kind of trouble.
        detail: what stood there: places tried, the user, the tool's own line.
    """

    code: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootSlice:
    """A slice that a boot brings back; `uuid` is the one it had when it was written down, empty where unknown."""

    profile: str
    start: int
    size: int
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class BootGpu:
    """The slices of one GPU, in the order in which they are made."""

    uuid: GpuUuid
    slices: tuple[BootSlice, ...]


@dataclass(frozen=True, slots=True)
class BootLayout:
    """What a host brings back at boot, and the CDI specifications that are written anew then."""

    gpus: tuple[BootGpu, ...] = ()
    cdi: tuple[str, ...] = ()

    def of(self, uuid: GpuUuid) -> BootGpu | None:
        """One GPU; None for one whose slices are left to themselves."""
        return next((one for one in self.gpus if one.uuid == uuid), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """All answers of one round trip to one host.

    Attributes:
        at: RFC 3339, when the answers were read.
        boot_id: changes at each boot.
        listening: TCP ports something listens on.
        sudo: True when `sudo -n true` works, or the user is root already.
        noisy_login: the login printed text before our first byte.
        home: home directory of the SSH user.
        toolkit: version of the NVIDIA container toolkit, empty when it is not installed.
    """

    host: HostName
    at: str
    hostname: Fact[str]
    kernel: Fact[str]
    architecture: Fact[str]
    boot_id: Fact[str]
    user: Fact[str]
    home: Fact[str]
    sudo: Fact[bool]
    noisy_login: bool
    driver: Fact[str]
    cuda: Fact[str]
    toolkit: Fact[str]
    cdi_devices: Fact[tuple[str, ...]]
    runtime: Fact[RuntimeFact]
    gpus: Fact[tuple[GpuFact, ...]]
    containers: Fact[tuple[ContainerFact, ...]]
    disks: Fact[tuple[DiskFact, ...]]
    listening: Fact[frozenset[int]]
    lease: Fact[str]
    """Holder line of a change lease, empty when none is held."""
    open_runs: Fact[tuple[str, ...]] = field(default=Known(()))
    """Runs whose journal copy on this host has no settled record."""
    symptoms: tuple[Symptom, ...] = ()
    boot_layout: Fact[BootLayout] = field(default=Known(BootLayout()))
    """The slices that the host brings back at boot (`gpufleet mig persist`)."""


@dataclass(frozen=True, slots=True)
class ServiceFact:
    """A systemd unit under the name that its aliases lead to, without `.service`.

    Attributes:
        state: `active`, `activating`, `reloading`, `deactivating`, `inactive`, `failed`.
    """

    name: str
    state: str

    @property
    def runs(self) -> bool:
        """Whether it was started and not yet stopped: what would have to be started again."""
        return self.state in {"active", "activating", "reloading"}


@dataclass(frozen=True, slots=True)
class ModuleFact:
    """A loaded kernel module of the driver: how often it is in use, and by which modules."""

    name: str
    uses: int
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDevices:
    """A process that has device files of the driver open, or that nvidia-smi lists.

    Attributes:
        nodes: paths under `/dev`; empty for one that only nvidia-smi lists.
        group: its control group, such as `/system.slice/nvidia-dcgm.service`.
    """

    pid: int
    name: str
    nodes: frozenset[str]
    group: str

    @property
    def service(self) -> str:
        """The systemd service that it belongs to, without `.service`; empty for none."""
        parts = [part for part in self.group.split("/") if part.endswith(".service")]
        return parts[-1].removesuffix(".service") if parts else ""

    def within(self, container: str) -> bool:
        """Whether it runs in the container with this full id: every runtime puts the id into the control group."""
        return bool(container) and container in self.group


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderFacts:
    """Who may hold GPUs of one host, from one moment.

    Attributes:
        modeset: whether `nvidia_drm` was loaded with `modeset=1`; only root may read it.
        users: processes with device files of the driver open; Unknown when some processes could not be looked into.
        listed: what nvidia-smi lists on each GPU.
        minors: GPU by the number of its `/dev/nvidiaN`, as its bus id.
        capabilities: what each `/dev/nvidia-caps/nvidia-capN` that somebody has open stands for, `gpu0/gi3/access`.
    """

    services: Fact[tuple[ServiceFact, ...]]
    modules: Fact[tuple[ModuleFact, ...]]
    modeset: Fact[bool]
    users: Fact[tuple[OpenDevices, ...]]
    groups: Mapping[int, OpenDevices]
    """What is known of every process that was met, by pid."""
    listed: Fact[Mapping[GpuUuid, tuple[GpuProcess, ...]]]
    minors: Mapping[int, str]
    capabilities: Mapping[int, str]
