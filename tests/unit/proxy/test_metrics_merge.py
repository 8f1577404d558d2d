"""Families of several workers as one page."""

from __future__ import annotations

import msgspec

from gpufleet.proxy.decide.metrics import Counter, Family, Histogram, figure, gauge, merged, render


def worker(requests, healthy, seconds):
    counter = Counter("c_total", "Counted.", ("pool",))
    for pool, count in requests.items():
        counter.add((pool,), count)
    histogram = Histogram("h", "Spread.", (0.1, 1.0), ("pool",))
    for value in seconds:
        histogram.observe(value, ("a",))
    state = gauge("up", "Up.", ("endpoint",), {("x",): healthy}, merge="min")
    page = [counter.family(), histogram.family(), state]
    return msgspec.msgpack.decode(msgspec.msgpack.encode(page), type=list[Family])  # as it travels


def test_counts_are_summed_and_the_worst_health_shown():
    page = render(merged([worker({"a": 1_234_567}, 1, [0.05]), worker({"a": 1, "b": 2}, 0, [0.5, 5.0])]))
    assert 'c_total{pool="a"} 1234568\n' in page
    assert 'c_total{pool="b"} 2\n' in page
    assert 'up{endpoint="x"} 0\n' in page
    assert 'h_bucket{pool="a",le="0.1"} 1\n' in page
    assert 'h_bucket{pool="a",le="1.0"} 2\n' in page
    assert 'h_bucket{pool="a",le="+Inf"} 3\n' in page
    assert 'h_sum{pool="a"} 5.550000\n' in page
    assert 'h_count{pool="a"} 3\n' in page


def test_one_worker_is_itself():
    one = worker({"a": 3}, 1, [0.2])
    assert merged([one]) == one
    assert merged([]) == []


def test_figures_keep_every_digit():
    assert [figure(value) for value in (12_345_678.0, 0.91, float("inf"), float("nan"))] == [
        "12345678",
        "0.91",
        "+Inf",
        "NaN",
    ]


def test_labels_are_escaped():
    page = render([gauge("g", "Help.", ("pool",), {('a"b\\c\nd',): 1})])
    assert 'g{pool="a\\"b\\\\c\\nd"} 1\n' in page
