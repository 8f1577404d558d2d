"""The libraries that people call the proxy with: openai, anthropic and curl, over engines of the lab."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from gpufleet.lab.vllm.engine import EngineServer, RunningEngine
from gpufleet.lab.vllm.spec import EngineSpec, Mode
from gpufleet.pools.routes import EndpointRoute, PoolRoute, RouteTable
from gpufleet.proxy.decide.deadline import Timeouts
from gpufleet.redact import Secret
from gpufleet.tokens.model import Principal, issue
from gpufleet.tokens.store import TokenStore
from tests.kit.engines import PATIENCE
from tests.kit.proxies import Proxy, eventually, proxy

pytestmark = pytest.mark.wire
ASK: list[Any] = [{"role": "user", "content": "How is the weather in Bern?"}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["C", "F"]}},
    "required": ["city"],
}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
SOUND = b"RIFF" + bytes(range(256)) * 800
WITH_TOOLS = {"--enable-auto-tool-choice": "True", "--tool-call-parser": "hermes"}


class House:
    """Pools of the lab's engines, a proxy before them, and a key that it knows."""

    def __init__(
        self, running: Proxy, engines: dict[str, RunningEngine], server: EngineServer, key: str
    ) -> None:
        self.proxy, self.engines, self.server, self.key = running, engines, server, key
        self.url = f"http://127.0.0.1:{running.started.listen.port}"

    def client(self, **fields: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0, **fields)

    def patient(self, **fields: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0, **fields)

    def messages_client(self) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.url, api_key=self.key, max_retries=0)

    def idle(self) -> bool:
        return not any(self.proxy.in_flight()) and all(
            engine.model.running == engine.model.waiting == 0 for engine in self.engines.values()
        )

    def aborted(self, name: str = "chat") -> int:
        return self.engines[name].model.counters.finished["abort"]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    secret = Secret("engine-key")
    quick: dict[str, Any] = {"load_seconds": 0.0, "token_seconds": 0.001, "keys": (secret,)}
    specs = {
        "chat": EngineSpec(model="m", arguments=WITH_TOOLS, stores_responses=True, **quick),
        "embed": EngineSpec(model="bge", kind="embedding", **quick),
        "ears": EngineSpec(model="whisper", kind="transcription", **quick),
    }
    (tmp_path / "engine.key").write_text("engine-key")
    (tmp_path / "engine.key").chmod(0o600)
    with EngineServer() as server:
        engines = {name: server.start((("127.0.0.1", 0),), spec) for name, spec in specs.items()}
        pools = [
            PoolRoute(
                name=name,
                models=(spec.model,),
                endpoints=(
                    EndpointRoute(
                        id=f"{name}/0",
                        url=f"http://127.0.0.1:{engines[name].addresses[0][1]}",
                        key=f"${{file:{tmp_path / 'engine.key'}}}",
                    ),
                ),
            )
            for name, spec in specs.items()
        ]
        everybody = Principal(name="me", models=frozenset())
        key, token = issue(everybody, now=1.0, lifetime=None, random_bytes=os.urandom)
        TokenStore(tmp_path / "tokens.db").add(token)
        routes = RouteTable(generation=1, pools=tuple(pools))
        with proxy(tmp_path, routes, allow_anonymous=False, timeouts=Timeouts()) as running:
            yield House(running, engines, server, key.reveal())


def test_a_chat_whole_and_streamed(house):
    with house.client() as client:
        whole = client.chat.completions.create(model="m", messages=ASK)
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None and whole.usage.completion_tokens > 0
        stream = client.chat.completions.create(
            model="m", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        events = list(stream)
    said = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert said == whole.choices[0].message.content
    assert (
        events[-1].usage is not None and events[-1].usage.completion_tokens == whole.usage.completion_tokens
    )


def test_many_chats_at_once_without_blocking(house):
    async def all_at_once() -> list[str]:
        async with house.patient() as client:

            async def one(number: int) -> str:
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": f"Tell me of {number}."}], stream=True
                )
                return "".join([event.choices[0].delta.content or "" async for event in stream])

            return await asyncio.gather(*map(one, range(20)))

    assert all(asyncio.run(all_at_once()))
    eventually(house.idle)


def test_completions_models_and_what_does_not_exist(house):
    with house.client() as client:
        assert client.completions.create(model="m", prompt="Once", max_tokens=5).choices[0].text
        assert {model.id for model in client.models.list()} == {"m", "bge", "whisper"}
        assert client.models.retrieve("m").id == "m"
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.chat.completions.create(model="nobody", messages=ASK)
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            client.chat.completions.create(model="m", messages=ASK, max_tokens=10**9)
    with house.client() as client, pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="gf_wrong").models.list()


def test_tools_whole_and_streamed_and_what_they_returned(house):
    with house.client() as client:
        whole = client.chat.completions.create(model="m", messages=ASK, tools=[TOOL])
        call: Any = (whole.choices[0].message.tool_calls or [None])[0]
        assert (whole.choices[0].finish_reason, call.function.name) == ("tool_calls", "weather")
        assert json.loads(call.function.arguments)["unit"] == "C"
        with client.chat.completions.stream(model="m", messages=ASK, tools=[TOOL]) as stream:
            last: Any = stream.get_final_completion()
        assert last.choices[0].message.tool_calls[0].function.arguments == call.function.arguments
        told: Any = [
            *ASK,
            {"role": "assistant", "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"},
        ]
        assert (
            client.chat.completions.create(model="m", messages=told, tools=[TOOL]).choices[0].message.content
        )


def test_embeddings(house):
    with house.client() as client:
        packed = client.embeddings.create(model="bge", input=["one", "two"])  # it asks for base64
        plain = client.embeddings.create(model="bge", input=["one", "two"], encoding_format="float")
    assert len(packed.data) == 2
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
        assert math.isclose(sum(value * value for value in one.embedding), 1.0, rel_tol=1e-4)


def test_sound_is_uploaded_and_heard_word_by_word(house):
    with house.client() as client:
        whole = client.audio.transcriptions.create(model="whisper", file=("a.wav", SOUND))
        assert whole.text
        stream: Any = client.audio.transcriptions.create(model="whisper", file=("a.wav", SOUND), stream=True)
        said = "".join(event.choices[0]["delta"]["content"] for event in stream)
    assert said == whole.text


def test_responses_whole_streamed_kept_and_cancelled(house):
    with house.client() as client:
        whole = client.responses.create(model="m", input="Say something.")
        assert (whole.status, bool(whole.output_text)) == ("completed", True)
        stream = client.responses.create(model="m", input="Say something.", stream=True)
        events = list(stream)
    kinds = [event.type for event in events]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == whole.output_text


def test_messages_of_anthropic(house):
    with house.messages_client() as client:
        whole = client.messages.create(model="m", max_tokens=100, messages=ASK, system="Be brief.")
        assert (whole.stop_reason, whole.content[0].type) == ("end_turn", "text")
        with client.messages.stream(model="m", max_tokens=100, messages=ASK, system="Be brief.") as stream:
            said = "".join(stream.text_stream)
            last = stream.get_final_message()
        assert said == whole.content[0].text
        assert last.usage.output_tokens == whole.usage.output_tokens
        assert client.messages.count_tokens(model="m", messages=ASK).input_tokens > 5
        tool: Any = {"name": "weather", "input_schema": WEATHER}
        called = client.messages.create(model="m", max_tokens=100, messages=ASK, tools=[tool])
        assert (called.stop_reason, called.content[0].type) == ("tool_use", "tool_use")
        with client.messages.stream(model="m", max_tokens=100, messages=ASK, tools=[tool]) as stream:
            assert stream.get_final_message().content[0].input == called.content[0].input
        with pytest.raises(anthropic.NotFoundError) as refused:
            client.messages.create(model="nobody", max_tokens=10, messages=ASK)
        body: Any = refused.value.body
        assert body["error"]["type"] == "not_found_error"
    with house.messages_client() as client, pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="gf_wrong").messages.create(model="m", max_tokens=9, messages=ASK)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_waits_no_longer_ends_the_engines_work(house, stream):
    house.server.change_mode(house.engines["chat"], Mode.HANG)
    with house.client(timeout=0.3) as client, pytest.raises(openai.APITimeoutError):
        for _ in client.chat.completions.create(model="m", messages=ASK, stream=stream):
            pass
    eventually(lambda: house.aborted() == 1)
    eventually(house.idle)


def test_a_task_that_is_cancelled_ends_the_engines_work(house):
    house.server.change_mode(house.engines["chat"], Mode.HANG)

    async def cancelled() -> None:
        async with house.patient() as client:
            task = asyncio.create_task(client.chat.completions.create(model="m", messages=ASK))
            await asyncio.to_thread(eventually, lambda: house.engines["chat"].model.running)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(cancelled())
    eventually(lambda: house.aborted() == 1)
    eventually(house.idle)


def test_an_engine_that_dies_in_a_stream_is_an_error_in_every_library(house):
    for ask in (_openai_stream, _anthropic_stream):
        with pytest.raises((openai.APIError, anthropic.APIError), match="upstream connection lost"):
            ask(house)


def _openai_stream(house: House) -> None:
    endless: Any = {"ignore_eos": True, "max_tokens": 20_000}
    with house.client() as client:
        for number, _ in enumerate(
            client.chat.completions.create(model="m", messages=ASK, stream=True, extra_body=endless)
        ):
            if number == 5:
                _reset_connections(house)


def _anthropic_stream(house: House) -> None:
    with house.messages_client() as client:
        stream: Any = client.messages.create(
            model="m", max_tokens=20_000, messages=ASK, stream=True, extra_body={"ignore_eos": True}
        )
        for number, _ in enumerate(stream):
            if number == 5:
                _reset_connections(house)


def _reset_connections(house: House) -> None:
    engine = house.engines["chat"]
    for connection in list(engine.connections):
        house.server._loop.call_soon_threadsafe(connection.abort)


def curl(house: House, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["curl", "-sS", "--max-time", str(PATIENCE), "-H", f"Authorization: Bearer {house.key}", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)


def test_curl(house, tmp_path):
    chat = json.dumps({"model": "m", "messages": ASK})
    json_field = ("-H", "Content-Type: application/json")
    answer = curl(house, f"{house.url}/v1/chat/completions", *json_field, "-d", chat)
    assert json.loads(answer.stdout)["choices"][0]["message"]["content"]
    stream = json.dumps({"model": "m", "messages": ASK, "stream": True})
    answer = curl(house, "-N", f"{house.url}/v1/chat/completions", *json_field, "-d", stream)
    assert answer.stdout.endswith("data: [DONE]\n\n")
    (tmp_path / "a.wav").write_bytes(SOUND)
    form = ("-F", f"file=@{tmp_path / 'a.wav'}", "-F", "model=whisper")
    assert json.loads(curl(house, f"{house.url}/v1/audio/transcriptions", *form).stdout)["text"]
    large = tmp_path / "large.json"
    large.write_text(json.dumps({"model": "m", "prompt": "word " * 400_000, "max_tokens": 1}))
    answer = curl(
        house, f"{house.url}/v1/completions", *json_field, "-d", f"@{large}"
    )  # Expect: 100-continue
    assert "maximum context length" in json.loads(answer.stdout)["error"]["message"]
    answer = curl(
        house, "-w", "%{http_code}", "-o", "/dev/null", f"{house.url}/v1/models", "--http2-prior-knowledge"
    )
    assert answer.stdout in {"400", "000"}  # a client that speaks HTTP/2 alone is told so, and does no harm
    answer = curl(house, "-I", f"{house.url}/v1/models")
    assert answer.stdout.startswith("HTTP/1.1 200 OK")
    eventually(house.idle)
