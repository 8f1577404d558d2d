"""The nouns of MIG: profiles of a board, slices with their placement, and the geometry that holds them."""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.hosts.probes.mig_tables import Engines


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A kind of GPU instance that a board offers: a row of `nvidia-smi mig -lgip` with its line of `-lgipp`.

    Attributes:
        name: as printed, with its media suffix (`1g.10gb+me`). A name is not a size: 1g.18gb of an H200 holds 16 GiB.
        id: what `-cgi` takes. It means different profiles on different boards and is never carried between them.
        total: how many the empty board holds.
        memory_gib: usable memory; None where no table that we trust gives it.
        starts: memory slots at which one may begin.
        size: memory slots that it covers.
        engines: compute and media engines, where the host's own table was read.
    """

    name: str
    id: int
    total: int
    memory_gib: float | None
    starts: tuple[int, ...]
    size: int
    engines: Engines | None = None

    @property
    def takes_media(self) -> bool:
        """Whether it holds the media engines of which a GPU has one set: `+me` and `+me.all`, never `-me`."""
        return self.name.endswith(("+me", "+me.all"))


@dataclass(frozen=True, slots=True, order=True)
class Placed:
    """A slice: a profile at a place. Two slices of one GPU with the same value are the same slice."""

    start: int
    size: int
    profile: str

    @property
    def span(self) -> range:
        """The memory slots it covers."""
        return range(self.start, self.start + self.size)

    def __str__(self) -> str:
        return f"{self.profile}:{self.start}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """What one GPU allows.

    Attributes:
        board: name of the GPU, for messages.
        slots: number of memory slots.
        profiles: every kind of GPU instance, in the order of the host's table.
        guessed: True for shipped tables whose placements nobody has printed yet; a host's own tables are the truth.
    """

    board: str
    slots: int
    profiles: tuple[Profile, ...]
    guessed: bool = False

    def profile(self, name: str) -> Profile | None:
        """By its exact name, letter case apart."""
        return next((one for one in self.profiles if one.name == name.lower()), None)
