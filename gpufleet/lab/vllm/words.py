"""A very small language model: tokens in, sensible sentences out, the same ones for the same prompt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256

_TOKEN = re.compile(r"\s*(?:[^\W\d_]{1,7}|\d{1,3}|[^\w\s]|_+)|\s+", re.UNICODE)

BLOCK = 16
"""Tokens in one block of the KV cache."""

_OPENINGS = (
    "Hello, and thank you for asking.",
    "Here is a short answer.",
    "Good question.",
    "Let us look at this together.",
)
_SUBJECTS = (
    "The model",
    "A good plan",
    "Each small step",
    "The fleet",
    "Every machine",
    "A careful operator",
    "The next request",
    "A quiet server",
)
_VERBS = ("keeps", "explains", "prepares", "answers", "measures", "carries", "finds", "shares")
_OBJECTS = (
    "what was asked of it",
    "the work of the day",
    "a clear picture of its state",
    "one thing at a time",
    "the simplest answer that holds",
    "enough room for the others",
    "the way back to where it began",
    "a record of every change",
)
_TAILS = (
    "",
    " before the next one begins",
    " without losing a word",
    " as long as the lights are on",
    " so that nobody has to guess",
    " and says so",
)


def tokens_of(text: str) -> list[str]:
    """`text` in pieces that give it back when they are joined."""
    return _TOKEN.findall(text)


def token_ids(tokens: Sequence[str]) -> list[int]:
    """A number for each token, always the same one."""
    return [
        int.from_bytes(sha256(token.encode("utf-8", "surrogatepass")).digest()[:4], "big") % 151_936
        for token in tokens
    ]


def blocks_of(tokens: Sequence[str]) -> list[bytes]:
    """A chained hash for each full block: two prompts share as many as their beginnings are alike."""
    hashes: list[bytes] = []
    last = b""
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        block = "\0".join(tokens[start : start + BLOCK]).encode("utf-8", "surrogatepass")
        last = sha256(last + block).digest()[:16]
        hashes.append(last)
    return hashes


def _numbers(seed: bytes) -> Iterator[int]:
    """Numbers without end, from a seed."""
    block = sha256(seed).digest()
    while True:
        yield from block
        block = sha256(block).digest()


def answer(prompt: str, seed: str = "") -> Iterator[str]:
    """Tokens of an endless answer; a reader stops where it likes."""
    numbers = _numbers(f"{seed}\0{prompt}".encode("utf-8", "surrogatepass"))
    yield from tokens_of(_OPENINGS[next(numbers) % len(_OPENINGS)])
    while True:
        choices = [group[next(numbers) % len(group)] for group in (_SUBJECTS, _VERBS, _OBJECTS, _TAILS)]
        yield from tokens_of(f" {choices[0]} {choices[1]} {choices[2]}{choices[3]}.")


def natural_length(prompt: str) -> int:
    """After how many tokens an answer ends by itself."""
    return 24 + next(_numbers(prompt.encode("utf-8", "surrogatepass"))) % 40


def vector(text: str, size: int) -> list[float]:
    """An embedding of length one."""
    numbers = _numbers(text.encode("utf-8", "surrogatepass"))
    raw = [next(numbers) - 127.5 for _ in range(size)]
    length = sum(value * value for value in raw) ** 0.5
    return [value / length for value in raw]
