"""The file on a host that says which slices a boot has to bring back, line by line.

    gpu GPU-0d0831da-...                                which GPU the next lines are about
    slice GPU-0d0831da-... 3g.40gb 4 4 MIG-8443519f-... profile, start and size in memory slots, UUID or `-`
    cdi /etc/cdi/nvidia.yaml                            a CDI specification to write anew afterwards
    end                                                 the file is whole

Slices stand in the order in which they are made: that of their GPU instance ids, since the ids, and with them the
UUIDs, of an Ampere board follow the order (captured lists number its halves in both ways). The script that reads the
file at boot is POSIX shell, so that a line is words between single blanks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpufleet.hosts.model import BootGpu, BootLayout, BootSlice, Fact, Known, Unknown
from gpufleet.hosts.probes.script import BOOT_LAYOUT, Section
from gpufleet.names import GpuUuid

PATH = BOOT_LAYOUT
HEADING = "# gpufleet mig layout, version 1: written by `gpufleet mig persist`, read at boot by gpufleet-mig.service."

_GPU = re.compile(r"gpu (GPU-[0-9a-fA-F-]{36})", re.ASCII)
_SLICE = re.compile(
    r"slice (GPU-[0-9a-fA-F-]{36}) (\d{1,2}g\.\d{1,4}gb(?:[+-][a-z.]{1,8})?) (\d{1,2}) (\d{1,2}) (MIG-[0-9a-zA-Z/-]{1,90}|-)",
    re.ASCII,
)
_CDI = re.compile(r"cdi (/\S{1,200})", re.ASCII)


def parse(section: Section | None) -> Fact[BootLayout]:
    """What a host brings back at boot: nothing where there is no such file."""
    if section is None:
        return Unknown(f"{PATH} was not asked for")
    if section.status is None:
        return Known(BootLayout())
    if not section.ok:
        return Unknown(f"{PATH}: {section.reason()}")
    return read(section.text)


def read(text: str) -> Fact[BootLayout]:
    """The file; one that is cut off, or that a later gpufleet wrote, is not half believed."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if lines[-1:] != ["end"]:
        return Unknown(f"{PATH} is cut off, or none of ours")
    gpus: dict[str, list[BootSlice]] = {}
    cdi: list[str] = []
    for line in lines[:-1]:
        if found := _GPU.fullmatch(line):
            gpus.setdefault(found[1], [])
        elif (found := _SLICE.fullmatch(line)) and found[1] in gpus:
            uuid = "" if found[5] == "-" else found[5]
            gpus[found[1]].append(
                BootSlice(profile=found[2], start=int(found[3]), size=int(found[4]), uuid=uuid)
            )
        elif found := _CDI.fullmatch(line):
            cdi.append(found[1])
        else:
            return Unknown(f"{PATH} has a line that this gpufleet does not know: {line[:60]}")
    return Known(
        BootLayout(
            gpus=tuple(BootGpu(uuid=GpuUuid(uuid), slices=tuple(slices)) for uuid, slices in gpus.items()),
            cdi=tuple(cdi),
        )
    )


def render(gpus: Sequence[BootGpu], cdi: Sequence[str]) -> str:
    """The other way; empty when there is nothing to bring back."""
    if not gpus:
        return ""
    lines = [HEADING]
    for gpu in sorted(gpus, key=lambda one: one.uuid):
        lines.append(f"gpu {gpu.uuid}")
        lines += [
            f"slice {gpu.uuid} {one.profile} {one.start} {one.size} {one.uuid or '-'}" for one in gpu.slices
        ]
    lines += [f"cdi {path}" for path in sorted(set(cdi)) if " " not in path]
    return "".join(f"{line}\n" for line in (*lines, "end"))
