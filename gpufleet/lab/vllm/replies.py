"""Requests of an engine's clients and its replies, as data.

A reply carries its body as chunks, each with the seconds that pass before it and the tokens in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a body. `delay` is in seconds, infinite for an engine that hangs."""

    content: bytes
    delay: float = 0.0
    tokens: int = 0


@dataclass(slots=True, eq=False)
class Reply:
    """What is answered. `ticket` is there when the request generates; `streamed` when the length is unknown."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    chunks: Sequence[Chunk] = ()
    ticket: Any = None

    @property
    def streamed(self) -> bool:
        """Whether the body has no known length."""
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def body(self) -> bytes:
        """All chunks at once."""
        return b"".join(chunk.content for chunk in self.chunks)


class Rejected(Exception):
    """A request that is answered with an error."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def plain_json(status: int, value: object, headers: Mapping[str, str] | None = None) -> Reply:
    """A JSON body."""
    return Reply(
        status, {"content-type": "application/json", **(headers or {})}, (Chunk(msgspec.json.encode(value)),)
    )


def text(status: int, body: str) -> Reply:
    """The Prometheus text format."""
    return Reply(
        status, {"content-type": "text/plain; version=0.0.4; charset=utf-8"}, (Chunk(body.encode()),)
    )


def error(status: int, kind: str, message: str, param: str | None = None) -> Reply:
    """An error body of vLLM: that of OpenAI, with a number as code."""
    return plain_json(status, {"error": {"message": message, "type": kind, "param": param, "code": status}})


def event_of(kind: str, value: object, delay: float = 0.0, tokens: int = 0) -> Chunk:
    """One event with a name, as the dialects of Anthropic and of `/v1/responses` have them."""
    return Chunk(b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(value)), delay, tokens)
