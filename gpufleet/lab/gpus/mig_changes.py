"""The commands of nvidia-smi that change a GPU: mode, reset, GPU instances and compute instances.

Words as captured outputs of R450 to R595 have them. Without `-i` every GPU is meant, a list is worked off until its
first failure and what was made before stays, and a mode that is only pending ends with status 0. The statuses of
"in use" (19) and "insufficient resources" (23) are NVML's numbers; nobody has shown them for nvidia-smi, so nothing
may rest on them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpufleet.lab.gpus.boards import Profile
from gpufleet.lab.gpus.console import Console
from gpufleet.lab.gpus.simgpu import GpuSet, Instance, NoRoom, SimGpu

IN_USE = "In use by another client"
_STATUS = {
    "Insufficient Permissions": 4,
    "Invalid Argument": 2,
    "Not Found": 6,
    IN_USE: 19,
    "Insufficient Resources": 23,
    "GPU requires reset": 16,
    "Unknown Error": 255,
}
_BUSY = (
    "{bus} is currently being used by one or more other processes (e.g. CUDA application or a monitoring application "
    "such as another instance of nvidia-smi). Please first kill all processes using the device and retry the command "
    "or reboot the system to make MIG mode effective."
)
_RESET_BUSY = (
    "1 device is currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, "
    "graphics application such as an X server, or a monitoring application such as another instance of nvidia-smi). "
    "Please first kill all processes using this device and all compute applications running in the system."
)


@dataclass(frozen=True, slots=True)
class _Options:
    """The words after `mig`, taken apart."""

    verb: str
    profiles: tuple[str, ...] = ()
    gis: frozenset[int] | None = None
    cis: frozenset[int] | None = None
    compute: bool = False


def parse(words: list[str]) -> _Options | None:
    """Options of a changing `mig` command; None for anything else."""
    verb, compute = "", False
    profiles: tuple[str, ...] = ()
    numbers: dict[str, frozenset[int]] = {}
    at = 0
    while at < len(words):
        word, _, value = words[at].partition("=")
        if word in {"-cgi", "-gi", "-ci"} and not value:
            at += 1
            value = words[at] if at < len(words) else ""
        match word:
            case "-cgi":
                verb, profiles = word, tuple(value.split(","))
            case "-dgi" | "-dci" | "-cci":
                verb = word
            case "-C":
                compute = True
            case "-gi" | "-ci" if re.fullmatch(r"\d+(,\d+)*", value):
                numbers[word] = frozenset(int(one) for one in value.split(","))
            case _:
                return None
        at += 1
    return _Options(verb, profiles, numbers.get("-gi"), numbers.get("-ci"), compute) if verb else None


def change(call: Console, devices: GpuSet, gpus: Iterable[SimGpu], options: _Options) -> int:
    """Carry out a `mig` command on these GPUs, in their order, until one fails."""
    enabled = [gpu for gpu in gpus if gpu.board.profiles and gpu.mig]
    if not enabled:
        call.say("No MIG-enabled devices found.")
        return 3
    act: dict[str, Callable[[Console, GpuSet, SimGpu, _Options], int]] = {
        "-cgi": _create,
        "-cci": _create_compute,
        "-dgi": _destroy,
        "-dci": _destroy_compute,
    }
    for gpu in enabled:
        status = act[options.verb](call, devices, gpu, options)
        if status:
            return status
    return 0


def _create(call: Console, devices: GpuSet, gpu: SimGpu, options: _Options) -> int:
    for word in options.profiles:
        reason, play = mishap(call, devices, "-cgi")
        name, _, start = word.removeprefix("MIG ").partition(":")
        profile = _profile(gpu, name)
        if call.user != "root":
            reason = "Insufficient Permissions"
        elif profile is None:
            reason = reason or "Invalid Argument"
        elif devices.clients.get(gpu.uuid):
            reason = reason or IN_USE
        elif gpu.fault:
            reason = reason or "GPU requires reset"
        made: Instance | None = None
        if not reason and profile is not None:
            try:
                made = gpu.create(
                    profile.name,
                    int(start) if start.isdigit() else None,
                    compute=options.compute and play != "half",
                )
            except NoRoom:
                reason = "Insufficient Resources"
        if reason or made is None:
            call.say(f"Unable to create a GPU instance on GPU {gpu.index:>2} using profile {name}: {reason}")
            return _failed(call, "create GPU instances", reason)
        if play == "lie":
            gpu.destroy(made.gi)
        _say_created(call, devices, gpu, made, compute=options.compute and play != "half")
        if play == "half":
            return _no_compute(call, gpu, made, IN_USE)
    return 0


def _say_created(call: Console, devices: GpuSet, gpu: SimGpu, made: Instance, *, compute: bool) -> None:
    if devices.generation < 455:
        call.say(
            f"Successfully created GPU instance on GPU {gpu.index:>2} using profile ID {made.profile.id:>2}"
        )
    else:
        call.say(
            f"Successfully created GPU instance ID {made.gi:>2} on GPU {gpu.index:>2} using profile "
            f"MIG {made.profile.name} (ID {made.profile.id:>2})"
        )
    if compute:
        call.say(_created_compute(gpu, made))


def _created_compute(gpu: SimGpu, made: Instance) -> str:
    return (
        f"Successfully created compute instance ID  0 on GPU {gpu.index:>2} GPU instance ID {made.gi:>2} using profile "
        f"MIG {made.profile.name.partition('+')[0]} (ID {made.profile.compute_id:>2})"
    )


def _create_compute(call: Console, devices: GpuSet, gpu: SimGpu, options: _Options) -> int:
    for one in _named(gpu, options.gis):
        reason, play = mishap(call, devices, "-cci")
        reason = "Insufficient Permissions" if call.user != "root" else reason
        reason = reason or ("Insufficient Resources" if one.ci is not None else "")
        if reason:
            return _no_compute(call, gpu, one, reason)
        one.ci = None if play == "lie" else 0
        call.say(_created_compute(gpu, one))
    return 0


def _no_compute(call: Console, gpu: SimGpu, one: Instance, reason: str) -> int:
    call.say(
        f"Unable to create a compute instance on GPU {gpu.index:>2} GPU instance ID {one.gi:>2} using profile "
        f"{one.profile.compute_id}: {reason}"
    )
    return _failed(call, "create compute instances", reason)


def _destroy_compute(call: Console, devices: GpuSet, gpu: SimGpu, options: _Options) -> int:
    found = [one for one in _named(gpu, options.gis) if one.ci is not None and _among(one.ci, options.cis)]
    if not found:
        call.say("No compute instances found: Not Found")
        return 6
    for one in found:
        reason, play = mishap(call, devices, "-dci")
        reason = "Insufficient Permissions" if call.user != "root" else reason
        reason = reason or (IN_USE if _used(devices, gpu, one) else "")
        place = f"compute instance ID {one.ci:>2} from GPU {gpu.index:>2} GPU instance ID {one.gi:>2}"
        if reason:
            call.say(f"Unable to destroy {place}: {reason}")
            return _failed(call, "destroy compute instances", reason)
        one.ci = one.ci if play == "lie" else None
        call.say(f"Successfully destroyed {place}")
    return 0


def _destroy(call: Console, devices: GpuSet, gpu: SimGpu, options: _Options) -> int:
    found = _named(gpu, options.gis)
    if not found:
        call.say("No GPU instances found: Not Found")
        return 6
    for one in found:
        reason, play = mishap(call, devices, "-dgi")
        reason = "Insufficient Permissions" if call.user != "root" else reason
        reason = reason or (IN_USE if one.ci is not None or _held(devices, gpu, one) else "")
        place = f"GPU instance ID {one.gi:>2} from GPU {gpu.index:>2}"
        if reason:
            call.say(f"Unable to destroy {place}: {reason}")
            return _failed(call, "destroy GPU instances", reason)
        if play != "lie":
            gpu.destroy(one.gi)
        call.say(f"Successfully destroyed {place}")
    return 0


def set_mode(call: Console, devices: GpuSet, gpus: Iterable[SimGpu], *, on: bool) -> int:
    """`-mig 0|1`: at once on Hopper and later, after a reset that is tried here on Ampere."""
    status = 0
    for gpu in gpus:
        status = _set_mode(call, devices, gpu, on=on)
        if status:
            call.say("Terminating early due to previous errors.")
            return status
    call.say("All done.")
    return status


def _set_mode(call: Console, devices: GpuSet, gpu: SimGpu, *, on: bool) -> int:
    verb, bus = ("enable" if on else "disable"), gpu.bus_id
    if call.user != "root":
        call.say(f"Unable to {verb} MIG Mode for GPU {bus}: Insufficient Permissions")
        return 4
    if not gpu.board.profiles:
        call.say(
            f"Unable to {verb} MIG Mode for GPU {bus}: Not Supported", "Treating as warning and moving on."
        )
        return 0
    reason, play = mishap(call, devices, "-mig")
    busy = bool(devices.processes(gpu) or devices.clients.get(gpu.uuid))
    if gpu.fault:
        call.say(f"Unable to {verb} MIG Mode for GPU {bus}: GPU requires reset")
        return _STATUS["GPU requires reset"]
    if gpu.board.architecture == "Ampere":
        busy = busy or devices.kept_open(gpu)
        gpu.pending = on
        stuck = "Not Supported" if devices.passthrough else IN_USE if busy or gpu.instances else reason
        if on != gpu.mig and stuck:
            call.say(f"Warning: MIG mode is in pending {verb} state for GPU {bus}:{stuck}")
            call.say(_BUSY.format(bus=bus) if stuck == IN_USE else _reboot(bus))
            return 0
    else:
        reason = reason or (IN_USE if on != gpu.mig and (busy or gpu.instances) else "")
        if reason:
            call.say(f"Unable to {verb} MIG Mode for GPU {bus}: {reason}")
            return _STATUS.get(reason, 255)
    if on != gpu.mig and play != "lie":
        gpu.set_mig(enabled=on)
    call.say(f"{'Enabled' if on else 'Disabled'} MIG Mode for GPU {bus}")
    return 0


def _reboot(bus: str) -> str:
    return f"Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective on GPU {bus}"


def reset(call: Console, devices: GpuSet, gpus: Iterable[SimGpu]) -> int:
    """`--gpu-reset`: takes the instances, and makes a pending mode effective."""
    for gpu in gpus:
        reason, play = mishap(call, devices, "--gpu-reset")
        if call.user != "root":
            call.say(f"Unable to reset this GPU {gpu.bus_id}: Insufficient Permissions")
            return 4
        if devices.passthrough:
            call.say(f"Resetting GPU {gpu.bus_id} is not supported.")
            return 3
        if reason or devices.processes(gpu) or devices.clients.get(gpu.uuid) or devices.kept_open(gpu):
            call.say(f"GPU {gpu.bus_id} is currently in use by another process.", "", _RESET_BUSY)
            return 255
        if play != "lie":
            gpu.set_mig(enabled=gpu.pending)
            gpu.fault = ""
        call.say(f"GPU {gpu.bus_id} was successfully reset.")
    call.say("All done.")
    return 0


def mishap(call: Console, devices: GpuSet, verb: str) -> tuple[str, str]:
    """The reason with which this fails by script, and what else happens by script: `lie`, `half` or nothing."""
    for one in devices.mishaps:
        if one.verb == verb:
            if one.skip:
                one.skip -= 1
                return "", ""
            devices.mishaps.remove(one)
            if one.effect == "slow":
                call.pause(20.0)
                return "", ""
            return ("", one.effect) if one.effect in {"lie", "half"} else (one.effect, "")
    return "", ""


def _failed(call: Console, what: str, reason: str) -> int:
    call.say(f"Failed to {what}: {reason}")
    return _STATUS.get(reason, 255)


def _profile(gpu: SimGpu, name: str) -> Profile | None:
    if name.isdigit():
        return next((one for one in gpu.board.profiles if one.id == int(name)), None)
    return gpu.board.profile(name)


def _named(gpu: SimGpu, gis: frozenset[int] | None) -> list[Instance]:
    return sorted((one for one in gpu.instances if _among(one.gi, gis)), key=lambda one: one.gi)


def _among(number: int, numbers: frozenset[int] | None) -> bool:
    return numbers is None or number in numbers


def _held(devices: GpuSet, gpu: SimGpu, one: Instance) -> bool:
    """Whether something that is no process holds the GPU or this slice."""
    return bool(devices.clients.get(gpu.uuid) or devices.clients.get(one.uuid))


def _used(devices: GpuSet, gpu: SimGpu, one: Instance) -> bool:
    return _held(devices, gpu, one) or any(slice_ is one for _, slice_, _ in devices.processes(gpu))
