"""The dialect of OpenAI's API as far as a relay must know it: a peek at a request, the list of models, stream errors.

A body is never rebuilt. The peek reads the two fields that routing needs and skips the rest without making objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from gpufleet.proxy.wire.refusal import Refusal
from gpufleet.proxy.wire.skim import SKIMMED_FROM, STAND_IN, skim


class Peek(msgspec.Struct, frozen=True, gc=False):
    """What routing must know of a request."""

    model: str | None = None
    stream: bool | None = None


class BodyUnreadable(Exception):
    """The body is not what its content type says; the text says why."""


_DECODER = msgspec.json.Decoder(Peek)
_BOUNDARY = re.compile(rb';[ \t]*boundary=(?:"([^"\r\n]{1,200})"|([^\s;,"]{1,200}))', re.IGNORECASE)
_PARAMETER = rb';[ \t]*([A-Za-z0-9*_-]+)=("(?:[^"\\\r\n]|\\[^\r\n])*"|[^\s;"]*)[ \t]*'
_PARAMETERS = re.compile(_PARAMETER)
_DISPOSITION = re.compile(
    rb"\r\ncontent-disposition:[ \t]*form-data[ \t]*((?:%s)*);?[ \t]*\r\n"
    % _PARAMETER.replace(b"(", b"(?:", 2),
    re.IGNORECASE,
)
_PART_LIMIT = 1000
_FIELD_LIMIT = 512


def peek(body: bytes | bytearray, content_type: bytes, size: int | None = None) -> Peek:
    """`model` and `stream` of a JSON or multipart request: the first `size` bytes. Raises `BodyUnreadable`."""
    if size is None:
        size = len(body)
    if content_type[:19].lower() == b"multipart/form-data":
        return _peek_multipart(body, size, content_type)
    if not size:
        return Peek()
    try:
        whole = size == len(body) and size < SKIMMED_FROM
        peeked = _DECODER.decode(body if whole else skim(body, size))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BodyUnreadable(f"the body is not a JSON request: {error}") from None
    if peeked.model == STAND_IN:
        raise BodyUnreadable("the name of the model is too long")
    return peeked


class _Continued(msgspec.Struct, frozen=True, gc=False):
    previous_response_id: str | None = None


_CONTINUED = msgspec.json.Decoder(_Continued)


def earlier_response(body: bytes | bytearray, size: int) -> str | None:
    """The stored response that a request to /v1/responses goes on from; None where it names none that is a text."""
    try:
        return _CONTINUED.decode(skim(body, size)).previous_response_id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # the engine says what is wrong with it


def _peek_multipart(body: bytes | bytearray, size: int, content_type: bytes) -> Peek:
    """Strict, since a part that the engine reads otherwise than we do would get past what a token may use."""
    match = _BOUNDARY.search(content_type)
    if match is None or content_type.lower().count(b"boundary=") > 1:
        raise BodyUnreadable("the multipart body has no boundary, or two")
    marker = b"\r\n--" + (match[1] or match[2])
    found: dict[bytes, str] = {}
    position = 0 if body.startswith(marker[2:]) else body.find(marker, 0, size)
    parts = 0
    while position >= 0 and (end := body.find(marker, position + 2, size)) >= 0:
        parts += 1
        if parts > _PART_LIMIT:
            raise BodyUnreadable(f"the multipart body has more than {_PART_LIMIT} parts")
        start = body.find(b"\r\n\r\n", position, end)
        name = _part_name(bytes(body[position : start + 4]))
        if name in {b"model", b"stream"}:
            if name in found or end - start - 4 > _FIELD_LIMIT:
                raise BodyUnreadable(f"the part `{name.decode()}` stands twice or is too long")
            found[name] = body[start + 4 : max(start + 4, end)].decode("utf-8", "replace").strip()
        position = end
    return Peek(model=found.get(b"model"), stream=found.get(b"stream", "").lower() in {"true", "1"})


def _part_name(head: bytes) -> bytes:
    """`head` is a part's delimiter line and fields, with the empty line."""
    found = _DISPOSITION.findall(head)
    if len(found) == 1:
        names = [value for key, value in _PARAMETERS.findall(found[0]) if key.lower() == b"name"]
        if len(names) == 1:
            return bytes(names[0].strip(b'"'))
    raise BodyUnreadable(
        'a part of the multipart body has no plain Content-Disposition: form-data; name="..."'
    )


def models_page(models: Iterable[str], created: int) -> bytes:
    """The answer to GET /v1/models; each name once, in the order given."""
    cards = [_card(name, created) for name in dict.fromkeys(models)]
    return msgspec.json.encode({"object": "list", "data": cards})


def model_card(name: str, created: int) -> bytes:
    """The answer to GET /v1/models/NAME."""
    return msgspec.json.encode(_card(name, created))


def _card(name: str, created: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": created, "owned_by": "gpufleet"}


_FILLER_LIMIT = 64 * 1024


def last_words(path: str, refusal: Refusal, gap: int | None, *, chunked: bool) -> bytes:
    """The bytes that tell the reader of a stream that it broke; empty where its framing leaves no place for them.

    `gap` is what the open chunk still wants; None when the chunked framing itself was cut.
    """
    event = stream_error(path, refusal)
    if not chunked:
        return event
    if gap is None or gap > _FILLER_LIMIT:
        return b""
    # A chunk that was cut is filled up with empty lines: the client's parser must reach our event.
    filler = b"\n" * gap + b"\r\n" if gap else b""
    return b"%s%x\r\n%s\r\n" % (filler, len(event), event)


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
