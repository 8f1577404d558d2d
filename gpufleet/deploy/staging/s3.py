"""S3 without a library: signed addresses, the listing of a bucket, and what refusals mean.

Requests are signed by Signature Version 4 in the query (AWS, "Authenticating Requests: Using Query Parameters"), so
that an address alone is enough for a host that has nothing but curl. An address is a secret for as long as it is
valid: it travels on standard input, and a journal stores how it is made (`${s3:...}`), never itself.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from gpufleet.deploy.staging.hub import SourceGated, SourceMissing, SourceRefused, SourceUnreachable, is_plain
from gpufleet.deploy.staging.model import Source, WeightFile
from gpufleet.errors import PreflightFailed

VALID = 7 * 24 * 3600
"""Seconds that an address is good for: the most that Signature Version 4 allows."""

REFERENCE = re.compile(r"\$\{s3:([^}]*)\}")
_HEX_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Credentials as text; `access` empty reads without a signature."""

    access: str = ""
    secret: str = ""
    session: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One bucket and how it is addressed: by path where an endpoint was given, by host name at AWS."""

    name: str
    endpoint: str = ""
    region: str = "us-east-1"

    def url(self, key: str = "") -> str:
        """Address of an object, or of the bucket."""
        if self.endpoint:
            return f"{self.endpoint.rstrip('/')}/{self.name}" + (f"/{_path(key)}" if key else "")
        return f"https://{self.name}.s3.{self.region}.amazonaws.com/{_path(key)}"


def _path(key: str) -> str:
    return quote(key, safe="/-_.~")


def split_place(place: str) -> tuple[str, str]:
    """Bucket and prefix; the prefix is empty or ends with `/`."""
    bucket, _, prefix = place.partition("/")
    prefix = prefix.strip("/")
    return bucket, f"{prefix}/" if prefix else ""


def bucket_of(source: Source) -> Bucket:
    """The bucket of a source."""
    return Bucket(name=split_place(source.place)[0], endpoint=source.endpoint, region=source.region)


def signed(
    url: str,
    keys: Keys,
    region: str,
    now: datetime,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    valid: int = VALID,
) -> str:
    """The address with a signature in its query; unchanged without keys. `headers` must be sent as they are here."""
    if not keys.access:
        return url
    at = now.astimezone(UTC)
    stamp, day = f"{at:%Y%m%dT%H%M%SZ}", f"{at:%Y%m%d}"
    parts = urlsplit(url)
    scope = f"{day}/{region}/s3/aws4_request"
    signing = {"host": parts.netloc, **{name.lower(): value for name, value in (headers or {}).items()}}
    names = ";".join(sorted(signing))
    query = [
        *parse_qsl(parts.query, keep_blank_values=True),
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
        ("X-Amz-Credential", f"{keys.access}/{scope}"),
        ("X-Amz-Date", stamp),
        ("X-Amz-Expires", str(valid)),
        ("X-Amz-SignedHeaders", names),
        *([("X-Amz-Security-Token", keys.session)] if keys.session else []),
    ]
    canonical_query = "&".join(f"{_word(name)}={_word(value)}" for name, value in sorted(query))
    lines = "".join(f"{name}:{signing[name].strip()}\n" for name in sorted(signing))
    request = f"{method}\n{parts.path or '/'}\n{canonical_query}\n{lines}\n{names}\nUNSIGNED-PAYLOAD"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{keys.secret}".encode()
    for word in (day, region, "s3", "aws4_request"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return f"{parts.scheme}://{parts.netloc}{parts.path or '/'}?{canonical_query}&X-Amz-Signature={signature}"


def _word(text: str) -> str:
    return quote(text, safe="-_.~")


def list_url(bucket: Bucket, prefix: str, token: str = "") -> str:
    """One page of ListObjectsV2."""
    query = {"list-type": "2", "prefix": prefix, **({"continuation-token": token} if token else {})}
    base = bucket.url()
    return f"{base}?{urlencode(query, quote_via=quote)}"


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing: keys with size and entity tag, and where the next page begins."""

    objects: tuple[tuple[str, int, str], ...]
    next: str


def page_of(body: bytes) -> Page | None:
    """A page of ListObjectsV2; None when it is not one."""
    if b"\0" in body or b"<!DOCTYPE" in body or b"<!ENTITY" in body:  # UTF-16 would hide a declaration
        return None
    try:
        root = ET.fromstring(body)  # noqa: S314  without declarations there are no entities to expand
    except (ET.ParseError, ValueError, LookupError):  # an encoding that nobody knows among them
        return None
    if root.tag.rpartition("}")[2] != "ListBucketResult":
        return None
    space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
    objects = []
    for item in root.iter(f"{space}Contents"):
        size = item.findtext(f"{space}Size", "")
        if not (size.isascii() and size.isdigit() and len(size) < 19):
            return None
        objects.append(
            (item.findtext(f"{space}Key", ""), int(size), item.findtext(f"{space}ETag", "").strip('"'))
        )
    return Page(tuple(objects), root.findtext(f"{space}NextContinuationToken", ""))


def below(key: str, prefix: str) -> str:
    """The path of an object below the prefix; empty for what is no file there."""
    path = key.removeprefix(prefix)
    return "" if not key.startswith(prefix) or path.endswith("/") or not is_plain(path) else path


def check_of(headers: Mapping[str, str]) -> str:
    """The checksum of a whole object by the answer to HEAD, empty when it tells none.

    A checksum over the parts of an upload (`...-3`) is not one of the file.
    """
    told = headers.get("x-amz-checksum-sha256", "")
    if told and "-" not in told:
        try:
            return f"sha256:{base64.b64decode(told, validate=True).hex()}"
        except binascii.Error:
            return ""
    own = headers.get("x-amz-meta-sha256", "").lower()
    return f"sha256:{own}" if _HEX_SHA256.fullmatch(own) else ""


def sums_of(text: str) -> dict[str, str]:
    """Checksums by path, from a file as `sha256sum` writes it."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        digest, _, path = line.partition(" ")
        if _HEX_SHA256.fullmatch(digest.lower()) and path:
            found[path[1:].removeprefix("./")] = f"sha256:{digest.lower()}"
    return found


def revision_of(files: tuple[WeightFile, ...], tags: Mapping[str, str]) -> str:
    """A digest of everything the listing told: other objects are another revision."""
    lines = "".join(
        f"{one.path}\t{one.size}\t{one.check}\t{tags.get(one.path, '')}\n"
        for one in sorted(files, key=lambda one: one.path)
    )
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def reference(source: Source, key: str) -> str:
    """How a signed address is made, for a journal: references to the keys, never the keys."""
    words = {
        "bucket": bucket_of(source).name,
        "key": key,
        "endpoint": source.endpoint,
        "region": source.region,
        "access": source.access_key.reference if source.access_key else "",
        "secret": source.secret_key.reference if source.secret_key else "",
        "session": source.session_token.reference if source.session_token else "",
    }
    return f"${{s3:{urlencode({name: value for name, value in words.items() if value}, quote_via=quote)}}}"


def parts_of(text: str) -> dict[str, str] | None:
    """The words of `reference`; None when it is something else."""
    found = REFERENCE.fullmatch(text)
    return dict(parse_qsl(found[1])) if found else None


def refusal(source: Source, status: int, body: bytes) -> PreflightFailed:
    """What a status that is no success means, and the fix."""
    code = re.search(rb"<Code>([A-Za-z]+)</Code>", body)
    said = code[1].decode() if code else ""
    where, tail = source.shown, f" ({status}{f' {said}' if said else ''})"
    if status == 404:
        what = "there is no such bucket" if said == "NoSuchBucket" else "there is nothing at this prefix"
        return SourceMissing(f"{what}{tail}", where=where, hints=("check bucket, prefix and `endpoint`",))
    if status == 401 or said in {
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "InvalidToken",
    }:
        return SourceRefused(
            f"the service does not accept the keys{tail}",
            where=where,
            hints=("check `access_key`, `secret_key`, `region` and this machine's clock",),
        )
    if status == 403 and source.access_key is None:
        return SourceRefused(
            f"the bucket is not public and no keys were given{tail}",
            where=where,
            hints=(
                "give `access_key: ${env:AWS_ACCESS_KEY_ID}` and `secret_key: ${env:AWS_SECRET_ACCESS_KEY}`",
            ),
        )
    if status == 403:
        return SourceGated(
            f"the keys may not read here{tail}",
            where=where,
            hints=("the policy must allow s3:ListBucket on the bucket and s3:GetObject on its objects",),
        )
    return SourceUnreachable(
        f"the service answers{tail}", where=where, hints=("check `endpoint`, or try again",)
    )
