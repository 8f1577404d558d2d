"""What `vllm serve` of a version makes of a flag; whatever else stands on its command line ends it at once.

A flag that came or went between two versions that were read (`engine.flag_table`) is taken, and so is every known
one by a version outside them: the lab refuses nothing that the engine may take.
"""

from __future__ import annotations

from gpufleet.engine import flag_table
from gpufleet.engine.flags import Release, Standing, known_in, standing, written

LISTS = frozenset(
    {"served-model-name", "api-key", "middleware", "lora-modules", "cudagraph-capture-sizes", "device-ids"}
)
"""Flags that take every bare word that follows."""


def meant(word: str, release: Release | None) -> tuple[str, bool] | None:
    """The flag that argparse takes a word for, and whether it is negated; None for what it does not recognise."""
    flag = written(word)
    if flag is None or not flag.name:
        return None
    state = standing(flag.name, release)
    if state in {Standing.KNOWN, Standing.BETWEEN}:
        return flag.name, flag.negated
    if state is Standing.OUTSIDE:
        return (flag.name, flag.negated) if flag.name in known_in(None) else None
    whole = [name for name in known_in(release) if name.startswith(flag.name)]
    return (whole[0], flag.negated) if state is Standing.NEVER and len(whole) == 1 else None


def is_switch(flag: str) -> bool:
    """Whether a flag (without dashes) stands alone, without a value."""
    return bool(flag_table.stands_alone(flag))
