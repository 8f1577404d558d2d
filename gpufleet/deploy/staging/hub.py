"""The hub's HTTP interface: which addresses are asked, and what their answers mean.

Source: huggingface_hub 0.36 (hf_api.py, file_download.py, utils/_http.py): `/api/models/ID/revision/REV`,
`/api/models/ID/tree/REV?recursive=true` with pages by `Link: <...>; rel="next"`, `/ID/resolve/REV/PATH`; the header
`X-Error-Code` tells GatedRepo, RepoNotFound and RevisionNotFound apart. The public hub answers 401 for a repository
that is private or not there when no token was sent.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import msgspec

from gpufleet.deploy.staging.model import Fetch, Listing, Source, WeightFile
from gpufleet.errors import ExitCode, PreflightFailed
from gpufleet.redact import Secret

PUBLIC = "https://huggingface.co"
OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.onnx", "*.ot", "*.tflite", "*.gguf")
"""Left out beside safetensors: the same weights once more."""

_NEXT = re.compile(r'<([^>]+)>;\s*rel="next"')
_HEX = re.compile(r"[0-9a-f]+")


class SourceRefused(PreflightFailed):
    """The source of weights wants to know who asks, and did not accept what it was told (401)."""

    code = "weights-unauthorized"
    exit = ExitCode.PREFLIGHT


class SourceGated(PreflightFailed):
    """The source of weights knows who asks and does not let them in (403)."""

    code = "weights-forbidden"
    exit = ExitCode.PREFLIGHT


class SourceMissing(PreflightFailed):
    """The source has no such model, revision, bucket or file (404)."""

    code = "weights-missing"
    exit = ExitCode.PREFLIGHT


class SourceUnreachable(PreflightFailed):
    """The source of weights did not answer, or answered what nobody understands."""

    code = "weights-unreachable"
    exit = ExitCode.PREFLIGHT


class _Lfs(msgspec.Struct):
    oid: str
    size: int


class _Entry(msgspec.Struct):
    type: str
    path: str
    size: int = 0
    oid: str = ""
    lfs: _Lfs | None = None


class _Revision(msgspec.Struct):
    sha: str


_entries = msgspec.json.Decoder(list[_Entry])
_revision = msgspec.json.Decoder(_Revision)


def base_of(source: Source) -> str:
    """The hub's address without a final slash."""
    return (source.endpoint or PUBLIC).rstrip("/")


def revision_url(source: Source) -> str:
    """Tells the commit of a branch or tag."""
    return f"{base_of(source)}/api/models/{quote(source.model)}/revision/{quote(source.revision or 'main', safe='')}"


def tree_url(source: Source, commit: str) -> str:
    """Tells the files of a commit, a page at a time."""
    return f"{base_of(source)}/api/models/{quote(source.model)}/tree/{quote(commit, safe='')}?recursive=true"


def resolve_url(source: Source, commit: str, path: str) -> str:
    """Gives one file, mostly by a redirect to another host."""
    return f"{base_of(source)}/{quote(source.model)}/resolve/{quote(commit, safe='')}/{quote(path)}"


def header_of(token: Secret[str] | None) -> Secret[str] | None:
    """The header that carries a token; a reference around which text stands is journalled as it is."""
    if token is None:
        return None
    return Secret(
        f"Authorization: Bearer {token.reveal()}", reference=f"Authorization: Bearer {token.reference}"
    )


def commit_of(body: bytes) -> str | None:
    """The commit in the answer to `revision_url`; None when it is not such an answer."""
    try:
        sha = _revision.decode(body).sha
    except (msgspec.DecodeError, RecursionError):
        return None
    return sha if _HEX.fullmatch(sha) else None


def files_of(body: bytes) -> tuple[WeightFile, ...] | None:
    """The files on one page of a tree; None when it is not one, or names a path that leaves the directory."""
    try:
        entries = _entries.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    found = [_file(entry) for entry in entries if entry.type == "file"]
    return tuple(found) if all(is_plain(one.path) for one in found) else None


def _file(entry: _Entry) -> WeightFile:
    if entry.lfs is not None:
        return WeightFile(
            path=entry.path, size=entry.lfs.size, check=f"sha256:{entry.lfs.oid.removeprefix('sha256:')}"
        )
    check = f"git:{entry.oid}" if len(entry.oid) == 40 and _HEX.fullmatch(entry.oid) else ""
    return WeightFile(path=entry.path, size=entry.size, check=check)


def is_plain(path: str) -> bool:
    """Whether a path stays below its directory and fits in one line."""
    parts = path.split("/")
    odd = any(part in {"", ".", ".."} for part in parts) or parts[0].startswith(
        (".gpufleet", ".incoming", ".former")
    )
    return not odd and not any(ord(letter) < 32 or ord(letter) == 127 or letter == "\\" for letter in path)


def next_page(headers: Mapping[str, str]) -> str:
    """The address of the next page, empty on the last."""
    found = _NEXT.search(headers.get("link", ""))
    return found[1] if found else ""


def chosen(files: Sequence[WeightFile], source: Source) -> tuple[WeightFile, ...]:
    """The files that are staged: as the patterns say, without the same weights in older formats."""
    safetensors = any(one.path.endswith(".safetensors") for one in files)
    skipped = (*source.exclude, *(OTHER_FORMATS if safetensors and not source.include else ()))
    return tuple(
        sorted(
            (
                one
                for one in files
                if (not source.include or _any(one.path, source.include))
                and not _any(one.path, skipped)
                and one.path != ".gitattributes"
            ),
            key=lambda one: one.path,
        )
    )


def _any(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def fetches(listing: Listing) -> tuple[Fetch, ...]:
    """How each file is fetched: by commit, so that a branch that moves meanwhile does not matter."""
    header = header_of(listing.source.token)
    return tuple(
        Fetch(
            file=one,
            url=resolve_url(listing.source, listing.revision, one.path),
            header=header,
            redirects=True,
        )
        for one in listing.files
    )


def refusal(source: Source, status: int, headers: Mapping[str, str], what: str = "") -> PreflightFailed:
    """What a status that is no success means, and the fix."""
    code = headers.get("x-error-code", "")
    model, base = source.model, base_of(source)
    page = f"{base}/{model}"
    known = source.token is not None
    if status == 404 or (code == "RepoNotFound" and known):
        missing = (
            f"no revision {source.revision or 'main'} of {model}"
            if code == "RevisionNotFound"
            else f"no model {model}"
        )
        return SourceMissing(
            f"the hub has {what or missing} (404)", where=base, hints=(f"check the name at {page}",)
        )
    if status == 401 and code == "GatedRepo":
        return SourceRefused(
            f"{model} is gated and the hub was told no token that it knows (401)",
            where=base,
            hints=(f"accept the conditions at {page}, then give `token: ${{env:HF_TOKEN}}`",),
        )
    if status == 401:
        told = "the hub does not accept the token" if known else f"{model} is private, gated or not there"
        return SourceRefused(
            f"{told} (401)",
            where=base,
            hints=(
                "the token expired or is mistyped: make a new one in the hub's settings"
                if known
                else f"check the name at {page}; a private or gated model needs `token: ${{env:HF_TOKEN}}`",
            ),
        )
    if status == 403:
        return SourceGated(
            f"the hub knows the token, and its owner may not read {model} (403)",
            where=base,
            hints=(
                f"ask for access at {page}; a fine-grained token also needs the right to read gated models",
            ),
        )
    return SourceUnreachable(
        f"the hub answers {status} for {model}", where=base, hints=("try again, or choose another source",)
    )
