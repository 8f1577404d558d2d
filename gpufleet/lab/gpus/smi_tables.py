"""nvidia-smi's tables and XML, in the widths of the driver generations 450, 470 to 570, and 580 and later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from xml.sax.saxutils import escape

from gpufleet.lab.gpus.simgpu import GpuSet, Instance, SimGpu


def plain(name: str) -> str:
    """A profile's name where nvidia-smi drops the media suffix."""
    return name.partition("+")[0]


def listing(gpus: Iterable[SimGpu], generation: int) -> list[str]:
    """`nvidia-smi -L`."""
    out: list[str] = []
    for gpu in gpus:
        name = gpu.board.name.removeprefix("NVIDIA ") if generation < 470 else gpu.board.name
        out.append(f"GPU {gpu.index}: {name} (UUID: {gpu.uuid})")
        for number, one in gpu.devices():
            uuid = f"MIG-{gpu.uuid}/{one.gi}/{one.ci}" if generation < 470 else one.uuid
            out.append(f"  MIG {plain(one.profile.name):<12}Device {number:>2}: (UUID: {uuid})")
    return out


def _name_width(generation: int) -> int:
    return 16 if generation >= 580 else 14 if generation >= 470 else 11


def profiles(gpus: Iterable[SimGpu], generation: int) -> list[str]:
    """`mig -lgip`: two rows a profile."""
    width = _name_width(generation)
    inside = width + 63
    rule = f"+{'-' * inside}+"
    out = [
        rule,
        f"|{' GPU instance profiles:':<{inside}}|",
        f"| GPU   Name{' ' * (width - 1)}ID    Instances   Memory     P2P    SM    DEC   ENC  |",
        f"|{' ' * (width + 16)}Free/Total   GiB              CE    JPEG  OFA  |",
        f"|{'=' * inside}|",
    ]
    for gpu in gpus:
        for one in gpu.board.profiles:
            dec, enc, ce, jpeg, ofa = one.engines
            out.append(
                f"|   {gpu.index}  MIG {one.name:<{width}}{one.id:>2}     {gpu.free_count(one)}/{one.total}        "
                f"{one.gib:<11.2f}No     {one.sm:<7}{dec:<6}{enc:<4}|"
            )
            out += [f"|{' ' * (inside - 16)}{ce:<6}{jpeg:<6}{ofa:<4}|", rule]
    return out


def placements(gpus: Iterable[SimGpu]) -> list[str]:
    """`mig -lgipp`."""
    out: list[str] = []
    for gpu in gpus:
        for one in gpu.board.profiles:
            noun = "Placement " if len(one.starts) == 1 else "Placements"
            starts = ",".join(map(str, one.starts))
            out.append(f"GPU {gpu.index:>2} Profile ID {one.id:>2} {noun}: {{{starts}}}:{one.size}")
    return out


_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks"""


def topology(gpus: Sequence[SimGpu]) -> list[str]:
    """`topo -m`: the heading is underlined also where no terminal is, and the lower half hangs on the first socket."""
    half = -(-len(gpus) // 2)
    heads = [f"GPU{gpu.index}" for gpu in gpus]
    out = ["\t\x1b[4m" + "\t".join([*heads, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]) + "\x1b[0m"]
    for at, gpu in enumerate(gpus):
        cells = [_link(at, other, half, gpu.board.nvlinks) for other in range(len(gpus))]
        socket = int(at >= half)
        cores = f"{socket * 48}-{socket * 48 + 47}"
        out.append("\t".join([f"GPU{gpu.index}", *cells, cores, f"{socket}\t", "N/A"]))
    return [*out, *_LEGEND.splitlines()]


def _link(one: int, other: int, half: int, nvlinks: int) -> str:
    if one == other:
        return " X "
    if nvlinks:
        return f"NV{nvlinks}"
    return "NODE" if (one < half) == (other < half) else "SYS"


def gpu_instances(gpus: Iterable[SimGpu], generation: int) -> list[str]:
    """`mig -lgi`; rows are not sorted, as in real output."""
    width = _name_width(generation) + 2
    inside = width + 39
    rule = f"+{'-' * inside}+"
    out = [
        rule,
        f"|{' GPU instances:':<{inside}}|",
        f"| GPU   Name{' ' * (width - 3)}Profile  Instance   Placement  |",
        f"|{' ' * (width + 10)}ID       ID       Start:Size |",
        f"|{'=' * inside}|",
    ]
    for gpu in gpus:
        for one in _shuffled(gpu):
            place = f"{one.start}:{one.profile.size}"
            out += [
                f"|   {gpu.index}  MIG {one.profile.name:<{width}}{one.profile.id:>2}{one.gi:>9}{place:>13}     |",
                rule,
            ]
    return out


def _shuffled(gpu: SimGpu) -> list[Instance]:
    return sorted(gpu.instances, key=lambda one: (one.uuid, one.gi))


def compute_instances(gpus: Iterable[SimGpu], generation: int) -> list[str]:
    """`mig -lci`; R450 prints no placement."""
    placed = generation >= 470
    inside = 68 if placed else 55
    rule = f"+{'-' * inside}+"
    heads = (
        " GPU     GPU       Name             Profile   Instance   Placement  ",
        "       Instance                       ID        ID       Start:Size ",
        "         ID",
    )
    out = [rule, f"|{' Compute instances:':<{inside}}|"]
    out += [f"|{head[:inside]:<{inside}}|" for head in heads]
    out.append(f"|{'=' * inside}|")
    for gpu in gpus:
        for one in _shuffled(gpu):
            if one.ci is None:
                continue
            place = f"{f'0:{one.profile.slices}':>13}     " if placed else "     "
            out.append(
                f"|   {gpu.index}{one.gi:>7}       MIG {plain(one.profile.name):<17}"
                f"{one.profile.compute_id}{one.ci:>10}{place}|"
            )
            out.append(rule)
    return out


def report(devices: GpuSet, gpus: list[SimGpu], now: datetime) -> str:
    """`-q -x`: the elements that a join of slices and processes needs, and the common values."""
    lines = [
        '<?xml version="1.0" ?>',
        '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">',
        "<nvidia_smi_log>",
        f"\t<timestamp>{now:%a %b %e %H:%M:%S %Y}</timestamp>",
        f"\t<driver_version>{devices.driver}</driver_version>",
        f"\t<cuda_version>{devices.cuda}</cuda_version>",
        f"\t<attached_gpus>{len(devices.gpus)}</attached_gpus>",
    ]
    for gpu in gpus:
        lines += _gpu_xml(devices, gpu)
    return "\n".join([*lines, "</nvidia_smi_log>", ""])


def _gpu_xml(devices: GpuSet, gpu: SimGpu) -> list[str]:
    capable = bool(gpu.board.profiles)
    words = {True: "Enabled", False: "Disabled"}
    used = devices.used_mib(gpu)
    total = gpu.board.memory_mib
    busy = bool(devices.processes(gpu))
    return [
        f'\t<gpu id="{gpu.bus_id}">',
        f"\t\t<product_name>{escape(gpu.board.name)}</product_name>",
        f"\t\t<product_architecture>{gpu.board.architecture}</product_architecture>",
        "\t\t<persistence_mode>Enabled</persistence_mode>",
        "\t\t<mig_mode>",
        f"\t\t\t<current_mig>{words[gpu.mig] if capable else 'N/A'}</current_mig>",
        f"\t\t\t<pending_mig>{words[gpu.pending] if capable else 'N/A'}</pending_mig>",
        "\t\t</mig_mode>",
        *_slices_xml(devices, gpu),
        f"\t\t<uuid>{gpu.uuid}</uuid>",
        f"\t\t<minor_number>{gpu.index}</minor_number>",
        "\t\t<pci>",
        f"\t\t\t<pci_device_id>{gpu.board.device_id.removeprefix('0x')}</pci_device_id>",
        f"\t\t\t<pci_bus_id>{gpu.bus_id}</pci_bus_id>",
        "\t\t</pci>",
        *_memory_xml("\t\t", total, used),
        "\t\t<utilization>",
        f"\t\t\t<gpu_util>{'N/A' if gpu.mig else '37 %' if busy else '0 %'}</gpu_util>",
        "\t\t</utilization>",
        "\t\t<temperature>",
        f"\t\t\t<gpu_temp>{55 if busy else 33} C</gpu_temp>",
        "\t\t</temperature>",
        *_processes_xml(devices, gpu),
        "\t</gpu>",
    ]


def _memory_xml(indent: str, total: int, used: int) -> list[str]:
    return [
        f"{indent}<fb_memory_usage>",
        f"{indent}\t<total>{total} MiB</total>",
        f"{indent}\t<reserved>0 MiB</reserved>",
        f"{indent}\t<used>{used} MiB</used>",
        f"{indent}\t<free>{total - used} MiB</free>",
        f"{indent}</fb_memory_usage>",
    ]


def _slices_xml(devices: GpuSet, gpu: SimGpu) -> list[str]:
    if not gpu.devices():
        return ["\t\t<mig_devices>", "\t\t\tNone", "\t\t</mig_devices>"]
    held: dict[str, int] = {}
    for _, instance, memory in devices.processes(gpu):
        if instance is not None:
            held[instance.uuid] = held.get(instance.uuid, 0) + memory
    out = ["\t\t<mig_devices>"]
    for number, one in gpu.devices():
        dec, enc, ce, jpeg, ofa = one.profile.engines
        attributes = {
            "multiprocessor_count": one.profile.sm,
            "copy_engine_count": ce,
            "encoder_count": enc,
            "decoder_count": dec,
            "ofa_count": ofa,
            "jpg_count": jpeg,
        }
        out += [
            "\t\t\t<mig_device>",
            f"\t\t\t\t<index>{number}</index>",
            f"\t\t\t\t<gpu_instance_id>{one.gi}</gpu_instance_id>",
            f"\t\t\t\t<compute_instance_id>{one.ci}</compute_instance_id>",
            "\t\t\t\t<device_attributes>",
            "\t\t\t\t\t<shared>",
            *(f"\t\t\t\t\t\t<{name}>{value}</{name}>" for name, value in attributes.items()),
            "\t\t\t\t\t</shared>",
            "\t\t\t\t</device_attributes>",
            *_memory_xml("\t\t\t\t", one.memory_mib, min(one.memory_mib, 15 + held.get(one.uuid, 0))),
            "\t\t\t</mig_device>",
        ]
    return [*out, "\t\t</mig_devices>"]


def _processes_xml(devices: GpuSet, gpu: SimGpu) -> list[str]:
    found = devices.processes(gpu)
    out = ["\t\t<processes>"]
    for holder, instance, memory in found:
        out += [
            "\t\t\t<process_info>",
            f"\t\t\t\t<gpu_instance_id>{'N/A' if instance is None else instance.gi}</gpu_instance_id>",
            f"\t\t\t\t<compute_instance_id>{'N/A' if instance is None else instance.ci}</compute_instance_id>",
            f"\t\t\t\t<pid>{holder.pid}</pid>",
            "\t\t\t\t<type>C</type>",
            f"\t\t\t\t<process_name>{escape(holder.name)}</process_name>",
            f"\t\t\t\t<used_memory>{memory} MiB</used_memory>",
            "\t\t\t</process_info>",
        ]
    return [*out, "\t\t</processes>"]


def overview(devices: GpuSet, now: datetime) -> list[str]:
    """`nvidia-smi` without arguments, in the columns of R535 and later."""
    rule = f"+{'-' * 41}+{'-' * 24}+{'-' * 22}+"
    out = [
        f"{now:%a %b %e %H:%M:%S %Y}       ",
        f"+{'-' * 89}+",
        f"| NVIDIA-SMI {devices.driver:<23}Driver Version: {devices.driver:<15}CUDA Version: {devices.cuda:<9}|",
        rule,
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|                                         |                        |               MIG M. |",
        f"|{'=' * 41}+{'=' * 24}+{'=' * 22}|",
    ]
    for gpu in devices.gpus:
        busy = bool(devices.processes(gpu))
        mode = "N/A" if not gpu.board.profiles else "Enabled" if gpu.mig else "Disabled"
        memory = f"{devices.used_mib(gpu)}MiB / {gpu.board.memory_mib:>6}MiB"
        use = "N/A" if gpu.mig else f"{37 if busy else 0}%"
        power = f"{280 if busy else 70}W / {gpu.board.power_limit:>4}W"
        out += [
            f"| {gpu.index:>3}  {gpu.board.name:<31}On  | {gpu.bus_id:>18} Off | {'On' if gpu.mig else '0':>20} |",
            f"| N/A {55 if busy else 33:>4}C    P0 {power:>23} | {memory:>22} | {use:>7}      Default |",
            f"|{' ' * 41}|{' ' * 24}| {mode:>20} |",
            rule,
        ]
    return [*out, *_slice_table(devices), *_process_table(devices)]


def _slice_table(devices: GpuSet) -> list[str]:
    """The slices of all GPUs, in the columns of R550 and later; nothing where no GPU is in MIG mode."""
    if not any(gpu.mig for gpu in devices.gpus):
        return []
    rule = f"+{'-' * 18}+{'-' * 34}+{'-' * 11}+{'-' * 23}+"
    shared = "Shared " if devices.generation >= 580 else ""
    out = [
        "",
        f"+{'-' * 89}+",
        f"|{' MIG devices:':<89}|",
        rule,
        f"| GPU  GI  CI  MIG |{f'{shared}Memory-Usage ':>34}|        Vol|        Shared         |",
        f"|      ID  ID  Dev |{f'{shared}BAR1-Usage ':>34}| SM     Unc| CE ENC  DEC  OFA  JPG |",
        f"|{' ' * 18}|{' ' * 34}|        ECC|{' ' * 23}|",
        f"|{'=' * 18}+{'=' * 34}+{'=' * 11}+{'=' * 23}|",
    ]
    rows = [(gpu, number, one) for gpu in devices.gpus for number, one in gpu.devices()]
    for gpu, number, one in rows:
        held = sum(memory for _, on, memory in devices.processes(gpu) if on is one)
        memory = f"{min(one.memory_mib, 15 + held)}MiB / {one.memory_mib:>5}MiB    "
        dec, enc, ce, jpeg, ofa = one.profile.engines
        engines = f"{ce:>2} {enc:>3} {dec:>4} {ofa:>4} {jpeg:>4}"
        where = f"{gpu.index:>2} {one.gi:>4} {one.ci:>3} {number:>3} "
        out += [
            f"| {where} |{memory:>34}| {one.profile.sm:<8}0 | {engines} |",
            f"|{' ' * 18}|{'0MiB / 16383MiB    ':>34}|{' ' * 11}|{' ' * 23}|",
            rule,
        ]
    return out if rows else [*out, f"|{'  No MIG devices found':<89}|", f"+{'-' * 89}+"]


def _process_table(devices: GpuSet) -> list[str]:
    rule = f"+{'-' * 89}+"
    out = [
        f"{' ' * 91}",
        rule,
        f"|{' Processes:':<89}|",
        f"|{'  GPU   GI   CI              PID   Type   Process name                        GPU Memory ':<89}|",
        f"|{'        ID   ID                                                               Usage      ':<89}|",
        f"|{'=' * 89}|",
    ]
    rows = [(gpu, *found) for gpu in devices.gpus for found in devices.processes(gpu)]
    for gpu, holder, instance, memory in rows:
        gi, ci = ("N/A", "N/A") if instance is None else (str(instance.gi), str(instance.ci))
        out.append(
            f"| {gpu.index:>4} {gi:>5} {ci:>4} {holder.pid:>15}      C   {holder.name:<33} {memory:>9}MiB |"
        )
    if not rows:
        out.append(f"|{'  No running processes found':<89}|")
    return [*out, rule]
