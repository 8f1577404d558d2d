"""What a replica is asked by the kind of its model, and whether the answer makes sense.

A chat streams tokens (`questions`). Whatever else a model does is asked for once and must come back as numbers that
are finite, or as text or sound: weights that are damaged give NaN where a chat would give `!!!!`.
The paths are those of vLLM's server (0.20: docs/models/pooling_models.md, docs/serving/openai_compatible_server.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from gpufleet.engine import questions
from gpufleet.engine.flags import value_of
from gpufleet.pools.model import Pool

AUTO = "auto"
STREAMED = frozenset({"chat", "completion"})
POOLING = frozenset({"embedding", "rerank", "pooling"})
BY_PYTHON = frozenset({"transcription", "speech"})
"""Asked by the container's own Python: sound goes in or comes out, which no shell can hold in a variable."""

TASKS = {
    "embed": "embedding",
    "embedding": "embedding",
    "score": "rerank",
    "rank": "rerank",
    "classify": "pooling",
    "reward": "pooling",
    "pooling": "pooling",
    "transcription": "transcription",
}
"""Values of `--task` (before 0.14) and of `--convert`."""

_NOT_FINITE = re.compile(r"[\[:,]\s*-?(?:NaN|Infinity)\b")


@dataclass(frozen=True, slots=True)
class Question:
    """One POST; nothing is asked when there is no path."""

    path: str = ""
    body: str = ""


def kind_of(pool: Pool) -> str:
    """What `gate.kind` says, else what the arguments tell, else a chat."""
    if pool.gate.kind != AUTO:
        return pool.gate.kind
    args = pool.engine.args
    for flag in ("task", "convert"):
        told = TASKS.get(value_of(args, flag) or "")
        if told is not None:
            return told
    pooling = value_of(args, "runner") == "pooling"
    return "embedding" if pooling else "chat"


def questions_of(kind: str, model: str, prompt: str) -> tuple[Question, Question]:
    """What is asked, and what is asked when the engine does not know the first (400, 404, 405, 422)."""
    none = Question()
    match kind:
        case "chat":
            chat = Question("/v1/chat/completions", questions.chat_body(model, prompt))
            return chat, Question("/v1/completions", questions.completion_body(model, prompt))
        case "completion":
            return Question("/v1/completions", questions.completion_body(model, prompt)), none
        case "embedding":
            return Question("/v1/embeddings", _body(model=model, input=prompt)), none
        case "rerank":
            ranked = Question(
                "/v1/rerank", _body(model=model, query=prompt, documents=[prompt, "Good night."])
            )
            return ranked, Question("/v1/score", _body(model=model, text_1=prompt, text_2=prompt))
        case "pooling":
            pooled = Question("/pooling", _body(model=model, input=prompt))
            return pooled, Question("/classify", _body(model=model, input=prompt))
        case "transcription":
            return Question("/v1/audio/transcriptions", _body(model=model)), none
        case "speech":
            return Question("/v1/audio/speech", _body(model=model, input=prompt)), none
        case _:
            return none, none


def _body(**parts: object) -> str:
    return msgspec.json.encode(parts).decode()


def senseless(kind: str, body: str) -> str:
    """Why an answer with status 200 makes no sense; empty when it does."""
    if _NOT_FINITE.search(body):
        return "numbers that are not finite"
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return "no JSON"
    if not isinstance(answer, dict):
        return "no JSON object"
    if kind == "transcription":
        return "" if isinstance(answer.get("text"), str) else "no text"
    if kind == "speech":
        return "" if answer.get("bytes") else "no sound"
    return _numbers_wrong(list(_numbers(answer.get("data", answer.get("results")))))


def _numbers_wrong(numbers: list[float | None]) -> str:
    if not numbers:
        return "no numbers"
    if any(number is None or not math.isfinite(number) for number in numbers):
        return "numbers that are not finite"
    return "" if any(numbers) else "nothing but zeros"


_RESULTS = ("embedding", "relevance_score", "score", "data", "probs")


def _numbers(value: object) -> Iterator[float | None]:
    """Every number of the parts that are results; None for `null`, which is how some servers write NaN."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, dict):
        for key in _RESULTS:
            if key in value:
                yield from _numbers(value[key])
