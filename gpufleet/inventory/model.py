"""Hosts as an operator declares them: frozen, valid by construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gpufleet.names import HostName
from gpufleet.redact import Secret


class Connection(Enum):
    """How a host is reached."""

    SSH = "ssh"
    LOCAL = "local"


class Runtime(Enum):
    """The container runtime; AUTO takes the first that is found."""

    AUTO = "auto"
    DOCKER = "docker"
    PODMAN = "podman"
    NERDCTL = "nerdctl"


class Become(Enum):
    """When sudo is used: never, when it is needed, or for everything that needs a right."""

    NEVER = "never"
    AUTO = "auto"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a host listens. `host` carries no brackets; an IPv6 zone stays (`fe80::1%eth0`)."""

    host: str
    port: int | None = None

    @property
    def is_ipv6(self) -> bool:
        return ":" in self.host

    def url_host(self) -> str:
        """As it stands in a URL: IPv6 in brackets."""
        return f"[{self.host}]" if self.is_ipv6 else self.host

    def __str__(self) -> str:
        if self.port is None:
            return self.host
        return f"{self.url_host()}:{self.port}"


@dataclass(frozen=True, slots=True)
class PortRange:
    """TCP ports that replicas may be given, both ends included."""

    first: int = 8000
    last: int = 8999


@dataclass(frozen=True, slots=True, kw_only=True)
class SshWish:
    """What the inventory says of SSH; whatever is None comes from `ssh -G`."""

    user: str | None = None
    identity_file: str | None = None
    proxy_jump: str | None = None
    known_hosts: str | None = None
    config_file: str | None = None
    connect_timeout: float = 10.0
    passphrase: Secret[str] | None = None
    password: Secret[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine.

    Attributes:
        service_address: where the proxy reaches replicas, and what they bind to; the SSH address when None.
        runtime_path: absolute path of the runtime's program, when it stands in no usual place.
        declared_at: `file:line`, for messages.
    """

    name: HostName
    address: Address
    connection: Connection = Connection.SSH
    ssh: SshWish = field(default_factory=SshWish)
    groups: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    runtime: Runtime = Runtime.AUTO
    runtime_path: str | None = None
    become: Become = Become.AUTO
    sudo_password: Secret[str] | None = None
    service_address: str | None = None
    ports: PortRange = field(default_factory=PortRange)
    declared_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All hosts in the order of the file, and what else the file declares, as it stood there.

    Attributes:
        hosts: by name.
        groups: group name to host names.
        pools: raw pool definitions found in the inventory, by name; `pools.document` gives them meaning.
        models: raw catalogue entries, likewise.
        proxy: the raw proxy section, or None.
        path: the file it came from.
        warnings: one line each, nothing that stops anything.
    """

    hosts: Mapping[HostName, Host]
    groups: Mapping[str, tuple[HostName, ...]] = field(default_factory=dict)
    pools: Mapping[str, object] = field(default_factory=dict)
    models: Mapping[str, object] = field(default_factory=dict)
    proxy: object | None = None
    path: str = ""
    warnings: tuple[str, ...] = ()
