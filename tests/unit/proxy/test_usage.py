"""Tokens as engines report them behind their answers."""

from __future__ import annotations

import pytest

from gpufleet.proxy.decide.metrics import ProxyMetrics
from gpufleet.proxy.wire.usage import reported


@pytest.mark.parametrize(
    ("tail", "tokens"),
    [
        (
            b'"usage":{"prompt_tokens":12,"total_tokens":15,"completion_tokens":3,"prompt_tokens_details":null}}',
            {"prompt": 12, "completion": 3},
        ),
        (
            (
                b'data: {"choices":[],"usage":{"prompt_tokens":9,"total_tokens":9,"completion_tokens":0,'
                b'"prompt_tokens_details":{"cached_tokens":8}}}\n\ndata: [DONE]\n\n\r\n0\r\n\r\n'
            ),
            {"prompt": 9, "completion": 0, "cached": 8},
        ),
        (
            b'event: message_delta\ndata: {"usage": {"input_tokens": 7, "output_tokens": 5}}\n\n',
            {"prompt": 7, "completion": 5},
        ),
        (
            b'"usage":{"prompt_tokens":1}} ... "usage":{"prompt_tokens":2,"completion_tokens":3}}',
            {"prompt": 2, "completion": 3},
        ),
        (b'{"content":"say \\"usage\\":{\\"prompt_tokens\\":99}"}', {}),
        (b'"usage":null}', {}),
        (b'"usage":{"prompt_tokens":-1,"completion_tokens":99999999999999999999}', {}),
        (b'oken":1,"usage', {}),
        (b"", {}),
    ],
)
def test_tokens(tail, tokens):
    assert reported(tail) == tokens


def test_counted_by_pool_member_and_kind():
    metrics = ProxyMetrics()
    for _ in range(2):
        metrics.ended(
            "p", "h/0", "200", 0.1, b'"usage":{"prompt_tokens":5,"total_tokens":7,"completion_tokens":2}'
        )
    assert metrics.tokens.values == {("p", "h/0", "prompt"): 10.0, ("p", "h/0", "completion"): 4.0}
    assert metrics.requests.values == {("p", "h/0", "200"): 2.0}


def test_an_event_that_goes_on_in_another_chunk_is_read_as_one():
    event = b'data: {"usage":{"prompt_tokens":123,"total_tokens":168,"completion_tokens":45}}\n\n'
    for cut in range(1, len(event)):
        tail = b"%x\r\n%s\r\n%x;note\r\n%s\r\n0\r\n\r\n" % (cut, event[:cut], len(event) - cut, event[cut:])
        assert reported(tail) == {"prompt": 123, "completion": 45}, cut
