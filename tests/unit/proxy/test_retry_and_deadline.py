"""When a request is tried once more, and when it is too late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.proxy.decide.deadline import Timeouts, overdue
from gpufleet.proxy.decide.metrics import Counter, Histogram, render
from gpufleet.proxy.decide.retry import Failure, Next, decide


@pytest.mark.parametrize("failure", [Failure.CONNECT, Failure.BUSY])
def test_another_member_within_two_more_attempts(failure):
    steps = [
        decide(failure, others_tried=tried, others_left=5 - tried, fresh_tried=False) for tried in range(4)
    ]
    assert steps == [Next.OTHER_MEMBER, Next.OTHER_MEMBER, Next.GIVE_UP, Next.GIVE_UP]
    assert decide(failure, others_tried=0, others_left=0, fresh_tried=False) is Next.GIVE_UP


def test_a_kept_connection_that_was_closed_is_opened_once_again():
    assert decide(Failure.STALE, others_tried=0, others_left=0, fresh_tried=False) is Next.SAME_MEMBER
    assert decide(Failure.STALE, others_tried=0, others_left=0, fresh_tried=True) is Next.GIVE_UP


@given(st.integers(0, 5), st.integers(0, 5), st.booleans())
def test_what_was_sent_is_never_sent_twice(tried, left, fresh):
    assert decide(Failure.SENT, others_tried=tried, others_left=left, fresh_tried=fresh) is Next.GIVE_UP


def test_deadlines():
    limits = Timeouts()

    def late(now, *, first=None, last=0.0, stream=True):
        return overdue(limits, now, started=0.0, first_byte=first, last_byte=last, stream=stream)

    assert not late(119.0)
    assert "first byte" in late(121.0)
    assert not late(3000.0, stream=False)
    assert "whole" in late(3601.0, stream=False)
    assert not late(170.0, first=1.0, last=111.0)
    assert "nothing came" in late(172.0, first=1.0, last=111.0)


def test_metrics_are_prometheus_text():
    counter = Counter("c_total", "Help.", ("pool",))
    counter.add(('a"b\\c\nd',))
    assert render([counter.family()]).splitlines()[-1] == 'c_total{pool="a\\"b\\\\c\\nd"} 1'
    histogram = Histogram("h", "Help.", (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    lines = render([histogram.family()]).splitlines()
    assert lines[2:6] == [
        'h_bucket{le="0.1"} 2',
        'h_bucket{le="1.0"} 3',
        'h_bucket{le="+Inf"} 4',
        "h_sum 7.650000",
    ]
