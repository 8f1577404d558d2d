"""A reference to an engine's key, followed on the machine where the proxy runs."""

from __future__ import annotations

import os
import re

from gpufleet.paths import expanded
from gpufleet.redact import Secret

_REFERENCE = re.compile(r"\$\{(file|env):([^}]+)\}")
_SAFE = re.compile(rb"[\x21-\x7e]{1,4096}")


def resolve(reference: str) -> Secret[bytes]:
    """`${file:/path}` or `${env:NAME}`. Raises `ValueError`, which names the reference and never a value."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ValueError("the key is not a reference; write ${file:/path} or ${env:NAME}")
    kind, place = match.groups()
    if kind == "env":
        text = os.environ.get(place)
        if not text:
            raise ValueError(f"the environment variable {place} of the engine's key is not set")
        value = text.encode()
    else:
        try:
            value = expanded(place).read_bytes()
        except OSError as error:
            raise ValueError(
                f"the file {place} of the engine's key cannot be read: {error.strerror}"
            ) from None
    value = value.strip()
    if _SAFE.fullmatch(value) is None:
        raise ValueError(f"the engine's key at {reference} is empty or not printable text")
    return Secret(value, reference=reference)
