"""Whether each new replica fits the memory of the GPU or slice that it was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpufleet.deploy.catalogue import entry_of
from gpufleet.deploy.placement.api import Slot
from gpufleet.deploy.replicas import New
from gpufleet.engine.boards import cuda_gib, named
from gpufleet.engine.memory import Estimate, Measured, Setup, Verdict, estimate
from gpufleet.engine.memory_words import setup_of, uncounted
from gpufleet.engine.model import Engine
from gpufleet.engine.remedies import remedies
from gpufleet.engine.vllm import devices_of, version
from gpufleet.errors import ErrorRow, MemoryTooSmall
from gpufleet.hosts.model import GpuFact, HostFacts, Known
from gpufleet.models.document import described
from gpufleet.models.model import Architecture, Entry
from gpufleet.names import HostName, ReplicaId
from gpufleet.pools.model import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is expected of one new replica.

    Attributes:
        place: the kind of GPU or slice.
        found: the figures; None where there is nothing to reckon with, and `reason` says why.
        hints: flags that would help.
    """

    replica: ReplicaId
    host: HostName
    place: str
    verdict: Verdict
    reason: str = ""
    found: Estimate | None = None
    hints: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The verdict in a line, without the replica."""
        margin = self.found.margin_gib if self.found else None
        room = "" if margin is None else f", {margin:.1f} GiB {'to spare' if margin >= 0 else 'missing'}"
        return f"{self.verdict.value} on {self.place}{room.replace('-', '')}{f': {self.reason}' if self.reason else ''}"

    def fields(self) -> dict[str, object]:
        """For JSON, with the words of `models fit`."""
        found = self.found
        return {
            "replica": self.replica,
            "host": self.host,
            "place": self.place,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "weights_gib": _rounded(found.weights_gib if found else None),
            "available_kv_gib": _rounded(found.available_gib if found else None),
            "margin_gib": _rounded(found.margin_gib if found else None),
            "kv_tokens": found.tokens if found else None,
            "kv_bytes_per_token": found.token_bytes if found else None,
            "host_memory_gib": _rounded(found.host_gib if found else None),
            "hints": list(self.hints),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What an earlier start of the same engine on the same kind of place measured.

    Attributes:
        at: when, RFC 3339.
        same_context: whether its longest request was the same.
    """

    measured: Measured
    at: str
    same_context: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a pool's replicas would run, and what is known of the model.

    Attributes:
        words: everything that the engine is started with.
        model: None when nobody knows its config.json.
        listed: whether the catalogue has it.
        parameters: as the catalogue gives them.
        least_gib: memory that the model is known to be served in, over all GPUs of a replica.
        seen: figures of an earlier start on such a place, by its name.
    """

    pool: Pool
    words: Sequence[str]
    ranks: int
    version: tuple[int, int] | None
    model: Architecture | None
    listed: bool = False
    parameters: int | None = None
    least_gib: float | None = None
    seen: Callable[[str], Seen | None] = lambda _place: None


def question_of(
    engine: Engine,
    pool: Pool,
    models: Mapping[str, Entry],
    seen: Callable[[str], Seen | None] = lambda _place: None,
) -> Question:
    """What a pool's replicas would run, with what the catalogue and earlier starts know of it."""
    entry, devices = entry_of(pool, models), devices_of(pool)
    return Question(
        pool=pool,
        words=engine.container(pool, key=None, devices=devices).arguments,
        ranks=devices,
        version=version(pool),
        model=described(entry) if entry is not None else None,
        listed=entry is not None,
        seen=seen,
        parameters=entry.parameters.value if entry is not None else None,
        least_gib=entry.memory_gib.value if entry is not None else None,
    )


def judge(
    question: Question, start: Sequence[New], facts: Mapping[HostName, HostFacts]
) -> tuple[Judgement, ...]:
    """One judgement a new replica; replicas on places of one kind share the arithmetic."""
    made: dict[tuple[str, Setup], tuple[Verdict, str, Estimate | None, tuple[str, ...]]] = {}
    found: list[Judgement] = []
    for one in start:
        place, setup = _place(one, facts)
        if setup is None:
            found.append(
                Judgement(
                    replica=one.replica,
                    host=one.host,
                    place=place,
                    verdict=Verdict.UNKNOWN,
                    reason="its memory could not be read",
                )
            )
            continue
        if (place, setup) not in made:
            made[place, setup] = _judged(question, setup, question.seen(place))
        verdict, reason, figures, hints = made[place, setup]
        found.append(
            Judgement(
                replica=one.replica,
                host=one.host,
                place=place,
                verdict=verdict,
                reason=reason,
                found=figures,
                hints=hints,
            )
        )
    return tuple(found)


def refuse(pool: Pool, judged: Sequence[Judgement], option: str) -> None:
    """Raises MemoryTooSmall when a replica would not start; `option` is what goes on all the same."""
    bad = [one for one in judged if one.verdict is Verdict.NO]
    if not bad:
        return
    hints = tuple(dict.fromkeys(hint for one in bad for hint in one.hints))
    raise MemoryTooSmall(
        f"{pool.public_name} does not fit: {len(bad)} of {len(judged)} new replica(s) of pool {pool.name} would not"
        " start; nothing was changed",
        rows=tuple(ErrorRow(one.replica, one.line) for one in bad),
        hints=(*(f"engine.args: {hint}" for hint in hints), f"`{option}` deploys all the same"),
    )


def told(judged: Sequence[Judgement]) -> tuple[str, ...]:
    """Every judgement, one line a kind of place: a fleet of equal hosts is one line."""
    lines: dict[str, list[str]] = {}
    for one in judged:
        lines.setdefault(one.line, []).append(one.replica)
    return tuple(f"memory of {_few(names)}: {line}" for line, names in lines.items())


def doubts(judged: Sequence[Judgement]) -> tuple[str, ...]:
    """What is tight or unknown, one line a kind of place."""
    return told([one for one in judged if one.verdict in {Verdict.TIGHT, Verdict.UNKNOWN}])


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _judged(
    question: Question, place: Setup, seen: Seen | None
) -> tuple[Verdict, str, Estimate | None, tuple[str, ...]]:
    setup = setup_of(question.words, replace(place, version=question.version), ranks=question.ranks)
    setup = replace(setup, parameters=question.parameters, offload_gib=question.pool.kv_offload or 0.0)
    if seen is not None:
        fixed = setup.measured.available
        setup = replace(setup, measured=replace(seen.measured, available=fixed or seen.measured.available))
    found = _estimated(question, setup)
    if seen is not None and seen.same_context and (found is None or found.verdict is not Verdict.TIGHT):
        return Verdict.FITS, f"it started so on {seen.at[:10]}", found, ()
    if found is None:
        why = "the catalogue has no config.json of it" if question.listed else "it is not in the catalogue"
        return _by_minimum(question, setup, uncounted(question.words) or f"`{question.pool.model}`: {why}")
    if found.verdict is Verdict.UNKNOWN or question.model is None:
        verdict, why, _, hints = _by_minimum(
            question, setup, "; ".join(dict.fromkeys(found.unknown.values()))
        )
        return verdict, why, found, hints
    return found.verdict, "", found, remedies(question.model, setup, found)


def _estimated(question: Question, setup: Setup) -> Estimate | None:
    """The arithmetic, where the model is known and everything in its words can be counted."""
    if question.model is None or uncounted(question.words):
        return None
    return estimate(question.model, setup)


def _by_minimum(question: Question, setup: Setup, reason: str) -> tuple[Verdict, str, None, tuple[str, ...]]:
    """What the cited minimum alone says, where nothing can be reckoned."""
    least, has = question.least_gib, setup.memory_gib * setup.ranks * (question.pool.slice.share or 100) / 100
    if least is not None and has < least:
        return Verdict.NO, f"it is served in {least:g} GiB, and {has:.1f} are here", None, ()
    return Verdict.UNKNOWN, reason, None, ()


def _place(one: New, facts: Mapping[HostName, HostFacts]) -> tuple[str, Setup | None]:
    """The smallest GPU or slice of a replica, by name and memory."""
    slot = min(one.placed.slots, key=lambda found: found.memory_mib or 0)
    gpu = _gpu(slot, facts.get(one.host))
    board = named(gpu.name) if gpu else None
    name = gpu.name if gpu else "a GPU"
    place = f"{slot.profile} of {name}" if slot.profile else name
    if slot.memory_mib is None:
        return place, None
    whole = board is not None and not slot.profile and abs(board.memory_mib - slot.memory_mib) < 1024
    total = board.total_gib if board is not None and whole else cuda_gib(slot.memory_mib)
    card = gpu.memory_total_mib.value if gpu and isinstance(gpu.memory_total_mib, Known) else None
    return place, Setup(
        memory_gib=total,
        card_gib=cuda_gib(card) if card is not None else None,
        capability=board.capability if board else None,
    )


def _gpu(slot: Slot, host: HostFacts | None) -> GpuFact | None:
    gpus = host.gpus.value if host is not None and isinstance(host.gpus, Known) else ()
    return next((gpu for gpu in gpus if gpu.uuid == slot.gpu), None)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
