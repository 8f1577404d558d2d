"""`nvidia-smi topo -m`: how the GPUs of a host are linked.

A matrix in columns parted by tabs: `X` for the GPU itself, `NV<n>` for n NVLinks (or as many to an NVSwitch), and
`PIX`, `PXB`, `PHB`, `NODE`, `SYS` for the ways over PCIe. Network cards and affinities stand to the right of the
GPUs, and the heading is underlined with a terminal's own codes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpufleet.hosts.model import Fact, Known, Unknown

_UNDERLINE = re.compile("[\x1b\N{REPLACEMENT CHARACTER}]\\[[0-9;]*m")
_GPU = re.compile(r"GPU(\d{1,3})", re.ASCII)
_NVLINK = re.compile(r"NV\d{1,3}", re.ASCII)
_OTHER = {"X", "PIX", "PXB", "PHB", "NODE", "SYS"}

Links = Mapping[int, Fact[frozenset[int]]]


def parse(text: str) -> Fact[Links]:
    """For each GPU's index those that NVLink joins to it; Unknown when there is no matrix."""
    columns: list[int] = []
    found: dict[int, Fact[frozenset[int]]] = {}
    for line in text.splitlines():
        words = _UNDERLINE.sub("", line).split()
        numbers = [_GPU.fullmatch(word) for word in words]
        if not words or numbers[0] is None:
            continue
        if not columns:
            columns = [int(match[1]) for match in numbers if match is not None]
        else:
            found[int(numbers[0][1])] = _row(columns, words[1:])
    if not columns or not found:
        return Unknown("`nvidia-smi topo -m` printed no matrix")
    return Known(found)


def _row(columns: list[int], cells: list[str]) -> Fact[frozenset[int]]:
    links = cells[: len(columns)]
    strange = [cell for cell in links if cell not in _OTHER and not _NVLINK.fullmatch(cell)]
    if strange or len(links) < len(columns):
        return Unknown(f"`nvidia-smi topo -m` says {strange[0] if strange else 'too little'} of its links")
    return Known(
        frozenset(column for column, cell in zip(columns, links, strict=True) if _NVLINK.fullmatch(cell))
    )
