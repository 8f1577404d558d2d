"""Counters, gauges, histograms and their Prometheus text; names are `gpufleet_proxy_*` and stay."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

Labels = tuple[str, ...]

TTFT_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
DURATION_BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 3600.0)


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

    def render(self) -> Iterable[str]:
        """The lines of this family."""
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

    def render(self) -> Iterable[str]:
        """The lines of this family."""
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} histogram"
        for labels, counts in self.counts.items():
            running = 0
            for bound, count in zip((*(str(bound) for bound in self.bounds), "+Inf"), counts, strict=True):
                running += count
                yield f"{self.name}_bucket{label_text((*self.label_names, 'le'), (*labels, bound))} {running}"
            yield f"{self.name}_sum{label_text(self.label_names, labels)} {self.sums[labels]:.6f}"
            yield f"{self.name}_count{label_text(self.label_names, labels)} {running}"


def gauge(
    name: str, help_: str, label_names: Labels, values: Mapping[Labels, float], *, kind: str = "gauge"
) -> Iterable[str]:
    """A family that is read off where it lives."""
    yield f"# HELP {name} {help_}"
    yield f"# TYPE {name} {kind}"
    for labels, value in values.items():
        yield f"{name}{label_text(label_names, labels)} {value:g}"


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

    __slots__ = ("client_gone", "duration", "reloads", "requests", "retries", "ttft", "upstream_failures")

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
        self.ttft = Histogram(
            "gpufleet_proxy_ttft_seconds",
            "From dispatch to the first byte of a streamed body.",
            TTFT_BOUNDS,
            ("pool",),
        )
        self.duration = Histogram(
            "gpufleet_proxy_request_duration_seconds",
            "From dispatch to the last byte.",
            DURATION_BOUNDS,
            ("pool",),
        )
        self.reloads = Counter(
            "gpufleet_proxy_route_reloads_total", "Route tables read, by result.", ("result",)
        )

    def render(self) -> Iterable[str]:
        """The page without the gauges."""
        for family in (self.requests, self.retries, self.upstream_failures, self.client_gone, self.reloads):
            yield from family.render()
        yield from self.ttft.render()
        yield from self.duration.render()
