"""A value that can be used but never printed, and the removal of secrets from text that others wrote."""

from __future__ import annotations

import re
from typing import Generic, TypeVar

T = TypeVar("T", str, bytes)

MASK = "•••"

_VARIABLE = re.compile(r"\$\{env:([^}]+)\}")
_REFERRED: set[str] = set()


class Secret(Generic[T]):
    """A secret value together with the reference it came from.

    `repr`, `str` and `format` give the mask; the value comes out by `reveal()` alone, so that every use can be
    found by searching for that word. A journal stores the reference (`${env:HF_TOKEN}`), never the value.
    """

    __slots__ = ("_value", "reference")

    def __init__(self, value: T, *, reference: str = "") -> None:
        self._value: T = value
        self.reference = reference
        notice(reference)

    def reveal(self) -> T:
        """The value itself."""
        return self._value

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


def notice(text: str) -> None:
    """Remember the variables that references in this text name."""
    _REFERRED.update(_VARIABLE.findall(text))


def referred() -> frozenset[str]:
    """Names of the variables that some reference of this process says to hold a secret, whatever they are called."""
    return frozenset(_REFERRED)


_PATTERNS = (
    re.compile(r"\bhf_[A-Za-z0-9]{16,}"),
    re.compile(r"\b(?:sk|gf|gfk)-[A-Za-z0-9_-]{8,}"),
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"(?i)(?<=basic )[A-Za-z0-9+/=]{8,}"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL),
    re.compile(r"\bAKIA[0-9A-Z]{16}\b"),
    re.compile(
        r"(?i)(?<=[\"' _-])(?:api[_-]?key|hf[_-]?token|password|secret|access[_-]?token)"
        r"[\"']?\s*[=:]\s*(?:\[\s*)?[\"']?(?!\s)[^\s\"',\]}]{4,}"
    ),
)


def scrub(text: str, known: tuple[Secret[str], ...] = ()) -> str:
    """`text` without the values of `known` and without anything that looks like a credential.

    Known values go first and longest first, so that one that contains another leaves nothing behind. Values of
    fewer than four characters are left: masking every `a` would say nothing and protect nothing.
    """
    for secret in sorted(known, key=lambda item: len(item.reveal()), reverse=True):
        value = secret.reveal()
        if len(value) >= 4:
            text = text.replace(value, MASK)
    for pattern in _PATTERNS:
        text = pattern.sub(MASK, text)
    return text
