"""Why a container does not start: devices, program, ports; each refusal in the engine's own words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpufleet.lab.containers.model import NO_DEVICE_DRIVER, Container, Published, Refused
from gpufleet.lab.simhost import Listener, SimHost

if TYPE_CHECKING:
    from gpufleet.lab.containers.simcontainer import ContainerEngine


def check_devices(engine: ContainerEngine, container: Container) -> None:
    wish = container.wish
    known = engine.gpus()
    if wish.cdi and engine.kind == "docker" and not engine.setup.cdi:
        raise Refused('could not select device driver "cdi" with capabilities: [].', 125)
    described = set(engine.cdi()) if wish.cdi else set()
    for name in wish.cdi:
        if name not in described:
            raise Refused(_cdi_text(engine.kind, name), 126 if engine.kind == "podman" else 125)
        if name not in {"all", *known}:  # described once, and gone since
            raise Refused(
                f"error gathering device information while adding custom device {name}: no such file or directory",
                125,
            )
    if not (wish.devices or wish.gpu_count):
        return
    if not engine.gpu_hook:
        raise Refused(NO_DEVICE_DRIVER, 125)
    for name in wish.devices:
        if name not in known:
            raise _hook_failed(engine, f"device error: {name}: unknown device")
    if engine.setup.rootless and "no-cgroups = true" not in _hook_settings(engine.host):
        raise _hook_failed(
            engine,
            "mount error: failed to add device rules: unable to find any existing device filters attached to the "
            "cgroup: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted",
        )


def _hook_failed(engine: ContainerEngine, said: str) -> Refused:
    return _not_created(
        engine,
        "error running hook #0: error running hook: exit status 1, stdout: , "
        f"stderr: nvidia-container-cli: {said}",
    )


def _not_created(engine: ContainerEngine, why: str) -> Refused:
    task = "failed to create task for container: " if engine.major > 20 else ""
    return Refused(
        f"{task}failed to create shim task: OCI runtime create failed: runc create failed: unable to start "
        f"container process: error during container init: {why}: unknown.",
        125,
    )


def _hook_settings(host: SimHost) -> str:
    path = "/etc/nvidia-container-runtime/config.toml"
    return host.fs.read(path).decode() if host.fs.exists(path) else ""


def check_limits(engine: ContainerEngine, container: Container) -> None:
    """Without root nobody raises a limit."""
    if engine.setup.rootless and container.wish.ulimits:
        raise _not_created(
            engine,
            "error setting rlimits for ready process: error setting rlimit type 8: operation not permitted",
        )


def _cdi_text(kind: str, name: str) -> str:
    if kind == "podman":
        return f"setting up CDI devices: unresolvable CDI devices nvidia.com/gpu={name}"
    return f"CDI device injection failed: unresolvable CDI devices nvidia.com/gpu={name}."


def check_program(container: Container) -> None:
    program = (container.wish.entrypoint or ("vllm",))[0]
    if program.rpartition("/")[2] not in {"vllm", "python3", "sh", "sleep", "nginx", "redis-server"}:
        raise Refused(
            "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create "
            f'failed: unable to start container process: exec: "{program}": executable file not found in $PATH: '
            "unknown.",
            127,
        )


def check_ports(host: SimHost, container: Container) -> None:
    for published in container.wish.published:
        holder = _holder(host, published)
        if holder is None:
            continue
        at = f"{published.address or '0.0.0.0'}:{published.port}"
        endpoint = f"driver failed programming external connectivity on endpoint {container.name} ({container.id[::-1]})"
        if holder.container:
            raise Refused(f"{endpoint}: Bind for {at} failed: port is already allocated.", 125)
        raise Refused(
            f"{endpoint}: Error starting userland proxy: listen tcp4 {at}: bind: address already in use.",
            125,
        )


def _holder(host: SimHost, published: Published) -> Listener | None:
    for listener in host.listeners:
        wide = {"0.0.0.0", ""} & {listener.address, published.address}
        if listener.port == published.port and (wide or listener.address == published.address):
            return listener
    return None
