"""Answers of the proxy's own, as bytes, in the dialect of the path that was asked."""

from __future__ import annotations

from typing import Final

import msgspec

from gpufleet.proxy.wire.refusal import REASONS, Refusal

_ANTHROPIC_PATHS: Final = "/v1/messages"
# https://docs.anthropic.com/en/api/errors: the type says what the status says.
_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def error_body(refusal: Refusal, path: str) -> bytes:
    """The JSON object that stands in the answer to a call of `path`."""
    if not path.startswith(_ANTHROPIC_PATHS):
        return refusal.body()
    kind = _ANTHROPIC_TYPES.get(
        refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error"
    )
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": refusal.message}})


def refusal_fields(refusal: Refusal, allowed: str) -> bytes:
    """The header lines that a refusal brings; `allowed` is the method that the path takes."""
    fields = b""
    if refusal.retry_after is not None:
        fields += b"Retry-After: %d\r\n" % refusal.retry_after
    if refusal.status == 401:
        fields += b"WWW-Authenticate: Bearer\r\n"
    elif refusal.status == 405:
        fields += b"Allow: %s\r\n" % allowed.encode()
    return fields


def write_answer(
    status: int, body: bytes, *, request_id: bytes, fields: bytes, persistent: bool, head_only: bool
) -> bytes:
    """A whole answer; `head_only` for HEAD, which is told the length and gets no body."""
    return (
        b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nx-request-id: %s\r\n%s%s\r\n%s"
        % (
            status,
            REASONS.get(status, b""),
            len(body),
            request_id,
            fields,
            b"" if persistent else b"Connection: close\r\n",
            b"" if head_only else body,
        )
    )
