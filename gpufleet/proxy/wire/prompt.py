"""A request's prompt as a chain of block keys: equal keys, equal beginnings.

Everything that an engine reads goes in: tools, system prompt, roles and texts as the client wrote them; the model (an
adapter is a model of its own), `cache_salt` and the template's settings are mixed into the first key. A proxy has no
tokenizer: a block is 1,024 bytes of that JSON, taken as 256 tokens, four bytes each. Text that JSON escapes takes more
bytes, but the same more for every member, so comparisons hold.

Keys are Python's own hash of bytes (SipHash with a key that is new in every process), so nobody can aim at another
prompt's blocks, and keys mean nothing outside of the process.

An image that stands in the request is not hashed byte by byte: its length, its ends and samples between them stand for
it, as 1,024 tokens.
"""

from __future__ import annotations

from typing import Final

import msgspec

BLOCK_BYTES: Final = 1024
BYTES_A_TOKEN: Final = 4
BLOCK_TOKENS: Final = BLOCK_BYTES // BYTES_A_TOKEN
MOST_BLOCKS: Final = 1024
"""What lies behind the first megabyte of a prompt is counted and not told apart."""
_INLINE: Final = b'"data:'
_INLINE_LEAST: Final = 8192
"""Bytes of an image that is left as it is."""
_INLINE_TOKENS: Final = 1024
_MOST_INLINE: Final = 256
_SAMPLES: Final = 16
_SAMPLE: Final = 256


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """Keys of the full blocks, and what the whole takes in tokens, estimated."""

    blocks: list[int]
    tokens: int


class _Request(msgspec.Struct, frozen=True, gc=False):
    """What of a request's body an engine reads before it writes."""

    model: msgspec.Raw = msgspec.Raw()
    cache_salt: msgspec.Raw = msgspec.Raw()
    chat_template: msgspec.Raw = msgspec.Raw()
    chat_template_kwargs: msgspec.Raw = msgspec.Raw()
    reasoning_effort: msgspec.Raw = msgspec.Raw()
    documents: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()


_DECODER = msgspec.json.Decoder(_Request)


def read(body: bytes | bytearray, size: int) -> Prompt:
    """The prompt in the first `size` bytes of a JSON request; what cannot be read has no blocks and its size in tokens."""
    text = _without_images(body, size)
    try:
        asked = _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Prompt([], min(size // BYTES_A_TOKEN, MOST_BLOCKS * BLOCK_TOKENS))
    first = hash(
        tuple(
            bytes(part)
            for part in (
                asked.model,
                asked.cache_salt,
                asked.chat_template,
                asked.chat_template_kwargs,
                asked.reasoning_effort,
            )
        )
    )
    # The closing bracket of the messages is not theirs: where it stands the next turn goes on.
    content = b"".join(
        (
            asked.documents,
            asked.tools,
            asked.system,
            asked.instructions,
            asked.prompt,
            asked.input,
            memoryview(asked.messages)[:-1],
        )
    )
    return Prompt(chain(content, first), len(content) // BYTES_A_TOKEN)


def chain(content: bytes, first: int) -> list[int]:
    """The keys of the full blocks of a text, up to the most."""
    keys = []
    key = first
    last = min(len(content) // BLOCK_BYTES, MOST_BLOCKS) * BLOCK_BYTES
    for start in range(0, last, BLOCK_BYTES):
        key = hash((key, content[start : start + BLOCK_BYTES]))
        keys.append(key)
    return keys


def _without_images(body: bytes | bytearray, size: int) -> bytes | bytearray | memoryview:
    """The body with a short text in place of each large `data:` URL; itself when there is none."""
    kept: list[bytes | bytearray] = []
    start = position = 0
    for _ in range(_MOST_INLINE):
        mark = body.find(_INLINE, position, size)
        if mark < 0:
            break
        end = body.find(b'"', mark + len(_INLINE), size)
        if end < 0:
            break
        position = end
        if end - mark >= _INLINE_LEAST:
            kept.append(body[start : mark + 1])
            kept.append(_stand_in(body, mark + 1, end))
            start = end
    if not kept:
        return body if len(body) == size else memoryview(body)[:size]
    kept.append(body[start:size])
    return b"".join(kept)


def _stand_in(body: bytes | bytearray, start: int, end: int) -> bytes:
    step = (end - start - _SAMPLE) // _SAMPLES
    samples = [bytes(body[at : at + _SAMPLE]) for at in range(start, end - _SAMPLE + 1, max(1, step))]
    samples.append(bytes(body[end - _SAMPLE : end]))
    digest = hash((end - start, *samples)) & (2**64 - 1)
    return b"%016x" % digest * (_INLINE_TOKENS * BYTES_A_TOKEN // 16)
