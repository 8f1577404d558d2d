"""What one look of the gate showed, read from the plain text with headings that its script prints."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEADINGS = ("state", "health", "network", "models", "tokens", "work", "container", "log")
_STATUS = re.compile(r"\nstatus (\d+)\s*$")
_INTERFACE = re.compile(r"\s*([^\s:]+):\s*(\d+)\s")


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer as the script printed it; status 0 when there was none."""

    status: int
    body: str

    @classmethod
    def of(cls, text: str | None) -> Answer:
        found = _STATUS.search(f"\n{text or ''}")
        return cls(int(found[1]), (text or "")[: -len(found[0])]) if found else cls(0, text or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one look showed.

    Attributes:
        made: tokens that the engine counts; None when they were not asked for.
        memory_limit: bytes, 0 for none, None for unknown.
        error: what the runtime says about a start that failed.
    """

    status: str
    exit_code: int
    restarts: int
    out_of_memory: bool
    health: Answer
    models: Answer
    tokens: Answer
    received_mib: int
    made: int | None
    memory_limit: int | None
    error: str
    log: str


def sections(text: str) -> dict[str, str]:
    """The parts of an answer by heading; what stands in a log is never taken for one."""
    parts: dict[str, list[str]] = {}
    current: list[str] | None = None
    rest = list(_HEADINGS)
    for line in text.splitlines():
        name = line[3:] if line.startswith("== ") else ""
        if name in rest:
            del rest[: rest.index(name) + 1]
            current = parts.setdefault(name, [])
        elif current is not None:
            current.append(line)
    return {name: "\n".join(lines) for name, lines in parts.items()}


def read(text: str) -> Seen | None:
    """The answer of the look; None when it is not one."""
    parts = sections(text)
    words = parts.get("state", "").split()
    if len(words) < 4 or not words[1].lstrip("-").isdigit() or not words[2].isdigit():
        return None
    limit, _, error = parts.get("container", "").partition("\n")
    return Seen(
        status=words[0].casefold(),
        exit_code=int(words[1]),
        restarts=int(words[2]),
        out_of_memory=words[3].casefold() == "true",
        health=Answer.of(parts.get("health")),
        models=Answer.of(parts.get("models")),
        tokens=Answer.of(parts.get("tokens")),
        received_mib=_received(parts.get("network", "")) >> 20,
        made=_made(parts.get("work")),
        memory_limit=int(limit) if limit.isdigit() else None,
        error=error.strip(),
        log=parts.get("log", ""),
    )


def _received(text: str) -> int:
    """Bytes that came in over every interface but the loopback, from /proc/net/dev."""
    counts = (_INTERFACE.match(line) for line in text.splitlines())
    return sum(int(found[2]) for found in counts if found and found[1] != "lo")


def _made(text: str | None) -> int | None:
    """Tokens that a page of Prometheus counts, over all its models."""
    values = [line.rpartition(" ")[2] for line in (text or "").splitlines() if line.startswith("vllm:")]
    try:
        return sum(int(float(value)) for value in values) if values else None
    except (ValueError, OverflowError):
        return None
