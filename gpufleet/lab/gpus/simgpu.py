"""The GPUs of one simulated host: mode, slices with their placements, processes, memory. Pure.

GPU instance ids follow the tree of halves that real boards show, with the two halves of an A100 the other way round;
whoever needs an id reads it, and never computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from hashlib import sha256

from gpufleet.lab.gpus.boards import BOARDS, Board, Profile

RAMP = 5.0
"""Seconds after which a new process holds all the memory it will hold."""
SHARE = 0.9
"""Share of the memory it was given that an engine takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that was given GPUs or slices. `age` in seconds."""

    pid: int
    name: str
    devices: frozenset[str]
    age: float


@dataclass(slots=True, kw_only=True)
class Instance:
    """A GPU instance with one compute instance over all of it, or with none: then it takes room and serves nobody."""

    profile: Profile
    gi: int
    start: int
    uuid: str
    ci: int | None = 0

    @property
    def memory_mib(self) -> int:
        """Memory of the slice."""
        return int(self.profile.gib * 1024)


class NoRoom(Exception):
    """The profile does not fit beside what is there."""


@dataclass(slots=True)
class Mishap:
    """One command that goes wrong.

    Attributes:
        verb: `-cgi`, `-cci`, `-dgi`, `-dci`, `-mig`, `--gpu-reset`, or a look: `-lgip`, `-lgipp`, `-lgi`, `-lci`.
        effect: the reason that is printed, under the header of the table where a look fails; `lie` for a success that
            did nothing, `half` for a GPU instance without its compute instance, `slow` for an answer after 20 s.
        skip: how many objects go well before.
    """

    verb: str
    effect: str
    skip: int = 0


@dataclass(slots=True, kw_only=True)
class SimGpu:
    """One GPU."""

    index: int
    uuid: str
    bus_id: str
    board: Board
    mig: bool = False
    pending: bool = False
    fault: str = ""
    """Empty, `lost` from the bus, or `requires reset`."""
    instances: list[Instance] = field(default_factory=list)

    def occupied(self) -> set[int]:
        """Memory slots in use."""
        return {one.start + at for one in self.instances for at in range(one.profile.size)}

    def free_starts(self, profile: Profile) -> list[int]:
        """Where a profile can begin now."""
        taken = self.occupied()
        return [s for s in profile.starts if not taken & set(range(s, s + profile.size))]

    def free_count(self, profile: Profile) -> int:
        """How many more of a profile fit, as `-lgip` counts: starts that are free, one with the media engines."""
        if profile.takes_media and any(one.profile.takes_media for one in self.instances):
            return 0
        same = sum(one.profile.name == profile.name for one in self.instances)
        return min(len(self.free_starts(profile)), profile.total - same)

    def create(self, name: str, start: int | None = None, *, compute: bool = True) -> Instance:
        """A GPU instance and its compute instance; raises `NoRoom`, or `KeyError` for an unknown profile."""
        profile = self.board.profile(name)
        if profile is None:
            raise KeyError(name)
        free = self.free_starts(profile) if self.free_count(profile) > 0 else []
        if not self.mig or not free or (start is not None and start not in free):
            raise NoRoom(name)
        place = self._own_choice(profile, free) if start is None else start
        gi = self._instance_id(profile.size, place)
        instance = Instance(
            profile=profile,
            gi=gi,
            start=place,
            uuid=uuid_of("MIG", self.uuid, str(gi), "0"),
            ci=0 if compute else None,
        )
        self.instances.append(instance)
        return instance

    def _own_choice(self, profile: Profile, free: list[int]) -> int:
        """Where the driver puts an instance itself: where it takes the fewest places from larger ones.

        This gives the ids of the captured lists but for those of the two halves of an A100, which captures number
        in both ways.
        """
        taken = self.occupied()

        def blocks(start: int) -> int:
            return sum(
                place < start + profile.size
                and start < place + one.size
                and not taken & set(range(place, place + one.size))
                for one in self.board.profiles
                for place in one.starts
                if one.size > 1
            )

        return min(free, key=lambda start: (blocks(start), start))

    def _instance_id(self, size: int, start: int) -> int:
        slots = max(one.size for one in self.board.profiles)
        parts = slots // size
        number = parts - 1 + start // size
        swapped = self.board.architecture == "Ampere" and slots == 8 and parts == 2
        return 3 - number if swapped else number

    def destroy(self, gi: int) -> None:
        """Remove a GPU instance with its compute instance."""
        self.instances = [one for one in self.instances if one.gi != gi]

    def set_mig(self, *, enabled: bool) -> None:
        """Switch the mode at once; slices go with it."""
        self.mig = self.pending = enabled
        self.instances = []

    def devices(self) -> list[tuple[int, Instance]]:
        """Slices as `-L` numbers them: larger first, then by place; one without a compute instance is not seen."""
        seen = (one for one in self.instances if one.ci is not None)
        ordered = sorted(seen, key=lambda one: (-one.profile.size, one.start))
        return list(enumerate(ordered))


@dataclass(slots=True, kw_only=True)
class GpuSet:
    """All GPUs of a host and their driver.

    Attributes:
        trouble: empty, or one of `no-driver`, `mismatch`, `no-devices`, `hang`.
        holders: asks who uses what.
        clients: what holds a GPU or a slice without being a process on it (a monitor's handles, a display server), by
            the UUID of the GPU or slice.
        kept_open: whether a GPU is open somewhere although no process computes on it; a reset minds, instances do not.
        passthrough: a virtual machine in which a GPU cannot be reset.
        mishaps: commands that go wrong by script, the first of a verb first.
        strict: whether only root may list instances, as on a host whose capabilities were not opened.
    """

    gpus: list[SimGpu]
    driver: str = "580.95.05"
    cuda: str = "13.0"
    trouble: str = ""
    strict: bool = True
    holders: Callable[[], Iterable[Holder]] = tuple
    clients: dict[str, str] = field(default_factory=dict)
    passthrough: bool = False
    mishaps: list[Mishap] = field(default_factory=list)
    kept_open: Callable[[SimGpu], bool] = lambda _gpu: False
    other_mib: dict[str, int] = field(default_factory=dict)
    """Memory that something outside containers holds, by GPU UUID."""

    @property
    def generation(self) -> int:
        """The driver's first number."""
        return int(self.driver.partition(".")[0])

    def names(self) -> dict[str, int]:
        """Every id that a container may be given, and the GPU it belongs to."""
        out: dict[str, int] = {}
        for gpu in () if self.trouble else self.gpus:
            out[gpu.uuid] = out[str(gpu.index)] = gpu.index
            for number, instance in gpu.devices():
                out[instance.uuid] = out[f"{gpu.index}:{number}"] = gpu.index
        return out

    def given(self, devices: frozenset[str]) -> GpuSet:
        """What a container sees that was given these ids: its GPUs numbered from 0, its slices alone."""
        seen: list[SimGpu] = []
        for gpu in self.gpus:
            whole = bool({"all", gpu.uuid, str(gpu.index)} & devices)
            slices = [one for at, one in gpu.devices() if {one.uuid, f"{gpu.index}:{at}"} & devices]
            if whole or slices:
                instances = gpu.instances if whole else slices
                seen.append(replace(gpu, index=len(seen), instances=list(instances)))
        return replace(self, gpus=seen, trouble=self.trouble or ("" if seen else "no-devices"))

    def processes(self, gpu: SimGpu) -> list[tuple[Holder, Instance | None, int]]:
        """Who runs on a GPU, on which slice, with how much memory in MiB."""
        out: list[tuple[Holder, Instance | None, int]] = []
        for holder in self.holders():
            everything = "all" in holder.devices
            if gpu.mig:
                for number, one in gpu.devices():
                    if everything or {one.uuid, f"{gpu.index}:{number}"} & holder.devices:
                        out.append((holder, one, _taken(one.memory_mib, holder.age)))
            elif everything or {gpu.uuid, str(gpu.index)} & holder.devices:
                out.append((holder, None, _taken(gpu.board.memory_mib, holder.age)))
        return out

    def used_mib(self, gpu: SimGpu) -> int:
        """`memory.used`."""
        inside = sum(memory for _, _, memory in self.processes(gpu)) + self.other_mib.get(gpu.uuid, 0)
        return min(gpu.board.memory_mib, inside + (30 * len(gpu.instances) if gpu.mig else 0))

    def hold(self, words: str) -> None:
        """`INDEX [off]`: a monitor's handles keep a GPU busy and show no process, or let go. Other hosts have no such GPU."""
        index, _, off = words.partition(" ")
        for gpu in self._numbered(index):
            self.clients[gpu.uuid] = "" if off else "nv-hostengine"

    def damage(self, words: str) -> None:
        """`INDEX lost`, `INDEX requires reset`, or `INDEX` for a GPU that is well again."""
        index, _, fault = words.partition(" ")
        if fault not in {"", "lost", "requires reset"}:
            raise ValueError(f"`{fault}` is no fault of a GPU: lost, requires reset")
        for gpu in self._numbered(index):
            gpu.fault = fault

    def _numbered(self, index: str) -> list[SimGpu]:
        if not index.isdecimal():
            raise ValueError(f"`{index}` is no index of a GPU")
        return [gpu for gpu in self.gpus if gpu.index == int(index)]

    def reset(self) -> None:
        """What a reboot takes: slices always, and the mode on boards after Ampere; there a pending one comes true."""
        for gpu in self.gpus:
            gpu.instances = []
            gpu.mig, gpu.fault = gpu.pending, ""
            if gpu.board.architecture != "Ampere":
                gpu.mig = gpu.pending = False


def _taken(total: int, age: float) -> int:
    return max(300, int(total * SHARE * min(1.0, age / RAMP)))


def uuid_of(prefix: str, *parts: str) -> str:
    """A stable UUID of version 5's shape from names."""
    digest = sha256("/".join(parts).encode()).hexdigest()
    return f"{prefix}-{digest[:8]}-{digest[8:12]}-5{digest[13:16]}-a{digest[17:20]}-{digest[20:32]}"


def make_gpus(host: str, key: str, count: int) -> list[SimGpu]:
    """`count` boards of one kind with UUIDs of their own."""
    board = BOARDS[key]
    return [
        SimGpu(
            index=at, uuid=uuid_of("GPU", host, str(at)), bus_id=f"00000000:{0x16 + at:02X}:00.0", board=board
        )
        for at in range(count)
    ]
