"""A bearer token to a principal, or a refusal.

The token is hashed and the hash is looked up, so the time taken tells nothing about a stored token: what an attacker
could learn byte by byte is a prefix of SHA-256, which does not lead back. The found hash is compared once more in
constant time.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from gpufleet.proxy.wire.refusal import Refusal, auth_failed, key_forbidden
from gpufleet.tokens.model import ANONYMOUS, Principal, Token, digest


class Directory:
    """All tokens that are not revoked, by their hash; replaced whole when the store changes."""

    __slots__ = ("_by_hash", "anonymous")

    def __init__(self, tokens: Mapping[bytes, Token], *, anonymous: bool = False) -> None:
        self._by_hash = dict(tokens)
        self.anonymous = anonymous

    def __len__(self) -> int:
        return len(self._by_hash)

    def identify(self, fields: Mapping[bytes, bytes], now: float) -> Principal | Refusal:
        """Who sends a request with these fields at `now` (seconds since 1970)."""
        presented = _bearer(fields)
        if presented is None:
            if self.anonymous:
                return ANONYMOUS
            return auth_failed("No API key was given; send it as `Authorization: Bearer KEY`")
        wanted = digest(presented)
        token = self._by_hash.get(wanted)
        if token is None or not hmac.compare_digest(token.digest, wanted):
            # With --allow-anonymous a key of another system (`sk-...`, `EMPTY`) is no key.
            return ANONYMOUS if self.anonymous else auth_failed("The API key is not known here")
        if token.revoked_at is not None:
            return auth_failed("The API key was revoked")
        if token.expires_at is not None and token.expires_at <= now:
            return auth_failed("The API key has expired")
        return token.principal


def _bearer(fields: Mapping[bytes, bytes]) -> bytes | None:
    value = fields.get(b"authorization")
    if value is None:
        return fields.get(b"x-api-key")  # clients of /v1/messages send it so
    scheme, _, rest = value.partition(b" ")
    return rest.strip(b" ") or None if scheme.lower() == b"bearer" else None


def forbid(principal: Principal, model: str) -> Refusal | None:
    """A refusal when this principal may not use this model."""
    return None if principal.may_use(model) else key_forbidden(model)
