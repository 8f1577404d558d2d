"""Asking a source of weights, from this machine, what it has: before anything is done to a host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import httpx

from gpufleet.deploy.staging import here, hub, s3
from gpufleet.deploy.staging.hub import SourceMissing, SourceUnreachable
from gpufleet.deploy.staging.model import SUMS, Fetch, Kind, Listing, Source, WeightFile
from gpufleet.errors import SecretUnresolved
from gpufleet.redact import Secret, scrub

TIMEOUT = 30.0
"""Seconds for one answer."""

PAGES = 200
"""Pages of a listing; a thousand entries each."""

_LARGEST = 8 << 20
"""Bytes of an answer that is read into memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Status, headers in lower case, and the first bytes of the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Asker:
    """HTTP questions from this machine; the environment's proxies are used, redirects to other hosts lose headers."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def ask(self, url: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> Answer:
        """One answer.

        Raises:
            SourceUnreachable: there was none.
        """
        where = _where(url)
        _check_headers(headers or {}, where)
        try:
            with self._client.stream(method, url, headers=dict(headers or {})) as answer:
                body = b""
                for chunk in answer.iter_bytes():
                    body += chunk
                    if len(body) > _LARGEST:
                        raise SourceUnreachable(f"an answer of more than {_LARGEST >> 20} MiB", where=where)
                found = {name.lower(): value for name, value in answer.headers.items()}
                return Answer(status=answer.status_code, headers=found, body=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SourceUnreachable(
                f"no answer from the source of weights: {_reason(error)}",
                where=where,
                hints=(
                    "this machine must reach it too: it is asked what there is before anything is changed",
                ),
            ) from error


def _where(url: str) -> str:
    """Scheme and host of an address, for messages.

    Raises:
        SourceUnreachable: it is none.
    """
    try:
        place = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise SourceUnreachable(
            f"{scrub(url)[:200]!r} is no address: {error}", hints=("correct the endpoint of `weights`",)
        ) from error
    return f"{place.scheme}://{place.netloc.decode('ascii', 'replace')}"


def _check_headers(headers: Mapping[str, str], where: str) -> None:
    """Raises SourceUnreachable, without the value, for one that HTTP cannot carry: a token with a line break, say."""
    for name, value in headers.items():
        if not value.isascii() or not value.isprintable() or value != value.strip():
            raise SourceUnreachable(
                f"the {name} for the source of weights holds blanks or letters that HTTP cannot carry",
                where=where,
                hints=("write the token into its place again, without a line break",),
            )


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException):
        return f"nothing within {TIMEOUT:g} s"
    return str(error).splitlines()[0].lower() if str(error) else type(error).__name__


@contextmanager
def asker() -> Iterator[Asker]:
    """Questions over connections that are closed at the end."""
    with httpx.Client(timeout=TIMEOUT, follow_redirects=False) as client:
        yield Asker(client)


def listing(source: Source, questions: Asker, now: datetime, state_dir: Path | None = None) -> Listing:
    """Everything of one revision, and proof that its files may be read.

    `state_dir` remembers checksums of files on this machine.

    Raises:
        SourceRefused (401), SourceGated (403), SourceMissing (404), SourceUnreachable, SourceMoving: with the fix.
    """
    match source.kind:
        case Kind.HUB:
            found = _hub(source, questions)
        case Kind.S3:
            found = _s3(source, questions, now)
        case _:
            found = here.listing(source, now, state_dir)
    if not found.files:
        raise SourceMissing(
            "there are no files to stage", where=source.shown, hints=("check `include` and `exclude`",)
        )
    if source.kind is not Kind.HERE:
        _probe(found, questions, now)
    return found


def _hub(source: Source, questions: Asker) -> Listing:
    headers = {"authorization": f"Bearer {source.token.reveal()}"} if source.token else {}
    answer = questions.ask(hub.revision_url(source), headers=headers)
    if answer.status != 200:
        raise hub.refusal(source, answer.status, answer.headers)
    commit = hub.commit_of(answer.body)
    if commit is None:
        raise SourceUnreachable("the hub's answer names no commit", where=hub.base_of(source))
    files: list[WeightFile] = []
    page, seen = hub.tree_url(source, commit), 0
    while page:
        if not page.startswith(f"{hub.base_of(source)}/"):
            raise SourceUnreachable("the hub's next page is on another host", where=hub.base_of(source))
        answer = questions.ask(page, headers=headers)
        if answer.status != 200:
            raise hub.refusal(source, answer.status, answer.headers)
        found = hub.files_of(answer.body)
        if found is None:
            raise SourceUnreachable("the hub's listing is not one", where=hub.base_of(source))
        files += found
        page, seen = hub.next_page(answer.headers), seen + 1
        if seen >= PAGES:
            raise SourceUnreachable(f"the listing has more than {PAGES} pages", where=hub.base_of(source))
    return Listing(source=source, revision=commit, files=hub.chosen(files, source))


def keys_of(source: Source) -> s3.Keys:
    """The credentials of an S3 source."""
    return s3.Keys(
        access=source.access_key.reveal() if source.access_key else "",
        secret=source.secret_key.reveal() if source.secret_key else "",
        session=source.session_token.reveal() if source.session_token else "",
    )


def _s3(source: Source, questions: Asker, now: datetime) -> Listing:
    bucket, prefix = s3.bucket_of(source), s3.split_place(source.place)[1]
    keys = keys_of(source)
    files: list[WeightFile] = []
    tags: dict[str, str] = {}
    token = ""
    for _ in range(PAGES):
        url = s3.signed(s3.list_url(bucket, prefix, token), keys, source.region, now, valid=900)
        answer = questions.ask(url)
        page = s3.page_of(answer.body) if answer.status == 200 else None
        if page is None:
            raise s3.refusal(source, answer.status, answer.body)
        for key, size, tag in page.objects:
            path = s3.below(key, prefix)
            if path:
                files.append(WeightFile(path=path, size=size))
                tags[path] = tag
        token = page.next
        if not token:
            break
    if not files:
        raise s3.refusal(source, 404, b"")
    sums = _sums(source, questions, now, files)
    checked = tuple(
        replace(one, check=sums.get(one.path) or _check(source, questions, now, one))
        for one in hub.chosen([one for one in files if one.path not in SUMS], source)
    )
    return Listing(source=source, revision=s3.revision_of(checked, tags), files=checked)


def _sums(source: Source, questions: Asker, now: datetime, files: list[WeightFile]) -> dict[str, str]:
    for one in files:
        if one.path in SUMS:
            answer = questions.ask(_signed(source, one.path, now))
            return s3.sums_of(answer.body.decode("utf-8", "replace")) if answer.status == 200 else {}
    return {}


def _check(source: Source, questions: Asker, now: datetime, one: WeightFile) -> str:
    mode = {"x-amz-checksum-mode": "ENABLED"}
    bucket, key = s3.bucket_of(source), s3.split_place(source.place)[1] + one.path
    url = s3.signed(
        bucket.url(key), keys_of(source), source.region, now, method="HEAD", headers=mode, valid=900
    )
    answer = questions.ask(url, method="HEAD", headers=mode)
    return s3.check_of(answer.headers) if answer.status == 200 else ""


def _signed(source: Source, path: str, now: datetime, valid: int = 900) -> str:
    bucket, key = s3.bucket_of(source), s3.split_place(source.place)[1] + path
    return s3.signed(bucket.url(key), keys_of(source), source.region, now, valid=valid)


def _probe(found: Listing, questions: Asker, now: datetime) -> None:
    """Ask for a byte of the largest file: a listing may be public where the files are not."""
    source = found.source
    largest = max(found.files, key=lambda one: one.size)
    if source.kind is Kind.HUB:
        headers = {"authorization": f"Bearer {source.token.reveal()}"} if source.token else {}
        answer = questions.ask(
            hub.resolve_url(source, found.revision, largest.path), method="HEAD", headers=headers
        )
        if answer.status >= 400:
            raise hub.refusal(source, answer.status, answer.headers, f"no file {largest.path}")
        return
    answer = questions.ask(_signed(source, largest.path, now), headers={"range": "bytes=0-0"})
    if answer.status >= 400:
        raise s3.refusal(source, answer.status, answer.body)


def fetches(found: Listing, now: datetime) -> tuple[Fetch, ...]:
    """How hosts fetch each file. Addresses of S3 are good for a week and are signed anew when a run is resumed."""
    source = found.source
    if source.kind is Kind.HUB:
        return hub.fetches(found)
    if source.kind is Kind.HERE:
        return here.fetches(found)
    prefix = s3.split_place(source.place)[1]
    if source.access_key is None:
        return tuple(Fetch(file=one, url=s3.bucket_of(source).url(prefix + one.path)) for one in found.files)
    return tuple(
        Fetch(
            file=one,
            url=Secret(
                _signed(source, one.path, now, s3.VALID), reference=s3.reference(source, prefix + one.path)
            ),
        )
        for one in found.files
    )


def sign_again(reference: str, resolve: Callable[[str], Secret[str]], now: datetime) -> Secret[str]:
    """Follow a `${s3:...}` reference: the address, signed anew.

    Raises:
        SecretUnresolved: it is not such a reference, or one of its keys leads nowhere.
    """
    words = s3.parts_of(reference)
    if words is None or not {"bucket", "key"} <= words.keys():
        raise SecretUnresolved("not a reference to an object of S3")

    def value(name: str) -> str:
        return resolve(words[name]).reveal() if name in words else ""

    bucket = s3.Bucket(
        name=words["bucket"], endpoint=words.get("endpoint", ""), region=words.get("region", "us-east-1")
    )
    keys = s3.Keys(access=value("access"), secret=value("secret"), session=value("session"))
    return Secret(s3.signed(bucket.url(words["key"]), keys, bucket.region, now), reference=reference)
