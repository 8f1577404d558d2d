"""What a client calls its conversation, by the header names that routers in use read.

The first of the names that is there wins. A body that names a session is not looked into for it.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

NAMES: Final = (
    b"x-session-id",
    b"x-dynamo-session-id",
    b"x-smg-routing-key",
    b"x-litellm-session-id",
    b"x-olla-session-id",
    b"x-aibrix-session-key",
    b"x-model-affinity",
    b"x-aisix-routing-key",
)
_MARKS: Final = (b"session", b"routing-key", b"affinity")
_LINES: Final = re.compile(rb"(?:\A|\n)(%s):([^\r\n]*)" % b"|".join(NAMES), re.IGNORECASE)
_LONGEST: Final = 200


def session_of(lines: bytes, tenant: str) -> str:
    """The session that these header lines name, as no other tenant can name it; empty: none."""
    lowered = lines.lower()
    if not any(mark in lowered for mark in _MARKS):
        return ""
    found = {name.lower(): value.strip() for name, value in reversed(_LINES.findall(lines))}
    value = next((found[name] for name in NAMES if found.get(name)), b"")
    if not value:
        return ""
    if len(value) > _LONGEST:
        value = b"sha256:" + hashlib.sha256(value).hexdigest().encode()
    return f"{len(tenant)}:{tenant}{value.decode('latin-1')}"
