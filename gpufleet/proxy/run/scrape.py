"""Ask every engine `GET /health` on a period and tell the fleet what was seen."""

from __future__ import annotations

import asyncio
import logging

from gpufleet.proxy.decide.health import Observation
from gpufleet.proxy.run.fleet import Member
from gpufleet.proxy.run.state import ProxyState
from gpufleet.proxy.wire.chunked import ProtocolError
from gpufleet.proxy.wire.http1 import ResponseReader

_LOG = logging.getLogger("gpufleet.proxy")


async def watch(state: ProxyState) -> None:
    """For ever: all members at once, then wait. A probe is bounded, so a round is too."""
    while True:
        members = tuple(state.fleet.members.values())
        await asyncio.gather(*(_look(state, member) for member in members))
        await asyncio.sleep(state.config.health.every)


async def _look(state: ProxyState, member: Member) -> None:
    before = member.health.verdict
    try:
        async with asyncio.timeout(state.config.health.timeout):
            passed = await _ask(member)
    except (TimeoutError, OSError, UnicodeError, ProtocolError):
        passed = False
    state.fleet.observe(member, Observation.PROBE_PASSED if passed else Observation.PROBE_FAILED)
    after = member.health.verdict
    if after is not before:
        _LOG.warning("member %s at %s is %s", member.id, member.url, after.value)


async def _ask(member: Member) -> bool:
    """True for 200. On a connection of its own: a probe must not wait behind, or vouch for, a kept one."""
    reader, writer = await asyncio.open_connection(member.connections.host, member.connections.port)
    try:
        writer.write(
            b"GET %s HTTP/1.1\r\nHost: %s\r\n%sConnection: close\r\n\r\n"
            % (member.probe_path.encode("ascii"), member.host_field, member.key)
        )
        answer = ResponseReader()
        while True:
            received = await reader.read(65536)
            if not received:
                return False
            found = answer.head(received)
            if found is not None:
                return found[0].status == 200
    finally:
        writer.transport.abort()
