"""`lab demo`: the main job told as a story, on a simulated fleet, through the same commands a person types.

The fleet runs in this process; every command is a process of its own and speaks real SSH and real HTTP to it.
Nothing is staged: what a command answered is what is shown, and the demo fails when an answer is not the expected
one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess  # noqa: TID251  # the demo runs gpufleet itself, as a person would
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from gpufleet.cli.console import Answer
from gpufleet.clock import Clock, SystemClock
from gpufleet.errors import FleetError
from gpufleet.lab.fleet import Fleet, HostWish, build_fleet
from gpufleet.lab.lab_files import LabFolder

HOSTS = 6
MODEL = "lab/tiny-chat"
IMAGE = "vllm/vllm-openai:v0.20.2"
QUESTION = "What does a fleet of GPUs do at night?"
REQUESTS = 12


class DemoFailed(FleetError):
    """A step of the demo did not answer as it must: a defect of gpufleet or of its lab."""

    code = "demo-failed"


@dataclass(slots=True)
class Story:
    """What was done so far, for people while it happens and as JSON at the end."""

    console: Console
    clock: Clock
    steps: list[dict[str, object]] = field(default_factory=list)
    began: float = 0.0

    @contextmanager
    def step(self, title: str) -> Iterator[dict[str, object]]:
        """One chapter: its title now, its result and its duration when it ends."""
        self.console.print(f"\n[bold cyan]{len(self.steps) + 1}. {title}[/]")
        record: dict[str, object] = {"step": title}
        began = self.clock.monotonic()
        yield record
        record["duration_s"] = round(self.clock.monotonic() - began, 2)
        self.steps.append(record)
        if "result" in record:
            self.console.print(f"   [green]✓[/] {record['result']} [dim]({record['duration_s']} s)[/]")

    def expect(self, holds: object, failure: str, detail: object = "") -> None:
        """Stop the demo when something is not as it must be."""
        if not holds:
            raise DemoFailed(failure, hints=(str(detail)[:2000],) if detail else ())


@dataclass(frozen=True, slots=True)
class Prompt:
    """Runs gpufleet as a person would and reads its JSON."""

    inventory: Path
    state: Path
    console: Console

    def run(self, *words: str) -> dict[str, Any]:
        """The one JSON object that a command answers, whatever its exit code."""
        self.console.print(f"   [dim]$ gpufleet {' '.join(words)}[/]", highlight=False)
        done = subprocess.run(
            self.words(*words),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            raise DemoFailed(
                f"`gpufleet {words[0]}` gave no JSON", hints=((done.stdout + done.stderr)[-2000:],)
            ) from None
        return answer

    def words(self, *words: str) -> list[str]:
        """The whole command line."""
        options = [
            "-i",
            str(self.inventory),
            "--state-dir",
            str(self.state),
            "-o",
            "json",
            "--no-input",
            "--yes",
        ]
        separate = words.index("--") if "--" in words else len(words)
        before, after = list(words[:separate]), list(words[separate:])
        return [sys.executable, "-m", "gpufleet", *before, *options, *after]


@contextmanager
def _orderly_end() -> Iterator[None]:
    """SIGTERM and a closed terminal leave nothing behind either, as Ctrl-C does."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # signals come to the main thread alone
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, action in before.items():
        if action is not signal.SIG_IGN:  # `nohup` asks to live on
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


@_orderly_end()
def demo(*, quiet: bool, clock: Clock | None = None) -> Answer:
    """Tell the whole story; raises DemoFailed at the first step that is not as it must be."""
    clock = clock or SystemClock()
    console = Console(stderr=True, quiet=quiet, soft_wrap=True)
    story = Story(console, clock, began=clock.monotonic())
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-demo-"))
    try:
        with _lab(folder) as fleet:
            with story.step(f"{HOSTS} simulated hosts with 8 H100 each, behind a real SSH server") as record:
                record["result"] = "up: " + ", ".join(lab.name for lab in fleet)
            prompt = Prompt(LabFolder(folder / "lab").inventory, folder / "state", console)
            answer = _tell(story, prompt, fleet)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    with story.step("fleet down") as record:
        story.expect(not folder.exists(), "the demo's folder is still there", folder)
        record["result"] = "nothing is left behind"
    seconds = round(clock.monotonic() - story.began, 1)
    return Answer(
        command="lab demo",
        fields={"steps": story.steps, "answer": answer, "duration_s": seconds},
        text=f"lab demo: all {len(story.steps)} steps as they must be, in {seconds} s",
    )


@contextmanager
def _lab(folder: Path) -> Iterator[Fleet]:
    """The fleet, its SSH servers and its engines, in this process, on loopback addresses of its own."""
    from gpufleet.lab.sshd import LabServer
    from gpufleet.lab.vllm.engine import EngineServer
    from gpufleet.lab.vllm.served_engines import ServedEngines
    from gpufleet.lab.vllm.spec import EngineSpec

    network = f"127.78.{1 + os.getpid() % 250}"
    wishes = [HostWish(name=f"gpu-{n:02}", address=f"{network}.{n}") for n in range(1, HOSTS + 1)]
    engines = EngineServer()
    base = EngineSpec(load_seconds=0.2, token_seconds=0.02)
    fleet = build_fleet(wishes, SystemClock(), engines=lambda _host: ServedEngines(engines, base))
    with (
        contextlib.closing(engines),
        LabServer(fleet, LabFolder(folder / "lab"), port=_free_port(f"{network}.1")),
    ):
        yield fleet


def _tell(story: Story, prompt: Prompt, fleet: Fleet) -> str:
    with story.step("are the hosts fit for it?") as record:
        answer = prompt.run("hosts", "check")
        story.expect(answer["exit"] == 0, "hosts check found a fault", answer)
        record["result"] = f"{len(answer['hosts'])} hosts checked, no error"
    with story.step("bulk deploy: six replicas as one change") as record:
        answer = prompt.run(
            "pool", "deploy", "chat", "--model", MODEL, "--image", IMAGE, "--hosts", "all", "--replicas", "6"
        )
        story.expect(answer["outcome"] == "committed", "the deploy did not commit", answer)
        record |= {"run": answer["run"], "result": f"committed as run {answer['run']}, six replicas answer"}
    with _proxy(story, prompt) as client:
        text = _chat(story, client)
        _rollback(story, prompt, fleet)
        _route_around(story, prompt, client)
    return text


@contextmanager
def _proxy(story: Story, prompt: Prompt) -> Iterator[httpx.Client]:
    with story.step("one OpenAI-compatible address in front of them") as record:
        token = prompt.run("token", "create", "demo")["token"]
        address, admin = (f"127.0.0.1:{_free_port('127.0.0.1')}" for _ in range(2))
        client = httpx.Client(
            base_url=f"http://{address}",
            headers={"Authorization": f"Bearer {token}"},
            timeout=30,
            trust_env=False,
        )
        process = subprocess.Popen(
            prompt.words("proxy", "serve", "--listen", address, "--admin", admin),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            story.expect(_until(story.clock, lambda: _answers(client)), "the proxy does not answer", address)
        except BaseException:
            process.kill()
            raise
        record["result"] = f"the proxy serves at http://{address}/v1"
    try:
        yield client
    finally:
        client.close()
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait(10)


def _chat(story: Story, client: httpx.Client) -> str:
    """One streamed answer, shown as its tokens come."""
    said: list[str] = []
    with story.step(f"a streamed chat: {QUESTION}") as record:
        with client.stream("POST", "/v1/chat/completions", json=_body(stream=True)) as response:
            story.expect(response.status_code == 200, f"the chat was answered {response.status_code}")
            story.console.print("   ", end="")
            for token in _tokens(response.iter_lines()):
                said.append(token)
                story.console.print(token, end="", style="yellow", highlight=False)
            story.console.print()
        story.expect("".join(said).strip(), "the stream held no token")
        endpoint = response.headers["x-gpufleet-endpoint"]
        record |= {"endpoint": endpoint, "tokens": len(said), "result": f"{len(said)} tokens from {endpoint}"}
    return "".join(said)


def _rollback(story: Story, prompt: Prompt, fleet: Fleet) -> None:
    from gpufleet.lab.faults import Fault, Kind

    with story.step("a second deploy, and the engine on host four dies while loading") as record:
        before = _containers(prompt)
        fleet["gpu-04"].strike(Fault(kind=Kind.ENGINE, host="gpu-04", nth=1, detail="cuda-oom"))
        answer = prompt.run(
            "pool",
            "deploy",
            "helper",
            "--model",
            MODEL,
            "--image",
            IMAGE,
            "--hosts",
            "all",
            "--replicas",
            "6",
        )
        story.expect(
            answer["outcome"] == "rolled_back" and answer["exit"] == 9, "it was not rolled back", answer
        )
        after = _containers(prompt)
        story.expect(before == after, "the hosts are not as they were", {"before": before, "after": after})
        cause = answer["error"]["message"]
        story.console.print(f"   [red]{cause}[/]", highlight=False)
        record |= {
            "exit": 9,
            "cause": cause,
            "result": "exit 9: rolled back, `docker ps -a` on all hosts is as before",
        }


def _route_around(story: Story, prompt: Prompt, client: httpx.Client) -> None:
    with story.step(f"a member is killed, then {REQUESTS} chats") as record:
        name = prompt.run("hosts", "run", "gpu-02", "--", "docker", "ps", "-q")["hosts"][0]["stdout"].split()[
            0
        ]
        prompt.run("hosts", "run", "gpu-02", "--", "docker", "kill", name)
        answered: dict[str, int] = {}
        for _ in range(REQUESTS):
            response = client.post("/v1/chat/completions", json=_body(stream=False))
            story.expect(
                response.status_code == 200, f"a chat was answered {response.status_code}", response.text
            )
            endpoint = response.headers["x-gpufleet-endpoint"]
            answered[endpoint] = answered.get(endpoint, 0) + 1
        story.expect(
            not any(name.startswith("gpu-02/") for name in answered), "the dead member answered", answered
        )
        record |= {
            "answered": answered,
            "result": f"{REQUESTS} of {REQUESTS} answered by the other {len(answered)} members",
        }


def _containers(prompt: Prompt) -> dict[str, list[str]]:
    """Every container of every host with its state, as the host's own runtime lists it."""
    answer = prompt.run(
        "hosts",
        "run",
        "all",
        "--",
        "docker",
        "ps",
        "-a",
        "--no-trunc",
        "--format",
        "{{.ID}} {{.Names}} {{.State}}",
    )
    return {row["host"]: sorted(row["stdout"].splitlines()) for row in answer["hosts"]}


def _body(*, stream: bool) -> dict[str, object]:
    return {
        "model": MODEL,
        "stream": stream,
        "max_tokens": 24 if stream else 6,
        "messages": [{"role": "user", "content": QUESTION}],
    }


def _tokens(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            for choice in json.loads(line[6:]).get("choices", ()):
                yield choice.get("delta", {}).get("content") or ""


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/v1/models").status_code == 200
    except httpx.TransportError:
        return False


def _until(clock: Clock, holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        if holds():
            return True
        clock.sleep(0.05)
    return False


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
