"""What OpenSSH's own reader says of a host: the text of `ssh -G` as a value, and the route it describes.

paramiko's reader of ssh_config ignores `Include`, takes `Match` rules it does not know as matching and applies
nothing by itself. `ssh -G` is the one reader that agrees with what `ssh HOST` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpufleet.remote.target import Target

DEFAULT_PORT = 22
LONGEST_ROUTE = 8
"""Hops before a route counts as a circle."""

_DEFAULT_IDENTITY = re.compile(r"~/\.ssh/id_(rsa|ecdsa|ecdsa_sk|ed25519|ed25519_sk|xmss|dsa)")
_USABLE_DEFAULTS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question to `ssh -G`."""

    host: str
    user: str | None = None
    port: int | None = None
    config_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SshOptions:
    """How one hop is reached, with what was not said filled in.

    Attributes:
        asked: the name that was asked for; also what `HostKeyAlias` replaces.
        identity_named: whether somebody chose these identities; then no other key is offered.
        jumps: hops in front of this one, nearest to us first.
        identity_agent: the agent's socket; "" for the environment's, None for no agent at all.
        known_hosts: files to believe, in order.
    """

    asked: str
    hostname: str
    port: int = DEFAULT_PORT
    user: str
    identity_files: tuple[str, ...] = _USABLE_DEFAULTS
    identity_named: bool = False
    jumps: tuple[Asked, ...] = ()
    proxy_command: str = ""
    known_hosts: tuple[str, ...] = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts")
    host_key_alias: str = ""
    connect_timeout: float = 10.0
    identity_agent: str | None = ""
    is_jump: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """`host:port` for people, IPv6 in brackets."""
        host = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{host}:{self.port}"


def parse(text: str, asked: Asked) -> SshOptions:
    """The output of `ssh -G` as a value. Keys that mean nothing to us are passed over."""
    said = _by_key(text)

    def last(key: str, default: str = "") -> str:
        value = said.get(key, [default])[-1]
        return default if value.lower() == "none" else value

    hostname = last("hostname", asked.host)
    user = last("user", asked.user or "root")
    port = int(last("port", str(asked.port or DEFAULT_PORT)))
    tokens = {
        "h": hostname,
        "p": str(port),
        "r": user,
        "n": asked.host,
        "k": last("hostkeyalias", asked.host),
    }
    identities = [item for item in said.get("identityfile", []) if item.lower() != "none"]
    named = not _are_defaults(identities)
    certificates = [item for item in said.get("certificatefile", []) if item.lower() != "none"]
    agent = said.get("identityagent", [""])[-1]
    return SshOptions(
        asked=asked.host,
        hostname=hostname,
        port=port,
        user=user,
        identity_files=tuple(expand(item, tokens) for item in identities) if named else _USABLE_DEFAULTS,
        identity_named=named and bool(identities),
        jumps=parse_jumps(last("proxyjump")),
        proxy_command=expand(last("proxycommand"), tokens),
        known_hosts=tuple(
            path for key in ("userknownhostsfile", "globalknownhostsfile") for path in split_paths(last(key))
        ),
        host_key_alias=last("hostkeyalias"),
        connect_timeout=float(last("connecttimeout") or 10.0),
        identity_agent=None if agent == "none" else agent.removeprefix("SSH_AUTH_SOCK"),
        warnings=tuple(
            f"certificate {item} is not used; gpufleet authenticates with plain keys" for item in certificates
        ),
    )


def _by_key(text: str) -> dict[str, list[str]]:
    said: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.strip().partition(" ")
        said.setdefault(key.lower(), []).append(value.strip())
    return said


def _are_defaults(identities: list[str]) -> bool:
    """`ssh -G` prints all its default names when nobody named any; fewer were chosen by somebody."""
    return len(identities) >= 3 and all(_DEFAULT_IDENTITY.fullmatch(item) for item in identities)


def parse_jumps(text: str) -> tuple[Asked, ...]:
    """`user@host:port,[2001:db8::1]:22,ssh://host` as hops; empty for `none`."""
    if not text or text.lower() == "none":
        return ()
    return tuple(_parse_hop(part.strip()) for part in text.split(",") if part.strip())


def _parse_hop(text: str) -> Asked:
    rest = text.removeprefix("ssh://").rstrip("/")
    user, at, place = rest.rpartition("@")
    bracketed = re.fullmatch(r"\[([^\]]+)\](?::(\d+))?", place)
    plain = re.fullmatch(r"([^:\[\]]+)(?::(\d+))?", place)
    found = bracketed or plain
    if found is None and place.count(":") > 1:
        return Asked(host=place, user=user if at else None)
    if found is None:
        raise ValueError(f"jump host {text!r} is not of the form user@host:port")
    port = int(found[2]) if found[2] else None
    if port is not None and not 0 < port < 65536:
        raise ValueError(f"jump host {text!r}: port {port} is out of range")
    return Asked(host=found[1], user=user if at else None, port=port)


def split_paths(text: str) -> tuple[str, ...]:
    """Several paths on one line; `ssh -G` does not quote spaces, so a word that starts no path belongs to the last."""
    paths: list[str] = []
    for word in text.split(" "):
        if word.startswith(("/", "~", "%")) or not paths:
            paths.append(word)
        else:
            paths[-1] += f" {word}"
    return tuple(path for path in paths if path)


def expand(text: str, tokens: dict[str, str]) -> str:
    """Replace `%h` and its like; tokens that are not known stay as they are."""
    return re.sub(r"%(.)", lambda found: "%" if found[1] == "%" else tokens.get(found[1], found[0]), text)


def defaults(asked: Asked, local_user: str) -> SshOptions:
    """Where there is no `ssh` to ask."""
    return SshOptions(
        asked=asked.host, hostname=asked.host, port=asked.port or DEFAULT_PORT, user=asked.user or local_user
    )


def route(target: Target, look: Callable[[Asked], SshOptions]) -> tuple[SshOptions, ...]:
    """Every hop from here to the target, the target last; each with the inventory's wishes merged in.

    As in OpenSSH, the jumps of the first hop's own configuration come before it, and those of later hops do not
    count. Raises ValueError for a jump that cannot be read and for a circle.
    """
    last = _merge(look(_asked(target.host, target.user, target.port, target)), target, is_target=True)
    jumps = last.jumps if target.proxy_jump is None else parse_jumps(target.proxy_jump)
    hops: list[SshOptions] = []
    while jumps:
        found = [
            _merge(look(replace(jump, config_file=target.config_file)), target, is_target=False)
            for jump in jumps
        ]
        hops = found + hops
        if len(hops) > LONGEST_ROUTE:
            raise ValueError(
                f"the route to {target.host} has more than {LONGEST_ROUTE} jump hosts: a circle?"
            )
        jumps = found[0].jumps
    return (*hops, last)


def _asked(host: str, user: str | None, port: int | None, target: Target) -> Asked:
    return Asked(host=host, user=user, port=port, config_file=target.config_file)


def _merge(options: SshOptions, target: Target, *, is_target: bool) -> SshOptions:
    identity_wins = target.identity_file is not None and (is_target or not options.identity_named)
    return replace(
        options,
        identity_files=(target.identity_file,)
        if identity_wins and target.identity_file
        else options.identity_files,
        identity_named=options.identity_named or identity_wins,
        known_hosts=(target.known_hosts,) if target.known_hosts else options.known_hosts,
        # A jump given by the inventory replaces a proxy command of ssh_config.
        proxy_command="" if is_target and target.proxy_jump is not None else options.proxy_command,
        connect_timeout=target.connect_timeout,
        is_jump=not is_target,
    )
