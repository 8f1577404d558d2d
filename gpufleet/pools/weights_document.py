"""The YAML shape of a pool's `weights`: a directory that is there, or where weights are brought from."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from gpufleet.located import Located, Problems
from gpufleet.pools.model import WeightsWish
from gpufleet.redact import Secret, scrub

Text = Annotated[str, Meta(min_length=1, max_length=4096)]

_REFERENCE = re.compile(r"\$\{(?:env|file|cmd):[^}]+\}")
_HUB = re.compile(r"hf://[\w][\w.-]*(?:/[\w][\w.-]*)?(?:@[\w][\w./-]*)?", re.ASCII)
_S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]+(?:/[^\x00-\x1f\x7f]*)?")
_HERE = re.compile(r"file://~?/[^\x00-\x1f\x7f]*")
_HOST = re.compile(r"host:///[^\x00-\x1f\x7f,\"]*")
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.\[\]:_-]+(?:/[\w./~-]*)?")
_REGION = re.compile(r"[a-z0-9-]*")
_SCHEMES = ("hf://", "s3://", "file://", "host://")
_SECRETS = ("token", "access_key", "secret_key", "session_token")


class WeightsDocument(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Where weights are brought from."""

    source: Text = msgspec.field(name="from")
    endpoint: str = ""
    region: str = ""
    token: str = ""
    access_key: str = ""
    secret_key: str = ""
    session_token: str = ""
    store: str = ""
    shared: bool = False
    in_place: bool = False
    include: list[Text] = []
    exclude: list[Text] = []


Weights = Text | WeightsDocument
"""A path on the hosts or a source, or a source with what it needs."""


def weights_of(document: str | WeightsDocument | None) -> tuple[str | None, WeightsWish | None]:
    """The directory that is mounted as it is, or the source of one that is made."""
    if document is None:
        return None, None
    if isinstance(document, str):
        return (document, None) if document.startswith("/") else (None, WeightsWish(source=document))
    return None, WeightsWish(
        source=document.source,
        endpoint=document.endpoint.rstrip("/"),
        region=document.region,
        token=_secret(document.token),
        access_key=_secret(document.access_key),
        secret_key=_secret(document.secret_key),
        session_token=_secret(document.session_token),
        store=document.store.rstrip("/"),
        shared=document.shared,
        in_place=document.in_place,
        include=tuple(document.include),
        exclude=tuple(document.exclude),
    )


def weights_written(directory: str | None, wish: WeightsWish | None) -> str | WeightsDocument | None:
    """The other way; secrets as their references."""
    if wish is None:
        return directory
    if wish == WeightsWish(source=wish.source):
        return wish.source
    return WeightsDocument(
        source=wish.source,
        endpoint=wish.endpoint,
        region=wish.region,
        token=_reference(wish.token),
        access_key=_reference(wish.access_key),
        secret_key=_reference(wish.secret_key),
        session_token=_reference(wish.session_token),
        store=wish.store,
        shared=wish.shared,
        in_place=wish.in_place,
        include=list(wish.include),
        exclude=list(wish.exclude),
    )


def _secret(text: str) -> Secret[str] | None:
    return Secret("", reference=text) if text else None


def _reference(secret: Secret[str] | None) -> str:
    return secret.reference if secret is not None else ""


def check_weights(place: Located, document: str | WeightsDocument | None, problems: Problems) -> None:
    """Every mistake in `weights`, with its line."""
    if document is None:
        return
    text = document if isinstance(document, str) else document.source
    at = place if isinstance(document, str) else place.at("from")
    if isinstance(document, str) and not text.startswith(_SCHEMES):
        _check_path(place, text, "weights", problems)
    elif not any(pattern.fullmatch(text) for pattern in (_HUB, _S3, _HERE, _HOST)):
        problems.add(
            at,
            f"`{scrub(text)[:200]}` is no source of weights",
            "hf://ORG/NAME[@REVISION], s3://BUCKET/PREFIX, file:///DIRECTORY on this machine or host:///DIRECTORY",
        )
    if isinstance(document, str):
        return
    for key in _SECRETS:
        written = getattr(document, key)
        if written and not _REFERENCE.fullmatch(written):
            problems.add(
                place.at(key),
                f"`{key}` holds a secret in plain text",
                "write a reference: ${env:NAME} or ${file:PATH}",
            )
    if bool(document.access_key) != bool(document.secret_key):
        problems.add(place, "`access_key` and `secret_key` belong together", "give both or neither")
    if document.in_place and (not document.source.startswith("host://") or document.store or document.shared):
        problems.add(
            place.at("in_place"),
            "`in_place` uses a directory of the hosts where it is",
            "with `from: host:///DIRECTORY`, and without `store` and `shared`",
        )
    if document.endpoint and not _ENDPOINT.fullmatch(document.endpoint):
        problems.add(place.at("endpoint"), "`endpoint` is no address", "https://HOST[:PORT]")
    if not _REGION.fullmatch(document.region):
        problems.add(place.at("region"), "`region` is no region", "for example eu-central-1")
    if document.store:
        home = document.store.startswith("~/")
        _check_path(place.at("store"), document.store[1:] if home else document.store, "store", problems)


def _check_path(place: Located, path: str, key: str, problems: Problems) -> None:
    if path.startswith("-"):
        problems.add(place, f"`{key}` starts with `-`", "it would be read as an option")
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in path):
        problems.add(place, f"`{key}` contains a control character")
    if not path.startswith("/") or set(path) & set(',"'):
        problems.add(place, f"`{key}` is an absolute path without commas and double quotes")
