"""What an engine's log says of its memory once it has started: figures that win over any law."""

from __future__ import annotations

import re
from dataclasses import dataclass

LINES = (
    "Model loading took|Loading model weights took|Available KV cache memory|GPU KV cache size|"
    "Graph capturing finished|model weights take"
)
"""Extended regular expression of the lines that carry a figure."""

_WEIGHTS = re.compile(r"(?:Model loading took|Loading model weights took) (\d+(?:\.\d+)?) Gi?B")
_AVAILABLE = re.compile(r"Available KV cache memory: (-?\d+(?:\.\d+)?) GiB")
_TOKENS = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
_GRAPHS = re.compile(r"Graph capturing finished in .* took (-?\d+(?:\.\d+)?) GiB")
_FIRST_ENGINE = re.compile(
    r"model weights take (\d+(?:\.\d+)?)GiB; non_torch_memory takes (\d+(?:\.\d+)?)GiB; "
    r"PyTorch activation peak memory takes (\d+(?:\.\d+)?)GiB; "
    r"the rest of the memory reserved for KV Cache is (-?\d+(?:\.\d+)?)GiB"
)
"""One line of the V0 engine, up to 0.8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One start, GiB on one GPU: of several ranks the largest weights and the smallest cache, as the engine takes them."""

    weights_gib: float | None = None
    available_gib: float | None = None
    activation_gib: float | None = None
    non_torch_gib: float | None = None
    graphs_gib: float | None = None
    tokens: int | None = None

    @property
    def useful(self) -> bool:
        """Whether there is enough to judge a next start by."""
        return self.weights_gib is not None and self.available_gib is not None


def parse(log: str) -> Figures:
    """The figures in a log, or in the lines of it that match `LINES`."""
    first = _FIRST_ENGINE.findall(log)
    weights = [float(found) for found in _WEIGHTS.findall(log)] + [float(found[0]) for found in first]
    available = [float(found) for found in _AVAILABLE.findall(log)] + [float(found[3]) for found in first]
    tokens = [int(found.replace(",", "")) for found in _TOKENS.findall(log) if found.strip(",")]
    graphs = [float(found) for found in _GRAPHS.findall(log)]
    return Figures(
        weights_gib=max(weights, default=None),
        available_gib=min(available, default=None),
        activation_gib=max((float(found[2]) for found in first), default=None),
        non_torch_gib=max((float(found[1]) for found in first), default=None),
        graphs_gib=max(graphs, default=None),
        tokens=min(tokens, default=None),
    )
