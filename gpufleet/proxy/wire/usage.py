"""How many tokens an engine says an answer cost: read off the last bytes of it, whole or streamed.

Every dialect puts `usage` behind the content: OpenAI's bodies and last events, `/v1/responses`, Anthropic's messages.
Nothing is parsed until the answer is whole, and then its last bytes only. What the engine does not report, or what is
cut by chunk framing, is unknown and not counted. Source: vLLM 0.33.0, `UsageInfo` of vllm/entrypoints/openai.
"""

from __future__ import annotations

import re

TAIL = 2048
"""Bytes of an answer's end in which its usage stands, and more than enough."""

MARK = b'"usage"'
_WHOLE = (b"\n\n", b"\n\n\r\n", b"0\r\n\r\n")
"""How a piece of a stream ends that cuts no event; behind another end, the mark itself may come in two pieces."""
CHUNK_EDGE = re.compile(rb"\r\n[0-9A-Fa-f]{1,15}(?:;[^\r\n]*)?\r\n")
"""What stands between the contents of two chunks."""
_NUMBER = re.compile(
    rb'"(prompt_tokens|input_tokens|completion_tokens|output_tokens|cached_tokens)": ?([0-9]{1,12})\b'
)
# What vLLM writes for a chat, in a third of the time that the general pattern takes.
_USUAL = re.compile(
    rb'"usage":\{"prompt_tokens":([0-9]{1,12}),"total_tokens":[0-9]{1,12},"completion_tokens":([0-9]{1,12})[,}]'
)
_KINDS = {
    b"prompt_tokens": "prompt",
    b"input_tokens": "prompt",
    b"completion_tokens": "completion",
    b"output_tokens": "completion",
    b"cached_tokens": "cached",
}


def may_hold(piece: bytes) -> bool:
    """Whether the usage may begin in this piece of a stream."""
    return MARK in piece or not piece.endswith(_WHOLE)


def reported(tail: bytes) -> dict[str, int]:
    """Tokens by kind (prompt, cached, completion), as the last `usage` of these bytes says; empty when there is none."""
    if b"\r\n" in tail:
        tail = CHUNK_EDGE.sub(
            b"", tail[-2 * TAIL :]
        )  # an event may go on in another chunk, in the middle of a number
    start = tail.rfind(MARK, max(0, len(tail) - 2 * TAIL))
    if start < 0:
        return {}
    usual = _USUAL.match(tail, start)
    if usual is not None and tail.find(b'"cached_tokens"', start) < 0:
        return {"prompt": int(usual[1]), "completion": int(usual[2])}
    return {_KINDS[name]: int(number) for name, number in _NUMBER.findall(tail, start)}
