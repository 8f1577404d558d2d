"""A container, an image or the engine itself, as `inspect`, `ps` and `info` describe them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from gpufleet.lab.containers.model import Container, Image, Published
from gpufleet.lab.containers.simcontainer import ContainerEngine

_NEVER = "0001-01-01T00:00:00Z"


def moment(at: datetime | None) -> str:
    """RFC 3339 with nanoseconds."""
    return _NEVER if at is None else f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond * 1000:09d}Z"


def describe(engine: ContainerEngine, container: Container) -> dict[str, Any]:
    """What `inspect` prints of a container."""
    wish = container.wish
    bindings = _bindings(wish.published)
    return {
        "Id": container.id,
        "Created": moment(container.created),
        "Path": (wish.entrypoint or ("vllm",))[0],
        "Args": [*wish.entrypoint[1:], *wish.arguments],
        "State": _state(container),
        "Image": container.image_id,
        "ImageName": wish.image,
        "Name": container.name if engine.kind == "podman" else f"/{container.name}",
        "RestartCount": container.restarts,
        "Driver": "overlay2",
        "HostConfig": _host_config(engine, container, bindings),
        "Mounts": [_mount(bind) for bind in wish.binds],
        "Config": {
            "Hostname": container.id[:12],
            "User": wish.user,
            "Env": [*wish.env, "PATH=/usr/local/bin:/usr/bin:/bin", "NVIDIA_VISIBLE_DEVICES=all"],
            "Cmd": list(wish.arguments) or None,
            "Image": wish.image,
            "Entrypoint": list(wish.entrypoint) or ["vllm", "serve"],
            "Labels": dict(wish.labels),
            **({"CreateCommand": list(wish.command)} if engine.kind == "podman" else {}),
            **({} if wish.stop_timeout is None else {"StopTimeout": wish.stop_timeout}),
        },
        "NetworkSettings": {"Ports": bindings if container.running else {}, "IPAddress": ""},
    }


def _state(container: Container) -> dict[str, Any]:
    return {
        "Status": container.status,
        "Running": container.running,
        "Paused": False,
        "Restarting": container.status == "restarting",
        "OOMKilled": container.out_of_memory,
        "Dead": False,
        "Pid": container.pid,
        "ExitCode": container.exit_code,
        "Error": container.error,
        "StartedAt": moment(container.started),
        "FinishedAt": moment(container.finished),
    }


def _host_config(engine: ContainerEngine, container: Container, bindings: dict[str, Any]) -> dict[str, Any]:
    wish = container.wish
    requests: list[dict[str, Any]] = []
    if wish.devices or wish.gpu_count:
        ids = list(wish.devices) or None
        requests.append(_request("", -1 if wish.gpu_count < 0 else wish.gpu_count, ids, [["gpu"]]))
    devices: list[dict[str, Any]] = []
    names = [f"nvidia.com/gpu={name}" for name in wish.cdi]
    if names and engine.kind == "podman":  # what CDI made of the names; these stand in the command alone
        nodes = [f"/dev/nvidia{index}" for index in sorted({engine.gpus().get(name, 0) for name in wish.cdi})]
        devices = [{"PathOnHost": node, "PathInContainer": node, "CgroupPermissions": ""} for node in nodes]
    elif names:
        requests.append(_request("cdi", 0, names, None))
    return {
        "Binds": list(wish.binds) or None,
        "NetworkMode": wish.network,
        "PortBindings": bindings,
        "RestartPolicy": {"Name": container.policy.name, "MaximumRetryCount": container.policy.limit},
        "AutoRemove": wish.auto_remove,
        "IpcMode": wish.ipc,
        "Memory": wish.memory,
        "NanoCpus": wish.nano_cpus,
        "ShmSize": wish.shm,
        "Runtime": "runc",
        "Devices": devices,
        "DeviceRequests": requests or None,
        "Ulimits": [_ulimit(text) for text in wish.ulimits],
    }


def _request(driver: str, count: int, ids: list[str] | None, capabilities: object) -> dict[str, Any]:
    return {"Driver": driver, "Count": count, "DeviceIDs": ids, "Capabilities": capabilities, "Options": {}}


def _ulimit(text: str) -> dict[str, Any]:
    name, _, limits = text.partition("=")
    soft, _, hard = limits.partition(":")
    return {"Name": name, "Hard": int(hard or soft), "Soft": int(soft)}


def _mount(bind: str) -> dict[str, Any]:
    source, target, *mode = bind.split(":")
    kind = "bind" if source.startswith("/") else "volume"
    return {
        "Type": kind,
        "Source": source,
        "Destination": target,
        "Mode": "".join(mode),
        "RW": mode != ["ro"],
    }


def _bindings(published: tuple[Published, ...]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for one in published:
        out.setdefault(f"{one.inner}/tcp", []).append({"HostIp": one.address, "HostPort": str(one.port)})
    return out


def ago(seconds: float) -> str:
    """How docker words a duration."""
    whole = int(seconds)
    if whole < 1:
        return "Less than a second"
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if whole >= 2 * size:
            return f"{whole // size} {unit}"
    if whole >= 60:
        return "About a minute" if whole < 120 else f"{whole // 60} minutes"
    return "1 second" if whole == 1 else f"{whole} seconds"


def status_line(engine: ContainerEngine, container: Container) -> str:
    """`Up 3 seconds` and the like."""
    now = engine.host.clock.now()
    match container.status:
        case "running" if container.started is not None:
            return f"Up {ago((now - container.started).total_seconds())}"
        case "exited" if container.finished is not None:
            return f"Exited ({container.exit_code}) {ago((now - container.finished).total_seconds())} ago"
        case _:
            return "Created"


def row(engine: ContainerEngine, container: Container, *, full: bool) -> dict[str, Any]:
    """What `ps --format` knows of a container."""
    wish = container.wish
    ports = ", ".join(f"{one.address or '0.0.0.0'}:{one.port}->{one.inner}/tcp" for one in wish.published)
    command = " ".join((*(wish.entrypoint or ("vllm", "serve")), *wish.arguments))
    created = engine.host.clock.now() - container.created
    return {
        "Command": f'"{command[:19]}…"' if len(command) > 20 and not full else f'"{command}"',
        "CreatedAt": f"{container.created:%Y-%m-%d %H:%M:%S} +0000 UTC",
        "ID": container.id if full else container.id[:12],
        "Image": wish.image,
        "Labels": ",".join(f"{key}={value}" for key, value in wish.labels.items()),
        "LocalVolumes": "0",
        "Mounts": ",".join(bind.partition(":")[0] for bind in wish.binds),
        "Names": container.name,
        "Networks": wish.network,
        "Ports": ports if container.running else "",
        "RunningFor": f"{ago(created.total_seconds())} ago",
        "Size": "0B",
        "State": container.status,
        "Status": status_line(engine, container),
        "_labels": dict(wish.labels),
    }


def image_row(image: Image) -> dict[str, Any]:
    """What `images --format` knows."""
    repository, _, tag = image.reference.rpartition(":")
    by_digest = "@" in image.reference
    return {
        "ID": image.id.removeprefix("sha256:")[:12],
        "Repository": image.reference.partition("@")[0] if by_digest else repository,
        "Tag": "<none>" if by_digest else tag,
        "Digest": image.reference.partition("@")[2] or image.id,
        "Size": f"{image.size / 1e9:.3g}GB",
        "CreatedSince": "3 weeks ago",
    }


def image_description(image: Image) -> dict[str, Any]:
    """What `image inspect` prints."""
    by_digest = "@" in image.reference
    repository = image.reference.partition("@")[0] if by_digest else image.reference.rpartition(":")[0]
    return {
        "Id": image.id,
        "RepoTags": [] if by_digest else [image.reference],
        "RepoDigests": [f"{repository}@{digest}" for digest in image.digests],
        "Size": image.size,
        "Architecture": "amd64",
        "Os": "linux",
        "Config": {"Entrypoint": ["vllm", "serve"], "Labels": {}},
    }


def info(engine: ContainerEngine) -> dict[str, Any]:
    """What `info` prints."""
    running = sum(container.running for container in engine.containers.values())
    if engine.kind == "podman":
        return {
            "host": {"security": {"rootless": False}, "os": "linux", "arch": "amd64"},
            "store": {
                "graphRoot": "/var/lib/containers/storage",
                "containerStore": {"number": len(engine.containers)},
            },
            "version": {"Version": engine.version},
        }
    facts: dict[str, Any] = {
        "ID": "lab",
        "Containers": len(engine.containers),
        "ContainersRunning": running,
        "Images": len(engine.images),
        "Driver": "overlayfs" if engine.setup.containerd else "overlay2",
        "DriverStatus": (
            [["driver-type", "io.containerd.snapshotter.v1"]]
            if engine.setup.containerd
            else [["Backing Filesystem", "extfs"], ["Supports d_type", "true"]]
        ),
        "DockerRootDir": "/var/lib/docker",
        "ServerVersion": engine.version,
        "CgroupDriver": "cgroupfs",
        "CgroupVersion": "1",
        "OperatingSystem": "Debian GNU/Linux 12 (bookworm)",
        "Runtimes": {
            "runc": {"path": "runc"},
            **({"nvidia": {"path": "nvidia-container-runtime"}} if engine.gpu_hook else {}),
        },
        "DefaultRuntime": "runc",
        "SecurityOptions": [
            "name=seccomp,profile=builtin",
            *(["name=rootless"] if engine.setup.rootless else []),
        ],
    }
    if engine.major >= 25:
        facts["CDISpecDirs"] = ["/etc/cdi", "/var/run/cdi"] if engine.setup.cdi else []
    return facts


def version(engine: ContainerEngine) -> dict[str, Any]:
    """What `version` prints."""
    client = {
        "Version": engine.version,
        "ApiVersion": "1.45" if engine.major > 20 else "1.41",
        "Os": "linux",
        "Arch": "amd64",
    }
    return {"Client": client, "Server": {**client, "Engine": engine.kind}}
