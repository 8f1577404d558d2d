"""Clients that carry out plans, read answers strictly, and judge them: whole, an error in the dialect, or marked as broken."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from tests.kit.chaos_engines import reset
from tests.kit.chaos_plans import BOUNDARY, Act, Framing, Kind, Leaves, Phase, Plan, answer_pieces

_OWN_ERRORS = {502, 503, 504}
_MAIN_DIALECT = {"message", "type", "param", "code"}


@dataclass(slots=True)
class Outcome:
    """What a client that stayed has seen. `complete` as the framing says."""

    status: int = 0
    fields: dict[str, str] | None = None
    body: bytes = b""
    complete: bool = False
    persistent: bool = False
    problem: str = ""


class Client:
    """One client: keeps its connection while it may."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def carry_out(self, plan: Plan) -> Outcome | None:
        """None when the client left before the end."""
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            outcome = await self._ask(plan, self._reader, self._writer)
        except (OSError, asyncio.IncompleteReadError, ValueError, AssertionError) as error:
            outcome = Outcome(problem=f"{type(error).__name__}: {error}")
        if outcome is None:
            plan.left, plan.left_at = True, asyncio.get_running_loop().time()
            self.leave(plan.how)
        elif not (outcome.complete and outcome.persistent):
            self.leave(Act.CLOSE)
        return outcome

    def leave(self, how: Act) -> None:
        writer, self._writer, self._reader = self._writer, None, None
        if writer is not None:
            if how is Act.RESET:
                reset(writer)
            else:
                writer.close()

    async def _ask(
        self, plan: Plan, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Outcome | None:
        head, body = _request(plan)
        if plan.leaves is Leaves.HEAD:
            writer.write(head[: len(head) // 2])
            return None
        writer.write(head)
        if plan.leaves is Leaves.BODY:
            writer.write(body[: len(body) // 2])
            return None
        writer.write(body)
        if plan.leaves is Leaves.SENT:
            return None
        if plan.leaves is Leaves.WAITING:
            await _either(plan.arrived.wait(), reader.read(1))
            return None
        return await read_answer(reader, plan)


async def _either(*waits: Any) -> None:
    """Wait for the first of them."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _request(plan: Plan) -> tuple[bytes, bytes]:
    body = plan.request_body()
    kind = f"multipart/form-data; boundary={BOUNDARY}" if plan.kind is Kind.UPLOAD else "application/json"
    method = "GET" if plan.kind is Kind.MODELS else "POST"
    stays = "Connection: keep-alive\r\n" if plan.minor == 0 and plan.number % 2 else ""
    head = f"{method} {plan.kind.path} HTTP/1.{plan.minor}\r\nHost: p\r\nX-Plan: {plan.number}\r\n{stays}"
    if plan.kind is Kind.CHUNKED and plan.minor:
        half = len(body) // 2
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:]) if part)
        return (
            f"{head}Content-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode(),
            body + b"0\r\n\r\n",
        )
    return f"{head}Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode(), body


async def read_answer(reader: asyncio.StreamReader, plan: Plan) -> Outcome | None:
    """Strictly: a field too many, a chunk without its end, and the outcome has a problem."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")[:-2]
    version, _, rest = lines[0].partition(" ")
    names = [line.partition(":")[0].lower() for line in lines[1:]]
    fields = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines[1:]}
    outcome = Outcome(status=int(rest[:3]), fields=fields)
    if len(names) != len(set(names)) or version != "HTTP/1.1" or "x-request-id" not in fields:
        outcome.problem = f"a strange head: {head!r}"
    if {"content-length", "transfer-encoding"} <= set(names):
        outcome.problem = "framed twice"
    if plan.leaves is Leaves.ANSWER_HEAD:
        return None
    outcome.persistent = fields.get("connection", "").lower() != "close"
    pieces: list[bytes] = []
    try:
        await _read_body(reader, fields, pieces, plan)
        outcome.complete = True
    except _LeftInTheMiddle:
        return None
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    outcome.body = b"".join(pieces)
    return outcome


class _LeftInTheMiddle(Exception):
    pass


async def _read_body(
    reader: asyncio.StreamReader, fields: dict[str, str], pieces: list[bytes], plan: Plan
) -> None:
    async def piece(most: int) -> bytes:
        if plan.slow_reader:
            await asyncio.sleep(0.001)
        found = await reader.read(min(most, 32768))
        pieces.append(found)
        if plan.leaves is Leaves.ANSWER:
            raise _LeftInTheMiddle
        return found

    if fields.get("transfer-encoding") == "chunked":
        while size := int((await reader.readuntil(b"\r\n"))[:-2], 16):
            while size:
                found = await piece(size)
                if not found:
                    raise asyncio.IncompleteReadError(b"", size)
                size -= len(found)
            if await reader.readexactly(2) != b"\r\n":
                raise AssertionError("a chunk without its end")
        if await reader.readexactly(2) != b"\r\n":
            raise AssertionError("a trailer that nobody sent")
    elif "content-length" in fields:
        missing = int(fields["content-length"])
        while missing:
            found = await piece(missing)
            if not found:
                raise asyncio.IncompleteReadError(b"", missing)
            missing -= len(found)
    else:
        while await piece(32768):
            pass


def judge(plan: Plan, outcome: Outcome, *, trouble: bool = False) -> str:
    """What is wrong with the answer; empty when it is as it must be. `trouble`: members die of other requests too."""
    if outcome.problem:
        return outcome.problem
    if plan.kind is Kind.MODELS:
        good = outcome.complete and outcome.status == 200 and json.loads(outcome.body)["object"] == "list"
        return "" if good else "no list of models"
    well = b"".join(answer_pieces(plan, status=200))
    bad = b"".join(answer_pieces(plan, status=plan.status))
    # What another's engine said behind its answer may be taken for the answer of whoever comes next.
    spoilt = not plan.attempts and (b"not valid HTTP" in outcome.body or b"not speak HTTP" in outcome.body)
    excused = plan.fault or trouble or plan.model == "rough" or spoilt
    if outcome.complete:
        if outcome.status == 200 and outcome.body == well:
            return _could_be_whole(plan)
        if outcome.status == plan.status != 200 and outcome.body == bad:
            return ""
        if outcome.status in _OWN_ERRORS and excused and _in_dialect(plan, outcome):
            waits = outcome.status != 503 or "retry-after" in (outcome.fields or {})
            return "" if waits else "503 without Retry-After"
        return _complete_and_other(plan, outcome, well, bad)
    if not excused:
        return "cut, and nothing was wrong"
    return _marked(plan, outcome, well if outcome.status == 200 else bad)


def _could_be_whole(plan: Plan) -> str:
    """A whole answer is not possible when each attempt was cut before its end."""
    last = plan.attempts[-1]
    return "" if last.sent > last.head or last.status == 200 else "whole, and no engine said so"


def _in_dialect(plan: Plan, outcome: Outcome) -> bool:
    """An error of the proxy's own, as the clients of this path read errors."""
    try:
        said = json.loads(outcome.body)
    except ValueError:
        return False
    if plan.kind is Kind.MESSAGES:
        return bool(said.get("type") == "error" and set(said["error"]) == {"type", "message"})
    return set(said["error"]) == _MAIN_DIALECT


def _complete_and_other(plan: Plan, outcome: Outcome, well: bytes, bad: bytes) -> str:
    """Complete by its framing, and not what the engine meant to say: only where no proxy can know."""
    if plan.framing is Framing.SHORTER and outcome.body in {well[:-10], bad[:-10]}:
        return ""
    if plan.act is Act.GARBAGE and plan.phase in {
        Phase.AFTER_HEAD,
        Phase.BODY,
        Phase.BETWEEN,
        Phase.SIZE,
        Phase.LAST,
        Phase.END,
        Phase.BEHIND,
    }:
        return "" if outcome.status in {200, plan.status} else "garbage made another status"
    if (
        plan.framing is Framing.CLOSE
        and plan.act is Act.CLOSE
        and (well.startswith(outcome.body) or bad.startswith(outcome.body))
    ):
        return ""  # the connection's end is this answer's end
    if plan.kind.streams and "content-length" not in (outcome.fields or {}):
        return _marked(plan, outcome, well)
    return f"complete, {outcome.status}, and wrong: {outcome.body[:200]!r}"


def _marked(plan: Plan, outcome: Outcome, wanted: bytes) -> str:
    """A torso: a beginning of the answer, and for a stream an event that says so, and never its regular end."""
    if not plan.kind.streams or outcome.status != 200:
        if outcome.complete:
            return "a torso that looks whole"
        return (
            "" if wanted.startswith(outcome.body) or plan.act is Act.GARBAGE else "a torso of something else"
        )
    if outcome.body == wanted:
        return ""  # nothing but its last bytes of framing is missing
    if outcome.body.endswith(b"data: [DONE]\n\n") or b"[DONE]" in outcome.body.partition(b"upstream")[2]:
        return "broken, and [DONE] behind it"
    event = {
        Kind.STREAM: b'"type":"upstream_error"',
        Kind.MESSAGES: b'event: error\ndata: {"type":"error"',
        Kind.RESPONSES: b"event: response.failed\ndata: ",
    }[plan.kind]
    if event in outcome.body:
        return "" if outcome.body.endswith(b"}\n\n") else "an error event that is cut"
    # One that dribbles may die of another request's kill, in the middle of a chunk's size as anywhere else.
    framing_cut = plan.phase in {Phase.SIZE, Phase.END} or plan.act in {Act.GARBAGE, Act.SLOW}
    lengthy = "content-length" in (outcome.fields or {})
    return "" if framing_cut or lengthy else f"broken without a word: {outcome.body[-200:]!r}"
