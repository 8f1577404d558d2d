"""What is staged: files of one revision of one model, where they come from, and where a host keeps them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from gpufleet.redact import Secret

MANIFEST = ".gpufleet-manifest"
"""File in a whole directory: `SHA256  PATH` a line, as `sha256sum -c` reads it."""


SUMS = ("SHA256SUMS", "sha256sums.txt")
"""Files with checksums that people put beside weights."""


class Kind(Enum):
    """Where weights come from."""

    HUB = "hub"
    S3 = "s3"
    HERE = "here"
    """A directory on the operator's machine."""
    DIRECTORY = "directory"
    """A directory on the hosts, that others may write to as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the weights of one model come from.

    Attributes:
        kind: how they are listed and fetched.
        model: `org/name` of the hub, or what stands for it in names and messages.
        place: bucket and prefix (`models/qwen`), or the path of a directory, here or on the hosts.
        revision: branch, tag or commit of the hub; empty for the main branch.
        endpoint: address of the hub or of the S3 service, without a path; empty for the public one.
        token: of the hub, or None.
        access_key, secret_key, session_token: of the S3 service; None reads without signature.
        include, exclude: shell patterns of paths; no `include` takes all.
    """

    kind: Kind
    model: str
    place: str = ""
    revision: str = ""
    endpoint: str = ""
    region: str = "us-east-1"
    token: Secret[str] | None = None
    access_key: Secret[str] | None = None
    secret_key: Secret[str] | None = None
    session_token: Secret[str] | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """For people, without secrets."""
        match self.kind:
            case Kind.HUB:
                return f"hub {self.model}" + (f"@{self.revision}" if self.revision else "")
            case Kind.S3:
                return f"s3://{self.place}"
            case Kind.HERE:
                return f"file://{self.place}"
            case Kind.DIRECTORY:
                return f"host://{self.place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFile:
    """One file.

    Attributes:
        path: relative, with `/`, without `..`.
        size: bytes.
        check: `sha256:HEX`, `git:HEX` (a git blob's SHA-1), `mtime:SECONDS` of a file that others may write to, or
            empty when the source tells no checksum.
    """

    path: str
    size: int
    check: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All files of one revision, as the source told them.

    Attributes:
        revision: the commit, or a digest of the listing where the source has no commits.
    """

    source: Source
    revision: str
    files: tuple[WeightFile, ...]

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(one.size for one in self.files)

    @property
    def unchecked(self) -> int:
        """Files of which the source tells no checksum: only their size can be compared."""
        return sum(not one.check for one in self.files)

    @property
    def name(self) -> str:
        """Directory below the store: `org--model@revision`."""
        model = re.sub(r"[^A-Za-z0-9._-]+", "-", self.source.model.strip("/").replace("/", "--"))
        return f"{model.lstrip('.-') or 'model'}@{self.revision[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStore:
    """What one host said about its store.

    Attributes:
        path: absolute directory of this revision, whether it is there or not.
        state: `complete`, `partial`, `absent`, `foreign` (something else stands there).
        partial_kib: how much an earlier copy left; counts when it is resumed.
        free_kib: of the file system under the store; None when `df` did not tell.
        lacks: programs that staging needs and the host does not have.
        writable: whether the store can be created or written.
        writer: who is staging there now, empty when nobody is.
    """

    path: str
    state: str
    partial_kib: int = 0
    free_kib: int | None = None
    lacks: tuple[str, ...] = ()
    writable: bool = True
    writer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """How one file is fetched by a host.

    Attributes:
        url: `https://...`, `http://...` or an absolute path; a secret when it carries a signature; empty with `here`.
        header: sent to the address's own origin alone, never to where it redirects; None without one.
        redirects: whether the address may lead elsewhere.
        here: absolute path on this machine, which gives the file while the host's command runs.
    """

    file: WeightFile
    url: str | Secret[str]
    header: Secret[str] | None = None
    redirects: bool = False
    here: str = ""
