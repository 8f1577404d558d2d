"""GPUs by name: how much memory CUDA reports of each, and its compute capability.

CUDA reports less than nvidia-smi, because the driver keeps a share: 79.18 of 79.65 GiB of an H100. Where the figure
was seen in an engine's log it stands here; elsewhere one percent is taken off nvidia-smi's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DRIVER_SHARE = 0.01
"""What the driver keeps for itself, where nobody has measured it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A GPU model.

    Attributes:
        name: as people write it, memory included where there are several sizes.
        memory_mib: as nvidia-smi prints it.
        capability: compute capability.
        seen_gib: total memory as an engine's log printed it, and 0.0 where none is known.
    """

    name: str
    memory_mib: int
    capability: tuple[int, int]
    seen_gib: float = 0.0

    @property
    def total_gib(self) -> float:
        """GiB that an engine on the whole GPU counts from."""
        return self.seen_gib or cuda_gib(self.memory_mib)


def cuda_gib(memory_mib: float) -> float:
    """What CUDA reports of a GPU or slice, from what nvidia-smi prints."""
    return memory_mib / 1024 * (1 - DRIVER_SHARE)


BOARDS: tuple[Board, ...] = (
    # Memory by nvidia-smi; compute capability from NVIDIA's table of CUDA GPUs; seen: logs quoted in llm-d-benchmark
    # (H100), vllm#10517 (RTX 3090), vllm#21489 (B200).
    Board(name="T4-16GB", memory_mib=15360, capability=(7, 5)),
    Board(name="V100-32GB", memory_mib=32768, capability=(7, 0)),
    Board(name="A10-24GB", memory_mib=23028, capability=(8, 6)),
    Board(name="A30-24GB", memory_mib=24576, capability=(8, 0)),
    Board(name="A100-40GB", memory_mib=40960, capability=(8, 0)),
    Board(name="A100-80GB", memory_mib=81920, capability=(8, 0)),
    Board(name="L4-24GB", memory_mib=23034, capability=(8, 9)),
    Board(name="L40S-48GB", memory_mib=46068, capability=(8, 9)),
    Board(name="H100-80GB", memory_mib=81559, capability=(9, 0), seen_gib=79.18),
    Board(name="H100-NVL-94GB", memory_mib=95830, capability=(9, 0)),
    Board(name="H200-141GB", memory_mib=143771, capability=(9, 0)),
    Board(name="B200-180GB", memory_mib=183359, capability=(10, 0), seen_gib=178.36),
    Board(name="RTX-A6000-48GB", memory_mib=49140, capability=(8, 6)),
    Board(name="RTX-3090-24GB", memory_mib=24576, capability=(8, 6), seen_gib=23.58),
    Board(name="RTX-4060-8GB", memory_mib=8188, capability=(8, 9)),
    Board(name="RTX-4090-24GB", memory_mib=24564, capability=(8, 9)),
    Board(name="RTX-5090-32GB", memory_mib=32607, capability=(12, 0)),
    Board(name="RTX-PRO-6000-96GB", memory_mib=97887, capability=(12, 0)),
)


def named(text: str) -> Board | None:
    """The board that people or nvidia-smi mean: `H100-80GB`, `RTX 4090`, `NVIDIA A100-SXM4-80GB`.

    None when there is none, or when several sizes carry the name.
    """
    words = _words(text)
    found = [board for board in BOARDS if _words(board.name) <= words or words <= _words(board.name)]
    if len(found) > 1:
        found = [board for board in found if _words(board.name) == words] or found
    return found[0] if len(found) == 1 else None


_NOISE = frozenset({"nvidia", "geforce", "sxm4", "sxm5", "sxm", "pcie", "hbm3", "tesla", "generation", "ada"})


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", text.lower())) - _NOISE


_PROFILE = re.compile(r"(?:\d+c\.)?\d+g\.(\d+)gb(?:\+[\w.]+)?")


def slice_gib(profile: str) -> float | None:
    """GiB of a MIG profile by its name; the host's own figure is better.

    Names are rounded up: `1g.5gb` has 4.75 GiB, `1g.10gb` of an A100 9.5, `3g.40gb` 39.5 (nvidia-smi mig -lgip).
    """
    found = _PROFILE.fullmatch(profile.strip().lower())
    if found is None:
        return None
    size = int(found[1])
    return max(size - 0.5, size * 0.95)
