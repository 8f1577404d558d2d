"""Own answers: OpenAI's shape, and Anthropic's on Anthropic's paths."""

from __future__ import annotations

import json

import pytest

from gpufleet.proxy.wire import refusal
from gpufleet.proxy.wire.answer import error_body, refusal_fields, write_answer


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (refusal.malformed(413, "large"), "request_too_large"),
        (refusal.auth_failed("no"), "authentication_error"),
        (refusal.no_such_model("m"), "not_found_error"),
        (refusal.no_healthy_members(), "overloaded_error"),
        (refusal.upstream_failed("gone"), "api_error"),
        (refusal.slow_client(), "invalid_request_error"),
    ],
)
def test_the_dialect_follows_the_path(said, kind):
    error = json.loads(error_body(said, "/v1/messages"))
    assert error == {"type": "error", "error": {"type": kind, "message": said.message}}
    assert error_body(said, "/v1/messages/count_tokens") == error_body(said, "/v1/messages")
    assert error_body(said, "/v1/chat/completions") == said.body()


def test_an_answer_in_bytes():
    fields = refusal_fields(refusal.method_not_allowed("POST"), "POST")
    answer = write_answer(405, b"{}", request_id=b"r", fields=fields, persistent=False, head_only=False)
    assert answer == (
        b"HTTP/1.1 405 Method Not Allowed\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
        b"x-request-id: r\r\nAllow: POST\r\nConnection: close\r\n\r\n{}"
    )
    assert write_answer(200, b"{}", request_id=b"r", fields=b"", persistent=True, head_only=True).endswith(
        b"Content-Length: 2\r\nx-request-id: r\r\n\r\n"
    )
