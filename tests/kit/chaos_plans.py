"""What may go wrong with one request, as a value: how the engine answers, where it fails and how, when the client leaves.

A plan travels as the request's `X-Plan` field, so that an engine knows what to do and nothing is mixed up unseen: the
plan's number stands in the request's body and in every piece of the answer.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import product

BOUNDARY = "chaos-boundary"


class Kind(Enum):
    """What is asked."""

    CHAT = "/v1/chat/completions"
    STREAM = "/v1/chat/completions stream"
    MESSAGES = "/v1/messages stream"
    RESPONSES = "/v1/responses stream"
    UPLOAD = "/v1/audio/transcriptions"
    CHUNKED = "/v1/embeddings"
    MODELS = "/v1/models"

    @property
    def path(self) -> str:
        return self.value.partition(" ")[0]

    @property
    def streams(self) -> bool:
        return self.value.endswith("stream")


class Framing(Enum):
    """How the end of the answer is told, and two lies about it."""

    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"
    LONGER = "a length that is too long"
    SHORTER = "a length that is too short"
    BOTH = "length and chunks"


class Phase(Enum):
    """Where a fault strikes."""

    REQUEST_HEAD = "when the request's head is here"
    REQUEST_BODY = "in the request's body"
    BEFORE = "before the first byte"
    HEAD = "in the head"
    AFTER_HEAD = "behind the head"
    BODY = "in a piece"
    BETWEEN = "between two pieces"
    SIZE = "in the framing"
    LAST = "before the last chunk"
    END = "in the last chunk"
    BEHIND = "behind the answer"


class Act(Enum):
    """What happens there."""

    CLOSE = "close"
    RESET = "reset"
    STALL = "stall"
    SLOW = "slow"
    GARBAGE = "garbage"
    KILL = "kill"


class Leaves(Enum):
    """When a client leaves."""

    STAYS = "never"
    HEAD = "in its head"
    BODY = "in its body"
    SENT = "at once behind its request"
    WAITING = "while the engine works"
    ANSWER_HEAD = "behind the answer's head"
    ANSWER = "in the answer"


@dataclass(eq=False)
class Attempt:
    """One arrival of a request at an engine."""

    kept: bool
    """On a connection that had served before."""
    status: int = 0
    sent: int = 0
    head: int = 0
    """Bytes of the answer that were sent, and how long its head is."""


@dataclass(eq=False)
class Plan:
    """One request; `faulty` attempts go wrong, later ones are answered well."""

    number: int
    kind: Kind
    model: str = "m"
    framing: Framing = Framing.LENGTH
    status: int = 200
    phase: Phase = Phase.BEFORE
    act: Act | None = None
    faulty: int = 99
    leaves: Leaves = Leaves.STAYS
    how: Act = Act.CLOSE
    slow_reader: bool = False
    interim: bool = False
    size: int = 200
    minor: int = 1
    attempts: list[Attempt] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: bool = False
    done: bool = False
    stalls: int = 0
    """Attempts that wait for the proxy to hang up."""
    seen_gone: int = 0
    """Of those, the ones that saw it."""
    left_at: float = 0.0
    gone_at: float = 0.0
    """Loop times: when the client left, and when the engine saw it."""

    @property
    def fault(self) -> bool:
        return self.act not in {None, Act.SLOW} or self.framing in {Framing.LONGER, Framing.SHORTER}

    def __str__(self) -> str:
        act = f"{self.act.value} {self.phase.value}" if self.act else "no fault"
        return (
            f"plan {self.number}: {self.kind.name} of {self.model}, {self.status} by {self.framing.value}, {act}"
            f" in {self.faulty}, leaves {self.leaves.value} by {self.how.value}, {len(self.attempts)} attempts"
        )

    def request_body(self) -> bytes:
        """The same bytes each time, with the plan's number in them."""
        if self.kind is Kind.MODELS:
            return b""
        text = f"plan {self.number} " + "x" * self.size
        if self.kind is Kind.UPLOAD:
            parts = (
                f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="model"\r\n\r\n{self.model}\r\n'
                f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n{text}\r\n'
                f"--{BOUNDARY}--\r\n"
            )
            return parts.encode()
        return json.dumps({"model": self.model, "stream": self.kind.streams, "input": text}).encode()


def answer_pieces(plan: Plan, *, status: int) -> list[bytes]:
    """The content of an answer: events of a stream, or pieces of one JSON object."""
    if status != 200:
        return [
            json.dumps(
                {"error": {"message": f"engine says {status} to {plan.number}", "code": status}}
            ).encode()
        ]
    if not plan.kind.streams:
        whole = json.dumps({"id": f"answer-{plan.number}", "object": "x", "text": "y" * plan.size}).encode()
        third = max(20, len(whole) // 3)
        return [whole[start : start + third] for start in range(0, len(whole), third)]
    events = [
        f'data: {{"id":"answer-{plan.number}","word":{place},"text":"{"z" * 20}"}}\n\n' for place in range(5)
    ]
    last = "data: [DONE]\n\n" if plan.kind is Kind.STREAM else "event: message_stop\ndata: {}\n\n"
    return [event.encode() for event in (*events, last)]


def answer(plan: Plan, *, good: bool) -> tuple[bytes, dict[Phase, int], list[bytes]]:
    """The bytes of an answer, how many of them come before each phase, and its pieces. `good` is without lies and faults."""
    status = 200 if good else plan.status
    lies = {Framing.LONGER, Framing.SHORTER}
    framing = Framing.LENGTH if good and plan.framing in lies else plan.framing
    pieces = answer_pieces(plan, status=status)
    size = sum(map(len, pieces))
    stream = plan.kind.streams and status == 200
    kind = b"text/event-stream" if stream else b"application/json"
    head = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" if plan.interim else b""
    head += b"HTTP/1.1 %d Whatever\r\nContent-Type: %s\r\n" % (status, kind)
    told = {Framing.LONGER: size + 50, Framing.SHORTER: size - 10}.get(framing, size)
    if framing not in {Framing.CHUNKED, Framing.CLOSE}:
        head += b"Content-Length: %d\r\n" % told
    chunked = framing in {Framing.CHUNKED, Framing.BOTH}
    if chunked:
        head += b"Transfer-Encoding: chunked\r\n"
    head += b"\r\n"
    wired = [b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece for piece in pieces]
    wire = head + b"".join(wired)
    before = len(head) + sum(map(len, wired[: len(wired) // 2]))
    marks = {
        Phase.BEFORE: 0,
        Phase.HEAD: len(head) // 2,
        Phase.AFTER_HEAD: len(head),
        Phase.BETWEEN: before,
        Phase.SIZE: before + 1,
        Phase.BODY: before + len(wired[len(wired) // 2]) // 2,
        Phase.LAST: len(wire) if chunked else len(wire) - 1,
        Phase.END: len(wire) + 3 if chunked else len(wire) - 1,
    }
    wire += b"0\r\n\r\n" if chunked else b""
    marks[Phase.BEHIND] = len(wire)
    return wire, marks, pieces


_ENGINE_KINDS = [kind for kind in Kind if kind is not Kind.MODELS]


def grid(number: int) -> Iterator[Plan]:
    """Every kind of request with every framing, and every fault in every phase; every departure with every engine."""
    for kind, framing, phase, act in product(_ENGINE_KINDS, Framing, Phase, Act):
        if act is not Act.KILL and not (framing.value.startswith("a length") and kind.streams):
            yield Plan(number, kind, framing=framing, phase=phase, act=act)
            number += 1
    for kind, leaves, how in product(_ENGINE_KINDS, Leaves, (Act.CLOSE, Act.RESET)):
        for engine in (None, Act.SLOW, Act.STALL):
            for phase in (Phase.BEFORE, Phase.BETWEEN):
                yield Plan(
                    number, kind, framing=Framing.CHUNKED, leaves=leaves, how=how, act=engine, phase=phase
                )
                number += 1


def drawn(number: int, dice: random.Random, *, kills: bool = False) -> Plan:
    """Anything at all; a third of it goes well."""
    kind = dice.choice([*Kind, Kind.CHAT, Kind.STREAM])
    acts: list[Act] = [act for act in Act if act is not Act.KILL]
    faulty = kind is not Kind.MODELS and dice.random() < 0.6
    act: Act | None = dice.choice(acts) if faulty else None
    if faulty and kills and dice.random() < 0.04:
        act = Act.KILL
    if act is Act.STALL and dice.random() < 0.5:
        act = Act.RESET  # each stall costs its client a time-out
    lies = faulty and not kind.streams and dice.random() < 0.2
    leaves = dice.choice(list(Leaves)) if dice.random() < 0.25 else Leaves.STAYS
    return Plan(
        number,
        kind,
        model=dice.choice(["m", "m", "m", "rough"]),
        framing=dice.choice(
            list(Framing) if lies else [Framing.LENGTH, Framing.CHUNKED, Framing.CLOSE, Framing.BOTH]
        ),
        status=dice.choice([200, 200, 200, 400, 429, 500, 502, 503, 503, 504]) if faulty else 200,
        phase=dice.choice(list(Phase)),
        act=act,
        faulty=dice.choice([1, 1, 2, 99]),
        leaves=leaves,
        how=dice.choice([Act.CLOSE, Act.RESET]),
        slow_reader=dice.random() < 0.05,
        interim=dice.random() < 0.1,
        size=dice.choice([10, 200, 5_000, 200_000, 1_500_000 if kind is Kind.UPLOAD else 400_000]),
        minor=0 if dice.random() < 0.05 else 1,
    )
