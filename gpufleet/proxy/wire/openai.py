"""The dialect of OpenAI's API as far as a relay must know it: a peek at a request, the list of models, stream errors.

A body is never rebuilt. The peek reads the two fields that routing needs and skips the rest without making objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from gpufleet.proxy.wire.refusal import Refusal


class Peek(msgspec.Struct, frozen=True, gc=False):
    """What routing must know of a request."""

    model: str | None = None
    stream: bool | None = None


class BodyUnreadable(Exception):
    """The body is not what its content type says; the text says why."""


_DECODER = msgspec.json.Decoder(Peek)
_BOUNDARY = re.compile(rb'boundary=(?:"([^"\r\n]{1,200})"|([^\s;,"]{1,200}))', re.IGNORECASE)
_PART_NAME = re.compile(rb'content-disposition:[^\r\n]*[;\s]name="?([^";\r\n]*)"?', re.IGNORECASE)
_FIELD_LIMIT = 512


def peek(body: bytes, content_type: bytes) -> Peek:
    """`model` and `stream` of a JSON or multipart request. Raises `BodyUnreadable`."""
    if content_type[:19].lower() == b"multipart/form-data":
        return _peek_multipart(body, content_type)
    if not body:
        return Peek()
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BodyUnreadable(f"the body is not a JSON request: {error}") from None


def _peek_multipart(body: bytes, content_type: bytes) -> Peek:
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise BodyUnreadable("the multipart body has no boundary")
    marker = b"--" + (match[1] or match[2])
    found: dict[str, str] = {}
    position = 0 if body.startswith(marker) else body.find(b"\r\n" + marker)
    while position >= 0 and len(found) < 2:
        start = body.find(b"\r\n\r\n", position)
        end = body.find(b"\r\n" + marker, position + 2)
        if start < 0 or end < 0:
            break
        name = _PART_NAME.search(body, position, start)
        if name is not None and name[1] in {b"model", b"stream"} and end - start - 4 <= _FIELD_LIMIT:
            found[name[1].decode()] = body[start + 4 : max(start + 4, end)].decode("utf-8", "replace").strip()
        position = end
    return Peek(model=found.get("model"), stream=found.get("stream", "").lower() in {"true", "1"})


def models_page(models: Iterable[str], created: int) -> bytes:
    """The answer to GET /v1/models; each name once, in the order given."""
    cards = [
        {"id": name, "object": "model", "created": created, "owned_by": "gpufleet"}
        for name in dict.fromkeys(models)
    ]
    return msgspec.json.encode({"object": "list", "data": cards})


def stream_error(path: str, refusal: Refusal) -> bytes:
    """The event that tells the reader of a stream that it broke; there is no `[DONE]` behind it.

    Starts with an empty line, so that an event that was cut ends before it.
    """
    if path.startswith("/v1/messages"):
        content = {"type": "error", "error": {"type": "api_error", "message": refusal.message}}
        return b"\n\nevent: error\ndata: " + msgspec.json.encode(content) + b"\n\n"
    if path.startswith("/v1/responses"):
        error = {"code": "server_error", "message": refusal.message}
        failed = {"type": "response.failed", "response": {"status": "failed", "error": error}}
        return b"\n\nevent: response.failed\ndata: " + msgspec.json.encode(failed) + b"\n\n"
    return b"\n\ndata: " + refusal.body() + b"\n\n"
