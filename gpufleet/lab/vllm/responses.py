"""`/v1/responses`: create, read again, cancel. An engine keeps responses only when its environment says so.

Shapes, events and refusals are those of vLLM 0.20 (vllm/entrypoints/openai/responses). Without
`VLLM_ENABLE_RESPONSES_API_STORE=1` the wish to store is ignored without a word, and only `background` is refused.
There is no `[DONE]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import msgspec

from gpufleet.lab.vllm.api import Generation, decoded, understood, wait_of
from gpufleet.lab.vllm.replies import Chunk, Rejected, Reply, Request, error, event_of, plain_json
from gpufleet.lab.vllm.spec import EngineSpec

PATH = "/v1/responses"
_INVALID = "invalid_request_error"
_NO_BACKGROUND = (
    "This vLLM engine does not support `store=True` and therefore does not support the background mode. To enable "
    "these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server."
)


@dataclass(slots=True, eq=False)
class Response:
    """One response; `due` is when one in the background is ready."""

    asked: Mapping[str, Any]
    made: Generation
    keeps: bool
    due: float | None = None
    status: str = "in_progress"
    counted: bool = False

    @property
    def id(self) -> str:
        return self.made.id

    def ended(self, *, whole: bool) -> None:
        """The engine has no more work with it."""
        if self.status == "in_progress":
            finished = "incomplete" if self.made.finish == "length" else "completed"
            self.status = finished if whole else "cancelled"


def understand(
    spec: EngineSpec, store: Mapping[str, Response], request: Request, serial: int, now: int
) -> Response:
    """A request for a response. Raises `Rejected`."""
    body = decoded(spec, request)
    background = bool(body.get("background"))
    if background and not spec.stores_responses:
        raise Rejected(error(400, _INVALID, _NO_BACKGROUND, "background"))
    earlier = body.get("previous_response_id")
    before = store.get(str(earlier)) if earlier else None
    if earlier and before is None:
        raise Rejected(_not_found(str(earlier)))
    made = understood(spec, _chat_of(body, before), serial, now, chat=True)
    made.id = f"resp_{serial:032x}"
    return Response(body, made, keeps=spec.stores_responses and body.get("store", True) is not False)


def _chat_of(body: Mapping[str, Any], before: Response | None) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    if before is not None:
        messages += _messages_of(before.asked.get("input"))
        messages.append({"role": "assistant", "content": "".join(before.made.answers[0])})
    messages += _messages_of(body.get("input"))
    chat: dict[str, Any] = {
        "model": body.get("model"),
        "messages": messages,
        "stream": bool(body.get("stream")),
    }
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    tools = [
        tool for tool in body.get("tools") or () if isinstance(tool, dict) and tool.get("type") == "function"
    ]
    if tools:
        chat["tools"] = [{"type": "function", "function": tool} for tool in tools]
        choice = body.get("tool_choice", "auto")
        chat["tool_choice"] = {"type": "function", "function": choice} if isinstance(choice, dict) else choice
    return chat


def _messages_of(given: object) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages = []
    for item in given if isinstance(given, list) else ():
        kind = item.get("type", "message") if isinstance(item, dict) else ""
        if kind == "function_call_output":
            messages.append({"role": "tool", "content": item.get("output")})
        elif kind == "function_call":
            messages.append({"role": "assistant", "content": f"{item.get('name')}{item.get('arguments')}"})
        elif kind == "message":
            messages.append({"role": item.get("role", "user"), "content": item.get("content")})
    return messages


def chunks(spec: EngineSpec, response: Response) -> tuple[Chunk, ...]:
    """The answer over time."""
    made = response.made
    wait, token_seconds = wait_of(spec, made), spec.token_seconds
    if not made.stream:
        tokens = made.completion_tokens
        whole = msgspec.json.encode(document(response, _final(made), [_item(made)]))
        return (Chunk(whole, wait + tokens * token_seconds, tokens),)
    return tuple(_numbered(_events(response, wait, token_seconds)))


def _final(made: Generation) -> str:
    return "incomplete" if made.finish == "length" else "completed"


def document(response: Response, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    """The response object."""
    asked, made = response.asked, response.made
    done = status in {"completed", "incomplete"}
    return {
        "id": response.id,
        "created_at": made.created,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": asked.get("instructions"),
        "metadata": asked.get("metadata"),
        "model": made.model,
        "object": "response",
        "output": output,
        "parallel_tool_calls": asked.get("parallel_tool_calls", True),
        "temperature": asked.get("temperature", 1.0),
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": asked.get("tools") or [],
        "top_p": asked.get("top_p", 1.0),
        "background": bool(asked.get("background")),
        "max_output_tokens": made.wanted,
        "max_tool_calls": asked.get("max_tool_calls"),
        "previous_response_id": asked.get("previous_response_id"),
        "prompt": None,
        "reasoning": asked.get("reasoning"),
        "service_tier": asked.get("service_tier", "auto"),
        "status": status,
        "text": asked.get("text"),
        "top_logprobs": None,
        "truncation": asked.get("truncation", "disabled"),
        "usage": _usage(made) if done else None,
        "user": asked.get("user"),
        "input_messages": None,
        "output_messages": None,
    }


def _usage(made: Generation) -> dict[str, Any]:
    return {
        "input_tokens": made.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": made.cached,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": made.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": made.prompt_tokens + made.completion_tokens,
    }


def _item(made: Generation, status: str = "", *, begun: bool = False) -> dict[str, Any]:
    """The one thing that was put out; `begun` is it before its first token."""
    number = made.id.removeprefix("resp_")
    said = "" if begun else "".join(made.answers[0])
    status = "in_progress" if begun else status or _final(made)
    if made.call is not None:
        names = {"name": made.call.name, "call_id": f"call_{number}", "id": f"fc_{number}"}
        return {"type": "function_call", **names, "arguments": said, "status": status}
    content = [] if begun else [_text(said)]
    return {
        "id": f"msg_{number}",
        "content": content,
        "role": "assistant",
        "status": status,
        "type": "message",
    }


def _text(said: str) -> dict[str, Any]:
    return {"annotations": [], "text": said, "type": "output_text", "logprobs": None}


def _events(
    response: Response, wait: float, token_seconds: float
) -> Iterator[tuple[str, dict[str, Any], float, int]]:
    """Kind, fields, seconds before it, tokens in it."""
    made = response.made
    empty = document(response, "in_progress", [])
    yield "response.created", {"response": empty}, 0.0, 0
    yield "response.in_progress", {"response": empty}, 0.0, 0
    item = _item(made, begun=True)
    place = {"item_id": item["id"], "output_index": 0}
    yield "response.output_item.added", {"item": item, "output_index": 0}, wait, 0
    said = "".join(made.answers[0])
    if made.call is not None:
        kind = "response.function_call_arguments"
        for token in made.answers[0]:
            yield f"{kind}.delta", {**place, "delta": token}, token_seconds, 1
        yield f"{kind}.done", {**place, "arguments": said, "name": made.call.name}, 0.0, 0
    else:
        place |= {"content_index": 0}
        yield "response.content_part.added", {**place, "part": {**_text(""), "logprobs": []}}, 0.0, 0
        for token in made.answers[0]:
            yield "response.output_text.delta", {**place, "delta": token, "logprobs": []}, token_seconds, 1
        yield "response.output_text.done", {**place, "text": said, "logprobs": []}, 0.0, 0
        yield "response.content_part.done", {**place, "part": _text(said)}, 0.0, 0
    yield "response.output_item.done", {"item": _item(made, "completed"), "output_index": 0}, 0.0, 0
    yield "response.completed", {"response": document(response, _final(made), [_item(made)])}, 0.0, 0


def _numbered(events: Iterator[tuple[str, dict[str, Any], float, int]], after: int = -1) -> Iterator[Chunk]:
    for number, (kind, fields, delay, tokens) in enumerate(events):
        if number > after:
            yield event_of(kind, {**fields, "sequence_number": number, "type": kind}, delay, tokens)


def _not_found(name: str) -> Reply:
    return error(404, _INVALID, f"Response with id '{name}' not found.", "response_id")


@dataclass(slots=True)
class Store:
    """The responses that one engine keeps."""

    kept: dict[str, Response] = field(default_factory=dict)

    def settle(self, now: float) -> list[Response]:
        """Those in the background that became ready since the last look."""
        ready = [
            one for one in self.kept.values() if one.due is not None and not one.counted and one.due <= now
        ]
        for response in ready:
            response.counted = True
            response.ended(whole=True)
        return [response for response in ready if response.status != "cancelled"]

    def working(self) -> int:
        """How many are made in the background."""
        return sum(one.due is not None and one.status == "in_progress" for one in self.kept.values())

    def answer(self, request: Request, now: float) -> Reply:
        """GET /v1/responses/ID and POST /v1/responses/ID/cancel."""
        path, _, query = request.path.partition("?")
        name, _, verb = path.removeprefix(f"{PATH}/").partition("/")
        if verb not in {"", "cancel"}:
            return plain_json(404, {"detail": "Not Found"})
        method = "POST" if verb else "GET"
        if request.method != method:
            return plain_json(405, {"detail": "Method Not Allowed"}, {"allow": method})
        response = self.kept.get(name)
        if response is None or (response.due is None and response.status in {"in_progress", "cancelled"}):
            return _not_found(name)
        if verb:
            if response.status != "in_progress":
                return error(400, _INVALID, "Cannot cancel a synchronous response.", "response_id")
            response.status = "cancelled"
        wishes = parse_qs(query)
        if not verb and wishes.get("stream", ["false"])[-1].lower() in {"true", "1"}:
            after = int(wishes.get("starting_after", ["-1"])[-1])
            wait = max(0.0, (response.due or now) - now)
            stream = tuple(_numbered(_events(response, wait, 0.0), after))
            return Reply(200, {"content-type": "text/event-stream; charset=utf-8"}, stream)
        output = [_item(response.made)] if response.status in {"completed", "incomplete"} else []
        return plain_json(200, document(response, response.status, output))
