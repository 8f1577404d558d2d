"""Counters, gauges, histograms and their Prometheus text; names are `gpufleet_proxy_*` and stay.

Theory. What a process counts it counts in `Counter` and `Histogram`, which cost a dictionary's look-up. Whoever reads
gets `Family` values, which travel between processes: several workers are one proxy, so their families are `merge`d,
each by its own rule, before a page is written.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from gpufleet.proxy.wire.usage import reported

Labels = tuple[str, ...]

TTFT_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
DURATION_BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 3600.0)
GAP_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)

Merge = Literal["sum", "max", "min"]


_CHOICES: dict[Merge, Callable[[Iterable[float]], float]] = {"sum": sum, "max": max, "min": min}


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One metric with all its label combinations, as it is written and as it travels between workers.

    Attributes:
        bounds: of a histogram; its samples then hold a count for each bound, one for the rest, and the sum.
        merge: how the figures of several workers make one.
    """

    name: str
    help: str
    kind: Literal["counter", "gauge", "histogram"] = "gauge"
    labels: Labels = ()
    samples: list[tuple[Labels, list[float]]] = []
    bounds: tuple[float, ...] = ()
    merge: Merge = "sum"


class Counter:
    """A number for each combination of labels that only grows."""

    __slots__ = ("help", "label_names", "name", "values")

    def __init__(self, name: str, help_: str, label_names: Labels = ()) -> None:
        self.name = name
        self.help = help_
        self.label_names = label_names
        self.values: dict[Labels, float] = {}

    def add(self, labels: Labels = (), amount: float = 1.0) -> None:
        """Count."""
        self.values[labels] = self.values.get(labels, 0.0) + amount

    def family(self) -> Family:
        """As it is now."""
        return gauge(self.name, self.help, self.label_names, self.values, kind="counter")


class Histogram:
    """How often a value was at most each bound."""

    __slots__ = ("bounds", "counts", "help", "label_names", "name", "sums")

    def __init__(self, name: str, help_: str, bounds: tuple[float, ...], label_names: Labels = ()) -> None:
        self.name = name
        self.help = help_
        self.bounds = bounds
        self.label_names = label_names
        self.counts: dict[Labels, list[int]] = {}
        self.sums: dict[Labels, float] = {}

    def observe(self, value: float, labels: Labels = ()) -> None:
        """Count one value."""
        counts = self.counts.get(labels)
        if counts is None:
            counts = self.counts[labels] = [0] * (len(self.bounds) + 1)
            self.sums[labels] = 0.0
        counts[bisect_left(self.bounds, value)] += 1
        self.sums[labels] += value

    def family(self) -> Family:
        """As it is now."""
        return Family(
            name=self.name,
            help=self.help,
            kind="histogram",
            labels=self.label_names,
            samples=[(labels, [*counts, self.sums[labels]]) for labels, counts in self.counts.items()],
            bounds=self.bounds,
        )


def gauge(
    name: str,
    help_: str,
    label_names: Labels,
    values: Mapping[Labels, float],
    *,
    kind: Literal["counter", "gauge"] = "gauge",
    merge: Merge = "sum",
) -> Family:
    """A family that is read off where it lives."""
    samples = [(labels, [float(value)]) for labels, value in values.items()]
    return Family(name=name, help=help_, kind=kind, labels=label_names, samples=samples, merge=merge)


def merged(pages: Iterable[Sequence[Family]]) -> list[Family]:
    """The families of several workers as those of one proxy, in the order in which they first appear."""
    found: dict[str, list[Family]] = {}
    for page in pages:
        for family in page:
            found.setdefault(family.name, []).append(family)
    return [_one(same) for same in found.values()]


def _one(same: list[Family]) -> Family:
    first = same[0]
    if len(same) == 1:
        return first
    choose = _CHOICES[first.merge]
    values: dict[Labels, list[list[float]]] = {}
    for family in same:
        if family.bounds == first.bounds:
            for labels, figures in family.samples:
                values.setdefault(tuple(labels), []).append(figures)
    samples = [
        (labels, [float(choose(column)) for column in zip(*rows, strict=True)])
        for labels, rows in values.items()
    ]
    return msgspec.structs.replace(first, samples=samples)


def render(families: Iterable[Family]) -> str:
    """Prometheus text, format 0.0.4."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help}"
    yield f"# TYPE {family.name} {family.kind}"
    for labels, figures in family.samples:
        if family.kind == "histogram":
            yield from _histogram_lines(family, labels, figures)
        else:
            yield f"{family.name}{label_text(family.labels, labels)} {figure(figures[0])}"


def _histogram_lines(family: Family, labels: Labels, figures: Sequence[float]) -> Iterator[str]:
    running = 0.0
    bounds = (*(str(bound) for bound in family.bounds), "+Inf")
    for bound, count in zip(bounds, figures[:-1], strict=True):
        running += count
        text = label_text((*family.labels, "le"), (*labels, bound))
        yield f"{family.name}_bucket{text} {figure(running)}"
    yield f"{family.name}_sum{label_text(family.labels, labels)} {figures[-1]:.6f}"
    yield f"{family.name}_count{label_text(family.labels, labels)} {figure(running)}"


def figure(value: float) -> str:
    """Every digit of a count: `%g` would stop counting at a million."""
    if math.isfinite(value):
        return str(int(value)) if value == int(value) else repr(float(value))
    return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")


def label_text(names: Labels, values: Labels) -> str:
    """`{a="x",b="y"}`, or nothing without labels."""
    if not names:
        return ""
    return (
        "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)) + "}"
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class ProxyMetrics:
    """Everything that one proxy process counts."""

    __slots__ = (
        "access_dropped",
        "client_gone",
        "connections_refused",
        "duration",
        "gap",
        "reloads",
        "requests",
        "retries",
        "scrape_failures",
        "tokens",
        "ttft",
        "upstream_failures",
    )

    def __init__(self) -> None:
        self.requests = Counter(
            "gpufleet_proxy_requests_total",
            "Requests by what the client was answered; 499: it left first.",
            ("pool", "endpoint", "code"),
        )
        self.retries = Counter(
            "gpufleet_proxy_retries_total", "Further attempts of a request.", ("pool", "reason")
        )
        self.upstream_failures = Counter(
            "gpufleet_proxy_upstream_failures_total",
            "Attempts that an engine did not answer to the end.",
            ("pool", "endpoint", "phase"),
        )
        self.client_gone = Counter(
            "gpufleet_proxy_client_gone_total", "Clients that left before the answer was whole.", ("pool",)
        )
        self.tokens = Counter(
            "gpufleet_proxy_tokens_total",
            "Tokens that engines reported in answers, by kind: prompt, cached, completion.",
            ("pool", "endpoint", "kind"),
        )
        self.reloads = Counter(
            "gpufleet_proxy_route_reloads_total", "Route tables read, by result.", ("result",)
        )
        self.scrape_failures = Counter(
            "gpufleet_proxy_scrape_failures_total", "Metrics pages that were not got.", ("endpoint",)
        )
        self.connections_refused = Counter(
            "gpufleet_proxy_connections_refused_total", "Clients sent away at the limit of connections."
        )
        self.access_dropped = Counter(
            "gpufleet_proxy_access_log_dropped_total", "Lines of the access log that found its buffer full."
        )
        self.ttft = Histogram(
            "gpufleet_proxy_ttft_seconds",
            "From dispatch to the first byte of a streamed body.",
            TTFT_BOUNDS,
            ("pool",),
        )
        self.gap = Histogram(
            "gpufleet_proxy_inter_token_seconds",
            "Mean time between two pieces of a streamed answer, one value a stream.",
            GAP_BOUNDS,
            ("pool",),
        )
        self.duration = Histogram(
            "gpufleet_proxy_request_duration_seconds",
            "From dispatch to the last byte.",
            DURATION_BOUNDS,
            ("pool",),
        )

    def ended(self, pool: str, endpoint: str, code: str, seconds: float, tail: bytes) -> dict[str, int]:
        """Count a request that is over, and the tokens that its answer's `tail` reports; says what those were."""
        self.requests.add((pool, endpoint, code))
        self.duration.observe(seconds, (pool,))
        if not tail:
            return {}
        tokens = reported(tail)
        for kind, number in tokens.items():
            self.tokens.add((pool, endpoint, kind), number)
        return tokens

    def families(self) -> list[Family]:
        """The page without the gauges."""
        counted = (
            self.requests,
            self.retries,
            self.upstream_failures,
            self.client_gone,
            self.tokens,
            self.reloads,
            self.scrape_failures,
            self.connections_refused,
            self.access_dropped,
            self.ttft,
            self.gap,
            self.duration,
        )
        return [one.family() for one in counted]
