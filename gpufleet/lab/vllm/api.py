"""Requests and replies in the shape of vLLM's OpenAI server, as data.

A reply carries its body as chunks, each with the seconds that pass before it and the tokens in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from gpufleet.lab.vllm import words
from gpufleet.lab.vllm.spec import EngineSpec, Mode


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a body. `delay` is in seconds, infinite for an engine that hangs."""

    content: bytes
    delay: float = 0.0
    tokens: int = 0


@dataclass(slots=True, eq=False)
class Reply:
    """What is answered. `ticket` is there when the request generates; `streamed` when the length is unknown."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    chunks: Sequence[Chunk] = ()
    ticket: Any = None

    @property
    def streamed(self) -> bool:
        """Whether the body has no known length."""
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def body(self) -> bytes:
        """All chunks at once."""
        return b"".join(chunk.content for chunk in self.chunks)


class Rejected(Exception):
    """A request that is answered with an error."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


@dataclass(slots=True)
class Generation:
    """A request that generates, understood."""

    id: str
    created: int
    model: str
    chat: bool
    stream: bool
    include_usage: bool
    usage_everywhere: bool
    prompt: list[str]
    answers: list[list[str]]
    finish: str
    echo: str = ""
    cached: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, those of the chat template included."""
        return len(self.prompt)

    @property
    def completion_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(map(len, self.answers))


def plain_json(status: int, value: object, headers: Mapping[str, str] | None = None) -> Reply:
    """A JSON body."""
    return Reply(
        status, {"content-type": "application/json", **(headers or {})}, (Chunk(msgspec.json.encode(value)),)
    )


def text(status: int, body: str) -> Reply:
    """The Prometheus text format."""
    return Reply(
        status, {"content-type": "text/plain; version=0.0.4; charset=utf-8"}, (Chunk(body.encode()),)
    )


def error(status: int, kind: str, message: str, param: str | None = None) -> Reply:
    """An error body of vLLM: that of OpenAI, with a number as code."""
    return plain_json(status, {"error": {"message": message, "type": kind, "param": param, "code": status}})


def models(spec: EngineSpec, created: int) -> Reply:
    """GET /v1/models."""
    cards = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": spec.model,
            "parent": None,
            "max_model_len": spec.max_model_len,
        }
        for name in spec.names
    ]
    cards += [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": path,
            "parent": spec.names[0],
            "max_model_len": None,
        }
        for name, path in spec.adapters.items()
    ]
    return plain_json(200, {"object": "list", "data": cards})


def decoded(spec: EngineSpec, request: Request) -> dict[str, Any]:
    """The JSON object of a request whose model is served here."""
    try:
        body = msgspec.json.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise Rejected(error(400, "Bad Request", f"the body is not JSON: {problem}")) from None
    if not isinstance(body, dict):
        raise Rejected(error(400, "Bad Request", "the body is not a JSON object"))
    model = body.get("model") or spec.names[0]
    if model not in spec.known:
        raise Rejected(error(404, "NotFoundError", f"The model `{model}` does not exist.", "model"))
    return body


def _prompt_of(body: Mapping[str, Any], *, chat: bool) -> str:
    if not chat:
        prompt = body.get("prompt")
        if isinstance(prompt, list):
            prompt = " ".join(map(str, prompt))
        if not isinstance(prompt, str):
            raise Rejected(error(400, "BadRequestError", "`prompt` is missing", "prompt"))
        return prompt
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
        raise Rejected(
            error(400, "BadRequestError", "`messages` is missing or no list of messages", "messages")
        )
    return (
        "".join(f"<|{item.get('role', 'user')}|>{_content(item.get('content'))}\n" for item in messages)
        + "<|assistant|>"
    )


def _content(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "<image>")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def number(body: Mapping[str, Any], names: Sequence[str], lowest: int) -> int | None:
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise Rejected(
                error(
                    400,
                    "BadRequestError",
                    f"`{name}` must be a whole number from {lowest}, not {value!r}",
                    name,
                )
            )
        return value
    return None


def generation(spec: EngineSpec, request: Request, serial: int, now: int) -> Generation:
    """Understand a chat or completion request and write its whole answer.

    Raises:
        Rejected: it cannot be answered; the reply says why.
    """
    chat = request.path.startswith("/v1/chat")
    body = decoded(spec, request)
    said = _prompt_of(body, chat=chat)
    prompt = words.tokens_of(said)
    wanted = number(body, ("max_completion_tokens", "max_tokens"), 1)
    if wanted is None:
        wanted = spec.max_model_len - len(prompt) if chat else 16
    if len(prompt) + wanted > spec.max_model_len or wanted < 1:
        message = (
            f"this model's maximum context length is {spec.max_model_len} tokens; "
            f"{len(prompt)} in the prompt and {wanted} in the answer are more"
        )
        raise Rejected(error(400, "BadRequestError", message))
    natural = max(words.natural_length(said), number(body, ("min_tokens",), 0) or 0)
    length = wanted if body.get("ignore_eos") else min(wanted, natural)
    options = body.get("stream_options") or {}
    return Generation(
        id=f"{'chatcmpl' if chat else 'cmpl'}-{serial:032x}",
        created=now,
        model=str(body.get("model") or spec.names[0]),
        chat=chat,
        stream=bool(body.get("stream")),
        include_usage=spec.force_usage or bool(options.get("include_usage")),
        usage_everywhere=bool(options.get("continuous_usage_stats")),
        prompt=prompt,
        answers=[_answer(spec, said, choice, length) for choice in range(number(body, ("n",), 1) or 1)],
        finish="length" if length == wanted else "stop",
        echo=said if body.get("echo") and not chat else "",
    )


def _answer(spec: EngineSpec, prompt: str, choice: int, length: int) -> list[str]:
    if spec.mode is Mode.DEGENERATE:
        return ["!"] * length
    return list(islice(words.answer(prompt, str(choice)), length))


def _usage(spec: EngineSpec, made: Generation, completion: int) -> dict[str, Any]:
    details = {"cached_tokens": made.cached} if spec.prompt_tokens_details else None
    return {
        "prompt_tokens": made.prompt_tokens,
        "total_tokens": made.prompt_tokens + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": details,
    }


def generation_headers(made: Generation) -> dict[str, str]:
    """Headers of a good answer."""
    if made.stream:
        return {"content-type": "text/event-stream; charset=utf-8"}
    return {"content-type": "application/json"}


def chunks(spec: EngineSpec, made: Generation) -> Sequence[Chunk]:
    """The body of the answer over time."""
    wait = math.inf if spec.mode is Mode.HANG else (made.prompt_tokens - made.cached) * spec.prefill_seconds
    if not made.stream:
        tokens = made.completion_tokens
        longest = max(map(len, made.answers))
        return (Chunk(msgspec.json.encode(_whole(spec, made)), wait + longest * spec.token_seconds, tokens),)
    return tuple(_events(spec, made, wait))


def _whole(spec: EngineSpec, made: Generation) -> dict[str, Any]:
    choices = []
    for index, answer in enumerate(made.answers):
        choice: dict[str, Any] = {
            "index": index,
            "logprobs": None,
            "finish_reason": made.finish,
            "stop_reason": None,
        }
        said = "".join(answer)
        if made.chat:
            choice["message"] = {"role": "assistant", "content": said, "tool_calls": []}
        else:
            choice["text"] = made.echo + said
        choices.append(choice)
    return {
        "id": made.id,
        "object": "chat.completion" if made.chat else "text_completion",
        "created": made.created,
        "model": made.model,
        "choices": choices,
        "usage": _usage(spec, made, made.completion_tokens),
    }


def _events(spec: EngineSpec, made: Generation, wait: float) -> Iterator[Chunk]:
    if made.chat:
        for index in range(len(made.answers)):
            opening = {
                "index": index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            yield _event(spec, made, [opening], 0, delay=wait if index == 0 else 0.0)
        wait = 0.0
    told = 0
    for place in range(max(map(len, made.answers))):
        for index, answer in enumerate(made.answers):
            told += 1
            finish = made.finish if place == len(answer) - 1 else None
            piece = {"delta": {"content": answer[place]}} if made.chat else {"text": answer[place]}
            choice = {"index": index, **piece, "logprobs": None, "finish_reason": finish, "stop_reason": None}
            delay = (wait if told == 1 else 0.0) + (spec.token_seconds if index == 0 else 0.0)
            yield _event(spec, made, [choice], told, delay=delay, tokens=1)
    if made.include_usage:
        yield _event(spec, made, [], told)
    yield Chunk(b"data: [DONE]\n\n")


def _event(
    spec: EngineSpec,
    made: Generation,
    choices: Sequence[object],
    told: int,
    *,
    delay: float = 0.0,
    tokens: int = 0,
) -> Chunk:
    event: dict[str, Any] = {
        "id": made.id,
        "object": "chat.completion.chunk" if made.chat else "text_completion",
        "created": made.created,
        "model": made.model,
        "choices": choices,
    }
    if not choices or made.usage_everywhere:
        event["usage"] = _usage(spec, made, told)
    return Chunk(b"data: " + msgspec.json.encode(event) + b"\n\n", delay, tokens)


def tokenize(spec: EngineSpec, request: Request) -> Reply:
    """POST /tokenize: of a prompt or of messages."""
    try:
        body = decoded(spec, request)
        tokens = words.tokens_of(_prompt_of(body, chat="messages" in body))
    except Rejected as rejected:
        return rejected.reply
    answer = {
        "count": len(tokens),
        "max_model_len": spec.max_model_len,
        "tokens": words.token_ids(tokens),
        "token_strs": tokens if body.get("return_token_strs") else None,
    }
    return plain_json(200, answer)
