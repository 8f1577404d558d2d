"""Ask every engine `GET /health` and `GET /metrics` on a period, and tell the fleet what was seen.

Each question goes out on a connection of its own: it must not wait behind, or vouch for, a kept one. A round asks all
members at once and is bounded, because a question is.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from gpufleet.proxy.decide.engine_load import EngineLoad, parse
from gpufleet.proxy.decide.health import Observation, Verdict
from gpufleet.proxy.run.member import Member
from gpufleet.proxy.run.state import ProxyState
from gpufleet.proxy.wire.chunked import ProtocolError
from gpufleet.proxy.wire.http1 import ResponseReader

_LOG = logging.getLogger("gpufleet.proxy")
_FAILURES = (TimeoutError, OSError, UnicodeError, ProtocolError)


async def watch(state: ProxyState) -> None:
    """For ever, ask whether each member is there."""
    while True:
        members = tuple(state.fleet.members.values())
        await asyncio.gather(
            *(_look(state, member) for member in members),
            *(_try(state, member) for member in members if member.health.verdict is Verdict.TRIAL),
        )
        await asyncio.sleep(state.config.health.every)


async def _look(state: ProxyState, member: Member) -> None:
    try:
        async with asyncio.timeout(state.config.health.timeout):
            passed = (await ask(member, member.probe_path, 0))[0] == 200
    except _FAILURES as error:
        passed = False
        if isinstance(error, TimeoutError) and _works(state, member):
            return  # it is busy: tokens flow, and its `/health` waits behind them
    finally:
        member.answers_at_probe = member.answers
    state.fleet.observe(member, Observation.PROBE_PASSED if passed else Observation.PROBE_FAILED)


def _works(state: ProxyState, member: Member) -> bool:
    """It has answered since it was probed last, or its own counters grew lately."""
    lately = state.loop.time() - member.progress_at < state.config.scrape.stale
    return member.answers != member.answers_at_probe or (member.progress >= 0 and lately)


async def _try(state: ProxyState, member: Member) -> None:
    """One token, asked for as a client would: an engine that is dead behind its API server does not make it."""
    models = next(
        (
            pool.models
            for pool in state.fleet.table.pools.values()
            if pool.models and any(seat.member is member for seat in pool.seats)
        ),
        (),
    )
    body = msgspec.json.encode({"model": models[0] if models else "", "prompt": ".", "max_tokens": 1})
    try:
        async with asyncio.timeout(state.config.health.trial):
            status, _ = await ask(member, "/v1/completions", 0, body=body)
    except _FAILURES:
        status = 504
    # An engine that embeds answers 4xx, one that is full 503: both are there.
    passed = status < 500 or status == 503
    state.fleet.observe(member, Observation.TRIAL_PASSED if passed else Observation.TRIAL_FAILED)


async def read_loads(state: ProxyState) -> None:
    """For ever, read how busy each member says it is. A page that was not got leaves the last one, which grows old."""
    silent: set[str] = set()
    while True:
        members = tuple(state.fleet.members.values())
        await asyncio.gather(*(_read_load(state, member, silent) for member in members))
        silent &= {member.url for member in state.fleet.members.values()}
        await asyncio.sleep(state.config.scrape.every)


async def _read_load(state: ProxyState, member: Member, silent: set[str]) -> None:
    """`silent` remembers of whom it was said already that something is missing."""
    rules = state.config.scrape
    ours = member.running + member.elsewhere
    try:
        async with asyncio.timeout(rules.timeout):
            status, page = await ask(member, member.metrics_path, rules.largest)
        if status != 200:
            raise ProtocolError(502, f"it answers {status}")
    except _FAILURES as error:
        state.metrics.scrape_failures.add((member.id,))
        trouble = f"its metrics page was not got: {error or type(error).__name__}"
    else:
        load, now = parse(page), state.loop.time()
        member.told(load, now, max(ours, member.running + member.elsewhere))
        _watch_progress(state, member, load, now)
        trouble = f"its metrics page does not say {', '.join(load.missing)}" if load.missing else ""
    if trouble and member.url not in silent:
        _LOG.warning("member %s at %s: %s", member.id, member.url, trouble)
    (silent.add if trouble else silent.discard)(member.url)


def _watch_progress(state: ProxyState, member: Member, load: EngineLoad, now: float) -> None:
    """Requests run and nothing that an engine counts grows: it hangs, whatever `/health` says."""
    counted = (load.generation_tokens, load.prompt_tokens, sum(load.finished.values()))
    progress = sum(figure for figure in counted if figure is not None)
    frozen = load.generation_tokens is not None and bool(load.running) and progress == member.progress
    if not frozen:
        member.progress, member.progress_at = progress, now
    elif now - member.progress_at >= state.config.health.frozen_after:
        state.fleet.observe(member, Observation.FROZEN)


async def ask(member: Member, path: str, largest: int, *, body: bytes = b"") -> tuple[int, bytes]:
    """GET, or POST of a JSON body. Status and body; the body is left where it is when `largest` is 0. Raises `_FAILURES`."""
    way = member.connections
    reader, writer = await asyncio.open_connection(way.host, way.port, ssl=way.tls)
    try:
        content = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body) if body else b""
        writer.write(
            b"%s %s HTTP/1.1\r\nHost: %s\r\n%s%sConnection: close\r\n\r\n%s"
            % (
                b"POST" if body else b"GET",
                path.encode("ascii"),
                member.host_field,
                member.key,
                content,
                body,
            )
        )
        answer = ResponseReader()
        found = None
        while found is None:
            received = await reader.read(65536)
            if not received:
                raise ProtocolError(502, "closed before an answer")
            found = answer.head(received)
        status = found[0].status
        if largest == 0 or status != 200:
            return status, b""
        return status, await _body(reader, answer, found[1], largest)
    finally:
        writer.transport.abort()


async def _body(reader: asyncio.StreamReader, answer: ResponseReader, received: bytes, largest: int) -> bytes:
    pieces: list[bytes] = []
    answer.follow(received, pieces)
    size = len(received)
    while not answer.complete:
        received = await reader.read(262_144)
        if not received:
            if not answer.closed():
                raise ProtocolError(502, "closed before the end of its answer")
            break
        size += len(received)
        if size > largest:
            raise ProtocolError(502, f"more than {largest} bytes")
        answer.follow(received, pieces)
    return b"".join(pieces)
