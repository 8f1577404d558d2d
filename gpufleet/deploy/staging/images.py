"""A tag becomes a digest once, when a plan is made, and the digest is what every host pulls and runs.

Hosts that have the image say what it is; when none has it, one host asks its registry with the tools that its
runtime brings. Nobody guesses: hosts that hold different images under one tag, and a registry that does not
answer, leave the digest unknown, and then the tag is used and that is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from gpufleet.deploy.commands import Dialect
from gpufleet.hosts.model import Fact, Known, Unknown
from gpufleet.names import HostName
from gpufleet.remote.command import Command

LOOK = """
"$1" image inspect --format '{{.Id}} {{.Size}}' "$2" 2>/dev/null || {
  # A runtime that does not answer has not said that the image is not there.
  "$1" ps -q >/dev/null
  exit $?
}
"$1" image inspect --format '{{json .RepoDigests}}' "$2"
"""

REGISTRY = """
case $3 in
podman)
  skopeo inspect --format '{{.Digest}}' "docker://$2" 2>/dev/null || echo unknown ;;
*)
  "$1" buildx imagetools inspect --format '{{json .Manifest}}' "$2" 2>/dev/null || echo unknown ;;
esac
"""

GIVES = """
case $3 in
podman)
  if said=$(skopeo inspect --format '{{.Digest}}' "docker://$2" 2>&1); then echo given; else printf 'refused 500\n%s\n' "$said"; fi ;;
*)
  socket=$("$1" context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null)
  case $socket in
  unix://*) socket=${socket#unix://} ;;
  *) socket=/var/run/docker.sock ;;
  esac
  body=$(curl -q -s -g -m 15 --unix-socket "$socket" -w '\n%{http_code}' "http://docker/distribution/$2/json" 2>/dev/null)
  case $? in
  0) printf 'answer\n%s\n' "$body" ;;
  28) echo 'refused 504' ;;
  *) echo unknown ;;
  esac ;;
esac
"""

_UNREACHED = re.compile(
    r"dial tcp|no such host|connection refused|i/o timeout|Client\.Timeout|TLS handshake timeout|network is unreachable"
    r"|no route to host|deadline exceeded|server misbehaving|connection reset"
)
"""What Go's network library, in every runtime, says of a registry that it does not reach."""

_ABSENT = re.compile(r"manifest unknown|name unknown|manifest for \S+ not found|does not exist|: not found")
_NO_QUESTION = "page not found"
"""A daemon that is too old to be asked."""

_HEX_ID = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOnHost:
    """What a host has under a reference.

    Attributes:
        id: of the image; empty when it is not there.
        size: bytes on disk.
        digests: by which registries know it.
    """

    id: str = ""
    size: int = 0
    digests: tuple[str, ...] = ()


def look(dialect: Dialect, reference: str) -> Command:
    """Ask a host what it has."""
    return dialect.script(LOOK, reference, mutates=False)


def ask_registry(dialect: Dialect, reference: str) -> Command:
    """Ask a host's registry what the tag means there now."""
    return dialect.script(REGISTRY, reference, dialect.kind, mutates=False, timeout=20.0)


def ask_daemon(dialect: Dialect, reference: str) -> Command:
    """Ask a host's runtime itself whether its registry gives an image: with the runtime's own proxies and mirrors."""
    return dialect.script(GIVES, reference, dialect.kind, mutates=False, timeout=30.0)


def refusal_of(text: str) -> str:
    """Why a host's registry does not give an image; empty when it does, and when nobody knows.

    Source: Docker's `GET /distribution/{name}/json`, which answers 200 with a descriptor, 404, or 500 with a message.
    """
    head, _, rest = text.strip().partition("\n")
    if head == "refused 504":
        return "its registry did not answer within 15 s"
    body, _, status = rest.rpartition("\n") if head == "answer" else (rest, "", "500")
    if head not in {"answer", "refused 500"} or status == "200":
        return ""
    if _UNREACHED.search(body):
        return "it does not reach the registry"
    absent = (status == "404" and _NO_QUESTION not in body) or _ABSENT.search(body)
    return "the registry does not have it" if absent else ""


def is_id(reference: str) -> bool:
    """Whether it names an image by its id."""
    return _DIGEST.fullmatch(reference) is not None


def split(reference: str) -> tuple[str, str]:
    """Repository and digest; the digest is empty where none is written."""
    name, _, digest = reference.partition("@")
    head, _, last = name.rpartition("/")
    repository = last.partition(":")[0]
    return f"{head}/{repository}" if head else repository, digest


def read_look(text: str) -> ImageOnHost | None:
    """The answer of `look`; None when it is not one."""
    lines = text.splitlines()
    if not text.strip():  # docker prints an empty line for an image that is not there
        return ImageOnHost()
    words = lines[0].split()
    if len(words) != 2 or not (words[1].isascii() and words[1].isdigit() and len(words[1]) < 19):
        return None
    try:
        told = msgspec.json.decode(lines[1] if len(lines) > 1 else "[]", type=list[str] | None)
    except msgspec.DecodeError:
        return None
    digests = tuple(sorted({one.partition("@")[2] for one in told or ()}))
    name = f"sha256:{words[0]}" if _HEX_ID.fullmatch(words[0]) else words[0]
    return ImageOnHost(id=name, size=int(words[1]), digests=digests)


def read_registry(text: str) -> str:
    """The digest in a registry's answer, empty when there is none."""
    plain = text.strip()
    if _DIGEST.fullmatch(plain):
        return plain
    try:
        found = msgspec.json.decode(plain, type=dict[str, object]).get("digest", "")
    except msgspec.DecodeError:
        return ""
    return found if isinstance(found, str) and _DIGEST.fullmatch(found) else ""


def one_image(hosts: Mapping[HostName, ImageOnHost]) -> ImageOnHost | None:
    """The image that all hosts which have one have; None when none has one, or they differ.

    Its digests are those that any of them knows: the same id is the same content.
    """
    there = [one for one in hosts.values() if one.id]
    if len({one.id for one in there}) != 1:
        return None
    digests = {digest for one in there for digest in one.digests}
    return replace(there[0], digests=tuple(sorted(digests)))


def digest_of(hosts: Mapping[HostName, ImageOnHost], registry: str) -> Fact[str]:
    """What the tag means: as the hosts that have it say, else as the registry said."""
    there = {host: one for host, one in hosts.items() if one.id}
    image = one_image(hosts)
    shared = set.intersection(*(set(one.digests) for one in there.values())) if there else set()
    if not shared and image is not None:
        shared = set(image.digests)
    if len(shared) >= 1:
        return Known(registry if registry in shared else min(shared))
    if registry:
        return Known(registry)
    if len({one.id for one in there.values()}) > 1:
        return Unknown(f"{', '.join(sorted(there))} hold different images under it")
    if there:
        return Unknown("it was built or loaded on its hosts, and no registry knows it")
    return Unknown("no host has it, and the registry was not asked or did not answer")


def pinned(reference: str, digest: str) -> str:
    """The reference that is pulled and run."""
    return f"{split(reference)[0]}@{digest}"
