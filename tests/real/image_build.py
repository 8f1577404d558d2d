"""The engine's image, made from files of the base tree with the standard library alone, and pushed to a registry.

No image is downloaded and no engine builds it: a layer is a tar archive, an image is two JSON documents that name
layers by hash. Times and order are fixed, so the same inputs give the same digest.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.client
import io
import json
import os
import random
import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.real.machine import Failed, run

ENGINE = Path(__file__).parent / "image" / "engine.py"
REPOSITORY = "vllm/vllm-openai"
APPLETS = (
    "sh",
    "ls",
    "cat",
    "ps",
    "sleep",
    "kill",
    "wget",
    "env",
    "id",
    "true",
    "false",
    "echo",
    "hostname",
    "mkdir",
    "rm",
    "httpd",
)
LEFT_OUT = (
    "test",
    "idlelib",
    "tkinter",
    "ensurepip",
    "pydoc_data",
    "__pycache__",
    "config-",
    "turtledemo",
    "lib2to3",
    "distutils",
)

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
LAYER_TYPE = "application/vnd.docker.image.rootfs.diff.tar.gzip"


@dataclass(frozen=True, slots=True)
class Image:
    """A finished image: its documents and its packed layers."""

    tag: str
    manifest: bytes
    config: bytes
    layers: tuple[bytes, ...]

    @property
    def digest(self) -> str:
        """What `name@sha256:...` pulls."""
        return _digest(self.manifest)


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


class LayerWriter:
    """Adds files to one layer, with owner root and a fixed time."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._folders: set[str] = set()

    def folder(self, path: str, mode: int = 0o755) -> None:
        """A directory and all above it."""
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            name = "/".join(parts[:depth])
            if name in self._folders:
                continue
            self._folders.add(name)
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode if name == path else 0o755
            self._archive.addfile(entry)

    def link(self, path: str, target: str) -> None:
        """A symbolic link."""
        if "/" in path:
            self.folder(path.rsplit("/", 1)[0])
        entry = tarfile.TarInfo(path)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self._archive.addfile(entry)

    def file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """A regular file."""
        self.folder(path.rsplit("/", 1)[0])
        entry = tarfile.TarInfo(path)
        entry.size, entry.mode = len(content), mode
        self._archive.addfile(entry, io.BytesIO(content))


def layer(fill: Callable[[LayerWriter], None]) -> bytes:
    """One unpacked layer."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        fill(LayerWriter(archive))
    return buffer.getvalue()


def _python_layer(base: Path, writer: LayerWriter) -> None:
    """Python, the part of its library that is plain code, and every shared object they need."""
    program = os.path.realpath(base / "usr/bin/python3")
    version = re.search(r"python(3\.\d+)$", program)
    if version is None:
        raise Failed(f"cannot tell the version of {program}")
    library = base / f"usr/lib/python{version[1]}"
    files: dict[str, Path] = {f"usr/bin/python{version[1]}": Path(program)}
    binaries = ["/usr/bin/python3"]
    for folder, folders, names in os.walk(library):
        folders[:] = sorted(name for name in folders if not name.startswith(LEFT_OUT))
        for name in sorted(names):
            path = Path(folder) / name
            if name.endswith(".pyc") or not path.exists():
                continue
            files[str(path.relative_to(base))] = path
            if name.endswith(".so"):
                binaries.append(f"/{path.relative_to(base)}")
    for needed in _shared_objects(base, binaries):
        files[f"usr/lib/needed/{Path(needed).name}"] = Path(os.path.realpath(base / needed.lstrip("/")))
    for place, content in sorted(_compiled(base).items()):
        writer.file(place, content)
    for name in ("tmp", "etc", "root", "proc", "sys", "dev", "run", "usr/lib64"):
        writer.folder(name, 0o1777 if name == "tmp" else 0o755)
    for place, source in sorted(files.items()):
        writer.file(place, source.read_bytes(), 0o755 if os.access(source, os.X_OK) else 0o644)
    for name in ("bin", "lib", "lib64"):
        writer.link(name, f"usr/{name}")
    for place in files:
        name = Path(place).name
        if name.startswith("ld-linux"):
            writer.link(f"usr/lib64/{name}", f"/{place}")
            writer.link(f"usr/lib/{name}", f"/{place}")
    writer.link("usr/bin/python3", f"python{version[1]}")
    writer.file("usr/bin/busybox", (base / "usr/bin/busybox").read_bytes(), 0o755)
    for name in APPLETS:
        writer.link(f"usr/bin/{name}", "busybox")
    writer.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
    writer.file("etc/group", b"root:x:0:\n")


COMPILE = """
import ast, base64, importlib._bootstrap_external as external, json, pathlib, sys
for node in ast.walk(ast.parse(sys.stdin.read())):
    for name in [item.name for item in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None)] if isinstance(node, ast.ImportFrom) else []:
        __import__(name)
import encodings.idna, encodings.latin_1, urllib.request
made = {}
for module in list(sys.modules.values()):
    source = pathlib.Path(getattr(module, "__file__", None) or "none")
    if source.suffix == ".py":
        content = source.read_bytes()
        code = compile(content, str(source), "exec", dont_inherit=True)
        packed = external._code_to_hash_pyc(code, b"unused!!", False)
        made[external.cache_from_source(str(source))] = base64.b64encode(packed).decode()
print(json.dumps(made))
"""
"""Compile every module that the engine imports, into files that are believed without a look at their sources: files
of an image have no times to compare, and compiling at each start would cost most of the engine's start-up."""


def _compiled(base: Path) -> dict[str, bytes]:
    """Compiled modules by their place in the image."""
    made = json.loads(
        run("chroot", base, "python3", "-S", "-E", "-c", COMPILE, stdin=ENGINE.read_text()).stdout
    )
    return {path.lstrip("/"): base64.b64decode(content) for path, content in made.items()}


def _shared_objects(base: Path, binaries: list[str]) -> list[str]:
    """Paths, inside the tree, of all that the dynamic linker would load for these binaries."""
    listed = run("chroot", base, "ldd", *binaries, check=False).stdout
    return sorted(set(re.findall(r"(/\S+\.so\S*)(?= \()", listed)))


def build(base: Path) -> dict[str, Image]:
    """All images of the suite by tag: the engine, a later one, and one with a large layer for slow pulls."""
    python = layer(lambda writer: _python_layer(base, writer))
    engine = layer(lambda writer: writer.file("usr/local/bin/vllm", ENGINE.read_bytes(), 0o755))
    padding = layer(lambda writer: writer.file("opt/padding", random.Random(7).randbytes(48 << 20)))
    packed = {content: gzip.compress(content, 1, mtime=0) for content in (python, engine, padding)}
    contents = {
        "v0.11.2": (python, engine),
        "v0.12.0": (python, engine),
        "v0.12.0-large": (python, padding, engine),
    }
    return {tag: _image(tag, [(part, packed[part]) for part in parts]) for tag, parts in contents.items()}


def _image(tag: str, layers: list[tuple[bytes, bytes]]) -> Image:
    made = "2026-01-01T00:00:00Z"
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": made,
        "config": {
            "Env": [
                "PATH=/usr/local/bin:/usr/bin:/bin",
                "LD_LIBRARY_PATH=/usr/lib/needed",
                "PYTHONDONTWRITEBYTECODE=1",
                f"ENGINE_VERSION={tag.removeprefix('v')}",
            ],
            "Entrypoint": ["vllm", "serve"],
            "ExposedPorts": {"8000/tcp": {}},
            "Labels": {"org.opencontainers.image.version": tag},
        },
        "rootfs": {"type": "layers", "diff_ids": [_digest(content) for content, _ in layers]},
        "history": [{"created": made, "created_by": "tests/real"} for _ in layers],
    }
    config_text = json.dumps(config, sort_keys=True).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {"mediaType": CONFIG_TYPE, "size": len(config_text), "digest": _digest(config_text)},
        "layers": [
            {"mediaType": LAYER_TYPE, "size": len(packed), "digest": _digest(packed)} for _, packed in layers
        ],
    }
    return Image(
        tag, json.dumps(manifest, sort_keys=True).encode(), config_text, tuple(packed for _, packed in layers)
    )


def push(image: Image, registry: str) -> str:
    """Upload to `host:port`; returns the reference by digest."""
    connection = http.client.HTTPConnection(registry, timeout=60)

    def ask(
        method: str, path: str, body: bytes = b"", kind: str = "application/octet-stream"
    ) -> http.client.HTTPResponse:
        connection.request(method, path, body, {"Content-Type": kind})
        response = connection.getresponse()
        response.read()
        return response

    for blob in (image.config, *image.layers):
        if ask("HEAD", f"/v2/{REPOSITORY}/blobs/{_digest(blob)}").status == 200:
            continue
        begun = ask("POST", f"/v2/{REPOSITORY}/blobs/uploads/")
        place = re.sub(r"^https?://[^/]+", "", begun.headers["Location"])
        joint = "&" if "?" in place else "?"
        if (done := ask("PUT", f"{place}{joint}digest={_digest(blob)}", blob)).status != 201:
            raise Failed(f"the registry refused a layer of {image.tag}: {done.status}")
    done = ask("PUT", f"/v2/{REPOSITORY}/manifests/{image.tag}", image.manifest, MANIFEST_TYPE)
    if done.status != 201 or done.headers["Docker-Content-Digest"] != image.digest:
        raise Failed(f"the registry did not take the manifest of {image.tag}: {done.status}")
    connection.close()
    return f"{registry}/{REPOSITORY}@{image.digest}"
