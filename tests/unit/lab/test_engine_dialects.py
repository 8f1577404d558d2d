"""Dialects of an engine beside chats: messages, responses, tools, transcriptions; and when it has them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpufleet.lab.vllm.engine_model import EngineModel
from gpufleet.lab.vllm.replies import Reply, Request
from gpufleet.lab.vllm.spec import EngineSpec, parse_spec

NOW = 100.0
TOOLS = [
    {
        "type": "function",
        "function": {"name": "look", "parameters": {"properties": {"far": {"type": "integer"}}}},
    }
]
SAY: list[Any] = [{"role": "user", "content": "Look."}]


def engine(**changes: Any) -> EngineModel:
    return EngineModel(EngineSpec(**{"model": "m", "load_seconds": 1.0, **changes}), 0.0)


def ask(model: EngineModel, path: str, body: object = None, now: float = NOW, method: str = "") -> Reply:
    content = b"" if body is None else json.dumps(body).encode()
    reply = model.respond(Request(method or ("GET" if body is None else "POST"), path, {}, content), now)
    if reply.ticket is not None:
        assert model.begin(reply.ticket, now)
        for chunk in reply.chunks:
            model.sent(reply.ticket, chunk, now)
        model.finish(reply.ticket, reply.ticket.generation.finish, now)
    return reply


def said(reply: Reply) -> Any:
    return json.loads(reply.body())


def test_responses_are_kept_where_the_environment_says_so():
    model = engine(stores_responses=True)
    made = said(ask(model, "/v1/responses", {"model": "m", "input": "Hello"}))
    assert (made["object"], made["status"]) == ("response", "completed")
    assert said(ask(model, f"/v1/responses/{made['id']}")) == made
    refused = ask(model, f"/v1/responses/{made['id']}/cancel", method="POST")
    assert (refused.status, said(refused)["error"]["message"]) == (
        400,
        "Cannot cancel a synchronous response.",
    )
    follow = {"model": "m", "input": "And?", "previous_response_id": made["id"]}
    assert said(ask(model, "/v1/responses", follow))["usage"]["input_tokens"] > made["usage"]["input_tokens"]
    assert ask(model, "/v1/responses", {**follow, "previous_response_id": "resp_0"}).status == 404
    unkept = said(ask(model, "/v1/responses", {"model": "m", "input": "Hello", "store": False}))
    assert ask(model, f"/v1/responses/{unkept['id']}").status == 404


def test_without_it_the_wish_to_store_is_ignored_and_background_refused():
    model = engine()
    made = said(ask(model, "/v1/responses", {"model": "m", "input": "Hello", "store": True}))
    gone = ask(model, f"/v1/responses/{made['id']}")
    assert (gone.status, said(gone)["error"]["type"]) == (404, "invalid_request_error")
    refused = ask(model, "/v1/responses", {"model": "m", "input": "Hello", "background": True})
    assert (refused.status, said(refused)["error"]["param"]) == (400, "background")


def test_a_response_in_the_background_is_made_over_time_and_can_be_cancelled():
    model = engine(stores_responses=True, token_seconds=0.1)
    first, second = (
        said(ask(model, "/v1/responses", {"model": "m", "input": word, "background": True})) for word in "ab"
    )
    assert first["status"] == "queued"
    assert said(ask(model, f"/v1/responses/{first['id']}", now=NOW + 0.5))["status"] == "in_progress"
    assert model.running == 2
    cancelled = said(ask(model, f"/v1/responses/{second['id']}/cancel", now=NOW + 0.6, method="POST"))
    assert (cancelled["status"], model.running) == ("cancelled", 1)
    done = said(ask(model, f"/v1/responses/{first['id']}", now=NOW + 60.0))
    assert done["status"] == "completed"
    assert done["output"][0]["content"][0]["text"]
    assert model.counters.generation_tokens == done["usage"]["output_tokens"]
    assert said(ask(model, f"/v1/responses/{second['id']}", now=NOW + 60.0))["status"] == "cancelled"
    events = ask(model, f"/v1/responses/{first['id']}?stream=true&starting_after=1", now=NOW + 60.0).body()
    assert b'"sequence_number":2,' in events
    assert b'"sequence_number":1,' not in events


def test_messages_are_refused_in_their_own_shape():
    model = engine()
    unknown = ask(model, "/v1/messages", {"model": "n", "max_tokens": 5, "messages": SAY})
    assert (unknown.status, said(unknown)["type"], said(unknown)["error"]["type"]) == (
        404,
        "error",
        "NotFoundError",
    )
    assert ask(model, "/v1/messages", {"model": "m", "messages": SAY}).status == 400
    short = said(ask(model, "/v1/messages", {"model": "m", "max_tokens": 2, "messages": SAY}))
    assert (short["stop_reason"], short["usage"]["output_tokens"]) == ("max_tokens", 2)
    blocks = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "far"}]}]
    assert ask(model, "/v1/messages", {"model": "m", "max_tokens": 5, "messages": blocks}).status == 200


@pytest.mark.parametrize(
    ("version", "path", "there"),
    [
        ("0.9.2", "/v1/responses", False),
        ("0.10.0", "/v1/responses", True),
        ("0.11.2", "/v1/messages", False),
        ("0.12.0", "/v1/messages", True),
    ],
)
def test_paths_come_with_versions(version, path, there):
    body = {"model": "m", "input": "x", "messages": SAY, "max_tokens": 3}
    assert (ask(engine(version=version), path, body).status != 404) is there


def test_tools_need_flags_and_are_called():
    plain = {"model": "m", "messages": SAY, "tools": TOOLS}
    refused = ask(engine(), "/v1/chat/completions", plain)
    assert "requires --enable-auto-tool-choice" in said(refused)["error"]["message"]
    words = ("vllm", "serve", "m", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    model = EngineModel(parse_spec(words, {}, EngineSpec(load_seconds=1.0)), 0.0)
    choice = said(ask(model, "/v1/chat/completions", plain))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"far": 7}
    named = {**plain, "tool_choice": {"type": "function", "function": {"name": "look"}}}
    assert said(ask(engine(), "/v1/chat/completions", named))["choices"][0]["finish_reason"] == "stop"
    for wrong in (
        {**plain, "tool_choice": {"function": {"name": "run"}}},
        {**plain, "tools": [], "tool_choice": "auto"},
    ):
        assert ask(engine(), "/v1/chat/completions", wrong).status == 400
    silent = said(ask(engine(), "/v1/chat/completions", {**plain, "tool_choice": "none"}))
    assert silent["choices"][0]["message"]["content"]
    called = said(
        ask(
            model,
            "/v1/responses",
            {"model": "m", "input": "x", "tools": [{"type": "function", "name": "look"}]},
        )
    )
    assert called["output"][0]["type"] == "function_call"
