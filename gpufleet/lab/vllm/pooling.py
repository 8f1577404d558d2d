"""What models answer that do not generate text from text: vectors, scores, and words for sound."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from itertools import islice
from typing import Any

import msgspec

from gpufleet.lab.vllm import words
from gpufleet.lab.vllm.api import decoded, number
from gpufleet.lab.vllm.replies import Chunk, Rejected, Reply, Request, error, plain_json
from gpufleet.lab.vllm.spec import EngineSpec, Mode

VECTOR = 64
Answer = tuple[Reply, int]
"""A reply, and how many tokens were read for it."""


def answer(spec: EngineSpec, request: Request, serial: int) -> Answer | None:
    """The answer of a model of this kind; None when it has no such path, as vLLM then has no such route."""
    path = request.path.partition("?")[0]
    found = ROUTES.get(spec.kind, {}).get(path)
    if found is None:
        return None
    if request.method != "POST":
        return plain_json(405, {"detail": "Method Not Allowed"}, {"allow": "POST"}), 0
    if spec.mode is Mode.DEGENERATE:
        return error(500, "InternalServerError", "Out of range float values are not JSON compliant: nan"), 0
    try:
        return found(spec, request, serial)
    except Rejected as rejected:
        return rejected.reply, 0


def _inputs(body: Mapping[str, Any]) -> list[object]:
    given = body.get("input")
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not given:
        raise Rejected(error(400, "BadRequestError", "`input` is missing", "input"))
    return given


def _read(*texts: object) -> int:
    return sum(len(words.tokens_of(str(text))) for text in texts)


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str):
        raise Rejected(error(400, "BadRequestError", f"`{key}` is missing", key))
    return value


def _usage(tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }


def _page(
    spec: EngineSpec, body: Mapping[str, Any], name: str, rows: list[dict[str, Any]], tokens: int
) -> Answer:
    model = str(body.get("model") or spec.names[0])
    page = {"id": name, "object": "list", "created": 0, "model": model, "data": rows, "usage": _usage(tokens)}
    return plain_json(200, page), tokens


def _embeddings(spec: EngineSpec, request: Request, serial: int) -> Answer:
    body = decoded(spec, request)
    texts = _inputs(body)
    size = number(body, ("dimensions",), 1) or VECTOR
    packed = body.get("encoding_format") == "base64"
    rows: list[dict[str, Any]] = []
    for index, item in enumerate(texts):
        vector = words.vector(str(item), size)
        coded = base64.b64encode(struct.pack(f"<{size}f", *vector)).decode() if packed else vector
        rows.append({"index": index, "object": "embedding", "embedding": coded})
    return _page(spec, body, f"embd-{serial:032x}", rows, _read(*texts))


def _pooled(spec: EngineSpec, request: Request, serial: int) -> Answer:
    body = decoded(spec, request)
    texts = _inputs(body)
    rows = [
        {"index": index, "object": "pooling", "data": words.vector(str(item), 2)}
        for index, item in enumerate(texts)
    ]
    return _page(spec, body, f"pool-{serial:032x}", rows, _read(*texts))


def _score(one: str, other: str) -> float:
    pairs = zip(words.vector(one, VECTOR), words.vector(other, VECTOR), strict=True)
    return 0.5 + sum(left * right for left, right in pairs) / 2


def _ranked(spec: EngineSpec, request: Request, serial: int) -> Answer:
    body = decoded(spec, request)
    query, documents = _text(body, "query"), body.get("documents")
    if not isinstance(documents, list) or not documents:
        raise Rejected(error(400, "BadRequestError", "`documents` is missing", "documents"))
    scores = sorted(((_score(query, str(one)), at) for at, one in enumerate(documents)), reverse=True)
    rows = [
        {
            "index": at,
            "document": {"text": str(documents[at]), "multi_modal": None},
            "relevance_score": score,
        }
        for score, at in scores
    ]
    tokens = _read(query, *documents)
    page = {
        "id": f"rerank-{serial:032x}",
        "model": str(body.get("model") or spec.names[0]),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "results": rows,
    }
    return plain_json(200, page), tokens


def _scored(spec: EngineSpec, request: Request, serial: int) -> Answer:
    body = decoded(spec, request)
    one, other = _text(body, "text_1"), _text(body, "text_2")
    row = {"index": 0, "object": "score", "score": _score(one, other)}
    return _page(spec, body, f"score-{serial:032x}", [row], _read(one, other))


def _transcribed(spec: EngineSpec, request: Request, serial: int) -> Answer:
    """A form with `file` and `model`; what was said is made up from how much sound there is."""
    form = _form(request)
    if not form.get("file", b"").startswith(b"RIFF"):
        raise Rejected(error(400, "BadRequestError", "Invalid or unsupported audio file."))
    model = form.get("model", b"").decode() or spec.names[0]
    if model not in spec.names:
        raise Rejected(error(404, "NotFoundError", f"The model `{model}` does not exist.", "model"))
    seconds = max(1, len(form["file"]) // 32_000)
    wanted = form.get("language", b"").decode()
    said = list(islice(words.answer(sha256(form["file"]).hexdigest(), wanted), 3 * seconds))
    if form.get("stream", b"").lower() in {b"true", b"1"}:
        events = tuple(_heard(model, serial, said, spec.token_seconds))
        return Reply(200, {"content-type": "text/event-stream; charset=utf-8"}, events), 0
    return plain_json(200, {"text": "".join(said), "usage": {"type": "duration", "seconds": seconds}}), 0


def _form(request: Request) -> dict[str, bytes]:
    boundary = re.search(r'boundary="?([^";]+)', request.headers.get("content-type", ""))
    parts = request.body.split(b"--" + boundary[1].encode()) if boundary else []
    return {
        found[1].decode(): part.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
        for part in parts
        if (found := re.search(rb'name="?([^";\r\n]+)', part))
    }


def _heard(model: str, serial: int, said: list[str], token_seconds: float) -> Iterator[Chunk]:
    """Events of a streamed transcription (vllm/entrypoints/openai, `TranscriptionStreamResponse`)."""
    for place, word in enumerate(said):
        finish = "stop" if place == len(said) - 1 else None
        choice = {"delta": {"content": word}, "finish_reason": finish, "stop_reason": None}
        head = {"id": f"trsc-{serial:032x}", "object": "transcription.chunk", "created": 0}
        event = msgspec.json.encode({**head, "model": model, "choices": [choice]})
        yield Chunk(b"data: " + event + b"\n\n", token_seconds)
    yield Chunk(b"data: [DONE]\n\n")


def _spoken(spec: EngineSpec, request: Request, _serial: int) -> Answer:
    text = _text(decoded(spec, request), "input")
    sound = b"RIFF" + bytes(32 * len(text))
    return Reply(200, {"content-type": "audio/wav"}, (Chunk(sound),)), _read(text)


ROUTES: Mapping[str, Mapping[str, Callable[[EngineSpec, Request, int], Answer]]] = {
    "embedding": {"/v1/embeddings": _embeddings, "/pooling": _pooled, "/v1/score": _scored},
    "rerank": {"/v1/rerank": _ranked, "/v1/score": _scored, "/classify": _pooled},
    "pooling": {"/pooling": _pooled, "/classify": _pooled},
    "transcription": {"/v1/audio/transcriptions": _transcribed},
    "speech": {"/v1/audio/speech": _spoken},
}
"""Paths by kind of model; a model that generates has those of `engine_model`."""
