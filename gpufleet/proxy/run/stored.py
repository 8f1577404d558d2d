"""Which member holds a stored response. An engine keeps it in its own memory, so nobody else can answer for it.

What is known is what this process relayed: it is forgotten when the process ends, and the oldest first beyond a limit.
Only who asked for a response, or the same tenant, is led to it again.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpufleet.tokens.model import Principal

LIMIT: Final = 100_000


class Holder(msgspec.Struct, frozen=True):
    """Where a response is, and whose."""

    pool: str
    replica: str
    owner: tuple[str, str]


def _owner(principal: Principal) -> tuple[str, str]:
    """Keys of one tenant are one owner; a key without a tenant is alone."""
    return (principal.tenant, "") if principal.tenant else ("", principal.name)


class StoredResponses:
    """The holders, by the id of the response."""

    __slots__ = ("_holders",)

    def __init__(self) -> None:
        self._holders: dict[str, Holder] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def note(self, response: str, pool: str, replica: str, principal: Principal) -> None:
        """A member answered with this id. An id that somebody else has already stays theirs."""
        known = self._holders.pop(response, None)
        owner = _owner(principal)
        if known is not None and known.owner != owner:
            self._holders[response] = known
            return
        self._holders[response] = Holder(pool, replica, owner)
        if len(self._holders) > LIMIT:
            del self._holders[next(iter(self._holders))]

    def find(self, response: str, principal: Principal) -> Holder | None:
        """None when nobody is known to hold it, or it is somebody else's: the two are not told apart."""
        holder = self._holders.get(response)
        return holder if holder is not None and holder.owner == _owner(principal) else None
