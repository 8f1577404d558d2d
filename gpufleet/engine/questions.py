"""What a new replica is asked before it counts as ready, and what its answers mean.

Health alone proves little: an engine that hangs still says 200. So it is asked for its model's name and for a few
streamed tokens, and the text must not be the kind that broken weights or a wrong dtype produce.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

MAX_TOKENS = 16


def chat_body(model: str, prompt: str) -> str:
    """A short streamed chat."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
    }
    return msgspec.json.encode(body).decode()


def completion_body(model: str, prompt: str) -> str:
    """The same for a model without a chat template."""
    body = {"model": model, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "stream": True}
    return msgspec.json.encode(body).decode()


def served_names(body: str) -> tuple[str, ...] | None:
    """The ids in an answer of /v1/models; None when it is no such answer."""
    try:
        answer = msgspec.json.decode(body.strip())
    except (msgspec.DecodeError, RecursionError):
        return None
    models = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(models, list):
        return None
    return tuple(str(model.get("id")) for model in models if isinstance(model, dict))


def streamed_text(body: str) -> str:
    """Everything that a stream of server-sent events said: content, text and reasoning alike."""
    return "".join(_pieces(body))


def _pieces(body: str) -> Iterator[str]:
    for line in body.splitlines():
        if not line.startswith("data:"):
            continue
        try:
            event = msgspec.json.decode(line[5:].strip())
        except (msgspec.DecodeError, RecursionError):
            continue  # `[DONE]`, or the cut end of a stream
        choices = event.get("choices") if isinstance(event, dict) else None
        for choice in choices if isinstance(choices, list) else ():
            delta = choice.get("delta") if isinstance(choice, dict) else None
            said = delta if isinstance(delta, dict) else choice
            for key in ("reasoning_content", "reasoning", "content", "text"):
                piece = said.get(key) if isinstance(said, dict) else None
                if isinstance(piece, str):
                    yield piece


def stream_error(body: str) -> str:
    """The message of an error in OpenAI's shape, streamed or not; empty when there is none."""
    for line in (*body.splitlines(), body):
        try:
            event = msgspec.json.decode(line.removeprefix("data:").strip())
        except (msgspec.DecodeError, RecursionError):
            continue
        error = event.get("error") if isinstance(event, dict) else None
        if isinstance(error, dict):
            return str(error.get("message", "an error without a message"))
        if isinstance(error, str):
            return error
    return ""


def senseless(text: str) -> str:
    """What is wrong with a text that no sound model says; empty when nothing is."""
    signs = "".join(text.split())
    if not signs:
        return ""
    if signs.count("\N{REPLACEMENT CHARACTER}") * 2 > len(signs):
        return "bytes that are no UTF-8 text"
    return f"`{signs[:8]}` over and over" if degenerate(signs) else ""


def degenerate(text: str) -> bool:
    """Whether a text is one sign over and over, as numbers that overflow produce it (`!!!!!!`)."""
    signs = "".join(text.split())
    long = len(signs) >= 8 or (len(signs) >= 4 and not signs[0].isalnum())
    return long and len(set(signs)) == 1
