"""Chats and completions in the shape of vLLM's OpenAI server, as data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from gpufleet.lab.vllm import tools, words
from gpufleet.lab.vllm.replies import Chunk, Rejected, Reply, Request, error, plain_json
from gpufleet.lab.vllm.spec import EngineSpec, Mode


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
    wanted: int = 0
    """Tokens that it may have at most."""
    echo: str = ""
    cached: int = 0
    call: tools.Call | None = None
    """The answer is this, and the tokens are its arguments."""

    @property
    def told_finish(self) -> str:
        """What clients are told; the engine itself knows no tools."""
        called = self.call is not None and self.call.free and self.finish == "stop"
        return "tool_calls" if called else self.finish

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, those of the chat template included."""
        return len(self.prompt)

    @property
    def completion_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(map(len, self.answers))


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


def prompt_of(body: Mapping[str, Any], *, chat: bool) -> str:
    """The text that the model reads. Raises `Rejected`."""
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
    return understood(spec, decoded(spec, request), serial, now, chat=request.path.startswith("/v1/chat"))


def understood(spec: EngineSpec, body: Mapping[str, Any], serial: int, now: int, *, chat: bool) -> Generation:
    """The same of a body; other dialects bring theirs into the shape of a chat. Raises `Rejected`."""
    call = tools.asked(spec, body, serial) if chat else None
    said = prompt_of(body, chat=chat)
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
    spoken = words.tokens_of(call.arguments) if call is not None else None
    natural = max(words.natural_length(said), number(body, ("min_tokens",), 0) or 0)
    natural = natural if spoken is None else len(spoken)
    length = wanted if body.get("ignore_eos") and spoken is None else min(wanted, natural)
    choices = number(body, ("n",), 1) or 1
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
        answers=[
            spoken[:length] if spoken is not None else _answer(spec, said, choice, length)
            for choice in range(choices)
        ],
        finish="length" if length == wanted and length != len(spoken or ()) else "stop",
        wanted=wanted,
        echo=said if body.get("echo") and not chat else "",
        call=call,
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


def wait_of(spec: EngineSpec, made: Generation) -> float:
    """Seconds until the first token."""
    return math.inf if spec.mode is Mode.HANG else (made.prompt_tokens - made.cached) * spec.prefill_seconds


def chunks(spec: EngineSpec, made: Generation) -> Sequence[Chunk]:
    """The body of the answer over time."""
    wait = wait_of(spec, made)
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
            "finish_reason": made.told_finish,
            "stop_reason": None,
        }
        said = "".join(answer)
        if made.call is not None:
            called = tools.part(made.call, arguments=said)
            choice["message"] = {"role": "assistant", "content": None, "tool_calls": [called]}
        elif made.chat:
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
            if made.call is not None:
                begun = {"tool_calls": [tools.part(made.call, 0, "")]}
                yield _event(spec, made, [{**opening, "delta": begun}], 0)
        wait = 0.0
    told = 0
    for place in range(max(map(len, made.answers))):
        for index, answer in enumerate(made.answers):
            told += 1
            finish = made.told_finish if place == len(answer) - 1 else None
            piece = _piece(made, answer[place])
            choice = {"index": index, **piece, "logprobs": None, "finish_reason": finish, "stop_reason": None}
            delay = (wait if told == 1 else 0.0) + (spec.token_seconds if index == 0 else 0.0)
            yield _event(spec, made, [choice], told, delay=delay, tokens=1)
    if made.include_usage:
        yield _event(spec, made, [], told)
    yield Chunk(b"data: [DONE]\n\n")


def _piece(made: Generation, token: str) -> dict[str, Any]:
    if made.call is not None:
        return {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": token}}]}}
    return {"delta": {"content": token}} if made.chat else {"text": token}


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
        tokens = words.tokens_of(prompt_of(body, chat="messages" in body))
    except Rejected as rejected:
        return rejected.reply
    answer = {
        "count": len(tokens),
        "max_model_len": spec.max_model_len,
        "tokens": words.token_ids(tokens),
        "token_strs": tokens if body.get("return_token_strs") else None,
    }
    return plain_json(200, answer)
