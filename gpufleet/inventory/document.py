"""The YAML shape of an inventory, version 1. Its JSON Schema is made from these classes.

What stands in several places is taken from the nearest: the host, then its groups (a child before its parents,
a group that is written later before one that is written earlier), then `defaults`. Labels are merged key by key.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gpufleet.inventory.address import identity, parse_address
from gpufleet.inventory.groups import Groups, Wish, resolve
from gpufleet.inventory.model import (
    Address,
    Become,
    Connection,
    Host,
    Inventory,
    PortRange,
    Runtime,
    SshWish,
)
from gpufleet.located import Located, Problems, convert
from gpufleet.names import HostName
from gpufleet.redact import Secret

PATH_MAX = 1024
"""Letters: whatever they are, no more bytes than Linux takes in a path (4096)."""

Port = Annotated[int, Meta(ge=1, le=65535)]
Text = Annotated[str, Meta(min_length=1)]
UserName = Annotated[
    str,
    Meta(
        pattern=r"^(?!-)[^\s\x00-\x1f]+$(?!\n)",
        max_length=256,
        description="a user name of at most 256 letters, without spaces or a leading hyphen",
    ),
]
Jumps = Annotated[
    str,
    Meta(
        pattern=r"^(?!-)[^\s\x00-\x1f]+$(?!\n)",
        max_length=PATH_MAX,
        description="jump hosts as ssh takes them, [user@]host[:port], with commas between them",
    ),
]
FilePath = Annotated[
    str,
    Meta(
        pattern=r"^(?!-)[^\x00-\x1f]+$(?!\n)",
        max_length=PATH_MAX,
        description="the path of a file, at most 1024 letters",
    ),
]
Reference = Annotated[
    str,
    Meta(
        pattern=r"^\$\{(env|file|cmd):[^}]+\}$(?!\n)",
        max_length=PATH_MAX,
        description=(
            "a reference to a secret, ${env:NAME}, ${file:PATH} or ${cmd:PROGRAM ARGUMENTS}; "
            "the secret itself never stands in this file"
        ),
    ),
]
Scalar = str | int | float | bool


class PortsDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TCP ports that replicas may be given, both ends included."""

    first: Port = 8000
    last: Port = 8999


class CommonDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `defaults`, a group and a host may say alike."""

    user: UserName | None = None
    port: Port | None = None
    identity_file: FilePath | None = None
    proxy_jump: Jumps | None = None
    known_hosts: FilePath | None = None
    ssh_config: FilePath | None = None
    connect_timeout: Annotated[float, Meta(gt=0, le=3600)] | None = None
    connection: Literal["ssh", "local"] | None = None
    labels: dict[str, Scalar] | None = None
    runtime: Literal["auto", "docker", "podman", "nerdctl"] | None = None
    runtime_path: (
        Annotated[
            str,
            Meta(pattern=r"^/[^\x00-\x1f]+$(?!\n)", max_length=PATH_MAX, description="an absolute path"),
        ]
        | None
    ) = None
    become: Literal["never", "auto", "always"] | None = None
    sudo_password: Reference | None = None
    ssh_password: Reference | None = None
    passphrase: Reference | None = None
    ports: PortsDocument | None = None


class HostDocument(CommonDocument, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One host. Without an `address` its name is the address: DNS or `ssh_config` know it."""

    address: Text | None = None
    service_address: Text | None = None
    groups: list[Text] | None = None


class GroupDocument(CommonDocument, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hosts by name or glob, the hosts of other groups, and what they have in common."""

    hosts: list[Text] | None = None
    children: list[Text] | None = None


class InventoryDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. `pools`, `models` and `proxy` are given their meaning by other rooms."""

    version: int = 1
    defaults: CommonDocument | None = None
    hosts: dict[str, HostDocument | None]
    groups: dict[str, GroupDocument | None] | None = None
    pools: dict[str, Any] | None = None
    models: dict[str, Any] | None = None
    proxy: Any = None


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of an inventory file, for editors."""
    made = msgspec.json.schema(InventoryDocument)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "gpufleet inventory", **made}


def to_model(source: Located, secret: Callable[[str], Secret[str]], problems: Problems) -> Inventory | None:
    """What a file declares. Every mistake is added to `problems`; None when there is no list of hosts at all.

    `secret` makes a value that is looked up when it is first used out of a reference; nothing is looked up here.
    """
    document = convert(source, InventoryDocument, problems)
    if document is None:
        return None
    if document.version != 1:
        problems.add(
            source.at("version"), f"version {document.version} is not known", "this gpufleet reads version 1"
        )
    names = tuple(name for name in document.hosts if _named_well(source.at("hosts", name), name, problems))
    if not names and not problems.rows:
        problems.add(
            source.at("hosts"), "no host is declared", "a host is written `gpu-01: {address: 192.0.2.5}`"
        )
    _refuse_labels(document, source, problems)
    wishes = document_groups(document)
    for name in wishes:
        _named_well(source.at("groups", name), name, problems, what="group")
    groups = resolve(wishes, source, names, problems)
    hosts = {}
    for name in names:
        inherited = _inherited(document, groups, name)
        host = _host(name, inherited, source.at("hosts", name), secret, problems)
        if host is not None:
            hosts[host.name] = replace(host, groups=groups.of_host.get(name, frozenset()))
    _refuse_twins(hosts, source, problems)
    return Inventory(
        hosts=hosts,
        groups={name: tuple(HostName(host) for host in members) for name, members in groups.members.items()},
        pools=dict(source.at("pools").entries()) if document.pools else {},
        models=dict(source.at("models").entries()) if document.models else {},
        proxy=source.at("proxy") if document.proxy is not None else None,
        path=source.file,
        warnings=groups.warnings,
    )


def document_groups(document: InventoryDocument) -> dict[str, Wish]:
    """Who is said to belong to which group, from both sides, in the order of the file."""
    wishes = {
        name: Wish(tuple(group.hosts or ()), tuple(group.children or ()), declared=True)
        for name, group in (
            (name, group or GroupDocument()) for name, group in (document.groups or {}).items()
        )
    }
    for host, entry in document.hosts.items():
        for name in (entry.groups or ()) if entry else ():
            wish = wishes.get(name, Wish())
            wishes[name] = replace(wish, joined=(*wish.joined, host))
    return wishes


_OWN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def _named_well(place: Located, name: str, problems: Problems, what: str = "host") -> bool:
    if _OWN_NAME.fullmatch(name) and (name != "all" or what == "group"):
        return True
    reason = "means every host" if name == "all" else f"is no name for a {what}"
    problems.add(
        place, f"`{name}` {reason}", "names have letters, digits, dots, hyphens and underscores, at most 63"
    )
    return False


def _refuse_labels(document: InventoryDocument, source: Located, problems: Problems) -> None:
    """Labels are chosen by `key=value`, and `group=NAME` means something else."""
    places = [(source.at("defaults"), document.defaults)]
    places += [(source.at("groups", name), group) for name, group in (document.groups or {}).items()]
    places += [(source.at("hosts", name), host) for name, host in document.hosts.items()]
    for place, said in places:
        for key in (said.labels or {}) if said else ():
            if key == "group" or not _OWN_NAME.fullmatch(key):
                problems.add(
                    place.at("labels", key),
                    f"`{key}` is no name for a label",
                    "`group=NAME` selects a group" if key == "group" else "",
                )


def _inherited(document: InventoryDocument, groups: Groups, name: str) -> HostDocument:
    """The host's own words over those of its groups over `defaults`."""
    layers: list[CommonDocument | None] = [document.defaults]
    layers += [(document.groups or {}).get(group) for group in groups.nearest_last(name)]
    layers.append(document.hosts[name])
    said: dict[str, Any] = {}
    labels: dict[str, Scalar] = {}
    for layer in layers:
        if layer is None:
            continue
        labels.update(layer.labels or {})
        for key in HostDocument.__struct_fields__:
            value = getattr(layer, key, None)
            if value is not None:
                said[key] = value
    return HostDocument(**{**said, "labels": labels})


def _host(
    name: str,
    said: HostDocument,
    place: Located,
    secret: Callable[[str], Secret[str]],
    problems: Problems,
) -> Host | None:
    address = _address(name, said, place, problems)
    ports = said.ports or PortsDocument()
    if ports.first > ports.last:
        problems.add(
            place.at("ports"), f"`ports` of `{name}`: first {ports.first} is larger than last {ports.last}"
        )
    service = said.service_address
    if service is not None:
        service = _service_address(name, service, place, problems)
    if address is None:
        return None

    def lazily(reference: str | None) -> Secret[str] | None:
        return None if reference is None else secret(reference)

    return Host(
        name=HostName(name),
        address=address,
        connection=Connection(said.connection or "ssh"),
        ssh=SshWish(
            user=said.user,
            identity_file=said.identity_file,
            proxy_jump=said.proxy_jump,
            known_hosts=said.known_hosts,
            config_file=said.ssh_config,
            connect_timeout=10.0 if said.connect_timeout is None else said.connect_timeout,
            passphrase=lazily(said.passphrase),
            password=lazily(said.ssh_password),
        ),
        labels={key: _label(value) for key, value in (said.labels or {}).items()},
        runtime=Runtime(said.runtime or "auto"),
        runtime_path=said.runtime_path,
        become=Become(said.become or "auto"),
        sudo_password=lazily(said.sudo_password),
        service_address=service,
        ports=PortRange(ports.first, ports.last),
        declared_at=place.where,
    )


def _address(name: str, said: HostDocument, place: Located, problems: Problems) -> Address | None:
    try:
        address = parse_address(said.address or name)
    except ValueError as error:
        problems.add(place.at("address"), str(error))
        return None
    own = place.at("port").value
    if address.port is not None and isinstance(own, int) and own != address.port:
        problems.add(
            place.at("port"), f"`port` says {own} and `address` says {address.port}", "write it once"
        )
    return address if address.port is not None else replace(address, port=said.port)


def _service_address(name: str, text: str, place: Located, problems: Problems) -> str | None:
    try:
        service = parse_address(text)
    except ValueError as error:
        problems.add(place.at("service_address"), str(error))
        return None
    if service.port is not None:
        problems.add(
            place.at("service_address"),
            f"`service_address` of `{name}` has a port",
            "ports of replicas are chosen from `ports`",
        )
    return service.host


def _label(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refuse_twins(hosts: dict[HostName, Host], source: Located, problems: Problems) -> None:
    """One machine under two names would be counted, planned and changed twice."""
    seen: dict[object, HostName] = {}
    for name, host in hosts.items():
        local = host.connection is Connection.LOCAL
        key = "local" if local else (identity(host.address), host.address.port or 22, host.ssh.proxy_jump)
        first = seen.setdefault(key, name)
        if first is not name:
            where = "this machine" if local else f"the address {host.address}"
            lines = f"line {source.at('hosts', first).line}"
            problems.add(
                source.at("hosts", name),
                f"`{name}` and `{first}` ({lines}) are one host: both are {where}",
                "keep one of them",
            )
