"""An engine without sockets: its life, its answers, its counters."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.engine.kinds import senseless
from gpufleet.engine.questions import chat_body, degenerate, served_names, stream_error, streamed_text
from gpufleet.lab.vllm.engine_model import EngineModel, Phase, serve
from gpufleet.lab.vllm.replies import Reply, Request
from gpufleet.lab.vllm.spec import EngineSpec, Mode
from gpufleet.lab.vllm.words import answer, blocks_of, tokens_of
from gpufleet.redact import Secret

READY = 10.0


def engine(**changes: object) -> EngineModel:
    return EngineModel(EngineSpec(**{"model": "m", "load_seconds": 1.0, **changes}), 0.0)  # type: ignore[arg-type]  # fields by name


def ask(
    model: EngineModel,
    path: str,
    body: object = None,
    now: float = READY,
    headers: dict[str, str] | None = None,
) -> Reply:
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    return model.respond(Request("GET" if body is None else "POST", path, headers or {}, content), now)


def answered(model: EngineModel, path: str, body: object, now: float = READY) -> dict[str, Any]:
    reply = ask(model, path, body, now)
    if reply.ticket is not None:
        run(model, reply, now)
    made: dict[str, Any] = json.loads(reply.body())
    return made


def run(model: EngineModel, reply: Reply, now: float) -> None:
    assert model.begin(reply.ticket, now)
    for chunk in reply.chunks:
        now += chunk.delay
        model.sent(reply.ticket, chunk, now)
    model.finish(reply.ticket, reply.ticket.generation.finish, now)


def events(reply: Reply) -> list[dict[str, Any]]:
    texts = reply.body().decode().split("\n\n")
    assert texts[-2:] == ["data: [DONE]", ""]
    return [json.loads(text.removeprefix("data: ")) for text in texts[:-2]]


def chat(**more: object) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "How are you?"}], **more}


def value(model: EngineModel, line: str) -> float:
    (found,) = [row for row in model.metrics().splitlines() if row.startswith(line)]
    return float(found.rpartition(" ")[2])


def test_it_loads_then_listens():
    model = engine()
    assert model.phase(0.5) is Phase.LOADING
    with pytest.raises(ConnectionRefusedError):
        ask(model, "/health", now=0.5)
    assert "Loading safetensors" in model.log(0.5)
    assert "Application startup complete." not in model.log(0.99)
    assert model.phase(1.0) is Phase.READY
    assert model.ready_at() == 1.0
    assert model.log(1.0).endswith("Application startup complete.\n")
    assert ask(model, "/health").status == 200


@pytest.mark.parametrize(("mode", "status"), [(Mode.CRASH, 1), (Mode.CUDA_OOM, 1), (Mode.OOM, 137)])
def test_modes_that_end_it(mode, status):
    model = engine(mode=mode)
    assert model.exit_code(0.1) is None
    assert model.exit_code(1.0) == status
    assert model.phase(1.0) is Phase.EXITED
    assert ("memory" in model.log(1.0)) == (mode is not Mode.OOM)
    assert math.isinf(model.ready_at())


def test_never_ready_stalls():
    model = engine(mode=Mode.NEVER_READY)
    assert model.phase(1e6) is Phase.LOADING
    assert model.exit_code(1e6) is None
    assert model.log(1.0) == model.log(1e6)


def test_the_small_paths():
    model = engine(served_names=("a", "b"), version="0.30.0")
    assert json.loads(ask(model, "/version").body()) == {"version": "0.30.0"}
    assert served_names(ask(model, "/v1/models").body().decode()) == ("a", "b")
    assert ask(model, "/nothing").status == 404
    assert ask(model, "/v1/chat/completions").status == 405
    assert ask(model, "/ping").status == 200
    assert ask(engine(mode=Mode.UNHEALTHY), "/health").status == 503
    assert served_names(ask(engine(mode=Mode.WRONG_MODEL), "/v1/models").body().decode()) == (
        "Qwen/Qwen3-0.6B",
    )
    assert answered(model, "/tokenize", {"prompt": "two words"})["count"] == 2


def test_keys_guard_v1_alone():
    model = engine(keys=(Secret("right"),))
    assert ask(model, "/v1/models").status == 401
    assert ask(model, "/v1/models", headers={"authorization": "Bearer wrong"}).status == 401
    assert ask(model, "/v1/models", headers={"authorization": "Bearer right"}).status == 200
    assert ask(model, "/health").status == 200
    assert ask(model, "/tokenize", {"prompt": "x"}).status == 200


def test_a_chat_answer():
    made = answered(engine(), "/v1/chat/completions", chat(max_tokens=5))
    (choice,) = made["choices"]
    assert made["object"] == "chat.completion"
    assert choice["finish_reason"] == "length"
    assert len(tokens_of(choice["message"]["content"])) == 5
    usage = made["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5


def test_an_answer_is_the_same_again_and_sensible():
    first, second = (answered(engine(), "/v1/chat/completions", chat())["choices"][0] for _ in range(2))
    assert first == second
    assert first["finish_reason"] == "stop"
    assert not degenerate(first["message"]["content"])


def test_a_stream_says_what_the_whole_answer_says():
    whole = answered(engine(), "/v1/chat/completions", chat(max_tokens=9))
    reply = ask(
        engine(),
        "/v1/chat/completions",
        chat(max_tokens=9, stream=True, stream_options={"include_usage": True}),
    )
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert streamed_text(reply.body().decode()) == whole["choices"][0]["message"]["content"]
    parts = events(reply)
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [part["choices"][0]["finish_reason"] for part in parts[:-1]] == [None] * 9 + ["length"]
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"]["completion_tokens"] == 9
    assert sum(chunk.tokens for chunk in reply.chunks) == 9


def test_usage_is_streamed_only_when_asked():
    reply = ask(engine(), "/v1/chat/completions", chat(max_tokens=2, stream=True))
    assert all("usage" not in part for part in events(reply))
    always = {"include_usage": True, "continuous_usage_stats": True}
    reply = ask(engine(), "/v1/chat/completions", chat(max_tokens=2, stream=True, stream_options=always))
    assert [part["usage"]["completion_tokens"] for part in events(reply)] == [0, 1, 2, 2]


def test_completions_with_several_choices():
    body = {"model": "m", "prompt": "Once", "max_tokens": 3, "n": 2, "echo": True}
    made = answered(engine(), "/v1/completions", body)
    assert [choice["index"] for choice in made["choices"]] == [0, 1]
    assert made["choices"][0]["text"].startswith("Once")
    assert made["usage"]["completion_tokens"] == 6
    streamed = events(ask(engine(), "/v1/completions", {**body, "stream": True}))
    assert [part["choices"][0]["index"] for part in streamed] == [0, 1, 0, 1, 0, 1]


def test_the_ready_question_of_the_engine_room():
    body = chat_body("m", "Say hello.").encode()
    good = ask(engine(), "/v1/chat/completions", body).body().decode()
    assert streamed_text(good)
    assert not degenerate(streamed_text(good))
    bad = ask(engine(mode=Mode.DEGENERATE), "/v1/chat/completions", body).body().decode()
    assert degenerate(streamed_text(bad))


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/v1/chat/completions", b"{", 400, "Bad Request"),
        ("/v1/chat/completions", [], 400, "Bad Request"),
        ("/v1/chat/completions", chat(model="other"), 404, "NotFoundError"),
        ("/v1/chat/completions", {"model": "m"}, 400, "BadRequestError"),
        ("/v1/chat/completions", chat(max_tokens=0), 400, "BadRequestError"),
        ("/v1/chat/completions", chat(max_tokens=True), 400, "BadRequestError"),
        ("/v1/chat/completions", chat(max_tokens=10**6), 400, "BadRequestError"),
        ("/v1/completions", {"model": "m"}, 400, "BadRequestError"),
        ("/tokenize", {"model": "x"}, 404, "NotFoundError"),
    ],
)
def test_errors_have_vllms_shape(path, body, status, kind):
    reply = ask(engine(), path, body)
    error = json.loads(reply.body())["error"]
    assert (reply.status, error["code"], error["type"]) == (status, status, kind)
    assert stream_error(reply.body().decode()) == error["message"]
    assert reply.ticket is None


def test_embeddings_are_unit_vectors_in_both_encodings():
    body = {"model": "m", "input": ["a", "b"], "dimensions": 8}
    plain = answered(engine(kind="embedding"), "/v1/embeddings", body)
    vectors = [row["embedding"] for row in plain["data"]]
    assert vectors[0] != vectors[1]
    assert math.isclose(sum(x * x for x in vectors[0]), 1.0)
    packed = answered(
        engine(kind="embedding"),
        "/v1/embeddings",
        {"input": "a", "dimensions": 8, "encoding_format": "base64"},
    )
    raw = base64.b64decode(packed["data"][0]["embedding"])
    assert struct.unpack("<8f", raw) == pytest.approx(vectors[0], abs=1e-6)


def test_places_are_given_in_order_and_freed():
    model = engine(max_num_seqs=1)
    first, second, third = (ask(model, "/v1/chat/completions", chat()).ticket for _ in range(3))
    assert model.begin(first, READY)
    assert not model.begin(third, READY)
    assert not model.begin(second, READY)
    assert (model.running, model.waiting) == (1, 2)
    assert value(model, "vllm:num_requests_running{") == 1
    assert value(model, "vllm:num_requests_waiting{") == 2
    assert value(model, "vllm:kv_cache_usage_perc{") > 0
    model.finish(first, "abort", READY)
    assert not model.begin(third, READY)
    model.finish(second, "abort", READY)
    model.finish(second, "stop", READY)
    assert model.begin(third, READY)
    assert value(model, 'vllm:request_success_total{engine="0",model_name="m",finished_reason="abort"}') == 2
    assert value(model, 'vllm:request_success_total{engine="0",model_name="m",finished_reason="stop"}') == 0


def test_counters_follow_the_tokens():
    model = engine(token_seconds=0.5)
    made = answered(model, "/v1/chat/completions", chat(max_tokens=4, stream=False))
    reply = ask(model, "/v1/chat/completions", chat(max_tokens=4, stream=True))
    run(model, reply, READY)
    assert value(model, "vllm:generation_tokens_total{") == 8
    assert value(model, "vllm:prompt_tokens_total{") == 2 * made["usage"]["prompt_tokens"]
    assert value(model, "vllm:time_to_first_token_seconds_count{") == 2
    assert value(model, "vllm:inter_token_latency_seconds_count{") == 3
    assert value(model, "vllm:inter_token_latency_seconds_sum{") == pytest.approx(1.5)
    assert value(model, "vllm:kv_cache_usage_perc{") == 0


def test_a_prompt_that_was_seen_is_cached_and_faster():
    model = engine(prefill_seconds=0.01, prompt_tokens_details=True)
    long = chat(messages=[{"role": "user", "content": "one two three " * 40}], max_tokens=1)
    first, second = (ask(model, "/v1/chat/completions", long) for _ in range(2))
    assert second.chunks[0].delay < first.chunks[0].delay / 4
    cached = json.loads(second.body())["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached % 16 == 0
    assert cached > 90


def test_the_page_has_the_names_and_labels_of_a_real_one():
    from pathlib import Path

    path = Path(__file__).parents[4] / "shared/fixtures/metrics/metrics_gen_vllm_0.33.0.txt"
    if not path.exists():
        pytest.skip("the collected metrics pages are not on this machine")
    real = {
        line.split()[2]: line.split()[3]
        for line in path.read_text().splitlines()
        if line.startswith("# TYPE")
    }
    ours = {
        line.split()[2]: line.split()[3]
        for line in engine().metrics().splitlines()
        if line.startswith("# TYPE")
    }
    assert {name: kind for name, kind in ours.items() if real.get(name) != kind} == {}
    assert len(ours) == 19


def test_histograms_are_cumulative():
    model = engine()
    answered(model, "/v1/chat/completions", chat(max_tokens=4))
    rows = [
        row for row in model.metrics().splitlines() if row.startswith("vllm:request_generation_tokens_bucket")
    ]
    counts = [float(row.rpartition(" ")[2]) for row in rows]
    assert counts == sorted(counts)
    assert counts[-1] == 1
    assert 'le="+Inf"' in rows[-1]


def test_stopping_aborts_what_is_under_way():
    model = engine()
    ticket = ask(model, "/v1/chat/completions", chat()).ticket
    model.begin(ticket, READY)
    model.stop(READY, 137)
    model.stop(READY, 0)
    assert (model.exit_code(READY), model.running) == (137, 0)
    with pytest.raises(ConnectionRefusedError):
        ask(model, "/health")


def test_request_ids_come_back_when_the_flag_is_set():
    assert (
        ask(engine(request_id_headers=True), "/health", headers={"x-request-id": "r-1"}).headers[
            "x-request-id"
        ]
        == "r-1"
    )
    assert "x-request-id" not in ask(engine(), "/health", headers={"x-request-id": "r-1"}).headers


def served(model: EngineModel, clock, body: object) -> Generator[bytes, None, None]:
    status, _, pieces = serve(
        model,
        Request("POST", "/v1/chat/completions", {}, json.dumps(body).encode()),
        clock.monotonic,
        clock.sleep,
    )
    assert status == 200
    assert isinstance(pieces, Generator)
    return pieces


def test_serving_with_a_clock_takes_the_time_it_says(clock):
    model = engine(token_seconds=0.5, load_seconds=0.0)
    assert b"".join(served(model, clock, chat(max_tokens=4, stream=True))).endswith(b"[DONE]\n\n")
    assert clock.monotonic() == pytest.approx(2.0, abs=0.01)
    assert model.counters.finished["length"] == 1


def test_leaving_early_is_an_abort(clock):
    model = engine(load_seconds=0.0)
    pieces = served(model, clock, chat(max_tokens=4, stream=True))
    next(pieces)
    pieces.close()
    assert model.counters.finished["abort"] == 1
    assert model.running == 0


def test_an_engine_that_hangs_says_nothing_while_time_passes(clock):
    model = engine(load_seconds=0.0, mode=Mode.HANG)
    pieces = served(model, clock, chat(stream=True))
    assert [next(pieces) for _ in range(5)] == [b""] * 5
    assert clock.monotonic() == 5.0
    assert ask(model, "/health").status == 200
    pieces.close()


def test_an_engine_that_dies_resets_its_answers(clock):
    model = engine(load_seconds=0.0)
    pieces = served(model, clock, chat(stream=True))
    next(pieces)
    model.stop(clock.monotonic(), 137)
    with pytest.raises(ConnectionResetError):
        list(pieces)


@given(st.text(max_size=200))
def test_tokens_join_to_the_text(text):
    assert "".join(tokens_of(text)) == text


@given(st.text(max_size=50), st.text(max_size=50), st.text(min_size=200, max_size=300))
def test_blocks_are_shared_exactly_as_far_as_prompts_agree(first, second, common):
    tokens = tokens_of(common)
    left, right = blocks_of([*tokens, *tokens_of(first)]), blocks_of([*tokens, *tokens_of(second)])
    shared = len(tokens) // 16
    assert left[:shared] == right[:shared]


@given(st.text(max_size=30))
def test_answers_to_anything_are_text(prompt):
    from itertools import islice

    said = "".join(islice(answer(prompt), 40))
    assert said == "".join(islice(answer(prompt), 40))
    assert not degenerate(said)


@given(
    st.binary(max_size=300),
    st.sampled_from(["/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/embeddings"]),
)
def test_any_body_is_answered(body, path):
    kind = "embedding" if path.endswith("embeddings") else "generate"
    assert ask(engine(kind=kind), path, body).status in {200, 400, 404}


@pytest.mark.parametrize(
    ("kind", "path", "body"),
    [
        ("embedding", "/v1/embeddings", {"input": "a"}),
        ("rerank", "/v1/rerank", {"query": "a", "documents": ["b", "a"]}),
        ("rerank", "/v1/score", {"text_1": "a", "text_2": "a"}),
        ("pooling", "/pooling", {"input": ["a"]}),
        ("pooling", "/classify", {"input": "a"}),
        ("speech", "/v1/audio/speech", {"input": "a"}),
    ],
)
def test_each_kind_of_model_has_its_own_paths(kind, path, body):
    model = engine(kind=kind)
    good = ask(model, path, {"model": "m", **body})
    assert good.status == 200
    assert ask(model, path, {"model": "other", **body}).status == 404
    assert ask(model, path, {"model": "m"}).status == 400
    assert ask(engine(kind=kind, mode=Mode.DEGENERATE), path, {"model": "m", **body}).status == 500
    assert ask(model, "/v1/chat/completions", chat()).status == 404
    assert ask(engine(), path, {"model": "m", **body}).status == 404
    if kind != "speech":
        assert senseless(kind, good.body().decode()) == ""


def test_a_reranker_puts_the_same_text_first():
    page = answered(engine(kind="rerank"), "/v1/rerank", {"query": "a", "documents": ["b", "a"]})
    assert [row["index"] for row in page["results"]] == [1, 0]
    assert page["results"][0]["relevance_score"] == pytest.approx(1.0)
