"""Anthropic's dialect, `/v1/messages`: into the shape of a chat, and a chat's answer back out of it.

Shapes, order of events and names of fields are those of vLLM 0.20 (vllm/entrypoints/anthropic): the request is turned
into a chat, so that its refusals are those of a chat, with the type that a chat gives them; what the schema itself
refuses comes in OpenAI's shape. There is no `[DONE]`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gpufleet.lab.vllm import words
from gpufleet.lab.vllm.api import Generation, decoded, prompt_of, understood, wait_of
from gpufleet.lab.vllm.replies import Chunk, Rejected, Reply, Request, error, event_of, plain_json
from gpufleet.lab.vllm.spec import EngineSpec

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def understand(spec: EngineSpec, request: Request, serial: int, now: int) -> Generation:
    """A request for a message. Raises `Rejected`."""
    body = _body(spec, request)
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] <= 0:
        raise Rejected(error(400, "Bad Request", "`max_tokens` is missing or not positive", "max_tokens"))
    try:
        made = understood(spec, _chat_of(body), serial, now, chat=True)
    except Rejected as rejected:
        raise Rejected(_translated(rejected.reply)) from None
    return made


def count(spec: EngineSpec, request: Request) -> Reply:
    """POST /v1/messages/count_tokens."""
    try:
        tokens = len(words.tokens_of(prompt_of(_chat_of(_body(spec, request)), chat=True)))
    except Rejected as rejected:
        return rejected.reply
    return plain_json(200, {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}})


def chunks(spec: EngineSpec, made: Generation) -> tuple[Chunk, ...]:
    """The answer over time."""
    wait, token_seconds = wait_of(spec, made), spec.token_seconds
    if not made.stream:
        tokens = made.completion_tokens
        return (Chunk(msgspec.json.encode(_whole(made)), wait + tokens * token_seconds, tokens),)
    return tuple(_events(made, wait, token_seconds))


def _body(spec: EngineSpec, request: Request) -> dict[str, Any]:
    try:
        body = decoded(spec, request)
    except Rejected as rejected:
        raise Rejected(_translated(rejected.reply)) from None
    if not body.get("model"):
        raise Rejected(error(400, "Bad Request", "`model` is missing", "model"))
    return body


def _translated(reply: Reply) -> Reply:
    said = json.loads(reply.body())["error"]
    if said["type"] == "Bad Request":
        return reply
    return plain_json(
        reply.status, {"type": "error", "error": {"type": said["type"], "message": said["message"]}}
    )


def _chat_of(body: Mapping[str, Any]) -> dict[str, Any]:
    given = body.get("messages")
    messages = [{"role": "system", "content": _text(body["system"])}] if body.get("system") else []
    for item in given if isinstance(given, list) else ():
        messages += _messages_of(item) if isinstance(item, dict) else [item]
    chat: dict[str, Any] = {
        "model": body.get("model"),
        "messages": messages if given else given,
        "max_tokens": body.get("max_tokens"),
        "stream": bool(body.get("stream")),
    }
    tools = [
        {"type": "function", "function": {"name": tool.get("name"), "parameters": tool.get("input_schema")}}
        for tool in body.get("tools") or ()
    ]
    choice = body.get("tool_choice") or {}
    if tools:
        named = {"type": "function", "function": {"name": choice.get("name")}}
        kind = choice.get("type", "auto")
        chat |= {"tools": tools, "tool_choice": named if kind == "tool" else _CHOICES.get(kind, "auto")}
    return chat


def _messages_of(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One message; the results of tools in it become messages of their own."""
    content = item.get("content")
    blocks = content if isinstance(content, list) else []
    results = [
        {"role": "tool", "content": _text(block.get("content"))}
        for block in blocks
        if isinstance(block, dict) and block.get("type") == "tool_result"
    ]
    said = _text(content)
    return [{"role": item.get("role", "user"), "content": said}, *results] if said or not results else results


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    pieces = []
    for block in content if isinstance(content, list) else ():
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            pieces.append(str(block.get("text", "")))
        elif kind == "image":
            pieces.append("<image>")
        elif kind == "tool_use":
            pieces.append(f"{block.get('name')}{json.dumps(block.get('input'))}")
    return "".join(pieces)


def _whole(made: Generation) -> dict[str, Any]:
    said = "".join(made.answers[0])
    return {
        "id": made.id,
        "type": "message",
        "role": "assistant",
        "content": [
            {"type": "text", "text": said}
            if made.call is None
            else {
                "type": "tool_use",
                "id": made.call.id,
                "name": made.call.name,
                "input": json.loads(made.call.arguments),
            }
        ],
        "model": made.model,
        "stop_reason": _STOP_REASONS[made.told_finish],
        "usage": {"input_tokens": made.prompt_tokens, "output_tokens": made.completion_tokens},
    }


def _events(made: Generation, wait: float, token_seconds: float) -> Iterator[Chunk]:
    usage = {"input_tokens": made.prompt_tokens, "output_tokens": 0}
    message: dict[str, Any] = {
        "id": made.id,
        "content": [],
        "model": made.model,
        "stop_reason": None,
        "stop_sequence": None,
    }
    opening = {
        "type": "message_start",
        "message": {**message, "type": "message", "role": "assistant", "usage": usage},
    }
    yield event_of("message_start", opening, wait)
    called = made.call
    block: dict[str, Any] = {"type": "text", "text": ""}
    if called is not None:
        block = {"type": "tool_use", "id": called.id, "name": called.name, "input": {}}
    yield event_of("content_block_start", {"type": "content_block_start", "index": 0, "content_block": block})
    for token in made.answers[0]:
        delta = {"type": "text_delta", "text": token}
        if called is not None:
            delta = {"type": "input_json_delta", "partial_json": token}
        event = {"type": "content_block_delta", "index": 0, "delta": delta}
        yield event_of("content_block_delta", event, token_seconds, 1)
    yield event_of("content_block_stop", {"type": "content_block_stop", "index": 0})
    ending = {
        "type": "message_delta",
        "delta": {"stop_reason": _STOP_REASONS[made.told_finish]},
        "usage": {**usage, "output_tokens": made.completion_tokens},
    }
    yield event_of("message_delta", ending)
    yield event_of("message_stop", {"type": "message_stop"})
