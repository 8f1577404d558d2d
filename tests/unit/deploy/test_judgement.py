"""Good, bad and not known; and the shares of canaries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.deploy.judgement import Bad, Evidence, Good, NotKnown, judge, shares, watch_of
from gpufleet.deploy.watching import by_engine, by_proxy
from gpufleet.pools.model import StrategyWish
from tests.kit.places import PLACE

LIMITS = watch_of(StrategyWish(kind="canary", observe=60, min_requests=20), (), ())


@pytest.mark.parametrize(
    ("new", "old", "verdict"),
    [
        (Evidence(), Evidence(answers=100), NotKnown),
        (Evidence(answers=19), Evidence(answers=100), NotKnown),
        (Evidence(answers=20), Evidence(), Good),
        (Evidence(answers=100, errors=1), Evidence(answers=100), Good),
        (Evidence(answers=100, errors=2), Evidence(answers=100), Bad),
        (Evidence(answers=100, errors=5), Evidence(answers=100, errors=4), Good),
        (
            Evidence(answers=20, first_tokens=20, waited=8.0),
            Evidence(answers=9, first_tokens=9, waited=1.8),
            Good,
        ),
        (
            Evidence(answers=20, first_tokens=20, waited=9.0),
            Evidence(answers=9, first_tokens=9, waited=1.8),
            Bad,
        ),
        (
            Evidence(answers=20, first_tokens=20, waited=0.9),
            Evidence(answers=9, first_tokens=9, waited=0.09),
            Good,
        ),
        (
            Evidence(answers=20, first_tokens=20, waited=99.0),
            Evidence(answers=4, first_tokens=4, waited=0.1),
            Good,
        ),
    ],
)
def test_a_judgement(new, old, verdict):
    assert isinstance(judge(new, old, LIMITS), verdict)


@given(st.integers(1, 99), st.integers(1, 10), st.lists(st.integers(1, 9), min_size=1, max_size=10))
def test_canaries_get_their_share_and_the_others_keep_theirs(percent, new, old):
    weight, weights = shares(percent, new, tuple(old))
    assert 1 <= weight <= 1000
    assert all(1 <= one <= 1000 for one in weights)
    assert len({one / before for one, before in zip(weights, old, strict=True)}) == 1
    got = 100 * weight * new / (weight * new + sum(weights))
    if 2 <= percent <= 90 and len(old) >= 2:
        assert got == pytest.approx(percent, abs=max(1.0, percent / 5))


def test_an_engines_page():
    page = (
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="a}b"} 7.0\n'
        'vllm:request_success_total{engine="0",finished_reason="error",model_name="q"} 1.0\n'
        "vllm:time_to_first_token_seconds_sum 2.5e+00\nvllm:time_to_first_token_seconds_count 8.0\nnonsense\n"
    )
    assert by_engine(page) == Evidence(answers=8, errors=1, first_tokens=8, waited=2.5)
    assert by_engine("") == Evidence(answers=None)


def test_a_proxys_page_counts_one_member():
    page = (
        'gpufleet_proxy_requests_total{pool="chat",endpoint="gpu-01/0",code="200"} 8\n'
        'gpufleet_proxy_requests_total{pool="chat",endpoint="gpu-01/0",code="502"} 1\n'
        'gpufleet_proxy_requests_total{pool="chat",endpoint="gpu-01/0",code="499"} 5\n'
        'gpufleet_proxy_requests_total{pool="chat",endpoint="gpu-02/0",code="500"} 9\n'
        'gpufleet_proxy_upstream_failures_total{pool="chat",endpoint="gpu-01/0",phase="connect"} 2\n'
    )
    assert by_proxy(page, PLACE, "gpu-01/0") == Evidence(answers=11, errors=3)
    assert by_proxy(page, PLACE, "gpu-09/0").answers is None
