"""The environment that programs we start on this machine are given: ours, without credentials.

An operator's shell often holds tokens that neither `ssh -G` nor a command for `connection: local` has any use for,
and that every process of the same user could read there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpufleet.redact import referred, scrub

_SECRET_NAME = re.compile(r"(?i)token|secret|passw|passphrase|credential|api_?key|access_?key|private_?key")


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Every variable that no reference names and whose name and value do not look like a credential's."""
    named = referred()
    return {
        name: value
        for name, value in environment.items()
        if name not in named and not _SECRET_NAME.search(name) and scrub(f" {value}") == f" {value}"
    }


def without_referred(environment: Mapping[str, str]) -> dict[str, str]:
    """Every variable that no reference names: for the operator's own programs, which may need credentials of theirs."""
    named = referred()
    return {name: value for name, value in environment.items() if name not in named}
