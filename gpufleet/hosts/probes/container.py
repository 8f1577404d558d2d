"""Containers as `inspect` describes them: docker and nerdctl one JSON object a line, podman one array."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from gpufleet.hosts.model import ContainerFact, Fact, Known, Unknown

PORT_LABEL = "gpufleet.port"
"""Where a container that shares the host's network says which port it listens on."""

_GONE = re.compile(r"no such (?:object|container)", re.IGNORECASE)
_CDI_DEVICE = re.compile(r"^nvidia\.com/(?:gpu|mig)=(.+)$")
_DEVICE_NODE = re.compile(r"^/dev/nvidia(\d{1,3})$", re.ASCII)
_CDI_OPTION = re.compile(r"^(?:--device=)?nvidia\.com/(?:gpu|mig)=(.+)$")
_NO_DEVICE = {"", "none", "void"}

DEVICES_LABEL = "gpufleet.devices"
"""Where a container that gpufleet started says which devices it was given: nerdctl's `inspect` does not."""


def parse(text: str) -> Fact[tuple[ContainerFact, ...]]:
    """Every container that `text` describes, by name; Unknown when a single one is not understood."""
    objects = _objects(text)
    if isinstance(objects, Unknown):
        return objects
    found: list[ContainerFact] = []
    for item in objects.value:
        fact = _container(item)
        if fact is None:
            return Unknown("`inspect` described a container without id, name or state")
        found.append(fact)
    return Known(tuple(sorted(found, key=lambda fact: (fact.name, fact.id))))


def only_gone(errors: str) -> bool:
    """Whether the only complaints are of containers that went away between `ps` and `inspect`."""
    lines = [line for line in errors.splitlines() if line.strip()]
    return bool(lines) and all(_GONE.search(line) for line in lines)


def _objects(text: str) -> Fact[tuple[Mapping[str, object], ...]]:
    decoder = json.JSONDecoder()
    found: list[Mapping[str, object]] = []
    at = 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at >= len(text):
            return Known(tuple(found))
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return Unknown("the answer of `inspect` is cut off or is no JSON")
        items = value if isinstance(value, list) else [value]
        for item in items:
            if not isinstance(item, dict):
                return Unknown("the answer of `inspect` is no description of containers")
            found.append(item)


def _container(item: Mapping[str, object]) -> ContainerFact | None:
    config, host, state = _map(item, "Config"), _map(item, "HostConfig"), _map(item, "State")
    identifier, name, status = _text(item, "Id"), _text(item, "Name"), _text(state, "Status")
    if not (identifier and name and status):
        return None
    labels = {key: value for key, value in _map(config, "Labels").items() if isinstance(value, str)}
    host_network = _text(host, "NetworkMode") == "host"
    return ContainerFact(
        id=identifier,
        name=name.removeprefix("/"),
        image=_text(config, "Image") or _text(item, "ImageName"),
        image_id=_text(item, "Image"),
        state=status.casefold(),
        exit_code=_number(state, "ExitCode"),
        restart_policy=_restart_policy(_map(host, "RestartPolicy")),
        restart_count=_number(item, "RestartCount"),
        labels=labels,
        ports=_ports(item, host, labels, host_network=host_network),
        devices=_devices(config, host, labels),
        host_network=host_network,
        created_at=_text(item, "Created"),
        started_at=_text(state, "StartedAt"),
    )


def _restart_policy(policy: Mapping[str, object]) -> str:
    name = _text(policy, "Name") or "no"
    limit = _number(policy, "MaximumRetryCount")
    return f"{name}:{limit}" if name == "on-failure" and limit > 0 else name


def _ports(
    item: Mapping[str, object], host: Mapping[str, object], labels: Mapping[str, str], *, host_network: bool
) -> tuple[int, ...]:
    """TCP ports of the host: bound now, or bound again when a stopped container starts."""
    found: set[int] = set()
    for bindings in (_map(_map(item, "NetworkSettings"), "Ports"), _map(host, "PortBindings")):
        for inner, outer in bindings.items():
            if inner.endswith(("/udp", "/sctp")) or not isinstance(outer, list):
                continue
            found.update(_port(_text(one, "HostPort")) for one in outer if isinstance(one, dict))
    if host_network:
        found.update(_port(word) for word in labels.get(PORT_LABEL, "").split(","))
    return tuple(sorted(found - {0}))


def _port(text: str) -> int:
    word = text.strip()
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 5 and int(word) <= 65535 else 0


def _devices(
    config: Mapping[str, object], host: Mapping[str, object], labels: Mapping[str, str]
) -> tuple[str, ...]:
    """GPUs it was given, in the words they were given in.

    podman shows what CDI made of a device, `/dev/nvidia0`, and keeps its name in the command alone. The environment
    counts only where nothing else speaks: CUDA images carry `NVIDIA_VISIBLE_DEVICES=all`, which means nothing
    without the nvidia runtime.
    """
    found = [*_requested(host), *_commanded(config)]
    if found:
        return tuple(dict.fromkeys(found))
    for device in _maps(host, "Devices"):
        path = _text(device, "PathOnHost")
        if match := _CDI_DEVICE.match(path) or _DEVICE_NODE.match(path):
            found.append(match[1])
    if not found and _text(host, "Runtime") == "nvidia":
        found.extend(_from_environment(config))
    if not found:
        found.extend(word for word in labels.get(DEVICES_LABEL, "").split(",") if word)
    return tuple(dict.fromkeys(found))


def _commanded(config: Mapping[str, object]) -> Iterator[str]:
    """CDI devices among the options of the `podman run` that made it; what stands behind the image is not an option."""
    words = [word for word in _list(config, "CreateCommand") if isinstance(word, str)]
    image = _text(config, "Image")
    options = words[: words.index(image)] if image in words else words
    for before, word in zip(["", *options], options, strict=False):
        match = _CDI_OPTION.match(word)
        if match and (before == "--device" or word.startswith("--device=")):
            yield match[1]


def _requested(host: Mapping[str, object]) -> Iterator[str]:
    for request in _maps(host, "DeviceRequests"):
        identifiers = [word for word in _list(request, "DeviceIDs") if isinstance(word, str)]
        if _text(request, "Driver") == "cdi":
            for word in identifiers:
                if match := _CDI_DEVICE.match(word):
                    yield match[1]
            continue
        capabilities = [
            word for group in _list(request, "Capabilities") if isinstance(group, list) for word in group
        ]
        if _text(request, "Driver") != "nvidia" and not {"gpu", "nvidia"} & {
            str(word) for word in capabilities
        }:
            continue
        count = _number(request, "Count")
        if identifiers:
            yield from identifiers
        elif count < 0:
            yield "all"
        else:
            yield from (str(index) for index in range(min(count, 64)))


def _from_environment(config: Mapping[str, object]) -> Iterator[str]:
    for entry in _list(config, "Env"):
        if isinstance(entry, str) and entry.startswith("NVIDIA_VISIBLE_DEVICES="):
            words = entry.partition("=")[2].split(",")
            yield from (word.strip() for word in words if word.strip() not in _NO_DEVICE)


def _map(item: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = item.get(key)
    return value if isinstance(value, dict) else {}


def _list(item: Mapping[str, object], key: str) -> Sequence[object]:
    value = item.get(key)
    return value if isinstance(value, list) else ()


def _maps(item: Mapping[str, object], key: str) -> Iterator[Mapping[str, object]]:
    return (value for value in _list(item, key) if isinstance(value, dict))


def _text(item: Mapping[str, object], key: str) -> str:
    value = item.get(key)
    return value if isinstance(value, str) else ""


def _number(item: Mapping[str, object], key: str) -> int:
    value = item.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
