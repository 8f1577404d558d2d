"""What is known of a request before its body: where it goes, whose it is, and whether it is refused already."""

from __future__ import annotations

import re
import secrets
from typing import Final

import msgspec

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
from gpufleet.tokens.model import ANONYMOUS, Principal

_TRACED: Final = re.compile(rb"(?:^|\n)traceparent:", re.IGNORECASE)
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Asked(msgspec.Struct, frozen=True, gc=False):
    """One request, as its head says. `refusal` is what it is answered without a look at its body."""

    head: RequestHead
    place: Place
    principal: Principal
    request_id: bytes
    refusal: Refusal | None


def admit(state: ProxyState, head: RequestHead, others_buffered: int) -> Asked:
    """A head is here. `others_buffered` are the bytes that other requests hold."""
    given = head.fields.get(b"x-request-id")
    request_id = given if given and _REQUEST_ID.fullmatch(given) else state.new_request_id()
    place = classify(head.target.split(b"?", 1)[0].decode("ascii"))
    principal: Principal = ANONYMOUS
    refusal: Refusal | None = None
    if state.stopping and not state.succeeded:
        refusal = stopping()
    else:
        identified = state.directory.identify(head.fields, state.wall)
        if isinstance(identified, Refusal):
            refusal = identified
        else:
            principal = identified
            refusal = _misplaced(state, head, place)
            if refusal is None and others_buffered + (head.length or 0) > state.config.buffered_limit:
                refusal = overloaded()
    if state.config.trace and refusal is None and not _TRACED.search(head.kept):
        trace = b"traceparent: 00-%s-%s-01\r\n" % (
            secrets.token_hex(16).encode(),
            secrets.token_hex(8).encode(),
        )
        head = msgspec.structs.replace(head, kept=head.kept + trace)
    return Asked(head, place, principal, request_id, refusal)


def _misplaced(state: ProxyState, head: RequestHead, place: Place) -> Refusal | None:
    if place.service is Service.UNKNOWN:
        return no_such_path()
    if place.service is Service.NOT_YET:
        return not_implemented(place.path)
    if head.method != place.method and (head.method, place.method) != ("HEAD", "GET"):
        return method_not_allowed(place.method)
    if place.pool is not None and place.pool not in state.fleet.table.pools:
        return no_such_pool(place.pool)
    return None
