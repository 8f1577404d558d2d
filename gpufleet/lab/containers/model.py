"""Nouns of a simulated container engine: containers, images, ports, policies, and where images come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from hashlib import sha256

SOCKET = "/var/run/docker.sock"
NO_DEVICE_DRIVER = 'could not select device driver "" with capabilities: [[gpu]].'


@dataclass(slots=True)
class Setup:
    """How dockerd was set up.

    Attributes:
        rootless: it runs without root: cgroup device rules and higher limits are denied to it.
        containerd: it keeps images in containerd's store.
        cdi: its feature `cdi` is on, so that it reads `/etc/cdi` and `/var/run/cdi`.
    """

    rootless: bool = False
    cdi: bool = False
    containerd: bool = False


class Daemon(Enum):
    """The state of dockerd."""

    RUNNING = "running"
    STOPPED = "stopped"
    HUNG = "hung"


class Refused(Exception):
    """The engine said no; `text` is its own, `status` the exit status of `run` or `create`."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.text = text
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A restart policy: `no`, `always`, `unless-stopped`, or `on-failure` with a limit (0: none)."""

    name: str = "no"
    limit: int = 0

    @classmethod
    def parse(cls, text: str) -> Policy:
        """`on-failure:3` and the like."""
        name, _, limit = text.partition(":")
        if name not in {"no", "", "always", "unless-stopped", "on-failure"} or (
            limit and not limit.isdigit()
        ):
            raise Refused(f"invalid restart policy: {text}", 125)
        return cls(name=name or "no", limit=int(limit or 0))


@dataclass(frozen=True, slots=True)
class Published:
    """A port of the host and the port inside."""

    address: str
    port: int
    inner: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a container was created with. `devices` are GPU ids as given; `gpus` says whether `--gpus` or CDI."""

    name: str
    image: str
    entrypoint: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    published: tuple[Published, ...] = ()
    policy: Policy = Policy()
    devices: tuple[str, ...] = ()
    gpu_count: int = 0
    cdi: tuple[str, ...] = ()
    network: str = "bridge"
    ipc: str = "private"
    binds: tuple[str, ...] = ()
    ulimits: tuple[str, ...] = ()
    memory: int = 0
    nano_cpus: int = 0
    shm: int = 67108864
    stop_timeout: int | None = None
    user: str = ""
    auto_remove: bool = False
    command: tuple[str, ...] = ()
    """The words that made it."""


@dataclass(slots=True, kw_only=True)
class Container:
    """One container and where it is in its life."""

    id: str
    wish: Wish
    image_id: str
    created: datetime
    policy: Policy
    name: str
    status: str = "created"
    exit_code: int = 0
    out_of_memory: bool = False
    started: datetime | None = None
    finished: datetime | None = None
    restarts: int = 0
    pid: int = 0
    by_hand: bool = False
    """Somebody stopped it; `unless-stopped` remembers."""
    error: str = ""
    handles_lost: bool = False
    """Its device rules are gone: no new handle of a GPU, until the container is created anew."""

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self.status == "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image on a host. One that was loaded or built there has no registry's digest."""

    id: str
    reference: str
    size: int
    digests: tuple[str, ...] = ()


class Registry:
    """Where images come from: repositories, and references that are absent all the same."""

    def __init__(self) -> None:
        self.repositories = {
            "vllm/vllm-openai": 9 << 30,
            "nginx": 190 << 20,
            "busybox": 4 << 20,
            "redis": 140 << 20,
        }
        self.absent: set[str] = set()
        self.down = False
        self.unreached: set[str] = set()
        """Hosts from which there is no way to it."""
        self.seconds = 1.0
        """How long a pull takes."""
        self.asked_by_plugin = False
        """Whether hosts can ask what a tag means: docker needs the buildx plug-in for it."""
        self.moved: dict[str, str] = {}
        """Digests by reference, for tags that mean something else by now."""

    def digest(self, reference: str) -> str:
        """What a reference means now."""
        known = reference.partition("@")[2] or self.moved.get(reference, "")
        return known or f"sha256:{sha256(reference.encode()).hexdigest()}"

    def size(self, reference: str, host: str = "") -> int:
        """Bytes of an image; raises `Refused` as the daemon of a host words it."""
        if self.down or host in self.unreached:
            raise Refused(
                'Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io on [::1]:53: '
                "read udp [::1]:41527->[::1]:53: read: connection refused"
            )
        repository = reference.partition("@")[0].rpartition(":")[0] or reference.partition("@")[0]
        if repository not in self.repositories:
            raise Refused(
                f"pull access denied for {repository}, repository does not exist or may require 'docker login': "
                "denied: requested access to the resource is denied"
            )
        if reference in self.absent:
            raise Refused(f"manifest for {reference} not found: manifest unknown: manifest unknown")
        return self.repositories[repository]


def full_reference(reference: str) -> str:
    """With `:latest` when neither tag nor digest is there."""
    last = reference.rpartition("/")[2]
    return reference if ":" in last or "@" in last else f"{reference}:latest"
