"""A JSON text without its long strings, so that an image is not parsed to learn a model's name.

Theory. Outside of strings a quotation mark opens one; inside, the next quotation mark that is not escaped closes it. So
whoever hops from mark to mark, looking back for backslashes, knows where every string lies without a look at what
stands in it; hopping is a search for one byte, which runs at the speed of memory. Strings longer than `LONG` are
replaced by a stand-in that no sane value equals, and the rest, which is small, is parsed by a real parser.

A text of many short strings is not worth it: what lies behind the first `HOPS` marks goes to the parser as it is.
"""

from __future__ import annotations

from typing import Final

LONG: Final = 1024
"""Bytes of a string that is left out. No escaped spelling of a name that routing reads is as long."""
HOPS: Final = 512
"""Marks looked at; some 100 us."""
_TAIL: Final = 64
SKIMMED_FROM: Final = 48 * 1024
"""Bytes from which a text is skimmed; a parser is faster below."""
STAND_IN: Final = "\x00left out"
_STAND_IN_JSON: Final = rb"\u0000left out"


def skim(text: bytes | bytearray, size: int) -> bytes | bytearray | memoryview:
    """The first `size` bytes of `text` with each long string replaced; all of them when that does not pay.

    What is left out was not looked at: it may hold bytes that JSON forbids.
    """
    if size < SKIMMED_FROM:
        return _whole(text, size)
    kept: list[bytes | bytearray] = []
    start = opening = 0
    inside = False
    position = 0
    for _ in range(HOPS):
        mark = text.find(b'"', position, size)
        if mark < 0:
            break
        position = mark + 1
        if not inside:
            inside, opening = True, mark
            continue
        backslashes = _backslashes(text, mark)
        if backslashes == _TAIL:
            return _whole(text, size)
        if backslashes % 2:
            continue
        inside = False
        if mark - opening > LONG:
            kept.append(text[start : opening + 1])
            start = mark
    if not kept or inside:
        return _whole(text, size)  # also what is no JSON: the parser says what is wrong with it
    kept.append(text[start:size])
    return _STAND_IN_JSON.join(kept)


def _backslashes(text: bytes | bytearray, mark: int) -> int:
    """How many stand before `mark`, up to `_TAIL`. The quotation mark that opened the string ends the count."""
    tail = text[max(0, mark - _TAIL) : mark]
    return len(tail) - len(tail.rstrip(b"\\"))


def _whole(text: bytes | bytearray, size: int) -> bytes | bytearray | memoryview:
    return text if len(text) == size else memoryview(text)[:size]
