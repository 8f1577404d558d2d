"""What is known of a request before its body: where it goes, whose it is, and whether it is refused already."""

from __future__ import annotations

import re
import secrets
from typing import Final

import msgspec

from gpufleet.proxy.decide.auth import Directory
from gpufleet.proxy.run.fleet import LiveTable
from gpufleet.proxy.run.state import ProxyState
from gpufleet.proxy.wire.heads import RequestHead
from gpufleet.proxy.wire.paths import Place, Service, classify
from gpufleet.proxy.wire.refusal import (
    Refusal,
    method_not_allowed,
    no_such_path,
    no_such_pool,
    not_implemented,
    overloaded,
    stopping,
)
from gpufleet.proxy.wire.session import session_of
from gpufleet.tokens.model import ANONYMOUS, Principal

_TRACED: Final = re.compile(rb"(?:^|\n)traceparent:", re.IGNORECASE)
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Asked(msgspec.Struct, frozen=True, gc=False):
    """One request, as its head says.

    Attributes:
        target: path and query for the engine.
        session: what the client calls its conversation; empty: nothing.
        refusal: what it is answered without a look at its body.
        at, directory, table: what the answer rests on, besides the head.
    """

    head: RequestHead
    place: Place
    target: bytes
    principal: Principal
    session: str
    request_id: bytes
    refusal: Refusal | None
    at: float
    directory: Directory
    table: LiveTable


def admit(state: ProxyState, head: RequestHead, others_buffered: int, last: Asked | None) -> Asked:
    """A head is here. `others_buffered` are the bytes that other requests hold, `last` is the connection's last request.

    Clients send the same head again and again: until the next tick, and while keys and routes stay as they are, what
    was found for it stands.
    """
    wall, directory, table = state.wall, state.directory, state.fleet.table
    given = head.fields.get(b"x-request-id")
    request_id = given if given and _REQUEST_ID.fullmatch(given) else state.new_request_id()
    if (
        last is not None
        and last.head.fields is head.fields
        and last.at == wall
        and last.directory is directory
        and last.table is table
        and last.refusal is None
        and not state.stopping
    ):
        place, target, principal, session = last.place, last.target, last.principal, last.session
        refusal: Refusal | None = None
    else:
        path, mark, query = head.target.partition(b"?")
        place = classify(path.decode("ascii"))
        target = place.path.encode() + mark + query
        found = _received(state, head, place)
        principal, refusal = (ANONYMOUS, found) if isinstance(found, Refusal) else (found, None)
        session = session_of(head.kept, principal.tenant)
    if refusal is None:
        if others_buffered + (head.length or 0) > state.config.buffered_limit:
            refusal = overloaded()
        elif state.config.trace:
            head = _traced(head)
    return Asked(head, place, target, principal, session, request_id, refusal, wall, directory, table)


def _received(state: ProxyState, head: RequestHead, place: Place) -> Principal | Refusal:
    """Who sent it, when it may go where it wants to."""
    if state.stopping and not state.succeeded:
        return stopping()
    principal = state.directory.identify(head.fields, state.wall)
    if isinstance(principal, Refusal):
        return principal
    return _misplaced(state, head, place) or principal


def _traced(head: RequestHead) -> RequestHead:
    if _TRACED.search(head.kept):
        return head
    trace = b"traceparent: 00-%s-%s-01\r\n" % (
        secrets.token_hex(16).encode(),
        secrets.token_hex(8).encode(),
    )
    return msgspec.structs.replace(head, kept=head.kept + trace)


def _misplaced(state: ProxyState, head: RequestHead, place: Place) -> Refusal | None:
    if place.service is Service.UNKNOWN:
        return no_such_path()
    if place.service is Service.NOT_YET:
        return not_implemented(place.path)
    if head.method not in place.method.split(", ") and (head.method, place.method) != ("HEAD", "GET"):
        return method_not_allowed(place.method)
    if place.pool is not None and place.pool not in state.fleet.table.pools:
        return no_such_pool(place.pool)
    return None
