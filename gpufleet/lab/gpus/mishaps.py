"""Commands of nvidia-smi that go wrong, as words that a person writes and a seed draws.

VERB EFFECT [SKIP]      -cgi "Insufficient Resources" 1: the second creation does not fit
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpufleet.lab.gpus.simgpu import Mishap

VERBS = ("-cgi", "-cci", "-dgi", "-dci", "-mig", "--gpu-reset", "-lgip", "-lgipp", "-lgi", "-lci")
REASONS = (
    "In use by another client",
    "Insufficient Resources",
    "Unknown Error",
    "Invalid Argument",
    "Not Supported",
)
EFFECTS = (*REASONS, "lie", "half", "slow")

DRAWN: tuple[tuple[str, str], ...] = (
    ("-cgi", "In use by another client"),
    ("-cgi", "Insufficient Resources"),
    ("-cgi", "Unknown Error"),
    ("-cgi", "lie"),
    ("-cgi", "half"),
    ("-cgi", "slow"),
    ("-dci", "In use by another client"),
    ("-dci", "lie"),
    ("-dci", "Unknown Error"),
    ("-dgi", "In use by another client"),
    ("-dgi", "lie"),
    ("-dgi", "slow"),
    ("-mig", "In use by another client"),
    ("-mig", "lie"),
    ("--gpu-reset", "In use by another client"),
    ("-lgi", "Unknown Error"),
    ("-lgip", "Unknown Error"),
    ("-lci", "slow"),
)
"""What random runs choose from: each has been met on real drivers, the wrong success and the half instance too."""


def parse(text: str) -> Mishap:
    """A mishap as it is written.

    Raises:
        ValueError: no such verb or effect, with those that there are.
    """
    verb, _, rest = text.strip().partition(" ")
    effect, slash, skip = rest.strip().partition("/")
    if verb not in VERBS or effect not in EFFECTS or (slash and not skip.isdecimal()):
        known = f"{', '.join(VERBS)}; {', '.join(EFFECTS)}"
        raise ValueError(f"`{text}` is no mishap: write VERB EFFECT[/SKIP] with {known}")
    return Mishap(verb, effect, int(skip) if skip else 0)


def drawn(below: Callable[[int], int], most: int = 2) -> list[Mishap]:
    """One to `most` mishaps; `below(n)` gives a number from 0 to n - 1."""
    chosen = [DRAWN[below(len(DRAWN))] for _ in range(1 + below(most))]
    return [Mishap(verb, effect, below(4)) for verb, effect in chosen]


def told(mishaps: Iterable[Mishap]) -> str:
    """Mishaps for a message: a failed random run prints them."""
    return "; ".join(f"{one.verb} {one.effect}/{one.skip}" for one in mishaps)
