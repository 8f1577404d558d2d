"""Which paths tenants may call, and what the proxy does with each: an allow-list.

An engine protects only some of its paths with its key and has many that change it, so whatever is not named here
does not exist for a client.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache


class Service(Enum):
    """How a path is answered."""

    RELAY = auto()
    MODELS = auto()
    MODEL_CARD = auto()
    STORED = auto()
    NOT_YET = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a request wants to go: `pool` when the path names one, `path` as the engine knows it.

    `method` may be several, as the field `Allow` names them.
    """

    service: Service
    pool: str | None = None
    path: str = ""
    method: str = "POST"


_GENERATE = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/inference/v1/generate",
    "/cohere/v2/chat",
    "/generative_scoring",
)
_POOLING = (
    "/v1/embeddings",
    "/v2/embed",
    "/pooling",
    "/classify",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
)
_AUDIO_AND_IMAGES = (
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/audio/speech",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/images/variations",
)
_TEXT_TOOLS = (
    "/tokenize",
    "/detokenize",
    *(
        f"{path}/render"
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses")
    ),
    *(
        f"{path}/derender"
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses")
    ),
)
RELAYED = frozenset((*_GENERATE, *_POOLING, *_AUDIO_AND_IMAGES, *_TEXT_TOOLS))

_STORED = re.compile(r"/v1/responses/resp_[A-Za-z0-9_-]{1,128}(/cancel)?")
_POOL_PREFIXES = ("/pools/", "/api/internal/gpu-pool/")


_REMEMBERED = 256


def classify(path: str) -> Place:
    """`path` is without its query. Nothing is decoded or tidied: another spelling of a path is another path."""
    return _remembered(path) if len(path) <= _REMEMBERED else _classify(path)


@lru_cache(maxsize=1024)
def _remembered(path: str) -> Place:
    """Short paths alone, so that nobody fills our memory with long ones."""
    return _classify(path)


def _classify(path: str) -> Place:
    for prefix in _POOL_PREFIXES:
        if path.startswith(prefix):
            pool, slash, rest = path[len(prefix) :].partition("/")
            return _service("/" + rest, pool) if pool and slash else Place(service=Service.UNKNOWN)
    return _service(path, None)


def _service(path: str, pool: str | None) -> Place:
    if path in RELAYED:
        return Place(service=Service.RELAY, pool=pool, path=path)
    if path == "/v1/models":
        return Place(service=Service.MODELS, pool=pool, path=path, method="GET")
    if path.startswith("/v1/models/"):
        return Place(service=Service.MODEL_CARD, pool=pool, path=path, method="GET")
    if path == "/v1/realtime":
        return Place(service=Service.NOT_YET, pool=pool, path="The realtime WebSocket", method="GET")
    stored = _STORED.fullmatch(path)
    if stored is not None:
        method = "POST" if stored[1] else "GET, DELETE"
        return Place(service=Service.STORED, pool=pool, path=path, method=method)
    return Place(service=Service.UNKNOWN, pool=pool)
