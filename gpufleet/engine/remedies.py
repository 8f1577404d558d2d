"""What would make a model fit that does not: one change at a time, the cheapest first.

Fewer requests at once cost throughput alone, a shorter context refuses long requests, an eight-bit cache may cost
accuracy, more GPUs cost GPUs, and quantised weights are another model. What is named was calculated, not supposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpufleet.engine.memory import Estimate, Setup, Verdict, divides, estimate
from gpufleet.models.model import Architecture

REQUESTS = (512, 256, 128, 64, 32, 16)
LEAST_CONTEXT = 1024
RANKS = (2, 4, 8)


def remedies(model: Architecture, setup: Setup, found: Estimate) -> tuple[str, ...]:
    """Flags that would make it fit, each with what it leads to; empty when nothing is needed or nothing helps."""
    if found.verdict in {Verdict.FITS, Verdict.UNKNOWN}:
        return ()
    if not divides(model, setup.ranks):
        usable = ", ".join(str(ranks) for ranks in range(1, 17) if divides(model, ranks))
        return (f"{model.heads} attention heads do not divide by {setup.ranks} GPUs; by {usable} they do",)
    single = tuple(_single(model, setup, found))
    if single:
        return single
    together = tuple(_together(model, setup))
    return together or ("no flag makes it fit here: take a larger GPU or a smaller model",)


def _better(found: Verdict, made: Verdict) -> bool:
    return made is Verdict.FITS or (found is Verdict.NO and made is Verdict.TIGHT)


def _single(model: Architecture, setup: Setup, found: Estimate) -> Iterator[str]:
    for flag, changed in _changes(model, setup, found):
        made = estimate(model, changed)
        if _better(found.verdict, made.verdict):
            yield f"{flag}: {made.verdict.value}, {_room(made)}"


def _changes(model: Architecture, setup: Setup, found: Estimate) -> Iterator[tuple[str, Setup]]:
    """Every kind of change once, as mild as does it."""
    for requests in REQUESTS:
        changed = replace(setup, requests=requests)
        if requests < setup.taken_requests and _better(found.verdict, estimate(model, changed).verdict):
            yield f"--max-num-seqs {requests}", changed
            break
    shorter = _context(model, setup, found)
    if shorter is not None:
        yield f"--max-model-len {shorter.context}", shorter
    if setup.kv_dtype == "auto":
        yield "--kv-cache-dtype fp8", replace(setup, kv_dtype="fp8")
    for ranks in RANKS:
        if ranks > setup.ranks and divides(model, ranks):
            changed = replace(setup, ranks=ranks)
            if _better(found.verdict, estimate(model, changed).verdict):
                yield f"--tensor-parallel-size {ranks}", changed
                break
    if model.format is None and not setup.quantization:
        yield "--quantization fp8", replace(setup, quantization="fp8")
    if setup.share is not None and setup.share < 0.95:
        yield "--gpu-memory-utilization 0.95", replace(setup, share=0.95)


def _context(model: Architecture, setup: Setup, found: Estimate) -> Setup | None:
    """The longest context, in steps of 1,024 tokens, with which it fits; None when none does."""
    if found.context is None or found.available_gib is None or found.available_gib <= 0:
        return None
    low, high = 0, found.context // LEAST_CONTEXT
    while low < high:
        middle = (low + high + 1) // 2
        made = estimate(model, replace(setup, context=middle * LEAST_CONTEXT))
        if _better(found.verdict, made.verdict):
            low = middle
        else:
            high = middle - 1
    return replace(setup, context=low * LEAST_CONTEXT) if low else None


def _together(model: Architecture, setup: Setup) -> Iterator[str]:
    """Changes piled up in the same order, until it fits."""
    changed = setup
    flags: dict[str, str] = {}
    for flag, value in _PILE:
        following = _with(model, changed, flag, value)
        if following is None:
            continue
        changed, flags[flag] = following, value
        made = estimate(model, changed)
        if made.verdict in {Verdict.FITS, Verdict.TIGHT}:
            words = " ".join(f"{name} {word}" for name, word in flags.items())
            yield f"{words}: {made.verdict.value}, {_room(made)}"
            return


_PILE = (
    ("--max-num-seqs", "16"),
    ("--max-model-len", "4096"),
    ("--kv-cache-dtype", "fp8"),
    ("--quantization", "fp8"),
    ("--tensor-parallel-size", "2"),
    ("--tensor-parallel-size", "4"),
    ("--tensor-parallel-size", "8"),
)


def _with(model: Architecture, setup: Setup, flag: str, value: str) -> Setup | None:
    """`setup` with a flag; None when that changes nothing or cannot be."""
    if flag == "--max-num-seqs":
        return replace(setup, requests=int(value)) if int(value) < setup.taken_requests else None
    if flag == "--max-model-len":
        longest = setup.context or model.context or 0
        return replace(setup, context=int(value)) if int(value) < longest else None
    if flag == "--kv-cache-dtype":
        return replace(setup, kv_dtype=value) if setup.kv_dtype == "auto" else None
    if flag == "--quantization":
        plain = model.format is None and not setup.quantization
        return replace(setup, quantization=value) if plain else None
    possible = int(value) > setup.ranks and divides(model, int(value))
    return replace(setup, ranks=int(value)) if possible else None


def _room(made: Estimate) -> str:
    return "" if made.margin_gib is None else f"{made.margin_gib:.1f} GiB stay"
