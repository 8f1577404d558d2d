"""What this room must know of a host to reach it: the inventory's wishes, without the inventory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpufleet.names import HostName
from gpufleet.redact import Secret


class Way(Enum):
    """How a host is reached."""

    SSH = "ssh"
    LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One host. Whatever is None is asked of `ssh -G`; whatever is given wins over it.

    Attributes:
        name: the host's name in the inventory, for messages.
        host: address or name, as `ssh` would be given it; IPv6 without brackets, a zone stays.
        identity_file: the one key to offer, also to jump hosts for which `ssh_config` names none.
        proxy_jump: `user@host:port,host`, nearest hop first; `none` for a direct way.
        known_hosts: the only known_hosts file to believe.
        config_file: read instead of `~/.ssh/config` and the system's.
        connect_timeout: seconds for each of connecting, banner, key exchange and authentication.
        passphrase: opens `identity_file`.
        password: for SSH itself, of this host alone and never of a jump host.
        sudo_password: for `Command.become`.
    """

    name: HostName
    host: str = "localhost"
    way: Way = Way.SSH
    port: int | None = None
    user: str | None = None
    identity_file: str | None = None
    proxy_jump: str | None = None
    known_hosts: str | None = None
    config_file: str | None = None
    connect_timeout: float = 10.0
    passphrase: Secret[str] | None = None
    password: Secret[str] | None = None
    sudo_password: Secret[str] | None = None
