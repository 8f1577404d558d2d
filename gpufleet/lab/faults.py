"""What goes wrong on simulated hosts, and when: a value that can be printed, repeated, and drawn from a seed.

A fault strikes a host at its n-th command, or at the first command whose text contains a pattern. Faults of the
link change what the caller learns; faults of the host change the host before the command runs. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gpufleet.lab.gpus.mishaps import DRAWN


class Kind(StrEnum):
    """Everything that can go wrong."""

    REFUSE = "refuse"
    """The connection is refused; nothing was sent. Counts opens, not commands."""
    LOSE_BEFORE = "lose-before"
    """The link is lost before the command had any effect."""
    LOSE_AFTER = "lose-after"
    """The command runs to its end and its answer is lost."""
    LATE = "late"
    """The answer is lost, and the command runs only before the host's `after`-th command from then on."""
    HANG = "hang"
    """The command never answers; it has no effect."""
    SLOW = "slow"
    """`seconds` pass before it runs."""
    POWER_OFF = "power-off"
    """The host dies after `after` more shell commands; it comes back `seconds` later, never when 0."""
    DISK_FULL = "disk-full"
    DISK_FREED = "disk-freed"
    DAEMON_STOPPED = "daemon-stopped"
    DAEMON_KILLED = "daemon-killed"
    DAEMON_HUNG = "daemon-hung"
    DAEMON_BACK = "daemon-back"
    IMAGE_MISSING = "image-missing"
    """The registry no longer has any image, and neither has this host."""
    STALL = "stall"
    """No byte of what this host fetches from others arrives any more; connections stay open."""
    PORT_TAKEN = "port-taken"
    """A process of the host takes the ports named in `detail`, or 8000 to 8015."""
    ENGINE = "engine"
    """Engines that start from now on behave as `detail` says (`crash`, `oom`, `never-ready` ...)."""
    GPU_LOST = "gpu-lost"
    GPU_MISHAP = "gpu-mishap"
    """A later command of nvidia-smi goes wrong as `detail` says: `-cgi Insufficient Resources/1`, see `gpus.mishaps`."""
    GPU_CLIENT = "gpu-client"
    """Something that is no process holds the GPU whose index is `detail`, as a monitor does; `INDEX off` lets go."""
    GPU_FAULT = "gpu-fault"
    """One GPU is broken: `INDEX lost` from the bus, `INDEX requires reset`, `INDEX` well again."""
    HANDLES_LOST = "handles-lost"
    """A daemon-reload took the GPUs of every running container away; what runs goes on until it needs them anew."""


LINK = frozenset({Kind.LOSE_BEFORE, Kind.LOSE_AFTER, Kind.LATE, Kind.HANG, Kind.SLOW, Kind.POWER_OFF})
"""Kinds that act on one command; the rest change the host and stay."""

USUAL = tuple(
    kind
    for kind in Kind
    if kind
    not in {Kind.LATE, Kind.STALL, Kind.HANDLES_LOST, Kind.GPU_MISHAP, Kind.GPU_CLIENT, Kind.GPU_FAULT}
)
"""What is drawn when nobody says which kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        nth: at which command of the host, counted from 1; 0 means that `pattern` decides.
        pattern: part of the command's script or arguments.
        times: how often it strikes.
    """

    kind: Kind
    host: str
    nth: int = 0
    pattern: str = ""
    times: int = 1
    seconds: float = 0.0
    after: int = 0
    detail: str = ""

    def meets(self, nth: int, text: str) -> bool:
        """Whether this command is one that it strikes."""
        return nth >= self.nth if self.nth else bool(self.pattern) and self.pattern in text


@dataclass(slots=True)
class FaultScript:
    """The faults of one run, and which of them have struck."""

    faults: tuple[Fault, ...] = ()
    struck: dict[int, int] = field(default_factory=dict)

    def due(self, host: str, nth: int, text: str, kinds: Iterable[Kind] | None = None) -> list[Fault]:
        """Faults that strike now; each is counted as struck."""
        wanted = frozenset(kinds) if kinds is not None else frozenset(Kind) - {Kind.REFUSE}
        due: list[Fault] = []
        for at, fault in enumerate(self.faults):
            spent = self.struck.get(at, 0) >= fault.times
            if fault.host == host and fault.kind in wanted and not spent and fault.meets(nth, text):
                self.struck[at] = self.struck.get(at, 0) + 1
                due.append(fault)
        return due

    @classmethod
    def random(
        cls,
        seed: int,
        hosts: Sequence[str],
        *,
        most: int = 3,
        commands: int = 40,
        kinds: Sequence[Kind] = USUAL,
    ) -> FaultScript:
        """Up to `most` faults of `kinds` on `hosts`, the same for the same seed everywhere."""
        dice = _Dice(seed)
        return cls(tuple(_drawn(dice, hosts, commands, kinds) for _ in range(1 + dice.below(most))))

    def __str__(self) -> str:
        return "; ".join(
            f"{fault.kind} on {fault.host} at {fault.nth or repr(fault.pattern)}"
            + (f" ({fault.detail})" if fault.detail else "")
            for fault in self.faults
        )


def _drawn(dice: _Dice, hosts: Sequence[str], commands: int, kinds: Sequence[Kind]) -> Fault:
    kind = kinds[dice.below(len(kinds))]
    return Fault(
        kind=kind,
        host=hosts[dice.below(len(hosts))],
        nth=1 + dice.below(commands),
        seconds=float((0, 5, 300)[dice.below(3)]) if kind in {Kind.SLOW, Kind.POWER_OFF} else 0.0,
        after=dice.below(40),
        detail=_detail(kind, dice),
    )


def _detail(kind: Kind, dice: _Dice) -> str:
    modes = ("crash", "oom", "never-ready", "cuda-oom", "unhealthy", "degenerate", "wrong-model", "hang")
    if kind is Kind.ENGINE:
        return modes[dice.below(len(modes))]
    if kind is Kind.GPU_MISHAP:
        verb, effect = DRAWN[dice.below(len(DRAWN))]
        return f"{verb} {effect}/{dice.below(4)}"
    return str(dice.below(8)) if kind is Kind.GPU_CLIENT else ""


class _Dice:
    """SplitMix64: the same numbers on every machine and every version of Python."""

    def __init__(self, seed: int) -> None:
        self._state = seed & (1 << 64) - 1

    def below(self, stop: int) -> int:
        """A number from 0 to `stop` - 1."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & (1 << 64) - 1
        mixed = self._state
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & (1 << 64) - 1
        return (mixed ^ (mixed >> 31)) % stop
