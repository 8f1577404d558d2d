"""What the proxy itself answers, in OpenAI's shape: one value for each reason, one place that writes bytes."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An answer of the proxy's own.

    Attributes:
        code: what a program matches on: a slug, or the status where OpenAI's clients expect a number.
        retry_after: seconds, for the field `Retry-After`.
        source: who is the cause, for the metrics: client, gateway or upstream.
    """

    status: int
    message: str
    kind: str
    code: str | int | None = None
    param: str | None = None
    retry_after: int | None = None
    source: str = "client"

    def body(self) -> bytes:
        """The JSON object that stands in the answer."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


REASONS = {
    100: b"Continue",
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    417: b"Expectation Failed",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
}

_INVALID = "invalid_request_error"


def malformed(status: int, reason: str) -> Refusal:
    """The client does not speak HTTP as we accept it, or sends too much (400, 413, 417, 431)."""
    codes = {413: "too_large", 431: "head_too_large"}
    return Refusal(status=status, message=reason, kind=_INVALID, code=codes.get(status, "bad_request"))


def auth_failed(why: str) -> Refusal:
    """401. Never says which part of the key was wrong."""
    return Refusal(status=401, message=why, kind=_INVALID, code="invalid_api_key")


def key_forbidden(model: str) -> Refusal:
    """403: a good key, another model."""
    message = f"This key may not use the model `{model}`"
    return Refusal(status=403, message=message, kind="permission_error", code="key_forbidden", param="model")


def no_such_model(model: str) -> Refusal:
    """404."""
    message = f"The model `{model}` does not exist"
    return Refusal(status=404, message=message, kind=_INVALID, code="model_not_found", param="model")


def no_such_pool(pool: str) -> Refusal:
    """404."""
    message = f"The pool `{pool}` does not exist"
    return Refusal(status=404, message=message, kind=_INVALID, code="pool_not_found")


def no_such_response(response: str) -> Refusal:
    """404. Whether somebody else has one of this name is not said."""
    message = f"No member is known to hold the response `{response}`; send the conversation again"
    return Refusal(status=404, message=message, kind=_INVALID, code="response_not_found")


def no_such_path() -> Refusal:
    """404: not on the list of what tenants may call."""
    message = "This path is not served here; see /v1/models and /v1/chat/completions"
    return Refusal(status=404, message=message, kind=_INVALID, code="path_not_found")


def method_not_allowed(allowed: str) -> Refusal:
    """405."""
    message = f"This path is called with {allowed}"
    return Refusal(status=405, message=message, kind=_INVALID, code="method_not_allowed")


def not_implemented(what: str) -> Refusal:
    """501."""
    message = f"{what} is not served by this proxy"
    return Refusal(
        status=501, message=message, kind="not_implemented", code="not_implemented", source="gateway"
    )


def bad_body(message: str, param: str | None = None) -> Refusal:
    """400: the body says nothing we can route by."""
    return Refusal(status=400, message=message, kind=_INVALID, code="bad_request", param=param)


def slow_client() -> Refusal:
    """408: the request did not arrive in time."""
    return Refusal(status=408, message="The request did not arrive in time", kind=_INVALID, code="timeout")


def no_healthy_members() -> Refusal:
    """503: nobody in the pool may be asked."""
    return Refusal(
        status=503,
        message="Pool has no healthy members",
        kind="service_unavailable",
        code=503,
        retry_after=5,
        source="gateway",
    )


def stopping() -> Refusal:
    """503: this proxy is about to end."""
    message = "The proxy is stopping"
    return Refusal(
        status=503, message=message, kind="service_unavailable", code=503, retry_after=1, source="gateway"
    )


def upstream_failed(why: str) -> Refusal:
    """502."""
    return Refusal(status=502, message=why, kind="upstream_error", code=502, source="upstream")


def upstream_timeout(why: str) -> Refusal:
    """504."""
    return Refusal(status=504, message=why, kind="upstream_error", code=504, source="upstream")


def internal() -> Refusal:
    """500: our fault."""
    message = "The proxy failed on this request"
    return Refusal(status=500, message=message, kind="internal_error", code=500, source="gateway")


def too_many_connections() -> Refusal:
    """503: no more clients at once."""
    message = "The proxy serves as many connections as it may"
    return Refusal(
        status=503, message=message, kind="service_unavailable", code=503, retry_after=1, source="gateway"
    )


def overloaded() -> Refusal:
    """503: the bodies of waiting requests fill what the proxy may hold."""
    message = "The proxy holds as many requests as it may"
    return Refusal(
        status=503, message=message, kind="service_unavailable", code=503, retry_after=1, source="gateway"
    )
