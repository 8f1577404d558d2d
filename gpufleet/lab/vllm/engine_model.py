"""One engine that speaks vLLM, without sockets and without a clock: the time is an argument.

    spec = parse_spec(("vllm", "serve", "m", "--port", "8001"), {"VLLM_API_KEY": "k"})     # lab.vllm.spec
    engine = EngineModel(spec, started=now)
    engine.phase(now), engine.exit_code(now), engine.log(now)
    reply = engine.respond(Request("POST", "/v1/chat/completions", headers, body), now)

Theory of operation. Until `load_seconds` have passed the engine does not listen: `respond` raises
`ConnectionRefusedError`, as a closed port does. A reply has a status, headers and chunks; each chunk says how many
seconds pass before it is sent. A reply to a request that generates has a `Ticket` too, and whoever sends it calls,
in this order: `begin(ticket, now)` until it answers True (before that the request waits for a place), `sent` for
each chunk, and exactly once `finish(ticket, reason, now)`, with `abort` when the client left. `serve` does all of
this with a clock; `lab.engine` does it with sockets.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from gpufleet.engine.adapters import LOAD, UNLOAD
from gpufleet.lab.vllm import adapters, api, log, messages, pooling, replies, responses
from gpufleet.lab.vllm.api import Generation
from gpufleet.lab.vllm.metrics import Counters, Gauges, page
from gpufleet.lab.vllm.replies import Chunk, Reply, Request
from gpufleet.lab.vllm.spec import EngineSpec, Mode
from gpufleet.lab.vllm.words import BLOCK, blocks_of

CACHED_BLOCKS = 50_000
"""Blocks that the prefix cache of the model remembers."""

GUARDED = ("/v1", "/v2", "/inference", "/cohere")
"""Paths that want a key when the engine has one; everything else is open, as in vLLM."""


class Phase(Enum):
    """Where an engine is in its life."""

    LOADING = "loading"
    READY = "ready"
    EXITED = "exited"


@dataclass(slots=True, eq=False)
class Ticket:
    """One request that generates, from arrival to end."""

    generation: Generation
    arrived: float
    began: float | None = None
    last_sent: float | None = None
    tokens: int = 0
    ended: bool = False
    on_end: Callable[..., None] | None = None
    """Told `whole=`: whether all of it was made."""


@dataclass(slots=True)
class EngineModel:
    """The state of one engine.

    Attributes:
        started: seconds, on the same clock as every `now`.
        wall: seconds to add to that clock to get the time of day.
        stopped: the exit status, when somebody ended it.
    """

    spec: EngineSpec
    started: float
    counters: Counters = field(default_factory=Counters)
    wall: float = 0.0
    stopped: int | None = None
    extra_log: list[str] = field(default_factory=list)
    _running: list[Ticket] = field(default_factory=list)
    _waiting: list[Ticket] = field(default_factory=list)
    _cache: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    _responses: responses.Store = field(default_factory=responses.Store)
    _serial: int = 0

    # life

    def phase(self, now: float) -> Phase:
        """Loading, ready, or gone."""
        if self.exit_code(now) is not None:
            return Phase.EXITED
        share = self._share(now)
        return Phase.READY if share >= 1.0 and log.ending(self.spec) is None else Phase.LOADING

    def exit_code(self, now: float) -> int | None:
        """The exit status; None while it lives."""
        if self.stopped is not None:
            return self.stopped
        end = log.ending(self.spec)
        if end is None or end.status is None or self._share(now) < end.at:
            return None
        return end.status

    def ready_at(self) -> float:
        """When it will listen; never for one that stalls or ends."""
        return self.started + self.spec.load_seconds if log.ending(self.spec) is None else math.inf

    def log(self, now: float) -> str:
        """Everything printed until now."""
        share = self._share(now)
        lines = [line.text for line in log.startup(self.spec) if line.at <= share]
        return "".join(f"{line}\n" for line in (*lines, *self.extra_log))

    def stop(self, now: float, status: int = 0) -> None:
        """End the process, as after SIGTERM (0) or a kill (137); what is under way is aborted."""
        if self.exit_code(now) is not None:
            return
        for ticket in (*self._running, *self._waiting):
            self.finish(ticket, "abort", now)
        if status == 0:
            self.extra_log.append("(APIServer pid=1) INFO:     Shutting down")
        self.stopped = status

    def change_mode(self, mode: Mode) -> None:
        """Behave otherwise from now on, for faults in the middle of a run."""
        self.spec = replace(self.spec, mode=mode)

    def _share(self, now: float) -> float:
        elapsed = now - self.started
        return 1.0 if elapsed >= self.spec.load_seconds else max(0.0, elapsed) / self.spec.load_seconds

    # requests

    def respond(self, request: Request, now: float) -> Reply:
        """What one request is answered.

        Raises:
            ConnectionRefusedError: nothing listens.
        """
        if self.phase(now) is not Phase.READY:
            raise ConnectionRefusedError("nothing listens on the engine's port")
        self._serial += 1
        self._settle(now)
        reply = self._route(request, now)
        if self.spec.request_id_headers:
            given = request.headers.get("x-request-id", f"{self._serial:032x}")
            reply.headers["x-request-id"] = given
        return reply

    def _route(self, request: Request, now: float) -> Reply:
        path = request.path.partition("?")[0]
        if path.startswith(GUARDED) and request.method != "OPTIONS" and not self._authorised(request):
            return replies.plain_json(401, {"error": "Unauthorized"})
        if path in {"/health", "/ping"}:
            return Reply(503 if self.spec.mode is Mode.UNHEALTHY else 200)
        answers: Mapping[str, tuple[str, Callable[[Request, float], Reply]]] = {
            "/version": (
                "GET",
                lambda _request, _now: replies.plain_json(200, {"version": self.spec.version}),
            ),
            "/metrics": ("GET", lambda _request, _now: replies.text(200, self.metrics())),
            "/v1/models": (
                "GET",
                lambda _request, _now: api.models(self.spec, int(self.started + self.wall)),
            ),
            **(self._generating() if self.spec.kind == "generate" else {}),
            **(
                {LOAD: ("POST", self._load), UNLOAD: ("POST", self._unload)}
                if self.spec.lora and self.spec.runtime_lora
                else {}
            ),
            "/tokenize": ("POST", lambda request, _now: api.tokenize(self.spec, request)),
        }
        if path not in answers:
            stored = path.startswith(f"{responses.PATH}/") and responses.PATH in answers
            return self._responses.answer(request, now) if stored else self._pooled(request)
        method, answer = answers[path]
        if request.method != method:
            return replies.plain_json(405, {"detail": "Method Not Allowed"}, {"allow": method})
        return answer(request, now)

    def _generating(self) -> dict[str, tuple[str, Callable[[Request, float], Reply]]]:
        """Paths of a model that generates, in this version."""
        paths: dict[str, tuple[str, Callable[[Request, float], Reply]]] = {
            "/v1/chat/completions": ("POST", self._generate),
            "/v1/completions": ("POST", self._generate),
        }
        if self.spec.is_from(0, 10):
            paths[responses.PATH] = ("POST", self._respond)
        if self.spec.is_from(0, 12):
            paths[messages.PATH] = ("POST", self._message)
        if self.spec.is_from(0, 16):
            paths[messages.COUNT] = ("POST", lambda request, _now: messages.count(self.spec, request))
        return paths

    def _authorised(self, request: Request) -> bool:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return not self.spec.keys or (
            scheme.lower() == "bearer" and any(key == known.reveal() for known in self.spec.keys)
        )

    def _generate(self, request: Request, now: float) -> Reply:
        try:
            generation = api.generation(self.spec, request, self._serial, int(now + self.wall))
        except replies.Rejected as rejected:
            return rejected.reply
        return self._under_way(generation, now, lambda: api.chunks(self.spec, generation))

    def _message(self, request: Request, now: float) -> Reply:
        try:
            made = messages.understand(self.spec, request, self._serial, int(now + self.wall))
        except replies.Rejected as rejected:
            return rejected.reply
        return self._under_way(made, now, lambda: messages.chunks(self.spec, made))

    def _respond(self, request: Request, now: float) -> Reply:
        try:
            response = responses.understand(
                self.spec, self._responses.kept, request, self._serial, int(now + self.wall)
            )
        except replies.Rejected as rejected:
            return rejected.reply
        made = response.made
        if response.keeps:
            self._responses.kept[response.id] = response
        if response.asked.get("background"):
            made.cached = self._look_up(made)
            work = api.wait_of(self.spec, made) + made.completion_tokens * self.spec.token_seconds
            response.due = now + work
            if not made.stream:
                return replies.plain_json(200, responses.document(response, "queued", []))
            return self._responses.answer(Request("GET", f"{responses.PATH}/{response.id}?stream=true"), now)
        reply = self._under_way(made, now, lambda: responses.chunks(self.spec, response))
        reply.ticket.on_end = response.ended
        return reply

    def _under_way(self, generation: Generation, now: float, body: Callable[[], Sequence[Chunk]]) -> Reply:
        """A request that waits for its place from now on."""
        generation.cached = self._look_up(generation)
        ticket = Ticket(generation, now)
        self._waiting.append(ticket)
        return Reply(200, api.generation_headers(generation), body(), ticket=ticket)

    def _pooled(self, request: Request) -> Reply:
        """What a model answers that does not generate."""
        found = pooling.answer(self.spec, request, self._serial)
        if found is None:
            return replies.plain_json(404, {"detail": "Not Found"})
        reply, tokens = found
        self.counters.prompt_tokens += tokens
        return reply

    def _load(self, request: Request, _now: float) -> Reply:
        changed = adapters.load(self.spec, request)
        if isinstance(changed, Reply):
            return changed
        self.spec, said = changed
        return said

    def _unload(self, request: Request, _now: float) -> Reply:
        changed = adapters.unload(self.spec, request)
        if isinstance(changed, Reply):
            return changed
        self.spec, said = changed
        return said

    def _settle(self, now: float) -> None:
        """Count what was made in the background since the last request."""
        for response in self._responses.settle(now):
            made = response.made
            self.counters.prompt_tokens += made.prompt_tokens
            self.counters.cached_tokens += made.cached
            self.counters.generation_tokens += made.completion_tokens
            self.counters.finished[made.finish] += 1

    # bookkeeping of requests that generate

    def begin(self, ticket: Ticket, now: float) -> bool:
        """Whether there is a place for it; from then on it runs."""
        if ticket.began is not None or ticket.ended:
            return True
        if len(self._running) >= self.spec.max_num_seqs or self._waiting[0] is not ticket:
            return False
        self._waiting.remove(ticket)
        self._running.append(ticket)
        ticket.began = now
        self.counters.queued.observe(now - ticket.arrived)
        self.counters.prompt_tokens += ticket.generation.prompt_tokens
        self.counters.cached_tokens += ticket.generation.cached
        self.counters.prompt_sizes.observe(ticket.generation.prompt_tokens)
        return True

    def sent(self, ticket: Ticket, chunk: Chunk, now: float) -> None:
        """A chunk has left; its tokens count from here on."""
        if not chunk.tokens:
            return
        first = ticket.last_sent is None
        since = ticket.arrived if first else ticket.last_sent or now
        (self.counters.first_token if first else self.counters.between_tokens).observe(max(0.0, now - since))
        ticket.last_sent = now
        ticket.tokens += chunk.tokens
        self.counters.generation_tokens += chunk.tokens

    def finish(self, ticket: Ticket, reason: str, now: float) -> None:
        """It is over: `stop`, `length`, `error`, or `abort` when the client left. Later calls change nothing."""
        if ticket.ended:
            return
        ticket.ended = True
        if ticket.on_end is not None:
            ticket.on_end(whole=reason in {"stop", "length"})
        for place in (self._running, self._waiting):
            if ticket in place:
                place.remove(ticket)
        self.counters.finished[reason] += 1
        self.counters.in_all.observe(max(0.0, now - ticket.arrived))
        self.counters.generation_sizes.observe(ticket.tokens)

    @property
    def running(self) -> int:
        """Requests that have a place."""
        return len(self._running) + self._responses.working()

    @property
    def waiting(self) -> int:
        """Requests that wait for one."""
        return len(self._waiting)

    def kv_used(self) -> float:
        """Share of the KV cache that running requests hold."""
        blocks = sum(
            math.ceil((ticket.generation.prompt_tokens + ticket.tokens) / BLOCK) for ticket in self._running
        )
        return min(1.0, blocks * BLOCK / self.spec.kv_tokens)

    def metrics(self) -> str:
        """The text of /metrics."""
        gauges = Gauges(
            running=self.running,
            waiting=self.waiting,
            kv_used=self.kv_used(),
            kv_tokens=self.spec.kv_tokens,
            gpu_memory_utilization=self.spec.gpu_memory_utilization,
        )
        return page(self.spec.names[0], self.counters, gauges)

    def _look_up(self, generation: Generation) -> int:
        """Prompt tokens that are cached; the whole prompt is cached from now on."""
        hashes = blocks_of(generation.prompt)
        found = 0
        for block in hashes:
            if block not in self._cache:
                break
            found += 1
        for block in hashes:
            self._cache[block] = None
            self._cache.move_to_end(block)
        while len(self._cache) > CACHED_BLOCKS:
            self._cache.popitem(last=False)
        return min(found * BLOCK, max(0, generation.prompt_tokens - 1))


def serve(
    engine: EngineModel, request: Request, now: Callable[[], float], sleep: Callable[[float], None]
) -> tuple[int, Mapping[str, str], Iterator[bytes]]:
    """Answer one request with a clock: status, headers and the body piece by piece.

    An empty piece means that time has passed and nothing was said; an engine that hangs says nothing but these.

    Raises:
        ConnectionRefusedError: nothing listens.
    """
    reply = engine.respond(request, now())
    return reply.status, reply.headers, _pieces(engine, reply, now, sleep)


def _pieces(
    engine: EngineModel, reply: Reply, now: Callable[[], float], sleep: Callable[[float], None]
) -> Iterator[bytes]:
    ticket = reply.ticket
    reason = "abort"
    try:
        while ticket is not None and not engine.begin(ticket, now()):
            sleep(0.01)
            yield b""
        for chunk in reply.chunks:
            while math.isinf(chunk.delay):
                sleep(1.0)
                yield b""
            sleep(chunk.delay)
            if engine.phase(now()) is Phase.EXITED:
                raise ConnectionResetError("the engine ended while it answered")
            yield chunk.content
            if ticket is not None:
                engine.sent(ticket, chunk, now())
                reason = ticket.generation.finish
    finally:
        if ticket is not None:
            engine.finish(ticket, reason, now())
