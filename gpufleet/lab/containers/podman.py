"""What podman says where docker says something else; the texts are those of podman 4.3.1 with crun."""

from __future__ import annotations

import re
from collections.abc import Sequence

_WORDED: Sequence[tuple[str, str, int]] = (
    (r"No such container: (.*)", r'no container with name or ID "\1" found: no such container', 125),
    (
        r'Conflict\. The container name "/(.*)" is already in use by container "(.*)"\. You have to .*',
        (
            r'creating container storage: the container name "\1" is already in use by \2. You have to remove that '
            r"container to be able to reuse that name: that name is already in use"
        ),
        125,
    ),
    (
        r"driver failed .* Bind for ([\d.:]+) failed: port is already allocated\.",
        r"cannot listen on the TCP port: listen tcp4 \1: bind: address already in use",
        126,
    ),
    (
        r"driver failed .* listen tcp4 ([\d.:]+): bind: address already in use\.",
        r"cannot listen on the TCP port: listen tcp4 \1: bind: address already in use",
        126,
    ),
    (
        r'.* exec: "(.*)": executable file not found in \$PATH: unknown\.',
        (
            r"crun: executable file `\1` not found in $PATH: No such file or directory: OCI runtime attempted to invoke "
            r"a command that was not found"
        ),
        127,
    ),
    (
        r"container .* is not running",
        "can only create exec sessions on running containers: container state improper",
        255,
    ),
)


def worded(text: str, status: int) -> tuple[str, int]:
    """Podman's words and exit status for docker's."""
    for pattern, words, ending in _WORDED:
        found = re.fullmatch(pattern, text, re.DOTALL)
        if found is not None:
            return found.expand(words), ending
    return text, status
