"""Tools: whether an answer is a call of one, and what it calls it with.

The very small language model calls the first tool that it is offered, unless it was just told what one returned. The
refusals are those of vLLM's chat protocol (vllm/entrypoints/openai/chat_completion, 0.20).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gpufleet.lab.vllm import words
from gpufleet.lab.vllm.replies import Rejected, error
from gpufleet.lab.vllm.spec import EngineSpec


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function. `free`: the model chose it, and ends its answer with `tool_calls`."""

    id: str
    name: str
    arguments: str
    free: bool


def asked(spec: EngineSpec, body: Mapping[str, Any], serial: int) -> Call | None:
    """The call that a chat is answered with; None for words. Raises `Rejected`."""
    offered = {
        str(tool["function"].get("name")): tool["function"]
        for tool in body.get("tools") or ()
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict)
    }
    choice = body.get("tool_choice", "auto" if offered else "none")
    if choice in {None, "none"} if isinstance(choice, str | None) else False:
        return None
    if not offered:
        raise Rejected(error(400, "BadRequestError", "When using `tool_choice`, `tools` must be set."))
    named = choice["function"]["name"] if isinstance(choice, dict) else ""
    if named and named not in offered:
        raise Rejected(
            error(
                400,
                "BadRequestError",
                "The tool specified in `tool_choice` does not match any of the `tools`",
            )
        )
    if choice == "auto":
        if not {"--enable-auto-tool-choice", "--tool-call-parser"} <= set(spec.arguments):
            said = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            raise Rejected(error(400, "BadRequestError", said))
        last = (body.get("messages") or [{}])[-1]
        if isinstance(last, dict) and last.get("role") == "tool":
            return None
    tool = offered[named or next(iter(offered))]
    arguments = msgspec.json.encode(_made_up(tool.get("parameters") or {})).decode()
    return Call(f"chatcmpl-tool-{serial:016x}", str(tool["name"]), arguments, free=not named)


def _made_up(schema: Mapping[str, Any], depth: int = 0) -> Any:
    """A value that a JSON Schema allows, as far as it is that simple."""
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "object")
    if kind == "object":
        properties = schema.get("properties") or {}
        wanted = properties if depth == 0 else schema.get("required") or ()
        return {name: _made_up(properties.get(name) or {}, depth + 1) for name in wanted} if depth < 5 else {}
    simple: dict[str, Any] = {"integer": 7, "number": 0.5, "boolean": True, "array": [], "null": None}
    return simple.get(kind, "".join(words.tokens_of("a quiet server")))


def part(call: Call, index: int | None = None, arguments: str | None = None) -> dict[str, Any]:
    """The call in a message; with an index its beginning in a stream."""
    function = {"name": call.name, "arguments": call.arguments if arguments is None else arguments}
    place = {} if index is None else {"index": index}
    return {**place, "id": call.id, "type": "function", "function": function}
