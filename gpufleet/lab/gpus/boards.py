"""Boards that the lab knows: what nvidia-smi prints of each, and how MIG cuts it.

A preview for tests: on a real host names and memory change with driver and board revision, and only the host knows.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """A row of `nvidia-smi mig -lgip`. `engines` are DEC, ENC, CE, JPEG, OFA; `starts` and `size` count memory slots."""

    name: str
    id: int
    total: int
    gib: float
    sm: int
    engines: tuple[int, int, int, int, int]
    starts: tuple[int, ...]
    size: int

    @property
    def takes_media(self) -> bool:
        """Whether it holds the media engines, of which a GPU has one set."""
        return self.name.endswith(("+me", "+me.all"))

    @property
    def slices(self) -> int:
        """Compute slices: the number before the `g`."""
        return int(self.name.partition("g")[0])

    @property
    def compute_id(self) -> int:
        """The id of the compute instance profile that takes all of it; 7 on a 1g of double memory."""
        return 7 if self.id == 15 else {2: 1, 3: 2, 4: 3, 7: 4}.get(self.slices, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A GPU model. Memory in MiB, power in watts; `nvlinks` to the NVSwitch of its host, none where there is PCIe alone."""

    key: str
    name: str
    architecture: str
    memory_mib: int
    device_id: str
    compute_capability: str
    power_limit: int
    nvlinks: int = 0
    profiles: tuple[Profile, ...] = ()

    def profile(self, name: str) -> Profile | None:
        """By its name with its suffix."""
        return next((one for one in self.profiles if one.name == name), None)


BOARDS: dict[str, Board] = {
    board.key: board
    for board in (
        Board(
            key="A100-40GB",
            name="NVIDIA A100-SXM4-40GB",
            architecture="Ampere",
            memory_mib=40960,
            device_id="0x20B010DE",
            compute_capability="8.0",
            power_limit=400,
            nvlinks=12,
            profiles=(
                Profile("1g.5gb", 19, 7, 4.75, 14, (0, 0, 1, 0, 0), (0, 1, 2, 3, 4, 5, 6), 1),
                Profile("1g.5gb+me", 20, 1, 4.75, 14, (1, 0, 1, 1, 1), (0, 1, 2, 3, 4, 5, 6), 1),
                Profile("1g.10gb", 15, 4, 9.62, 14, (1, 0, 1, 0, 0), (0, 2, 4, 6), 2),
                Profile("2g.10gb", 14, 3, 9.62, 28, (1, 0, 2, 0, 0), (0, 2, 4), 2),
                Profile("3g.20gb", 9, 2, 19.5, 42, (2, 0, 3, 0, 0), (0, 4), 4),
                Profile("4g.20gb", 5, 1, 19.5, 56, (2, 0, 4, 0, 0), (0,), 4),
                Profile("7g.40gb", 0, 1, 39.25, 98, (5, 0, 7, 1, 1), (0,), 8),
            ),
        ),
        Board(
            key="A100-80GB",
            name="NVIDIA A100-SXM4-80GB",
            architecture="Ampere",
            memory_mib=81920,
            device_id="0x20B210DE",
            compute_capability="8.0",
            power_limit=400,
            nvlinks=12,
            profiles=(
                Profile("1g.10gb", 19, 7, 9.5, 14, (0, 0, 1, 0, 0), (0, 1, 2, 3, 4, 5, 6), 1),
                Profile("1g.10gb+me", 20, 1, 9.5, 14, (1, 0, 1, 1, 1), (0, 1, 2, 3, 4, 5, 6), 1),
                Profile("1g.20gb", 15, 4, 19.5, 14, (1, 0, 1, 0, 0), (0, 2, 4, 6), 2),
                Profile("2g.20gb", 14, 3, 19.5, 28, (1, 0, 2, 0, 0), (0, 2, 4), 2),
                Profile("3g.40gb", 9, 2, 39.25, 42, (2, 0, 3, 0, 0), (0, 4), 4),
                Profile("4g.40gb", 5, 1, 39.25, 56, (2, 0, 4, 0, 0), (0,), 4),
                Profile("7g.80gb", 0, 1, 79.0, 98, (5, 0, 7, 1, 1), (0,), 8),
            ),
        ),
        Board(
            key="H100-80GB",
            name="NVIDIA H100 80GB HBM3",
            architecture="Hopper",
            memory_mib=81559,
            device_id="0x233010DE",
            compute_capability="9.0",
            power_limit=700,
            nvlinks=18,
            profiles=(
                Profile("1g.10gb", 19, 7, 9.75, 16, (1, 0, 1, 1, 0), (0, 1, 2, 3, 4, 5, 6), 1),
                Profile("1g.10gb+me", 20, 1, 9.75, 16, (1, 0, 1, 1, 1), (0, 1, 2, 3, 4, 5, 6), 1),
                Profile("1g.20gb", 15, 4, 19.62, 26, (1, 0, 1, 1, 0), (0, 2, 4, 6), 2),
                Profile("2g.20gb", 14, 3, 19.62, 32, (2, 0, 2, 2, 0), (0, 2, 4), 2),
                Profile("3g.40gb", 9, 2, 39.5, 60, (3, 0, 3, 3, 0), (0, 4), 4),
                Profile("4g.40gb", 5, 1, 39.5, 64, (4, 0, 4, 4, 0), (0,), 4),
                Profile("7g.80gb", 0, 1, 79.25, 132, (7, 0, 8, 7, 1), (0,), 8),
            ),
        ),
        Board(
            key="H200-141GB",
            name="NVIDIA H200",
            architecture="Hopper",
            memory_mib=143771,
            device_id="0x233510DE",
            compute_capability="9.0",
            power_limit=700,
            nvlinks=18,
            profiles=(
                Profile("1g.18gb", 19, 7, 16.0, 16, (1, 0, 1, 1, 0), (0, 1, 2, 3, 4, 5, 6), 1),
                Profile("1g.18gb+me", 20, 1, 16.0, 16, (1, 0, 1, 1, 1), (0, 1, 2, 3, 4, 5, 6), 1),
                Profile("1g.35gb", 15, 4, 32.5, 26, (1, 0, 1, 1, 0), (0, 2, 4, 6), 2),
                Profile("2g.35gb", 14, 3, 32.5, 32, (2, 0, 2, 2, 0), (0, 2, 4), 2),
                Profile("3g.71gb", 9, 2, 69.75, 60, (3, 0, 3, 3, 0), (0, 4), 4),
                Profile("4g.71gb", 5, 1, 69.75, 64, (4, 0, 4, 4, 0), (0,), 4),
                Profile("7g.141gb", 0, 1, 140.0, 132, (7, 0, 8, 7, 1), (0,), 8),
            ),
        ),
        Board(
            key="A30-24GB",
            name="NVIDIA A30",
            architecture="Ampere",
            memory_mib=24576,
            device_id="0x20B710DE",
            compute_capability="8.0",
            power_limit=165,
            profiles=(
                Profile("1g.6gb", 14, 4, 5.81, 14, (1, 0, 1, 0, 0), (0, 1, 2, 3), 1),
                Profile("1g.6gb+me", 21, 1, 5.81, 14, (1, 0, 1, 1, 1), (0, 1, 2, 3), 1),
                Profile("2g.12gb", 5, 2, 11.69, 28, (2, 0, 2, 0, 0), (0, 2), 2),
                Profile("2g.12gb+me", 6, 1, 11.69, 28, (2, 0, 2, 1, 1), (0, 2), 2),
                Profile("4g.24gb", 0, 1, 23.44, 56, (4, 0, 4, 1, 1), (0,), 4),
            ),
        ),
        Board(
            key="RTX-PRO-6000-96GB",
            name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
            architecture="Blackwell",
            memory_mib=97887,
            device_id="0x2BB510DE",
            compute_capability="12.0",
            power_limit=600,
            profiles=(
                Profile("1g.24gb", 14, 4, 23.62, 46, (1, 1, 1, 1, 0), (0, 3, 6, 9), 3),
                Profile("1g.24gb+me", 21, 1, 23.62, 46, (1, 1, 1, 1, 1), (0, 3, 6, 9), 3),
                Profile("1g.24gb+gfx", 47, 4, 23.62, 46, (1, 1, 1, 1, 0), (0, 3, 6, 9), 3),
                Profile("1g.24gb+me.all", 65, 1, 23.62, 46, (4, 4, 1, 4, 1), (0, 3, 6, 9), 3),
                Profile("1g.24gb-me", 67, 4, 23.62, 46, (0, 0, 1, 0, 0), (0, 3, 6, 9), 3),
                Profile("2g.48gb", 5, 2, 47.38, 94, (2, 2, 2, 2, 0), (0, 6), 6),
                Profile("2g.48gb+gfx", 35, 2, 47.38, 94, (2, 2, 2, 2, 0), (0, 6), 6),
                Profile("2g.48gb+me.all", 64, 1, 47.38, 94, (4, 4, 2, 4, 1), (0, 6), 6),
                Profile("2g.48gb-me", 66, 2, 47.38, 94, (0, 0, 2, 0, 0), (0, 6), 6),
                Profile("4g.96gb", 0, 1, 95.12, 188, (4, 4, 4, 4, 1), (0,), 12),
                Profile("4g.96gb+gfx", 32, 1, 95.12, 188, (4, 4, 4, 4, 1), (0,), 12),
            ),
        ),
        Board(
            key="L40S-48GB",
            name="NVIDIA L40S",
            architecture="Ada Lovelace",
            memory_mib=46068,
            device_id="0x26B910DE",
            compute_capability="8.9",
            power_limit=350,
        ),
    )
}
"""By the name that `lab up --gpus 8xNAME` takes."""
