"""The tables of HTTP/1.1 messages in `tests/tables/http1`, and what our readers say of bytes in the tables' words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpufleet.proxy.wire.chunked import ProtocolError
from gpufleet.proxy.wire.http1 import RequestReader, ResponseReader

_FOLDER = Path(__file__).parents[1] / "tables" / "http1"
BODY_LIMIT = 64
"""Bytes; what the table of requests is written for."""
_POST = "POST /v1/embeddings HTTP/1.1¶Host: a¶"
_REQUEST_STARTS = {
    "{P}": _POST,
    "{C}": f"{_POST}Transfer-Encoding: chunked¶¶",
    "{G}": "GET /v1/models HTTP/1.1¶Host: a¶",
    "{O}": "POST /v1/embeddings HTTP/1.0¶",
}
_RESPONSE_STARTS = {"{R}": "HTTP/1.1 200 OK¶", "{C}": "HTTP/1.1 200 OK¶Transfer-Encoding: chunked¶¶"}
_REPEATED = re.compile(r"\{(\d+)\*([^{}]*)\}")
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|(.))")
_SIGNS = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}


@dataclass(frozen=True, slots=True)
class Row:
    """One message; `name` is where it stands and how it begins."""

    name: str
    answer: str
    message: bytes


def requests() -> list[Row]:
    """Every row of `requests.txt`."""
    return _rows("requests.txt", _REQUEST_STARTS)


def responses() -> list[Row]:
    """Every row of `responses.txt`."""
    return _rows("responses.txt", _RESPONSE_STARTS)


def _rows(name: str, starts: dict[str, str]) -> list[Row]:
    found = []
    for number, line in enumerate((_FOLDER / name).read_text("utf-8").split("\n"), start=1):
        answer, tab, text = line.partition("\t")
        if tab:
            for start, meaning in starts.items():
                text = text.replace(start, meaning)
            found.append(Row(f"line {number}: {line[:60]}", _repeated(answer), _plain(text)))
    return found


def _repeated(text: str) -> str:
    while _REPEATED.search(text):
        text = _REPEATED.sub(lambda found: int(found[1]) * found[2], text)
    return text


def _plain(text: str) -> bytes:
    text = _repeated(text).replace("¶", "\r\n")
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else _SIGNS[found[2]], text).encode(
        "latin-1"
    )


def _word(body: bytes) -> str:
    """As the tables write it: without blanks, and with the escapes of the messages."""
    return "".join(
        chr(sign)
        if 32 <= sign <= 126 and sign != 92
        else next((f"\\{short}" for short, meant in _SIGNS.items() if ord(meant) == sign), f"\\x{sign:02x}")
        for sign in body
    )


def single(message: bytes) -> list[bytes]:
    """Byte by byte."""
    return [message[i : i + 1] for i in range(len(message))]


def read_requests(pieces: Iterable[bytes], limit: int = BODY_LIMIT) -> str:
    """What a server's reader says, in the words of `requests.txt`."""
    reader = RequestReader(limit)
    found: list[str] = []
    try:
        for piece in pieces:
            # As the client's connection does it: what is a whole request is taken in one step.
            at_once = reader.whole(piece) if piece else None
            if at_once is not None:
                found.append("+" + _word(at_once[1]).replace(" ", "\\x20"))
                continue
            reader.feed(piece)
            while (event := reader.next_event()) is not None:
                if isinstance(event, bytes):
                    found[-1] = "+" + _word(event).replace(" ", "\\x20")
                else:
                    found.append(">")
    except ProtocolError as error:
        return " ".join((*found, str(error.status)))
    if not reader.in_body and reader.buffered:
        found.append("?")
    return " ".join(found)


def read_response(pieces: Iterable[bytes]) -> str:
    """What a client's reader says, in the words of `responses.txt`. The engine closes behind the last piece."""
    reader = ResponseReader()
    payload: list[bytes] = []
    status, persistent = 0, False
    try:
        for piece in pieces:
            body = piece
            if not status:
                found = reader.head(piece)
                if found is None:
                    continue
                head, body = found
                status, persistent = head.status, head.persistent
            if body:
                reader.follow(body, payload)
    except ProtocolError:
        return f"{status}:{_word(b''.join(payload))}:bad" if status else "502"
    if not status:
        return "?"
    end = "open"
    if reader.closed():
        end = "keep" if persistent and not reader.overrun else "close"
    return f"{status}:{_word(b''.join(payload))}:{end}"
