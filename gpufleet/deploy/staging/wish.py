"""From what a pool or a command line says of weights to a source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpufleet.deploy.staging.model import Kind, Source
from gpufleet.pools.model import Pool, WeightsWish
from gpufleet.redact import Secret


def source_of(wish: WeightsWish, follow: Callable[[str], Secret[str]]) -> Source:
    """The source that a wish names, its secrets followed.

    Raises:
        SecretUnresolved: a reference leads nowhere.
    """

    def secret(reference: Secret[str] | None) -> Secret[str] | None:
        return follow(reference.reference) if reference is not None else None

    scheme, _, rest = wish.source.partition("://")
    if scheme in {"file", "host"}:
        return Source(
            kind=Kind.HERE if scheme == "file" else Kind.DIRECTORY,
            model=rest.rstrip("/").rpartition("/")[2] or "model",
            place=rest.rstrip("/") or "/",
            include=wish.include,
            exclude=wish.exclude,
        )
    common = Source(
        kind=Kind.S3 if scheme == "s3" else Kind.HUB,
        model=rest.strip("/"),
        place=rest.strip("/"),
        endpoint=wish.endpoint,
        region=wish.region or "us-east-1",
        include=wish.include,
        exclude=wish.exclude,
    )
    if common.kind is Kind.HUB:
        model, _, revision = rest.partition("@")
        return replace(common, model=model, place="", revision=revision, token=secret(wish.token))
    return replace(
        common,
        access_key=secret(wish.access_key),
        secret_key=secret(wish.secret_key),
        session_token=secret(wish.session_token),
    )


def served_from(pool: Pool, path: str) -> Pool:
    """The pool as its engines see it: they load from the staged directory and are called what they were."""
    return replace(pool, weights=path, staging=None, model=path, served_name=pool.public_name)
