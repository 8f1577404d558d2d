"""nvidia-ctk and the CDI specifications of a simulated host: they name the slices that were there when they were written.

`cdi generate` writes where it is told, `cdi list` reads what stands under `/etc/cdi` and `/var/run/cdi`, and the
toolkit's service writes `/var/run/cdi/nvidia.yaml`, which a boot empties. Nothing is written while a GPU has MIG on and
no slice.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from gpufleet.lab.gpus.simgpu import GpuSet
from gpufleet.lab.shell.call import Call, Program
from gpufleet.lab.shell.syntax import Unsupported
from gpufleet.lab.simfs import Directory
from gpufleet.lab.simhost import Service, SimHost

FOLDERS = ("/etc/cdi", "/var/run/cdi")
PLACE = "/etc/cdi/nvidia.yaml"
REFRESH = "nvidia-cdi-refresh"
_ENTRY = re.compile(r'^\s*(?:- )?"?name"?: "?([^"\s,]+)"?,?$', re.MULTILINE)


def ctk_program(devices: GpuSet, version: str = "1.17.8") -> Program:
    """nvidia-ctk: its version, `cdi list` and `cdi generate`; before 1.15 it names devices in one way, by number."""
    first, second = (int(part) for part in version.split(".")[:2])
    default = "index,uuid" if (first, second) >= (1, 15) else "index"

    def program(call: Call) -> int:
        words = call.arguments
        if words == ["--version"]:
            call.say(f"NVIDIA Container Toolkit CLI version {version}", "commit: lab")
            return 0
        if words[:2] == ["cdi", "list"]:
            names = named(call.host)
            call.complain(f'time="lab" level=info msg="Found {len(names)} CDI devices"', 0)
            call.say(*(f"nvidia.com/gpu={name}" for name in names))
            return 0
        if words[:2] == ["cdi", "generate"]:
            options = dict(word.removeprefix("--").partition("=")[::2] for word in words[2:])
            strategies = options.get("device-name-strategy", default).split(",")
            known = options.keys() <= {"output", "format", "device-name-strategy"}
            if (
                not known
                or not set(strategies) <= {"index", "uuid"}
                or (default == "index" and strategies[1:])
            ):
                raise Unsupported(f"nvidia-ctk {' '.join(words)}")
            return _generate(call, devices, options.get("output", ""), strategies)
        raise Unsupported(f"nvidia-ctk {' '.join(words)}")

    return program


def _generate(call: Call, devices: GpuSet, place: str, strategies: Collection[str]) -> int:
    text = specification(devices, strategies)
    if text is None:
        return call.complain(
            'time="lab" level=error msg="failed to generate CDI spec: failed to create device specs"'
        )
    if not place:
        call.out.write(text)
        return 0
    if call.user != "root":
        return call.complain(
            f'time="lab" level=error msg="failed to save CDI spec: open {place}: permission denied"'
        )
    call.host.fs.write(place, text.encode())
    return 0


def specification(devices: GpuSet, strategies: Collection[str] = ("index", "uuid")) -> str | None:
    """What describes the slices of now; None where it cannot be made."""
    if devices.trouble or any(gpu.mig and not gpu.devices() for gpu in devices.gpus):
        return None
    entries = [
        f'- containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia{index}\n  name: "{name}"\n'
        for name, index in (*devices.names().items(), ("all", 0))
        if name == "all" or ("uuid" if name.startswith(("GPU-", "MIG-")) else "index") in strategies
    ]
    return f"cdiVersion: 0.5.0\ncontainerEdits: {{}}\ndevices:\n{''.join(entries)}kind: nvidia.com/gpu\n"


def named(host: SimHost) -> list[str]:
    """Devices that the specifications of a host name, in their order."""
    found: dict[str, None] = {}
    for folder in FOLDERS:
        node = host.fs.seek(folder)
        for name in sorted(node.entries) if isinstance(node, Directory) else ():
            text = host.fs.read(f"{folder}/{name}").decode()
            if "nvidia.com/gpu" in text:
                found |= dict.fromkeys(_ENTRY.findall(text))
    return list(found)


def begin(host: SimHost, devices: GpuSet, place: str = PLACE) -> None:
    """The specification that whoever set the host up wrote."""
    text = specification(devices)
    if text is not None:
        host.fs.write(place, text.encode())


def add_refresh(host: SimHost, devices: GpuSet) -> None:
    """The toolkit's own service, as since 1.18: active after its first run, and run again by a restart or a boot."""
    place = "/var/run/cdi/nvidia.yaml"

    def act(on: bool, restarted: bool) -> None:  # noqa: FBT001 as SimHost calls it
        if on and restarted:
            begin(host, devices, place)

    def boot() -> None:
        if host.fs.exists(place):
            host.fs.unlink(place)
        begin(host, devices, place)

    host.services[REFRESH] = Service()
    host.on_service.setdefault(REFRESH, []).append(act)
    host.on_boot.append(boot)
    begin(host, devices, place)
