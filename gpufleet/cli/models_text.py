"""Models and verdicts as JSON fields and as text, and the places that they are held against."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpufleet.cli.console import Answer
from gpufleet.cli.settings import Settings
from gpufleet.engine import vllm
from gpufleet.engine.boards import BOARDS, cuda_gib, named, slice_gib
from gpufleet.engine.memory import Estimate, Measured, Setup, Verdict, estimate
from gpufleet.engine.remedies import remedies
from gpufleet.errors import UsageError
from gpufleet.inventory.model import Inventory
from gpufleet.located import did_you_mean
from gpufleet.models import load
from gpufleet.models.document import described
from gpufleet.models.model import Architecture, Cited, Entry, Unclear, Weights
from gpufleet.models.weights_file import read_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A GPU or slice that a model is held against."""

    name: str
    memory_gib: float
    card_gib: float | None = None
    capability: tuple[int, int] | None = None
    sliced: bool = False
    hints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The model that is asked about."""

    name: str
    architecture: Architecture
    parameters: int | None = None
    version: tuple[int, int] | None = None
    hints: tuple[str, ...] = ()


def catalogue_of(inventory: Inventory | None) -> dict[str, Entry]:
    """The shipped entries and the team's."""
    return load.catalogue(inventory)


def subject(inventory: Callable[[], Inventory | None], name: str, config: Path | None) -> Subject:
    """The model by its name or by its config.json."""
    if bool(name) == (config is not None):
        raise UsageError("which model?", hints=("give a name of the catalogue, or `--config config.json`",))
    if config is not None:
        return Subject(name=str(config), architecture=load.config_file(config))
    entry = load.named(name, catalogue_of(inventory()))
    found = described(entry)
    if found is None:
        none = Unclear("the catalogue has no lines of its config.json that anybody vouches for")
        return Subject(
            name=entry.name,
            architecture=Architecture(family="", number_bytes=2, layers=none),
            parameters=entry.parameters.value,
            hints=(*_minimum(entry), "give its own file: `--config config.json`"),
        )
    return Subject(
        name=entry.name,
        architecture=found,
        parameters=entry.parameters.value,
        version=vllm.version_of(entry.image),
    )


def _minimum(entry: Entry) -> tuple[str, ...]:
    least = entry.memory_gib
    return (f"it is served in {least.value:g} GiB [{least.source}]",) if least.value is not None else ()


def version(text: str) -> tuple[int, int] | None:
    """Major and minor of `0.20.2`, `v0.20` or `0.6.x`."""
    if not text:
        return None
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})(?:[.+-].*)?$", text)
    if found is None:
        raise UsageError(f"`--vllm {text}` is no version", hints=("for example 0.20.2",))
    return int(found[1]), int(found[2])


def one_place(
    settings: Settings, *, memory_gib: float | None, gpu: str, mig: str, measured: Measured
) -> Place:
    """The one GPU or slice that the options name."""
    found = places(settings, memory_gib=memory_gib, gpu=gpu, mig=mig, hosts=())
    if found:
        return found[0]
    if measured.available is not None:
        return Place(name="a cache of that size", memory_gib=measured.available)
    raise UsageError("on which GPU?", hints=("give `--gpu NAME`, `--slice PROFILE` or `--memory-gib G`",))


def places(
    settings: Settings, *, memory_gib: float | None, gpu: str, mig: str, hosts: Sequence[str]
) -> tuple[Place, ...]:
    """Every GPU or slice that the options name; those of hosts as their facts tell."""
    if hosts or ":" in gpu:
        from gpufleet.cli.models_hosts import places_of

        return places_of(settings, hosts, gpu, mig)
    board = named(gpu) if gpu else None
    if gpu and board is None:
        close = did_you_mean(gpu, [one.name for one in BOARDS])
        names = ", ".join(one.name for one in BOARDS)
        raise UsageError(
            f"the GPU `{gpu}` is not known here, or has several sizes of memory",
            hints=(close or f"known: {names}", "`--memory-gib G` takes any other"),
        )
    size = (_listed_gib(board.name, mig) if board else None) or slice_gib(mig) if mig else None
    if mig and size is None:
        raise UsageError(f"`--slice {mig}` is no MIG profile", hints=("for example 3g.40gb",))
    card = board.total_gib if board else None
    capability = board.capability if board else None
    if memory_gib is not None:
        return (
            Place(name=f"{memory_gib:g} GiB", memory_gib=memory_gib, card_gib=card, capability=capability),
        )
    if size is not None:
        hint = "" if board else "vLLM takes its defaults from the whole GPU: name it with --gpu"
        return (
            Place(
                name=f"slice {mig}",
                memory_gib=size,
                card_gib=card or 80.0,
                capability=capability,
                sliced=True,
                hints=(hint,) if hint else (),
            ),
        )
    if board is None:
        return ()
    return (Place(name=board.name, memory_gib=board.total_gib, capability=board.capability),)


def _listed_gib(board: str, mig: str) -> float | None:
    """What nvidia-smi printed for this profile on such a board: a name is no size, 1g.18gb of an H200 holds 16 GiB."""
    from gpufleet.mig.boards import BOARDS as CUT

    profile = CUT[board].profile(mig) if board in CUT else None
    return profile.memory_gib if profile else None


def slice_place(name: str, memory_mib: int, card_mib: int, capability: tuple[int, int] | None) -> Place:
    """A slice of a host, by its own memory."""
    return Place(
        name=name,
        memory_gib=cuda_gib(memory_mib),
        card_gib=cuda_gib(card_mib),
        capability=capability,
        sliced=True,
    )


def row(entry: Entry, against: Sequence[Place]) -> dict[str, object] | None:
    """One model in a line; None when it fits none of the places."""
    fields: dict[str, object] = {
        "name": entry.name,
        "hub": entry.hub,
        "modality": entry.modality.value,
        "parameters": entry.parameters.value,
        "memory_gib": entry.memory_gib.value,
        "compute_capability": entry.capability.value,
        "quantization": entry.quantization.value,
    }
    if not against:
        return fields
    verdicts = {place.name: verdict_of(entry, place) for place in against}
    order = (Verdict.FITS, Verdict.TIGHT, Verdict.UNKNOWN, Verdict.NO)
    best = min(verdicts.values(), key=order.index)
    if best is Verdict.NO:
        return None
    return {**fields, "verdict": best.value, "places": {name: one.value for name, one in verdicts.items()}}


def verdict_of(entry: Entry, place: Place) -> Verdict:
    """Whether an entry fits a place, with the arguments that gpufleet writes."""
    if place.capability is not None and entry.capability.value is not None:
        major, _, minor = entry.capability.value.partition(".")
        if place.capability < (int(major), int(minor)):
            return Verdict.NO
    found = described(entry)
    if found is None:
        return _by_minimum(entry, place)
    setup = Setup(
        memory_gib=place.memory_gib,
        card_gib=place.card_gib,
        capability=place.capability,
        share=float(vllm.GPU_MEMORY_UTILIZATION),
        requests=vllm.SLICE_MAX_NUM_SEQS if place.sliced else vllm.MAX_NUM_SEQS,
        batch=vllm.SLICE_MAX_NUM_BATCHED_TOKENS if place.sliced else vllm.MAX_NUM_BATCHED_TOKENS,
        parameters=entry.parameters.value,
        version=vllm.version_of(entry.image),
    )
    verdict = estimate(found, setup).verdict
    return _by_minimum(entry, place) if verdict is Verdict.UNKNOWN else verdict


def _by_minimum(entry: Entry, place: Place) -> Verdict:
    """What the cited minimum alone says: that it is too little, or nothing."""
    least = entry.memory_gib.value
    return Verdict.NO if least is not None and place.memory_gib < least else Verdict.UNKNOWN


def cells(fields: Mapping[str, object], against: Sequence[Place]) -> list[str]:
    """A row of the table."""
    count = fields["parameters"]
    shown = f"{count / 1e9:.2f} G" if isinstance(count, int) else "?"
    words = ["?" if fields[key] is None else str(fields[key]) for key in ("memory_gib", "compute_capability")]
    found = [str(fields["name"]), str(fields["modality"]), shown, *words, str(fields["quantization"] or "?")]
    return [*found, str(fields["verdict"])] if against else found


def entry_fields(entry: Entry) -> dict[str, object]:
    """One model with all its sources, for JSON."""
    return {
        "name": entry.name,
        "hub": entry.hub,
        "revision": entry.revision or None,
        "modality": entry.modality.value,
        "image": entry.image or None,
        "args": list(entry.arguments),
        "gated": entry.gated,
        "note": entry.note,
        "origin": entry.origin,
        **{key: _cited(value) for key, value in _figures(entry)},
    }


def _figures(entry: Entry) -> tuple[tuple[str, Cited[object]], ...]:
    return (
        ("since", entry.since),
        ("parameters", entry.parameters),
        ("memory_gib", entry.memory_gib),
        ("compute_capability", entry.capability),
        ("quantization", entry.quantization),
        ("config", entry.config),
    )


def _cited(value: Cited[object]) -> dict[str, object] | None:
    return None if value.value is None else {"value": value.value, "source": value.source}


def entry_lines(entry: Entry) -> str:
    """One model for people."""
    lines = [f"{entry.name}: {entry.hub} ({entry.modality.value})"]
    if entry.note:
        lines.append(f"  {entry.note}")
    lines.append(f"  {'revision':<20} {entry.revision or 'unknown'}")
    lines.append(f"  {'image':<20} {entry.image or 'unknown'}")
    lines.append(f"  {'arguments':<20} {' '.join(entry.arguments) or 'none'}")
    for key, figure in _figures(entry):
        value = figure.value
        shown = f"{len(value)} lines" if isinstance(value, Mapping) else str(value)
        lines.append(f"  {key:<20} unknown" if value is None else f"  {key:<20} {shown}  [{figure.source}]")
    if entry.gated:
        lines.append("  the hub asks for consent and a token (HF_TOKEN)")
    return "\n".join(lines)


def stored(directory: Path | None) -> Weights | None:
    """What the headers in a directory say; None when none is given."""
    return read_directory(directory) if directory is not None else None


def fit_answer(subject: Subject, place: Place, setup: Setup) -> Answer:
    """The verdict and everything it rests on."""
    name = subject.name
    found = estimate(subject.architecture, setup)
    hints = (*subject.hints, *place.hints, *remedies(subject.architecture, setup, found))
    fields: dict[str, object] = {
        "model": name,
        "place": place.name,
        "verdict": found.verdict.value,
        "weights_gib": _rounded(found.weights_gib),
        "kv_tokens": found.tokens,
        "kv_bytes_per_token": found.token_bytes,
        "available_kv_gib": _rounded(found.available_gib),
        "needed_kv_gib": _rounded(found.needed_gib),
        "margin_gib": _rounded(found.margin_gib),
        "memory_gib": _rounded(setup.memory_gib),
        "gpu_memory_utilization": setup.taken_share,
        "max_model_len": found.context,
        "max_num_seqs": setup.taken_requests,
        "activation_gib": _rounded(found.activation_gib),
        "activation_is_bound": found.bounded,
        "non_torch_gib": _rounded(found.non_torch_gib),
        "cuda_graphs_gib": _rounded(found.graphs_gib),
        "host_memory_gib": _rounded(found.host_gib),
        "hints": list(hints),
        "unknown": dict(found.unknown),
    }
    return Answer(
        command="models fit", fields=fields, text="\n".join(_fit_lines(name, place, setup, found, hints))
    )


def _fit_lines(name: str, place: Place, setup: Setup, found: Estimate, hints: Sequence[str]) -> list[str]:
    budget = setup.memory_gib * setup.taken_share
    bound = " at most" if found.bounded else ""
    rows = (
        ("share", f"{setup.memory_gib:.2f} x {setup.taken_share:g} = {budget:.2f} GiB"),
        ("weights", _shown(found.weights_gib)),
        ("outside PyTorch", _shown(found.non_torch_gib)),
        ("activation", f"{_shown(found.activation_gib)}{bound}, {setup.taken_requests} requests at once"),
        ("CUDA graphs", _shown(found.graphs_gib)),
        ("left for the cache", _shown(found.available_gib)),
        ("longest request", f"{found.context or 'unknown'} tokens, {_shown(found.needed_gib)}"),
        ("margin", _shown(found.margin_gib)),
        ("cache", _tokens(found)),
    )
    lines = [f"{name} on {place.name}: {found.verdict.value}"]
    lines += [f"  {key:<19} {value}" for key, value in rows]
    if found.host_gib:
        lines.append(f"  {'host memory':<19} {found.host_gib:.1f} GiB for the offloaded cache")
    lines += [f"  unknown {key}: {why}" for key, why in found.unknown.items()]
    return lines + [f"hint: {hint}" for hint in hints]


def _tokens(found: Estimate) -> str:
    if found.token_bytes is None:
        return "unknown"
    count = "unknown" if found.tokens is None else f"{found.tokens:,}"
    return f"{count} tokens, {found.token_bytes:,} bytes each"


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f} GiB"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
