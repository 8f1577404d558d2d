"""Heads of HTTP/1.1 messages: read strictly, and written for the next hop.

Every head is read twice, by llhttp (httptools) and by one strict regular expression; what either of them refuses is
refused, so a message that two parsers could understand differently never passes through.
"""

from __future__ import annotations

import re
from enum import Enum, auto

import httptools
import msgspec

from gpufleet.proxy.wire.chunked import ProtocolError

HEAD_LIMIT = 64 * 1024
"""Bytes of one head, request or response."""

_FIELDS = rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]++:[\t\x20-\x7e\x80-\xff]*+\r\n)*+\r\n"
_REQUEST = re.compile(rb"((?!CONNECT )[A-Z]{1,20}) (/[\x21-\x7e]*) HTTP/1\.([01])\r\n" + _FIELDS)
_RESPONSE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])((?: [\t\x20-\x7e\x80-\xff]*)?)\r\n" + _FIELDS)
_MOST_DIGITS = 18
_LENGTH_LINE = re.compile(rb"\ncontent-length: *([0-9]{1,18})\r", re.IGNORECASE)
_DIGITS = re.compile(rb"[0-9]{1,18}")
# A registered name or an address, perhaps none, and a port (RFC 9110 7.2, RFC 3986 3.2.2).
_HOST = re.compile(
    rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+(?:%25[A-Za-z0-9._~-]+)?\])(?::[0-9]{0,5})?"
)

# Fields that end at this hop (RFC 9110 7.6.1), that we write ourselves, or that we must read. A literal line feed in
# front and few branches make this three times as fast as `^` over a plain list of names; it is run on every head.
_REQUEST_FIELDS = re.compile(
    rb"\n(con(?:nection|tent-(?:length|type))|host|x-(?:api-key|request-id|gpufleet-[!-9;-~]*)|authorization"
    rb"|t(?:e|railer|ransfer-encoding)|keep-alive|proxy-(?:connection|authorization)|upgrade|expect)"
    rb":[ \t]*([^\r]*)\r",
    re.IGNORECASE,
)
_RESPONSE_FIELDS = re.compile(
    rb"\n(con(?:nection|tent-(?:length|type))|x-(?:request-id|gpufleet-[!-9;-~]*)|t(?:e|railer|ransfer-encoding)"
    rb"|keep-alive|proxy-(?:connection|authenticate)|upgrade|retry-after):[ \t]*([^\r]*)\r",
    re.IGNORECASE,
)
_READ_AND_KEPT = (b"content-type", b"retry-after")
_PLAIN_CONNECTIONS = frozenset({b"keep-alive", b"close"})
_ONCE = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"authorization", b"expect", b"content-type"}
)


class Framing(Enum):
    """How the end of a body is known."""

    NONE = auto()
    LENGTH = auto()
    CHUNKED = auto()
    CLOSE = auto()


# Bound to names of the module: Python 3.11 takes as long for `Enum.MEMBER` as for three calls.
_NONE, _LENGTH, _CHUNKED, _CLOSE = Framing


# The heads are Structs and not dataclasses: one is made for every message, and a Struct costs a tenth.
class RequestHead(msgspec.Struct, frozen=True, gc=False):
    """One request head.

    Attributes:
        target: path and query as sent.
        fields: the fields that the proxy reads, names in lower case, first value of each.
        kept: the lines that travel on to the engine, each with its CRLF.
        length: bytes of the body; None when it comes in chunks.
        persistent: the client may send another request on this connection.
    """

    method: str
    target: bytes
    fields: dict[bytes, bytes]
    kept: bytes
    length: int | None
    persistent: bool
    minor: int
    expects_continue: bool


class ResponseHead(msgspec.Struct, frozen=True, gc=False):
    """One response head; `kept` are the lines that travel on, `line` the status code and reason."""

    status: int
    line: bytes
    fields: dict[bytes, bytes]
    kept: bytes
    framing: Framing
    length: int
    persistent: bool

    @property
    def is_event_stream(self) -> bool:
        """Whether an error can be told inside the body."""
        return self.fields.get(b"content-type", b"")[:17].lower() == b"text/event-stream"


class _NoEvents:
    """What llhttp tells; nothing is asked of it."""


_SILENT = _NoEvents()


def parse_request_head(head: bytes) -> RequestHead:
    """`head` ends in an empty line. Raises `ProtocolError` with the status to answer."""
    match = _REQUEST.fullmatch(head)
    if match is None:
        raise ProtocolError(400, "the request head is not valid HTTP/1.1")
    try:
        httptools.HttpRequestParser(_SILENT).feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # an Upgrade that nobody answers is an ordinary request (RFC 9110 7.8)
    except httptools.HttpParserError as error:
        raise ProtocolError(400, f"the request head is not valid HTTP/1.1: {error}") from None
    method, target, minor = match.groups()
    fields, kept = _split(_REQUEST_FIELDS, head, match.end(3) + 1)
    modern = minor == b"1"
    host = fields.get(b"host")
    if host is None:
        if modern:
            raise ProtocolError(400, "the request has no Host")
    elif _HOST.fullmatch(host) is None:
        raise ProtocolError(400, "the Host is not valid")
    expects = fields.get(b"expect")
    if expects is not None and expects.lower() != b"100-continue":
        raise ProtocolError(417, "the only expectation known is 100-continue")
    return RequestHead(
        method=method.decode(),
        target=target,
        fields=fields,
        kept=kept,
        length=_request_length(fields, modern=modern),
        persistent=_persistent(fields, modern=modern),
        minor=1 if modern else 0,
        expects_continue=modern and expects is not None,
    )


def parse_response_head(head: bytes) -> ResponseHead:
    """`head` ends in an empty line. Raises `ProtocolError(502)`."""
    match = _RESPONSE.fullmatch(head)
    if match is None:
        raise ProtocolError(502, "the response head is not valid HTTP/1.1")
    minor, code, reason = match.groups()
    try:
        fields, kept = _split(_RESPONSE_FIELDS, head, match.end(3) + 1)
    except ProtocolError as error:
        raise ProtocolError(502, error.reason) from None
    status = int(code)
    if status == 101:
        raise ProtocolError(502, "the engine switched protocols unasked")
    framing, length = _response_framing(fields, status, modern=minor == b"1")
    both = b"transfer-encoding" in fields and b"content-length" in fields
    return ResponseHead(
        status=status,
        line=code + reason,
        fields=fields,
        kept=kept,
        framing=framing,
        length=length,
        persistent=_persistent(fields, modern=minor == b"1") and framing is not _CLOSE and not both,
    )


class HeadMemory:
    """The last head of one connection. Clients and engines send the same one again with another Content-Length.

    A head that equals the last but for those digits, in the same place, was found good already: it is not read again.
    This saves a fifth of the relay's own work on short requests.
    """

    __slots__ = ("_after", "_before", "_request", "_response")

    def __init__(self) -> None:
        self._before = self._after = b""
        """The last head in front of the digits of its Content-Length, and behind them."""
        self._request: RequestHead | None = None
        self._response: ResponseHead | None = None

    def request(self, head: bytes) -> RequestHead:
        """As `parse_request_head`."""
        known = self._request
        if known is not None and (length := self._length(head)) >= 0:
            return known if length == known.length else msgspec.structs.replace(known, length=length)
        found = parse_request_head(head)
        self._request = found if self._remember(head) else None
        return found

    def response(self, head: bytes) -> ResponseHead:
        """As `parse_response_head`."""
        known = self._response
        if known is not None and (length := self._length(head)) >= 0:
            return known if length == known.length else msgspec.structs.replace(known, length=length)
        found = parse_response_head(head)
        self._response = found if self._remember(head) and found.framing is _LENGTH else None
        return found

    def _length(self, head: bytes) -> int:
        """The length that this head gives when nothing else differs from the last; -1 when something does."""
        before, after = self._before, self._after
        if head.startswith(before) and head.endswith(after):
            digits = head[len(before) : len(head) - len(after)]
            if digits.isdigit() and len(digits) <= _MOST_DIGITS:
                return int(digits)
        return -1

    def _remember(self, head: bytes) -> bool:
        match = _LENGTH_LINE.search(head)
        if match is None:
            return False
        start, end = match.span(1)
        self._before, self._after = head[:start], head[end:]
        return True


def _split(pattern: re.Pattern[bytes], head: bytes, start: int) -> tuple[dict[bytes, bytes], bytes]:
    """The fields that `pattern` names, and the lines that are left for the next hop.

    `start` is where the first line's line feed stands. Raises `ProtocolError(400)` when a field stands twice that
    may stand once.
    """
    # One call in C cuts the head into: kept, name, value, kept, name, value, ..., kept.
    parts = pattern.split(head)
    fields = dict(zip(map(bytes.lower, parts[1::3]), map(bytes.strip, parts[2::3]), strict=True))
    if 3 * len(fields) + 1 != len(parts):
        _merge(fields, parts)
    kept = b"".join(parts[0::3])[start + 1 : -2]  # without the first line and the empty one
    for name in _READ_AND_KEPT:
        value = fields.get(name)
        if value is not None:
            kept += b"%s: %s\r\n" % (name, value)
    connection = fields.get(b"connection")
    if connection is not None and connection.lower() not in _PLAIN_CONNECTIONS:
        kept = _drop_named(kept, connection)
    return fields, kept


def _merge(fields: dict[bytes, bytes], parts: list[bytes]) -> None:
    """Something stands twice: fields that are lists are joined, others refused."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in zip(parts[1::3], parts[2::3], strict=True):
        values.setdefault(name.lower(), []).append(value.strip())
    for name, several in values.items():
        if len(several) > 1 and name in _ONCE:
            raise ProtocolError(400, "a header field that may stand once stands twice")
        fields[name] = b",".join(several)


def _drop_named(lines: bytes, connection: bytes) -> bytes:
    """`lines` without the fields that a Connection field names as ending here."""
    for part in connection.split(b","):
        name = part.strip(b" \t")
        if name:
            lines = re.sub(rb"(?im)^" + re.escape(name) + rb":[^\r]*\r\n", b"", lines)
    return lines


def _request_length(fields: dict[bytes, bytes], *, modern: bool) -> int | None:
    coding, length = fields.get(b"transfer-encoding"), fields.get(b"content-length")
    if coding is not None:
        if length is not None:
            raise ProtocolError(400, "Content-Length and Transfer-Encoding exclude each other")
        if not modern or coding.lower() != b"chunked":
            raise ProtocolError(400, "the only transfer coding known is chunked")
        return None
    if length is None:
        return 0
    if _DIGITS.fullmatch(length) is None:
        raise ProtocolError(400, "Content-Length is not a number")
    return int(length)


def _response_framing(fields: dict[bytes, bytes], status: int, *, modern: bool) -> tuple[Framing, int]:
    if status < 200 or status in {204, 304}:
        return _NONE, 0
    coding, length = fields.get(b"transfer-encoding"), fields.get(b"content-length")
    if coding is not None:
        if not modern or coding.lower() != b"chunked":
            raise ProtocolError(502, "the response has a transfer coding that is not chunked")
        return _CHUNKED, 0
    if length is None:
        return _CLOSE, 0
    if _DIGITS.fullmatch(length) is None:
        raise ProtocolError(502, "the response's Content-Length is not a number")
    return _LENGTH, int(length)


def _persistent(fields: dict[bytes, bytes], *, modern: bool) -> bool:
    connection = fields.get(b"connection")
    if connection is None:
        return modern
    if connection in _PLAIN_CONNECTIONS:
        return connection == b"keep-alive"
    options = {option.strip(b" \t") for option in connection.lower().split(b",")}
    return b"close" not in options if modern else b"keep-alive" in options and b"close" not in options


def write_request_head(head: RequestHead, target: bytes, *, fields: bytes, length: int) -> bytes:
    """The head that the engine gets: the client's end-to-end fields, `fields` of ours, and plain framing."""
    framing = b"" if length == 0 and head.method == "GET" else b"Content-Length: %d\r\n" % length
    parts = (head.method.encode(), b" ", target, b" HTTP/1.1\r\n", head.kept, fields, framing, b"\r\n")
    return b"".join(parts)


def write_response_head(head: ResponseHead, *, fields: bytes, minor: int, persistent: bool) -> bytes:
    """The head that the client gets. Framing is written once, from how the engine framed it.

    `minor` is the client's: HTTP/1.0 knows no chunks, so it gets the content and then the end of the connection.
    """
    framing = b""
    if head.framing is _LENGTH:
        framing = b"Content-Length: %d\r\n" % head.length
    elif head.framing is _CHUNKED and minor:
        framing = b"Transfer-Encoding: chunked\r\n"
    if not persistent:
        framing += b"Connection: close\r\n"
    elif not minor:
        framing += b"Connection: keep-alive\r\n"
    return b"".join((b"HTTP/1.1 ", head.line, b"\r\n", head.kept, fields, framing, b"\r\n"))
