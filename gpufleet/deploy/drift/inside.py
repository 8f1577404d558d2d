"""Looking into running replicas: which GPUs they see, and what the image of the pool is by now on their host.

A `systemctl daemon-reload` can take the GPUs of a running container away without ending it (NVIDIA container toolkit,
issues 48 and 251): the engine goes on answering until it needs a new handle, and only a look inside tells.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpufleet.deploy.commands import Dialect
from gpufleet.remote.command import Command

LOOK = """
runtime=$1 image=$2
shift 2
printf 'image %s\\n' "$("$runtime" image inspect --format '{{.Id}}' "$image" 2>/dev/null)"
for id in "$@"; do
  printf 'container %s\\n' "$id"
  timeout 20 "$runtime" exec "$id" nvidia-smi -L 2>&1
  printf 'status %s\\n' "$?"
done
"""

_UUID = re.compile(r"\(UUID: ([^)\s]+)\)")
_NO_PROGRAM = frozenset({126, 127})
_LOST = re.compile(r"NVML|NVIDIA driver|No devices were found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What one container sees.

    Attributes:
        devices: UUIDs of GPUs and slices; None when that could not be asked.
        lost: nvidia-smi's own words when the GPUs are out of reach.
        why: why nothing is known.
        blind: there is no nvidia-smi inside, so that it can never be asked.
    """

    devices: frozenset[str] | None = None
    lost: str = ""
    why: str = ""
    blind: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInside:
    """One host: the id that the pool's image has there now, empty when it has none, and each container by full id."""

    image: str = ""
    containers: Mapping[str, Inside] = field(default_factory=dict)


def look(dialect: Dialect, image: str, containers: Sequence[str]) -> Command:
    """One question about all replicas of a host."""
    return dialect.script(LOOK, image, *containers, mutates=False, timeout=30.0 + 25.0 * len(containers))


def parse(text: str) -> HostInside:
    """The answer; a container without its last line was not asked."""
    image, found = "", {}
    current, lines = "", list[str]()
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "image" and not current:
            image = rest.strip()
        elif word == "container" and not current:
            current, lines = rest.strip(), []
        elif word == "status" and current and rest.strip().isdigit():
            found[current] = _inside(int(rest), lines)
            current = ""
        else:
            lines.append(line)
    return HostInside(image=image, containers=found)


def _inside(status: int, lines: Sequence[str]) -> Inside:
    text = "\n".join(lines).strip()
    first = text.splitlines()[0] if text else f"exit status {status}"
    if status == 0:
        return Inside(devices=frozenset(_UUID.findall(text)))
    if status in _NO_PROGRAM:
        return Inside(why="there is no nvidia-smi in the container", blind=True)
    if _LOST.search(text):
        return Inside(devices=frozenset(), lost=first)
    return Inside(why="nvidia-smi did not answer within 20 s" if status == 124 else first)
