"""`nvidia-smi` as a program of a simulated host. Errors go to standard output, as there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from gpufleet.lab.gpus import mig_changes
from gpufleet.lab.gpus import smi_tables as tables
from gpufleet.lab.gpus.console import Console
from gpufleet.lab.gpus.simgpu import GpuSet, SimGpu
from gpufleet.lab.shell.syntax import Unsupported

Program: TypeAlias = Callable[[Console], int]

_NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
    "NVIDIA driver is installed and running.\n"
)
_TROUBLES = {
    "no-driver": (_NO_DRIVER, 9),
    "mismatch": (
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95",
        18,
    ),
    "no-devices": ("No devices were found", 6),
}
_LOST = (
    "Unable to determine the device handle for GPU{bus}: GPU is lost.  Reboot the system to recover this GPU"
)
_FAULTED = "[GPU requires reset]"
_ON_OFF = {True: "Enabled", False: "Disabled"}


def smi_program(devices: GpuSet) -> Program:
    """nvidia-smi over these GPUs."""

    def program(call: Console) -> int:
        if devices.trouble == "hang":
            call.pause(float("inf"))
        if devices.trouble in _TROUBLES:
            text, status = _TROUBLES[devices.trouble]
            call.say(text)
            return status
        words = call.arguments
        chosen, words = _chosen(devices, words)
        if chosen is None:
            call.say("No devices were found")
            return 6
        lost = [gpu for gpu in chosen if gpu.fault == "lost"]
        call.say(*(_LOST.format(bus=gpu.bus_id[4:]) for gpu in lost))
        chosen = [gpu for gpu in chosen if gpu not in lost]
        if lost and not chosen:
            return 15
        return _act(call, devices, chosen, words)

    return program


def _act(call: Console, devices: GpuSet, chosen: list[SimGpu], words: list[str]) -> int:
    if words[:1] == ["mig"]:
        asked = mig_changes.parse(words[1:])
        if asked is not None:
            return mig_changes.change(call, devices, chosen, asked)
        return _mig(call, devices, chosen, words[1:])
    if words[:1] in (["-mig"], ["--multi-instance-gpu"]) and words[1:] in (["0"], ["1"]):
        return mig_changes.set_mode(call, devices, chosen, on=words[1] == "1")
    if words in (["-r"], ["--gpu-reset"]):
        return mig_changes.reset(call, devices, chosen)
    return _query(call, devices, chosen, words)


def _chosen(devices: GpuSet, words: list[str]) -> tuple[list[SimGpu] | None, list[str]]:
    """The GPUs that `-i` names by index, UUID or bus id, and the words without it."""
    rest: list[str] = []
    chosen: list[SimGpu] | None = devices.gpus
    at = 0
    while at < len(words):
        word = words[at]
        value = ""
        if word in {"-i", "--id"} and at + 1 < len(words):
            at += 1
            value = words[at]
        elif word.startswith(("-i=", "--id=")):
            value = word.partition("=")[2]
        else:
            rest.append(word)
        if value:
            names = value.split(",")
            chosen = [gpu for gpu in devices.gpus if {str(gpu.index), gpu.uuid, gpu.bus_id} & set(names)]
            if len(chosen) != len(names):
                chosen = None
        at += 1
    return chosen, rest


def _query(call: Console, devices: GpuSet, gpus: list[SimGpu], words: list[str]) -> int:
    if not words:
        call.say(*tables.overview(devices, call.host.clock.now()))
        return 0
    if words in (["-L"], ["--list-gpus"]):
        call.say(*tables.listing(gpus, devices.generation))
        return 0
    if words == ["topo", "-m"]:
        call.say(*tables.topology(gpus))
        return 0
    if words == ["--version"]:
        short = devices.driver.rpartition(".")[0]
        call.say(
            f"NVIDIA-SMI version  : {devices.driver}",
            f"NVML version        : {short}",
            f"DRIVER version      : {devices.driver}",
            f"CUDA Version        : {devices.cuda}",
        )
        return 0
    if set(words) == {"-q", "-x"}:
        call.out.write(tables.report(devices, gpus, call.host.clock.now()))
        return 0
    options = dict(word.partition("=")[::2] for word in words)
    form = set(options.pop("--format", "").split(","))
    if "csv" not in form or len(options) != 1:
        raise Unsupported(f"nvidia-smi {' '.join(words)}")
    name, fields = options.popitem()
    if name == "--query-gpu":
        return _csv(call, fields.split(","), _GPU_FIELDS, [_gpu_row(devices, gpu) for gpu in gpus], form)
    if name in {"--query-compute-apps", "--query-apps"}:
        return _csv(call, fields.split(","), _APP_FIELDS, _app_rows(devices, gpus), form)
    raise Unsupported(f"nvidia-smi {name}")


_GPU_FIELDS = {
    "memory.total": "MiB", "memory.used": "MiB", "memory.free": "MiB", "memory.reserved": "MiB",
    "utilization.gpu": "%", "utilization.memory": "%", "power.draw": "W", "power.limit": "W",
}  # fmt: skip
_SILENT = (
    "temperature.gpu",
    "utilization.gpu",
    "utilization.memory",
    "power.draw",
    "mig.mode.current",
    "mig.mode.pending",
)
"""What a GPU that requires a reset no longer tells."""
_APP_FIELDS = {"used_gpu_memory": "MiB", "used_memory": "MiB"}
_SAME = {
    "gpu_uuid": "uuid",
    "gpu_name": "name",
    "gpu_bus_id": "pci.bus_id",
    "gpu_serial": "serial",
    "count": "count",
}


def _csv(
    call: Console, fields: list[str], units: dict[str, str], rows: list[dict[str, str]], form: set[str]
) -> int:
    known = (
        rows[0].keys()
        if rows
        else {*units, "gpu_uuid", "pid", "process_name", "gpu_name", "gpu_bus_id", "name"}
    )
    fields = [field.strip() for field in fields]
    for field in fields:
        if field not in known and _SAME.get(field) not in known:
            call.say(f'Field "{field}" is not a valid field to query.\n')
            return 2
    if "noheader" not in form:
        call.say(", ".join(f"{field} [{units[field]}]" if field in units else field for field in fields))
    for row in rows:
        cells = []
        for field in fields:
            value = row[field] if field in row else row[_SAME[field]]
            unit = f" {units[field]}" if field in units and "nounits" not in form and value[:1] != "[" else ""
            cells.append(value + unit)
        call.say(", ".join(cells))
    return 0


def _gpu_row(devices: GpuSet, gpu: SimGpu) -> dict[str, str]:
    capable = bool(gpu.board.profiles)
    used, total = devices.used_mib(gpu), gpu.board.memory_mib
    busy = bool(devices.processes(gpu))
    row = {
        "index": str(gpu.index),
        "uuid": gpu.uuid,
        "name": gpu.board.name,
        "count": str(len(devices.gpus)),
        "serial": f"13243210{gpu.index:05d}",
        "pci.bus_id": gpu.bus_id,
        "pci.device_id": gpu.board.device_id,
        "driver_version": devices.driver,
        "vbios_version": "96.00.A5.00.01",
        "memory.total": str(total),
        "memory.used": str(used),
        "memory.free": str(total - used),
        "memory.reserved": "479",
        "temperature.gpu": "55" if busy else "33",
        "utilization.gpu": "[N/A]" if gpu.mig else "37" if busy else "0",
        "utilization.memory": "[N/A]" if gpu.mig else "20" if busy else "0",
        "power.draw": "280.00" if busy else "70.00",
        "power.limit": f"{gpu.board.power_limit}.00",
        "mig.mode.current": _ON_OFF[gpu.mig] if capable else "[N/A]",
        "mig.mode.pending": _ON_OFF[gpu.pending] if capable else "[N/A]",
        "persistence_mode": "Enabled",
        "compute_mode": "Default",
        "compute_cap": gpu.board.compute_capability,
        "ecc.mode.current": "Enabled",
    }
    if gpu.fault:
        row |= dict.fromkeys(_SILENT, _FAULTED)
    return row


def _app_rows(devices: GpuSet, gpus: list[SimGpu]) -> list[dict[str, str]]:
    """Processes name the parent GPU alone, also on slices."""
    return [
        {
            "uuid": gpu.uuid,
            "name": gpu.board.name,
            "pci.bus_id": gpu.bus_id,
            "pid": str(holder.pid),
            "process_name": holder.name,
            "used_memory": str(memory),
            "used_gpu_memory": str(memory),
        }
        for gpu in gpus
        for holder, _, memory in devices.processes(gpu)
    ]


def _mig(call: Console, devices: GpuSet, gpus: list[SimGpu], words: list[str]) -> int:
    capable = [gpu for gpu in gpus if gpu.board.profiles]
    shows: dict[str, Callable[[], list[str]]] = {
        "-lgip": lambda: tables.profiles(capable, devices.generation),
        "-lgipp": lambda: tables.placements(capable),
        "-lgi": lambda: tables.gpu_instances(enabled, devices.generation),
        "-lci": lambda: tables.compute_instances(enabled, devices.generation),
    }
    enabled = [gpu for gpu in capable if gpu.mig]
    if len(words) != 1 or words[0] not in shows:
        raise Unsupported(f"nvidia-smi mig {' '.join(words)}")
    if not capable:
        call.say("No MIG-supported devices found.")
        return 3
    if words[0] in {"-lgi", "-lci"}:
        noun = "GPU" if words[0] == "-lgi" else "compute"
        if not enabled:
            call.say("No MIG-enabled devices found.")
            return 3
        if devices.strict and call.user != "root":
            call.say(f"Failed to display {noun} instances: Insufficient Permissions")
            return 4
        if not any(gpu.devices() if noun == "compute" else gpu.instances for gpu in enabled):
            call.say(f"No {noun} instances found: Not Found")
            return 6
    reason, _ = mig_changes.mishap(call, devices, words[0])
    lines = shows[words[0]]()
    if reason:
        # The header is printed before the driver is asked: an error stands under it, on the same stream.
        head = next((at + 1 for at, line in enumerate(lines) if line.startswith("|=")), 0)
        call.say(*lines[:head], f"Failed to display {_NOUNS[words[0]]}: {reason}")
        return 255
    call.say(*lines)
    return 0


_NOUNS = {
    "-lgip": "GPU instance profiles",
    "-lgipp": "GPU instance possible placements",
    "-lgi": "GPU instances",
    "-lci": "compute instances",
}
