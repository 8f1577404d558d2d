"""The container that gives staged weights to other hosts, as its Python program behaves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from gpufleet.lab.containers.model import Container
from gpufleet.lab.simfs import File
from gpufleet.lab.simhost import Answer, SimHost

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


def serves_files(container: Container) -> bool:
    """Whether it is one: Python with a program that serves the directory it was given."""
    wish = container.wish
    return (
        wish.entrypoint == ("python3",)
        and wish.arguments[:1] == ("-c",)
        and "GPUFLEET_GIVE" in " ".join(wish.env)
    )


def serve_file(
    host: SimHost, container: Container, method: str, path: str, headers: Mapping[str, str]
) -> Answer:
    """GET and HEAD of what lies below the mounted directory, behind a first part that nobody can guess."""
    env = dict(entry.partition("=")[::2] for entry in container.wish.env)
    mounts = {target: source for source, target, *_ in (bind.split(":") for bind in container.wish.binds)}
    word, _, wanted = unquote(urlsplit(path).path)[1:].partition("/")
    parts = wanted.split("/")
    node = None
    if word == env["GPUFLEET_GIVE"] and not {"", ".", ".."} & set(parts):
        node = host.fs.seek(f"{mounts['/store']}/{wanted}")
    if not isinstance(node, File) or method not in {"GET", "HEAD"}:
        return 404, {}, ()
    content = node.read()
    asked = _RANGE.fullmatch({name.lower(): value for name, value in headers.items()}.get("range", ""))
    if asked is None:
        return 200, {"content-length": str(len(content))}, () if method == "HEAD" else (content,)
    start = int(asked[1])
    if start >= len(content):
        return 416, {}, ()
    return 206, {}, () if method == "HEAD" else (content[start:],)
