"""A bearer token: what it looks like, whom it stands for and what it may do.

Only the SHA-256 of a token is ever kept. 256 random bits need no salt and no slow hash: there is nothing to guess.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from gpufleet.redact import Secret

PREFIX = "gf-"
_SHAPE = re.compile(r"gf-[A-Za-z0-9_-]{43}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
"""What a token, a tenant, a group and a team may be called: it becomes a metrics label and a column of a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who a request is from. `models` is empty when every model may be used."""

    name: str
    tenant: str = ""
    group: str = ""
    team: str = ""
    class_: str = "standard"
    models: frozenset[str] = frozenset()

    def may_use(self, model: str) -> bool:
        """True when the key is good for this model."""
        return not self.models or model in self.models


ANONYMOUS = Principal(name="anonymous")
"""Who has no key, where that is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One record. Times are seconds since 1970; `digest` is SHA-256 of the token; `hint` its last four characters."""

    id: str
    digest: bytes
    hint: str
    principal: Principal
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None

    def status(self, now: float) -> str:
        """`active`, `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"


def mint(random_bytes: Callable[[int], bytes]) -> Secret[str]:
    """A new token: `gf-` and 43 characters that are safe in a URL, from 32 random bytes."""
    return Secret(PREFIX + base64.urlsafe_b64encode(random_bytes(32)).rstrip(b"=").decode())


def digest(token: bytes) -> bytes:
    """What is stored, and what is looked up."""
    return hashlib.sha256(token).digest()


def well_formed(token: str) -> bool:
    """True for something that `mint` could have made."""
    return _SHAPE.fullmatch(token) is not None


def issue(
    principal: Principal, *, now: float, lifetime: float | None, random_bytes: Callable[[int], bytes]
) -> tuple[Secret[str], Token]:
    """A new token and its record. `lifetime` in seconds; None: until it is revoked."""
    secret = mint(random_bytes)
    text = secret.reveal()
    token = Token(
        id="tk-" + random_bytes(5).hex(),
        digest=digest(text.encode()),
        hint=text[-4:],
        principal=principal,
        created_at=now,
        expires_at=None if lifetime is None else now + lifetime,
    )
    return secret, token
