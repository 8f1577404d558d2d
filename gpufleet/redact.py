"""A value that can be used but never printed, and the removal of secrets from text that others wrote."""

from __future__ import annotations

import re
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T", str, bytes)

MASK = "•••"

_VARIABLE = re.compile(r"\$\{env:([^}]+)\}")
_REFERRED: set[str] = set()

LEAST = 4
"""Characters of a secret that is masked: masking every `a` would say nothing and protect nothing."""
LEAST_UNASKED = 8
"""Characters of a secret that is masked wherever it stands, although nobody said that it may stand there."""


class Secret(Generic[T]):
    """A secret value together with the reference it came from.

    `repr`, `str` and `format` give the mask; the value comes out by `reveal()` alone, so that every use can be
    found by searching for that word. A journal stores the reference (`${env:HF_TOKEN}`), never the value.
    """

    __slots__ = ("__weakref__", "_value", "reference")

    def __init__(self, value: T, *, reference: str = "") -> None:
        self._value: T = value
        self.reference = reference
        notice(reference)
        _LIVE[id(self)] = self

    def reveal(self) -> T:
        """The value itself."""
        return self._value

    @property
    def known_text(self) -> str:
        """The value if it is text that is known by now; never follows a reference, unlike `reveal`."""
        return self._value if isinstance(self._value, str) else ""

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a secret is not pickled")


class UnfollowedSecret(Secret[Any]):
    """A secret whose reference led nowhere when a journal was read: it can be held, and refuses to be used."""

    __slots__ = ("error",)

    def __init__(self, *, reference: str, error: Exception) -> None:
        super().__init__("", reference=reference)
        self.error = error

    def reveal(self) -> Any:
        """Raises what following the reference raised."""
        raise self.error


_LIVE: WeakValueDictionary[int, Secret[Any]] = WeakValueDictionary()
"""Every secret of this process that somebody still holds."""


def live() -> tuple[Secret[str], ...]:
    """The text secrets of this process that somebody holds; a reference that was not followed yet is none."""
    held = (reference() for reference in _LIVE.valuerefs())  # a list: other threads go on making secrets
    return tuple(secret for secret in held if secret is not None and secret.known_text)


def notice(text: str) -> None:
    """Remember the variables that references in this text name."""
    _REFERRED.update(_VARIABLE.findall(text))


def referred() -> frozenset[str]:
    """Names of the variables that some reference of this process says to hold a secret, whatever they are called."""
    return frozenset(_REFERRED)


_TOKEN = re.compile(r"(?:hf_|sk-|gf-|gfk-)")
_PATTERNS = (
    re.compile(r"\bhf_[A-Za-z0-9]{16,}"),
    re.compile(r"\b(?:sk|gf|gfk)-[A-Za-z0-9_-]{8,}"),
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"(?i)(?<=basic )[A-Za-z0-9+/=]{8,}"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL),
    re.compile(r"\bAKIA[0-9A-Z]{16}\b"),
    re.compile(r"(?<=://)[^\s/@:]{1,200}:[^\s/@]{1,400}(?=@)"),
    re.compile(r"(?i)(?<=X-Amz-)(?:Signature|Credential|Security-Token)=[^\s&\"']{4,}"),
    re.compile(r"(?i)(?<=[?&])(?:token|key|sig|signature|password)=[^\s&\"']{4,}"),
    re.compile(r"(?<=\"auth\":)\s*\"[A-Za-z0-9+/=]{8,}\""),
    re.compile(r"(?i)(?<=--api-key)[= ]\s*[\"']?[^\s\"',\]]{4,}"),
    re.compile(r"(?i)(?<![\w-])token[\"']?:\s*[\"']?(?=[^\s\"',\]}]*[0-9_-])[A-Za-z0-9._~+/=-]{12,}"),
    re.compile(
        r"(?i)(?<=[\"' _-])(?:api[_-]?key|hf[_-]?token|password|secret|access[_-]?token)"
        r"[\"']?\s*[=:]\s*(?:\[\s*)?[\"']?(?!\s)[^\s\"',\]}]{4,}"
    ),
)
_VALUED = re.compile(
    r"\b([A-Z0-9_]*(?:SECRET|PASSWORD|PASSWD|TOKEN(?!S)|API_KEY|ACCESS_KEY)[A-Z0-9_]*=)(?!\$\{)[^\s\"',]{4,}"
)
"""Variables whose names say that they hold a secret; the name is worth keeping. A reference holds none."""


def scrub(text: str, known: tuple[Secret[str], ...] = ()) -> str:
    """`text` without the values of `known`, without longer secrets of this process, without what looks like one.

    Values go first and longest first, so that one that contains another leaves nothing behind; one that looks like a
    token takes the rest of the word with it, which may be a longer token that begins alike.
    """
    values = {secret.reveal() for secret in known if len(secret.reveal()) >= LEAST}
    values |= {value for secret in live() if len(value := secret.known_text) >= LEAST_UNASKED}
    for value in sorted(values, key=len, reverse=True):
        if _TOKEN.match(value):
            text = re.sub(f"{re.escape(value)}[A-Za-z0-9_-]*", MASK, text)
        else:
            text = text.replace(value, MASK)
    for pattern in _PATTERNS:
        text = pattern.sub(MASK, text)
    return _VALUED.sub(rf"\1{MASK}", text)
