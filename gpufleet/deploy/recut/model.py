"""The nouns of a recut: who moves to which slice, and who is left without one."""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.change.model import Plan
from gpufleet.deploy.replicas import New, Present
from gpufleet.deploy.steps import Launch
from gpufleet.hosts.model import ContainerFact, HolderFacts, HostFacts
from gpufleet.inventory.model import Host
from gpufleet.mig.boot_unit import BootSite
from gpufleet.mig.holders import Holders
from gpufleet.mig.model import Placed
from gpufleet.mig.outlook import Outlook
from gpufleet.mig.plan import LayoutChange
from gpufleet.mig.seen import SeenGpu
from gpufleet.names import RunId


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A replica that is made anew on another slice, with the same number, port and engine."""

    present: Present
    old: Placed
    new: New
    home: Placed
    launch: Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Homeless:
    """A container that loses its slice and gets no other. `up`: it runs now, and is stopped."""

    present: Present
    old: Placed | None
    reason: str

    @property
    def up(self) -> bool:
        """Whether it has to be stopped."""
        return self.present.up


@dataclass(frozen=True, slots=True, kw_only=True)
class Revived:
    """A stopped container that is started again when its slice is back; `slice` as it was, with its UUID.

    `policy`: the restart policy that it had; empty leaves the one it has.
    """

    container: str
    slice: Placed
    uuid: str
    policy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLook:
    """Everything that is known of one GPU and its host before a plan."""

    host: Host
    facts: HostFacts
    containers: tuple[ContainerFact, ...]
    seen: SeenGpu
    holding: HolderFacts
    boot: BootSite


@dataclass(frozen=True, slots=True, kw_only=True)
class Recut:
    """What would be done to one GPU. Nothing is done when `plan` has no steps."""

    look: GpuLook
    run: RunId
    change: LayoutChange
    ahead: Outlook
    holders: Holders
    moves: tuple[Move, ...]
    homeless: tuple[Homeless, ...]
    plan: Plan
    revived: tuple[tuple[Revived, Present], ...] = ()

    @property
    def name(self) -> str:
        """`HOST:INDEX`."""
        return f"{self.look.host.name}:{self.look.seen.gpu.index}"
